"""The schema of a configuration: every key with its type, limits, default and facts. ``conf/`` has the choices.

A key that is not here is refused on the command line, and so is a value of another type.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from vitrine.config.augment import AugmentConfig
from vitrine.config.distill import DistillConfig
from vitrine.config.fields import (
    as_float,
    choice,
    number,
    number_or,
    part,
    part_list,
    part_options,
    setting,
    size,
    store_sizes,
)
from vitrine.config.finetune import FinetuneConfig
from vitrine.config.loggers import LoggerConfig
from vitrine.config.loss import LossConfig
from vitrine.config.metrics import EXTRA, VALIDATION
from vitrine.config.model import MAX_CLASSES, ViTConfig
from vitrine.config.parts import Interface, is_dotted
from vitrine.config.schedule import ScheduleConfig
from vitrine.config.size import Size, height_width

OWN_FILES = ("imagefolder", "csv", "huggingface")  # sources of the user's own image files, found at data.root
DOWNLOADED = ("mnist", "fashion_mnist", "cifar10", "cifar100")  # to data.root, if they are not there
SOURCES = ("digits", *DOWNLOADED, *OWN_FILES)
LEVELS = (0, 2**16 - 1)  # of 16 bits
MAX_SEED = 2**32 - 1
RESIZES = ("crop", "pad", "squash")
SAMPLINGS = ("shuffle", "balanced")
STORAGES = ("auto", "device", "memory", "disk")
AUTO = "auto"  # a learning rate that a range test finds
OPTIMIZER_LIBRARIES = {"lamb": "timm", "lion": "timm", "schedule_free": "schedulefree"}
OPTIMIZERS = ("adamw", "adam", "sgd", "muon", *OPTIMIZER_LIBRARIES)
ACCELERATORS = ("auto", "cpu", "gpu")
EVALUATED = ("test", "val")
PRECISIONS = ("auto", "32-true", "tf32", "bf16-mixed", "16-mixed", "64-true")
ON_DIVERGENCE = ("stop", "continue")
COMPILED = ("auto", "nothing", "blocks", "model", "graphs")
CHOSEN = (*VALIDATION, "last")
OF_OWN = "`val/NAME` of a function of yours in `callbacks.metrics`"


@dataclass
class DataConfig:
    """A data set, and its properties that do not depend on the model.

    Attributes:
        name: the source (data/datasets.py).
        root: folder that holds the data set, or where it is downloaded to; for ``csv``, the CSV file.
        image_size: side of the images, or ``[height,width]``. Others are resized when decoded.
        in_channels, num_classes: input and output of the model.
        resize: how image files get that size: ``crop`` scales them until they cover it and crops the centre, ``pad``
            until they fit into it and pads the rest with the mean colour, ``squash`` scales each side separately.
        crop_pct: the share of the shorter side that ``crop`` keeps, as in timm: images are scaled until they cover
            ``image_size / crop_pct``; those to train on, too, unless they have a ``train_size``.
        train_size: size of the images to train on, of which ``augment.resized_crop`` scales crops to ``image_size``; a
            number or ``[height,width]``; null is ``image_size``.
        levels: the values of 16-bit grey image files that become black and white, such as ``[0,4095]`` of 12 bits.
        multi_label: whether an image has any number of classes; a CSV file then separates its labels by ``|``.
        targets: names of the questions that the model answers about an image; empty for the one that the data is about.
            For ``csv`` they are columns in place of ``label``, for digits those of config/targets.py. Of several, the
            first is what classes, metrics and splits without a name are of.
        target_classes: the number of classes of each target; counted.
        patch_size: patch size of models that set none, a number or ``[height,width]``.
        epochs: epochs of runs that set no ``trainer.max_epochs``.
        mean, std: per channel, of pixels in [0, 1]; one value or one per channel.
        flip: whether a mirrored image still shows the same class.
        batch_size: images per optimiser step, over all ranks together.
        drop_last: leave out the images of an epoch that do not fill a batch; otherwise they are a last, smaller one.
        val_fraction: fraction of the training images in the validation split.
        val_seed: seed of that split.
        group: what tells images of one patient, say, which no two splits or folds share (data/groups.py).
        folds, fold: cross-validation: the training images in ``folds`` parts, drawn by ``val_seed``; part number
            ``fold``, from 0, is the validation split, in place of ``val_fraction``.
        hold_out: whether the validation split is kept from training; if not, validation measures memorisation.
        train_fraction, per_class: train on this fraction, or number, of each class's training images. A smaller one is
            part of a larger one with the same ``subset_seed``; the validation split stays the same.
        subset_seed: seed that draws these images.
        sampling: an epoch is every image once (``shuffle``), or as many, equally many of each class (``balanced``).
        storage: where images are during training: decoded on the ``device`` or in ``memory``, or streamed from
            ``disk``; ``auto`` is the first of these with enough room (data/placement.py).
        workers: processes that decode streamed images, per rank; null depends on the number of cores.
    """

    name: str = part(SOURCES, MISSING, interface=Interface(optional=("root",), function=True))
    options: dict[str, Any] = part_options()
    root: str = setting(MISSING, affects_result=OWN_FILES, may_change_on_resume=True, path=True)
    image_size: Size = size(MISSING)
    in_channels: int = number(MISSING, ge=1, le=4)
    num_classes: int = number(MISSING, ge=2, le=MAX_CLASSES)
    resize: str = choice(RESIZES, "crop")
    crop_pct: float = number(1.0, ge=0.25, le=1)
    train_size: Size | None = size(None)
    levels: list[int] = number(list(LEVELS), ge=0, le=LEVELS[1])
    multi_label: bool = False
    targets: list[str] = setting([])
    target_classes: list[int] = number([], ge=2, le=MAX_CLASSES, affects_result=False)
    patch_size: Size = size(MISSING)
    epochs: int = number(MISSING, ge=1, le=1_000_000)
    mean: list[float] = number(MISSING)
    std: list[float] = number(MISSING, gt=0)
    flip: bool = MISSING
    batch_size: int = number(128, ge=1, le=1_000_000)
    drop_last: bool = True
    val_fraction: float = number(0.1, gt=0, lt=1)
    val_seed: int = number(0, ge=0, le=MAX_SEED)
    group: str | None = None
    folds: int | None = number(None, ge=2, le=1000)
    fold: int | None = number(None, ge=0, le=999, in_comparisons=False)
    hold_out: bool = True
    train_fraction: float | None = number(None, gt=0, le=1)
    per_class: int | None = number(None, ge=1, le=1_000_000_000)
    subset_seed: int = number(0, ge=0, le=MAX_SEED)
    sampling: str = choice(SAMPLINGS, "shuffle")
    storage: str = choice(STORAGES, "auto", affects_result=False, may_change_on_resume=True)
    workers: int | None = number(None, ge=1, le=1024, affects_result=False, may_change_on_resume=True)

    def __post_init__(self) -> None:
        store_sizes(self)

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images."""
        return height_width(self.image_size)

    @property
    def train_hw(self) -> tuple[int, int]:
        """Height and width of the images to train on, before they are augmented."""
        return height_width(self.image_size if self.train_size is None else self.train_size)

    @property
    def classes_per_target(self) -> list[int]:
        """Number of classes of each target."""
        return self.target_classes or [self.num_classes]


