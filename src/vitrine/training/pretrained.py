"""Published or own pretrained weights as a starting point: read them, and resize them to the configured model.

``model.pretrained=NAME`` names weights in timm's hub, such as ``vit_base_patch16_224.augreg_in21k``; this needs the
extra ``pretrained``. ``model.pretrained=FILE`` is a state dict in a .safetensors, .pth, .pt or .bin file, or a
checkpoint of vitrine; ``model.pretrained=RUN`` is the best checkpoint of a run folder. Parameters have timm's names.

Patch filters and position embeddings are resized, colour filters are summed for grey images, and the head is new if the
classes are others: if their number differs or, where the weights are a run's, their names or targets. Everything else
must agree with the configuration; all differences are reported at once.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config import ViTConfig, vit_faults
from vitrine.config.keys import keys_where
from vitrine.config.model import INTERPOLATED, NEW_PARTS, POSITIONS, vit_config_from, weights_file
from vitrine.config.model_faults import NOT_PASSED
from vitrine.config.parts import is_dotted, names_of
from vitrine.config.schema import DataConfig
from vitrine.config.size import format_size
from vitrine.config.trust import TRUST_ALL
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.image_dataset import ImageDataset
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.models import VisionTransformer
from vitrine.models.resize import resize_weights
from vitrine.runs import RunRecord
from vitrine.runs.data_changes import changes as data_changes
from vitrine.text import as_override, listed, nfc, plural
from vitrine.training.new_parts import check_parts, fresh_parameters, grid_of, kept_weights, keys_of, lacks_prefix
from vitrine.training.stored_weights import other_names, read_weights
from vitrine.training.weights import check_weights, load_weights

ARCHITECTURE = keys_where(ViTConfig, of_weights=True)
PATCHES, TABLE = "patch_embed.proj.weight", "pos_embed"
WITH_WEIGHTS = ("learned", "learned2d", "relative", "rope_mixed", "conv")  # positions whose weights tell which it is
SPLIT_KEYS = ("val_fraction", "val_seed", "folds", "fold", "group")
CLOSE = 1e-3  # of the largest feature; rounding and norm_eps change less


@dataclass(frozen=True)
class Pretrained:
    """Initial weights, adapted to a model.

    Attributes:
        source: ``model.pretrained``.
        weights: by the model's parameter names; without a head if that is to be a new one.
        changes: the adaptations, for people.
        classes: each target that the head was trained on with the names of its classes, in the order of its outputs;
            "" is the target of data that has but one. ``None`` if unknown.
        statistics: ``mean`` and ``std`` of the channels with which their images were normalised; empty if unknown.
        record: the run that holds them; ``None`` if they are in no run folder.
        fresh: names of the other parameters of the model, the head's aside, which start anew.
    """

    source: str
    weights: dict[str, Tensor]
    changes: list[str]
    classes: list[tuple[str, list[str]]] | None = None
    statistics: dict[str, list[float]] = field(default_factory=dict)
    record: RunRecord | None = None
    fresh: Sequence[str] = ()

    @classmethod
    def prepare(cls, config: ViTConfig) -> "Pretrained | None":
        """Read and adapt the weights that ``config.pretrained`` names; ``None`` if it is unset.

        Raises:
            RunError: they can't be read or downloaded, or are of what no model of vitrine has.
            ConfigError: they belong to another architecture; the message has the settings that fit.
        """
        if config.pretrained is None:
            return None
        found = read_weights(config.pretrained)
        stored, weights = found.config, found.weights
        if stored is not None:
            try:
                was = vit_config_from(dict(stored), trust=TRUST_ALL)  # with defaults for fields that it does not name
            except TypeError as error:  # of a later version
                raise RunError(f"model.pretrained={config.pretrained}: {error}") from None
            facts = {name: getattr(was, name) for name in ARCHITECTURE}
        elif PATCHES in weights:
            facts = infer_architecture(weights)
        else:
            raise RunError(f"model.pretrained={config.pretrained} {other_names(weights, PATCHES)}")
        if hasattr(found.timm, "blocks") and hasattr(found.timm.blocks[0], "attn"):
            facts["heads"] = getattr(found.timm.blocks[0].attn, "num_heads", config.heads)
        if faults := _differences(facts, config) + _other_channels(weights, config, stored):
            raise ConfigError(faults)
        record = _record(config.pretrained)
        kept = kept_weights(weights, facts, config, of_vitrine=stored is not None)
        adapted, changes = _fit(kept, config, stored)
        if parts := config.pretrained_new:
            changes.append(f"new {listed(parts)}")
        changes += [] if found.crop_pct is None else [f"evaluated by timm with crop_pct={found.crop_pct}"]
        classes = None
        if record is not None:
            classes = _by_target(record.facts.get("targets") or {"": record.facts.get("classes")})
        device = "cpu" if names_of(config) else "meta"  # a user's code may compute with values
        with torch.device(device), torch.random.fork_rng(devices=[]):
            model = VisionTransformer(config)
        check_parts(config, facts, weights, model.state_dict())
        fresh = fresh_parameters(model, adapted, config.pretrained_new)
        start = cls(config.pretrained, adapted, changes, classes, found.statistics, record, fresh)
        check_weights(model, start.with_new_parts_of(model), start.source)
        if found.timm is not None:
            _check_against_timm(found.timm, weights, facts, config)
        return start

    def for_classes_of(self, dataset: ImageDataset) -> "Pretrained":
        """Return the weights for the classes of ``dataset``, without a head that was trained on as many others."""
        classes = _by_target(dataset.targets or {"": dataset.classes})
        if "head.weight" not in self.weights or self.classes is None or _are_equal(self.classes, classes):
            return self
        weights = {name: value for name, value in self.weights.items() if not name.startswith("head.")}
        change = f"new head for {sum(len(names) for _, names in classes)} classes: that of the weights is for others"
        return replace(self, weights=weights, changes=[*self.changes, change])

    def other_statistics(self, data: DataConfig) -> str:
        """Return how to normalise images as those of the weights were; empty if ``data`` does, or if it is unknown."""
        overrides = []
        for name, theirs in self.statistics.items():
            ours, channels = getattr(data, name), data.in_channels
            if channels == 1 and len(theirs) > 1:  # the filters of their channels are added up
                theirs = [round(sum(theirs) / len(theirs), 4)]
            if len(theirs) in (1, channels) and theirs * (channels // len(theirs)) != ours * (channels // len(ours)):
                overrides.append(f"data.{name}={theirs}".replace(" ", ""))
        what = f"model.pretrained={self.source}: the weights were trained with another normalisation; to use it"
        return f"{what}: {' '.join(overrides)}" if overrides else ""

    def leakage(self, data: ImageDataModule) -> str:
        """Return a warning where :func:`leakage` has one for the run that holds the weights."""
        return "" if self.record is None else leakage(f"model.pretrained={self.source}", self.record, data)

    def copy_to(self, model: nn.Module) -> None:
        """Copy the weights to ``model``, which keeps its own new parts, and its head if they have none.

        Raises:
            RunError: names or shapes differ.
        """
        load_weights(model, self.with_new_parts_of(model), self.source)

    def with_new_parts_of(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the weights, with the new parts of ``model``, and its head if they have none."""
        own = model.state_dict().items()
        return {name: value for name, value in own if name.startswith("head.") or name in self.fresh} | self.weights


