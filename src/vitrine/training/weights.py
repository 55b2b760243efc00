"""Reading checkpoints safely, and the weights in them. Imports no Lightning, which takes seconds."""

import errno
import pickle
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from vitrine.config import TrainConfig, ViTConfig, vit_config_from
from vitrine.config.parts import names_of
from vitrine.config.trust import TRUST_ALL
from vitrine.errors import ConfigError, RunError, first_line
from vitrine.models import build_model
from vitrine.runs import RunRecord
from vitrine.runs.user_code import refuse_edited_model
from vitrine.text import listed
from vitrine.untrusted import check_nesting, refuse_inflating, refuse_pipe

UNREACHABLE = (errno.EACCES, errno.EPERM, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE)  # the file itself may be whole
MAX_TABLES = 2**32  # bytes of tables that a model computes; ViT-L with position=relative at 1024 pixels has 3.2e9


class DamagedCheckpoint(RunError):
    """A file that is there and can be read, but is not a whole checkpoint."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of tensors and plain values. Pickled objects are refused, and never executed.

    Raises:
        DamagedCheckpoint: the file is damaged, or not a checkpoint of vitrine.
        RunError: there is no checkpoint at ``path``, it cannot be opened, or it contains pickled objects.
    """
    try:
        refuse_pipe(path)
        with zipfile.ZipFile(path) as archive:
            refuse_inflating(archive)
            damaged = archive.testzip()  # torch.load does not compare checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} has a wrong checksum")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint {path}: the run stopped before its first epoch was saved") from None
    except pickle.UnpicklingError:
        raise RunError(f"{path} contains pickled objects, which could run any code; refused") from None
    except Exception as error:  # reading a damaged file can fail in any way
        if isinstance(error, OSError) and error.errno in UNREACHABLE:
            raise RunError(f"cannot read {path}: {error.strerror}") from None
        raise DamagedCheckpoint(f"{path} is damaged, or not a checkpoint: {first_line(error)}") from None
    if not isinstance(checkpoint, dict) or not {"state_dict", "config"} <= set(checkpoint):
        raise DamagedCheckpoint(f"{path} is not a checkpoint of vitrine: it has no state_dict and config")
    weights, config = checkpoint["state_dict"], checkpoint["config"]
    if not isinstance(weights, Mapping) or not all(map(_is_weight, weights.items())):
        raise DamagedCheckpoint(f"{path} is not a checkpoint of vitrine: its state_dict does not hold weights by name")
    if not isinstance(config, Mapping) or not isinstance(config.get("model"), Mapping):
        raise DamagedCheckpoint(f"{path} is not a checkpoint of vitrine: its config has no model")
    try:
        check_nesting(config)  # a list of pickle may hold one list many times
    except ValueError as error:
        raise DamagedCheckpoint(f"{path} is not a checkpoint of vitrine: of its config, {error}") from None
    return checkpoint


def model_weights(checkpoint: Mapping[str, Any], prefix: str = "model.") -> dict[str, torch.Tensor]:
    """Return the model's weights in a checkpoint, under the model's parameter names; or those of another ``prefix``."""
    weights = checkpoint["state_dict"]
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def trained_model(
    record: RunRecord,
    path: Path,
    config: TrainConfig,
    *,
    trust: Collection[str] = (),
    allow_changed_code: bool = False,
) -> torch.nn.Module:
    """Return the model of one of a run's checkpoints, on the CPU, in evaluation mode.

    Args:
        record: the run.
        path: the checkpoint.
        config: what its config.yaml says.
        trust: prefixes of the dotted names that may be imported.
        allow_changed_code: build the model even if the code of its parts was edited since training.

    Raises:
        RunError: the checkpoint is missing, damaged or refused, names code outside ``trust`` or code that was edited,
            or takes images of another shape or has other outputs than ``config``.
    """
    checkpoint = read_checkpoint(path)
    weights = model_weights(checkpoint)
    try:
        built = vit_config_from(checkpoint["config"]["model"], trust=trust, source=record.path)
        if not allow_changed_code:
            refuse_edited_model(record, built)
        check_size(built, weights, str(path))
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and replaced
            model = build_model(built)
    except (KeyError, TypeError, ConfigError) as error:
        problem = f"{path} contains a model that this version of vitrine does not know"
        raise RunError(f"{problem}: {error}") from None
    sizes = {
        "image_size": (built.image_hw, config.data.image_hw),
        "in_channels": (built.in_channels, config.data.in_channels),
        "num_classes": (built.num_classes, config.model.num_classes),
    }
    if other := [f"{name}={own}, not {stated}" for name, (own, stated) in sizes.items() if own != stated]:
        where = record.path / "config.yaml"
        raise RunError(f"{path} belongs to another model than {where}: {listed(other, separator='; ')}")
    load_weights(model, weights, str(path))
    return model.eval()


def check_size(config: ViTConfig, weights: Mapping[str, torch.Tensor], source: str) -> None:
    """Check, before a model is built, that ``weights`` are all of it: kilobytes can describe a model of gigabytes.

    A model with code of the user's is not checked, which may need more than shapes to be built.

    Raises:
        ConfigError: no model can be built from ``config``.
        RunError: names or shapes differ from the model's, weights share memory and so are larger than their file, or
            tables that no file holds, such as those of fixed positions, are larger than ``MAX_TABLES``.
    """
    if names_of(config):
        return
    with torch.device("meta"):
        model = build_model(config)
    check_weights(model, weights, source)
    if (tables := sum(table.nbytes for table in model.buffers())) > MAX_TABLES:
        most = f"more than {MAX_TABLES / 2**30:.0f} GiB"
        raise RunError(f"{source} describes a model with tables of {tables / 2**30:,.0f} GiB for its positions, {most}")
    stored = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in weights.values()}
    if sum(weight.nbytes for weight in weights.values()) > sum(stored.values()):
        raise RunError(f"{source} is not a checkpoint of vitrine: its weights share memory")


def load_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], source: str) -> None:
    """Copy ``weights`` into ``model``; raises as :func:`check_weights` does."""
    check_weights(model, weights, source)
    model.load_state_dict(weights)


def check_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], source: str) -> None:
    """Compare names and shapes of ``weights`` with the model's.

    Raises:
        RunError: names or shapes differ; the message names the first three.
    """
    own = model.state_dict()
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"{name} is not in the model" for name in weights if name not in own]
    problems += [
        f"{name} is {_shape(weights[name])}, the model's is {_shape(own[name])}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise RunError(f"{source} does not fit the model: {'; '.join(problems[:3])}{more}")


def differences(stored: Mapping[str, Any], config: ViTConfig) -> list[str]:
    """Return the fields of a stored ViTConfig that differ from ``config``, as ``dim=64, not 192``.

    A field that did not exist when it was stored has its default value.
    """
    was = vit_config_from(dict(stored), trust=TRUST_ALL)  # compared, not built
    return [
        f"{field.name}={getattr(was, field.name)}, not {getattr(config, field.name)}"
        for field in fields(config)
        if getattr(was, field.name) != getattr(config, field.name)
    ]


def _is_weight(entry: tuple[Any, Any]) -> bool:
    """Whether an entry is a name with a dense tensor in memory; one on the device ``meta`` has no values."""
    name, value = entry
    is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"
    return isinstance(name, str) and is_dense


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"