@dataclass
class OptimizerConfig:
    """An optimiser and its settings.

    Attributes:
        name: the optimiser; ``lamb`` and ``lion`` are timm's, ``schedule_free`` is AdamW (training/optim.py).
        lr: the highest learning rate of the schedule; with muon, that of the blocks' matrices. ``auto`` finds it before
            training, by a range test (training/lr_range.py).
        weight_decay: on matrices only, not on biases, norms or tables.
        decay_all: weight decay on every parameter.
        betas: null with sgd; with muon, of everything but the blocks' matrices, which AdamW trains.
        momentum: of sgd, otherwise null; with muon, of the blocks' matrices.
        nesterov: with sgd, Nesterov's momentum; muon always has it.
        adamw_lr: with muon, the learning rate of everything but the blocks' matrices; ``auto`` is what the range test
            finds.
    """

    name: str = part(OPTIMIZERS, MISSING, interface=Interface(("param_groups",), keywords=("lr",)))
    options: dict[str, Any] = part_options()
    lr: Any = number_or(AUTO, MISSING, gt=0, le=100)
    weight_decay: float = number(MISSING, ge=0, le=10)
    decay_all: bool = False
    betas: list[float] | None = number(None, ge=0, lt=1)
    momentum: float | None = number(None, ge=0, lt=1)
    nesterov: bool = False
    adamw_lr: Any = number_or(AUTO, None, gt=0, le=100)

    def __post_init__(self) -> None:
        """Convert learning rates as OmegaConf converts numbers: whole ones, and texts that are numbers."""
        self.lr, self.adamw_lr = as_float(self.lr), as_float(self.adamw_lr)