def leakage(name: str, record: RunRecord, data: ImageDataModule) -> str:
    """Return a warning if validation images are drawn from images that another run may have been trained on.

    It is empty if they are those that the run was validated on, or if it is none on this data.

    Args:
        name: what names the run, for the warning.
        record: the run.
        data: the images, with a fingerprint.
    """
    config = data.config.data
    if data.train_val_split is None or not config.hold_out:
        return ""
    facts, stored = record.facts, record.config.get("data") or {}
    known, now = (given or {} for given in (facts.get("data_fingerprint"), data.dataset.fingerprint))
    root = Path(str(stored.get("root")))
    same_root = stored.get("name") == config.name and root.resolve() == Path(config.root).resolve()
    same_images = "train" in known and not data_changes(known, now, splits=("train",))
    held_out = record.holds_out
    same_split = held_out and facts.get("validation") == data.validation_hash
    if same_split or not (same_root or same_images):
        return ""
    hint = "give the data a validation split of its own"
    drawn = {key: stored[key] for key in SPLIT_KEYS if key in stored and stored[key] != getattr(config, key)}
    if same_images and held_out and drawn:
        overrides = " ".join(f"data.{key}={as_override(value)}" for key, value in drawn.items())
        hint = f"{overrides} validates on images that it was not trained on"
    problem = "was trained on this data: validation images may be among its training images, and val/acc too high"
    return f"warning: {name} {problem}; {hint}"


