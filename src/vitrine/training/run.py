"""A run about to be trained: its folder, configuration, data and deadline."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from vitrine.config import TrainConfig
from vitrine.config.parts import is_dotted
from vitrine.config.schema import DataConfig
from vitrine.config.serialize import to_plain
from vitrine.config.size import format_size
from vitrine.config.validate import unequal_shares
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.placement import Placement
from vitrine.distributed.hardware import Hardware
from vitrine.distributed.rendezvous import Ranks, recall, remember
from vitrine.durations import duration_seconds
from vitrine.errors import DataError, RunError
from vitrine.runs import RunRecord
from vitrine.runs.flatten import flatten
from vitrine.training.callbacks import PruningRule
from vitrine.training.pretrained import Pretrained

PATIENCE = 10.0  # seconds that image files are decoded for before training; the rest is decoded in the first epoch


@dataclass(frozen=True)
class Result:
    """The result of a run, the same on every rank.

    Attributes:
        metrics: ``val/acc``, ``val/loss`` and what else was measured in the selected epoch; ``test/acc``, ``test/loss``
            and further metrics if the data has test images; ``best_epoch`` and ``train_seconds``.
        run_dir: the run folder.
    """

    metrics: dict[str, float]
    run_dir: Path


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """All that a rank needs to train a run, apart from the images. Can be pickled if its callbacks can.

    Attributes:
        config: the validated configuration.
        record: the run folder.
        hardware: devices, precision and attention kernel.
        began: when the command began, as ``time.time()`` gives it.
        placement: where the images lie.
        stop_by: when the command must have ended, as ``time.time()`` gives it; ``None`` for no limit.
        group: name of the sweep, for trackers.
        varies: the overrides in which the run differs from others of its sweep.
        pretrained: initial weights, if the run starts from published ones and not from its own checkpoint.
        pruning_rule: asked after each epoch whether to stop early.
        callbacks: Lightning callbacks of the caller.
    """

    config: TrainConfig
    record: RunRecord
    hardware: Hardware
    began: float
    placement: Placement
    stop_by: float | None = None
    group: str | None = None
    varies: str = ""
    pretrained: Pretrained | None = None
    pruning_rule: PruningRule | None = None
    callbacks: Sequence[Callback] = ()


def load_data(config: TrainConfig, hardware: Hardware, ranks: Ranks) -> ImageDataModule:
    """Read the images on rank 0, which fills the cache and decides where they lie, then on the other ranks.

    Raises:
        DataError: the data is missing or damaged.
        RunError: ranks have different configurations.
    """
    check_agreement(config, hardware, ranks)
    patience = PATIENCE if ranks.count == hardware.devices == 1 else math.inf  # other ranks read what rank 0 caches

    def read(placement: Placement | None = None) -> ImageDataModule:
        data = ImageDataModule(config, hardware.accelerator, hardware.per_node, placement, patience)
        _check_shares(config, len(data.train), hardware.devices)
        return data

    data = read() if ranks.rank == 0 else None
    placement = ranks.share(lambda: {} if data is None else asdict(data.placement))
    return data or read(Placement(**placement))


def check_agreement(config: TrainConfig, hardware: Hardware, ranks: Ranks) -> None:
    """Raise RunError on a rank whose configuration or hardware differs from rank 0's; paths may differ."""
    chosen = {f"hardware.{name}": value for name, value in asdict(hardware).items() if name != "name"}
    own = json.loads(json.dumps(flatten(to_plain(config)) | chosen))
    shared = ranks.share(lambda: own)
    for name in dict.fromkeys([*own, *shared]):
        ours, first = (values.get(name, "not set") for values in (own, shared))
        if ours != first and name != "data.root" and not name.startswith("paths."):
            problem = f"{name} is {ours} on rank {ranks.rank}, and {first} on rank 0"
            raise RunError(f"{problem}; ranks train one run together, with the same configuration")


def _check_shares(config: TrainConfig, images: int, devices: int) -> None:
    """Raise DataError where a batch is cut to so few training images that ranks would get unequal shares of it."""
    size = config.data.batch_size
    cut = replace(config, data=replace(config.data, batch_size=images))
    if images < size and (problem := unequal_shares(cut, devices)):
        unit = 2 * devices if config.augment.mixes else devices
        hint = f"set data.batch_size={images // unit * unit}" if images >= unit else "take fewer devices"
        raise DataError(
            f"data.batch_size={size} is cut to the {images} training images, a number that {problem}; {hint}"
        )


def check_effects(config: TrainConfig, data: ImageDataModule) -> None:
    """Raise DataError where a key chooses validation images although the data has a validation split.

    ``data.hold_out`` is not checked: reproductions set it for every data set.
    """
    if data.train_val_split is not None:
        return
    for key in ("val_fraction", "val_seed"):
        if (value := getattr(config.data, key)) != (default := getattr(DataConfig, key)):
            problem = "is for data without a validation split of its own, which this has"
            raise DataError(f"data.{key}={value} {problem}; leave it at data.{key}={default}")


@dataclass(frozen=True)
class Attempt:
    """The run folder of a call of ``fit``; after a restart by torchrun, that of the previous attempt.

    Attributes:
        path: the run folder.
        time_from: when ``trainer.max_time`` began, as ``time.time()`` gives it: in the first attempt.
        status: ``new``, or the status of the run to resume.
    """

    path: str
    time_from: float
    status: str = "new"


_attempts: Counter[str] = Counter()  # how often this process has begun to train each configuration


def begin_attempt(config: TrainConfig, folder: Path | None, varies: str, time_from: float) -> Attempt:
    """Create a run folder, or find that of the attempt before a restart by ``torchrun --max-restarts``.

    Args:
        config: what to train.
        folder: the run folder; ``None`` for one with a new name in ``runs/`` under ``paths.output_dir``.
        varies: the overrides in which the run differs from others of its sweep.
        time_from: when ``trainer.max_time`` began, in this attempt.

    Raises:
        RunError: the folder can't be created, or has another run.
    """
    request = json.dumps([to_plain(config), None if folder is None else str(folder), varies], sort_keys=True)
    digest = hashlib.sha256(request.encode()).hexdigest()
    _attempts[digest] += 1
    key = f"run {digest} {_attempts[digest]}"
    if (earlier := recall(key)) is not None:
        attempt = Attempt(**json.loads(earlier))
        record = RunRecord(Path(attempt.path))
        if (record.path / "run.json").exists():
            # The process that wrote it may have run on another machine: it has ended all the same.
            status = "finished" if record.status == "finished" else "interrupted"
            return replace(attempt, status=status)
    name = run_name(config, varies)
    record = RunRecord.create(Path(config.paths.output_dir) / "runs", name) if folder is None else RunRecord.at(folder)
    attempt = Attempt(str(record.path), time_from)
    remember(key, json.dumps(asdict(attempt)))
    return attempt


def run_name(config: TrainConfig, varies: str) -> str:
    """Return the part of a run folder's name that describes the run."""
    model = config.model
    patch = model.patch_size if isinstance(model.patch_size, int) else format_size(model.patch_size)
    architecture = f"{model.dim}x{model.depth}-p{patch}-{model.position}"
    if is_dotted(model.name):
        architecture = model.name
    described = f"{config.data.name}-{architecture}-s{config.seed}"
    name = config.name or varies or described
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[:100]


def deadline(config: TrainConfig, since: float) -> float | None:
    """Return when a command that began at ``since`` must have ended (``trainer.max_time``); ``None`` for no limit."""
    limit = config.trainer.max_time
    return None if limit is None else since + duration_seconds(limit)