@dataclass
class TrainerConfig:
    """Length and hardware of training. Names are Lightning's, where it has one.

    Attributes:
        max_epochs: passes over the training images.
        max_time: the run stops, so that it can be resumed, before its command takes this long: ``10m``, ``00:10:00``.
        accelerator: ``auto`` is a GPU if there is one, else the CPU.
        devices: number of ranks, one per GPU, or on the CPU; null is one for every GPU.
        precision: ``auto`` is bfloat16 where that is faster (distributed/hardware.py), else float32. ``tf32`` is
            float32 whose matrix products and convolutions a GPU rounds to 10 bits of mantissa.
        compile: what torch.compile compiles: each of the ``blocks``, the ``model``, the model with CUDA ``graphs``, or
            ``nothing``. ``auto`` measures where it pays (training/compile.py).
        image_schedule: pairs of an image size and the share of the epochs until which training images have it, one
            after the other: ``[16,0.3,24,0.6]`` is 16x16 in the first 30 % of the epochs, 24x24 up to 60 %, then the
            images' own size. Weights are those of the model at its own size throughout, which is also validated.
        gradient_clip_val: largest norm of the gradient; null does not clip.
        accumulate_grad_batches: parts that a batch is computed in sequentially, to save memory. The gradient is the
            same, except for dropout masks and batch normalisation, which see one part at a time.
        activation_checkpointing: keep the input of each block alone for the backward pass, and compute the rest again
            there (arXiv:1604.06174), to save memory. A step takes about a third longer; the result is the same.
        on_divergence: ``stop`` ends the run at the first NaN or infinite loss, before it is saved, with exit code 3;
            ``continue`` trains on.
        deterministic: use only operations whose results are bit-equal in each run.
        log_every_n_steps: steps between rows of the training loss in metrics.csv.
    """

    max_epochs: int = number(MISSING, ge=1, le=1_000_000, may_change_on_resume=True)
    max_time: str | None = setting(None, affects_result=False, may_change_on_resume=True)
    accelerator: str = choice(ACCELERATORS, "auto", may_change_on_resume=True)
    devices: int | None = number(1, ge=1, le=1024, may_change_on_resume=True)
    precision: str = choice(PRECISIONS, "auto")
    compile: str = choice(COMPILED, "auto", may_change_on_resume=True)
    image_schedule: list[float] | None = number(None, gt=0, le=4096)
    gradient_clip_val: float | None = number(1.0, gt=0)
    accumulate_grad_batches: int = number(1, ge=1, le=1024)
    activation_checkpointing: bool = setting(False, may_change_on_resume=True)
    on_divergence: str = choice(ON_DIVERGENCE, "stop", may_change_on_resume=True)
    deterministic: bool = False
    log_every_n_steps: int = number(20, ge=1, affects_result=False)


@dataclass
class EarlyStoppingConfig:
    """Stop when a metric no longer improves.

    Attributes:
        monitor: the metric.
        patience: epochs without an improvement.
        min_delta: smallest change that counts as one.
    """

    monitor: str = choice(VALIDATION, "val/loss", others=OF_OWN)
    patience: int = number(10, ge=1)
    min_delta: float = number(0.0, ge=0)


@dataclass
class EmaConfig:
    """Validate, test and save an exponential moving average of the weights.

    Attributes:
        decay: of the average, per step, after its warm-up.
    """

    decay: float = number(0.999, gt=0, lt=1)


@dataclass
class CallbacksConfig:
    """Model selection and optional callbacks.

    Attributes:
        monitor: metric that selects the checkpoint to test, the later of equals; or ``last``.
        keep_every: keep the checkpoint of every so many epochs for good, as ``checkpoints/epoch_N.ckpt``, beside the
            best and the last two; null keeps none.
        metrics: further metrics to measure on the validation split after each epoch (config/metrics.py), also functions
            of your own, by dotted name; what is monitored always is. On the test images all are measured.
        metrics_options: arguments of your own metrics, by name.
        test_curve: also measure the test set after each epoch, for a curve; it selects nothing.
        early_stopping, ema: sections that are off where they are null.
        parts: callbacks of your own, by dotted name.
        parts_options: their arguments, by class name.
    """

    monitor: str = choice(CHOSEN, "val/acc", others=OF_OWN)
    keep_every: int | None = number(None, ge=1, le=1_000_000, affects_result=False, may_change_on_resume=True)
    metrics: list[str] = part_list(Interface(("logits", "labels"), function=True, words=EXTRA))
    metrics_options: dict[str, Any] = part_options()
    test_curve: bool = setting(False, in_comparisons=False)
    early_stopping: EarlyStoppingConfig | None = None
    ema: EmaConfig | None = None
    parts: list[str] = part_list(Interface())
    parts_options: dict[str, Any] = part_options()

    @property
    def own_metrics(self) -> list[str]:
        """Names in metrics.json, without the split, of the user's own metrics: ``worst_class``."""
        return [name.rpartition(".")[2] for name in self.metrics if is_dotted(name)]

    @property
    def measured(self) -> list[str]:
        """Metrics to measure on the validation split in addition to accuracy and loss."""
        monitored = [self.monitor, *([] if self.early_stopping is None else [self.early_stopping.monitor])]
        names = {*self.metrics, *(name.removeprefix("val/") for name in monitored)}
        return [*(name for name in EXTRA if name in names), *self.own_metrics]