def _record(source: str) -> RunRecord | None:
    """Return the run that holds the weights; ``None`` if they are in no run folder."""
    path = weights_file(source)
    run = path.parent.parent
    return RunRecord.open(run) if path.suffix == ".ckpt" and (run / "run.json").is_file() else None


def _are_equal(classes: list[tuple[str, list[str]]], others: list[tuple[str, list[str]]]) -> bool:
    """Whether the classes are equal, and the names of targets, where both sides name them."""
    return [names for _, names in classes] == [names for _, names in others] and all(
        target == other or not (target and other) for (target, _), (other, _) in zip(classes, others, strict=True)
    )


def _by_target(classes: Mapping[str, list[str] | None]) -> list[tuple[str, list[str]]]:
    """Return targets and classes in an order and a form of Unicode in which they can be compared."""
    return [(nfc(target), list(map(nfc, names or ()))) for target, names in classes.items()]


def _differences(facts: Mapping[str, Any], config: ViTConfig) -> list[Fault]:
    """Return a fault for each field of ``config`` that differs from the model of the weights, given by ``facts``."""
    found, new = [], keys_of(config.pretrained_new)
    if is_dotted(config.attention):  # which is compared by the names and shapes of its weights alone
        new |= set(NOT_PASSED["attention"])
    for key, theirs in ((key, theirs) for key, theirs in facts.items() if key not in new):
        ours, several = getattr(config, key), isinstance(theirs, tuple)
        if isinstance(ours, float) and isinstance(theirs, float) and key != "layer_scale":
            agree = math.isclose(ours, theirs, rel_tol=1e-6)
        elif key == "layer_scale":  # the weights have its value; only its presence matters
            agree = (ours is None) == (theirs is None)
        else:
            agree = ours in theirs if several else ours == theirs
        if not agree:
            values = [as_override(value) for value in (theirs if several else (theirs,))]
            near = "" if several else f"model.{key}={values[0]}"
            problem = f"the weights have {' or '.join(values)}"
            problem += f", and with model.pretrained_new=[{key}] it starts anew" if key in NEW_PARTS else ""
            found.append(Fault(f"model.{key}", as_override(ours), problem, near))
    return found