@dataclass
class PathsConfig:
    """Folders.

    Attributes:
        output_dir: of runs and sweeps.
        data_dir: of data sets without ``data.root``.
        cache_dir: of decoded images.
    """

    output_dir: str = setting("outputs", path=True)
    data_dir: str = setting("data", path=True)
    cache_dir: str = setting("data/cache", path=True, may_change_on_resume=True)


@dataclass
class DebugConfig:
    """Help with finding errors.

    Attributes:
        traceback: show Python's traceback in place of a one-line message.
        limit_batches: batches per epoch, each in training, validation and test; null is all.
        detect_anomaly: stop at the operation that gives a NaN gradient (slow).
        profile: print the time of each part of training.
    """

    traceback: bool = setting(False, affects_result=False)
    limit_batches: int | None = number(None, ge=1)
    detect_anomaly: bool = setting(False, in_comparisons=False)
    profile: bool = setting(False, affects_result=False)


@dataclass
class TrainConfig:
    """The configuration of a run.

    Attributes:
        seed: of initial weights, order of images, augmentation and dropout.
        name: part of the run folder's name; null is a description of the configuration.
        tags: to find the run by.
        resume: run folder to resume; null starts a new run.
        like: run folder whose configuration a new run starts from. Recorded in run.json, not in config.yaml.
    """

    model: ViTConfig = MISSING
    data: DataConfig = MISSING
    augment: AugmentConfig = setting(AugmentConfig)
    loss: LossConfig = setting(LossConfig)
    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = setting(ScheduleConfig)
    finetune: FinetuneConfig = setting(FinetuneConfig)
    distill: DistillConfig = setting(DistillConfig)
    trainer: TrainerConfig = MISSING
    callbacks: CallbacksConfig = setting(CallbacksConfig)
    logger: LoggerConfig = setting(LoggerConfig, affects_result=False, may_change_on_resume=True)
    paths: PathsConfig = setting(PathsConfig, affects_result=False, shared_by_trials=True)
    debug: DebugConfig = setting(DebugConfig, may_change_on_resume=True)
    seed: int = number(0, ge=0, le=MAX_SEED, in_comparisons=False)
    name: str | None = setting(None, affects_result=False)
    tags: list[str] = setting([], affects_result=False)
    resume: str | None = setting(None, affects_result=False, shared_by_trials=True, describes_run=False, path=True)
    like: str | None = setting(None, affects_result=False, describes_run=False, path=True)


@dataclass
class EvalConfig:
    """The configuration of an evaluation.

    Attributes:
        run: run folder.
        checkpoint: the epoch to test, of those that ``callbacks.keep_every`` kept; null is the best.
        split: the images to measure; the best epoch was selected on those of ``val``.
        data_root: folder of the run's data; null is where it was in training.
        image_size: size to test at, a number or ``[height,width]``; null is the run's.
        patch_size: size of patches to test with, likewise; null is the run's.
        accelerator: as in training.
        traceback: show Python's traceback in place of a one-line message.
        trust: prefixes of the dotted names of the run that may be imported: ``[my_lab]``.
        allow_changed_code: test although the source of the model's own parts, or of own metrics, was edited.
        accept_changed_data: test although the images or the classes are not those that the run began with.
    """

    run: str = setting(MISSING, path=True)
    checkpoint: int | None = number(None, ge=1, le=1_000_000)
    split: str = choice(EVALUATED, "test")
    data_root: str | None = setting(None, path=True)
    image_size: Size | None = size(None)
    patch_size: Size | None = size(None)
    accelerator: str = choice(ACCELERATORS, "auto")
    traceback: bool = False
    trust: list[str] = setting([])
    allow_changed_code: bool = False
    accept_changed_data: bool = False

    def __post_init__(self) -> None:
        store_sizes(self)