def _check_against_timm(timm: Any, weights: dict[str, Tensor], facts: Mapping[str, Any], config: ViTConfig) -> None:
    """Raise ConfigError unless the first block, with new parts as timm has them, computes the same as timm's."""
    size, patches = timm.patch_embed.img_size, weights[PATCHES]
    own = replace(config, image_size=list(size), patch_size=list(patches.shape[-2:]), patch_stride=None)
    own = replace(own, in_channels=patches.shape[1], depth=1, pretrained_new=[])
    plain = ViTConfig(own.image_size, own.patch_size, own.in_channels, own.num_classes)
    others = keys_of(config.pretrained_new)
    if is_dotted(config.attention):  # which takes the weights, to compute something else with them
        others |= {"attention", "attention_options", *NOT_PASSED["attention"]}
    for key in others:
        theirs = facts.get(key, getattr(plain, key))
        own = replace(own, **{key: theirs[0] if isinstance(theirs, tuple) else theirs})
    first = {name: value for name, value in weights.items() if not re.match(r"blocks\.[1-9]", name)}
    images = torch.randn(1, own.in_channels, *size, generator=torch.Generator().manual_seed(0))
    timm.blocks = timm.blocks[:1]
    with torch.no_grad():
        theirs = timm.forward_features(images)

    def agrees(config: ViTConfig) -> bool:
        if vit_faults(config):
            return False
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            model = VisionTransformer(config).eval()
            Pretrained(f"model.pretrained={config.pretrained}", *_fit(first, config, None)).copy_to(model)
            ours = model.forward_features(images)
        return bool((ours - theirs).abs().max() <= CLOSE * theirs.abs().max())

    if agrees(own):
        return
    problem = "timm's model of these weights computes something else"
    for key in ("position", "mlp"):
        for value in facts[key] if isinstance(facts[key], tuple) else ():
            if agrees(replace(own, **{key: value})):
                if key in config.pretrained_new:
                    return
                raise ConfigError([Fault(f"model.{key}", getattr(config, key), problem, f"model.{key}={value}")])
    kinds = "than any Vision Transformer of vitrine: positions, activations or norms are of another kind"
    raise ConfigError([Fault("model.pretrained", str(config.pretrained), f"{problem} {kinds}")])


def _other_channels(weights: Mapping[str, Tensor], config: ViTConfig, stored: Mapping[str, Any] | None) -> list[Fault]:
    """A fault if the weights are for images of other channels. Filters of colours can be summed for grey ones."""
    patches, ours = None if is_dotted(config.patch_embed) else weights.get(PATCHES), config.in_channels
    filters = patches if patches is not None and patches.ndim == 4 else None
    theirs = ours if filters is None else filters.shape[1]
    if stored is not None:
        theirs = stored["in_channels"]
    if theirs == ours or (filters is not None and ours == 1):
        return []
    problem = f"the weights are for images of {plural(theirs, 'channel')}"
    return [Fault("data.in_channels", str(ours), problem, f"data.in_channels={theirs}")]


def infer_architecture(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Infer fields of a ``ViTConfig`` from the names and shapes of weights.

    A tuple holds alternatives that the weights don't distinguish.
    """
    dim = weights[PATCHES].shape[0]
    depth = 1 + max((int(name.split(".")[1]) for name in weights if name.startswith("blocks.")), default=-1)
    first = {name.removeprefix("blocks.0."): value for name, value in weights.items() if name.startswith("blocks.0.")}
    facts = {
        "patch_embed": ("conv", "linear"),
        "dim": dim,
        "depth": depth,
        "class_token": "cls_token" in weights,
        "registers": weights["reg_token"].shape[1] if "reg_token" in weights else 0,
        "embed_norm": "norm_pre.weight" in weights,
        "final_norm": "norm.weight" in weights,
        "qkv_bias": "attn.qkv.bias" in first,
        "qk_norm": "attn.q_norm.weight" in first,
        "out_projection": "attn.proj.weight" in first,
        "layer_scale": 1e-5 if "ls1.gamma" in first else None,
        "norm": _norm(first),
        "pool": "map" if "attn_pool.latent" in weights else ("cls", "mean") if "cls_token" in weights else "mean",
        "position": _position(weights, first),
    }
    if "mlp.fc1.weight" in first:
        (inner, _), hidden = first["mlp.fc1.weight"].shape, first["mlp.fc2.weight"].shape[1]
        facts["mlp_ratio"] = hidden / dim
        facts["mlp"] = "swiglu" if inner == 2 * hidden else ("gelu", "gelu_tanh", "relu")
    return facts


def _norm(first: Mapping[str, Tensor]) -> str:
    if "norm1.running_mean" in first:
        return "batchnorm"
    return "layernorm" if "norm1.bias" in first else "rmsnorm"


def _position(weights: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> str | tuple[str, ...]:
    if TABLE in weights:
        return "learned" if len(weights[TABLE]) == 1 else "learned2d"
    if "attn.relation.table" in first:
        return "relative"
    if "attn.relation.frequencies" in first:
        return "rope_mixed"
    if "pos_conv.proj.weight" in weights:
        return "conv"
    return tuple(name for name in POSITIONS if name not in WITH_WEIGHTS)


def _fit(
    weights: dict[str, Tensor], config: ViTConfig, stored: Mapping[str, Any] | None
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights adapted to ``config``, without a head of other classes, and the adaptations made."""
    weights, changes = dict(weights), []
    if "position" in config.pretrained_new:
        config = replace(config, position="none")  # the weights have none that would have to be resized
    patches = None if is_dotted(config.patch_embed) else weights.get(PATCHES)
    if patches is not None:
        weights.setdefault("patch_embed.proj.bias", torch.zeros(config.dim))  # timm has no bias before a norm
        if patches.ndim == 4 and config.in_channels == 1 and patches.shape[1] > 1:
            changes.append(f"filters of {patches.shape[1]} colours summed for grey images")
            patches = patches.sum(dim=1, keepdim=True)
        weights[PATCHES] = patches.flatten(1) if config.patch_embed == "linear" else patches
    if config.position == "learned" and stored is None:
        count = weights[TABLE].shape[1]
        if lacks_prefix(count, config.prefix, config):
            # Published without embeddings for the prefix tokens.
            weights[TABLE] = F.pad(weights[TABLE], (0, 0, config.prefix, 0))
    old = _sizes(weights, config, patches, stored)
    if old.patch_size != config.patch_size:
        changes.append(f"patches resized from {format_size(old.patch_size)} to {format_size(config.patch_size)}")
    if old.grid != config.grid and config.position in INTERPOLATED:
        changes.append(f"positions resized from {format_size(old.grid)} to {format_size(config.grid)}")
    weights = resize_weights(weights, old, config)
    if "head.weight" not in weights or len(weights["head.weight"]) != config.num_classes:
        changes.append(f"new head for {config.num_classes} classes")
        weights.pop("head.weight", None)
        weights.pop("head.bias", None)
    return weights, changes


def _sizes(
    weights: Mapping[str, Tensor], config: ViTConfig, patches: Tensor | None, stored: Mapping[str, Any] | None
) -> ViTConfig:
    """Return ``config`` with the image and patch size of the weights: as stored, or inferred from their shapes."""
    if stored is not None:
        return replace(config, **{key: stored[key] for key in ("image_size", "patch_size", "patch_stride")})
    patch = config.patch_hw if patches is None or patches.ndim != 4 else tuple(patches.shape[-2:])
    grid = config.grid
    if config.position == "learned":
        count = weights[TABLE].shape[1] - config.prefix
        if (known := grid_of(count, config)) is None:
            problem = f"the positions of {plural(count, 'patch', 'patches')} fit neither a square grid nor the model's"
            raise RunError(f"{problem}, {format_size(config.grid)}, and the weights do not say how many rows they have")
        grid = known
    elif config.position == "learned2d":
        grid = _grid_of_rows_and_columns(weights[TABLE], config)
    image = [side * pixels for side, pixels in zip(grid, patch, strict=True)]
    return replace(config, image_size=image, patch_size=list(patch), patch_stride=None)


def _grid_of_rows_and_columns(table: Tensor, config: ViTConfig) -> tuple[int, int]:
    """Return rows and columns of a table of ``position=learned2d``, (2, rows, D) or (rows + columns, D)."""
    if table.ndim == 3:
        return table.shape[1], table.shape[1]
    rows, columns = config.grid
    if rows == columns or len(table) != rows + columns:
        problem = f"the positions of {len(table)} rows and columns are not those of the model's grid, {rows}x{columns}"
        raise RunError(f"{problem}, and the weights do not say how many are rows")
    return rows, columns
