"""The shape of a configuration: every key that exists, its type and its limits. ``conf/`` gives the values.

A key that is not here cannot be typed on the command line, and a value of another type never reaches training.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from vitrine.config.fields import choice, number, part, part_list, part_options, setting
from vitrine.config.model import ViTConfig
from vitrine.config.parts import Interface

SOURCES = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "imagefolder")
STORAGES = ("auto", "device", "memory", "disk")
OPTIMIZERS = ("adamw", "adam", "sgd", "muon")
SCHEDULES = ("cosine", "constant")
ACCELERATORS = ("auto", "cpu", "gpu")
PRECISIONS = ("auto", "32-true", "tf32", "bf16-mixed", "16-mixed", "64-true")
COMPILED = ("auto", "nothing", "blocks", "model", "graphs")
WANDB_MODES = ("online", "offline", "disabled")
WANDB_CHECKPOINTS = ("none", "best", "all")
MONITORS = ("val/acc", "val/loss")
CHOSEN = (*MONITORS, "last")
LOSSES = ("cross_entropy", "softmax_cross_entropy")


@dataclass
class DataConfig:
    """Which images, and what is true of them whatever model sees them.

    Attributes:
        name: the source (data/datasets.py).
        root: folder that holds the data set, or where it is downloaded to.
        image_size, in_channels, num_classes: what the model is given. Images of another size are resized when decoded.
        patch_size: patch for models that name none.
        epochs: length of training for runs that name none.
        mean, std: per channel, of pixels in [0, 1]; one value or one per channel.
        flip: whether a mirrored image still shows the same class.
        batch_size: images per optimiser step, over all processes together.
        val_fraction: share of the training images held out for validation.
        val_seed: which images those are.
        hold_out: whether they are kept from training; if not, validation measures what has been learned by heart.
        storage: where decoded images lie in training: on its device, in the machine's memory, or nowhere, pictures
            being streamed from disk; ``auto`` is the first of these that they fit into (data/placement.py).
        workers: processes that decode streamed pictures, for each process that trains; null goes by the cores.
    """

    name: str = part(SOURCES, MISSING, interface=Interface(optional=("root",), function=True))
    options: dict[str, Any] = part_options()
    root: str = setting(MISSING, affects_result=("imagefolder",), may_change_on_resume=True, path=True)
    image_size: int = number(MISSING, ge=1, le=4096)
    in_channels: int = number(MISSING, ge=1, le=4)
    num_classes: int = number(MISSING, ge=2, le=1_000_000)
    patch_size: int = number(MISSING, ge=1, le=4096)
    epochs: int = number(MISSING, ge=1, le=1_000_000)
    mean: list[float] = number(MISSING)
    std: list[float] = number(MISSING, gt=0)
    flip: bool = MISSING
    batch_size: int = number(128, ge=1, le=1_000_000)
    val_fraction: float = number(0.1, gt=0, lt=1)
    val_seed: int = number(0, ge=0, le=2**32 - 1)
    hold_out: bool = True
    storage: str = choice(STORAGES, "auto", affects_result=False, may_change_on_resume=True)
    workers: int | None = number(None, ge=1, le=1024, affects_result=False, may_change_on_resume=True)


@dataclass
class AugmentConfig:
    """What is done to training images, in this order, drawn anew for each image and epoch; 0 and false are off.

    Attributes:
        crop: pixels of black that an image is padded with on each side before it is cropped to its size again.
        flip: mirror half of the images, left to right; acts only where data.flip says that this keeps the class.
        degrees: turn by up to this angle, either way.
        translate: move by up to this share of the image, either way, in each direction.
        scale: enlarge by up to this share, or reduce.
        shear: slant by up to this angle in degrees, either way.
        elastic: bend by moving each knot of a 5 x 5 grid by up to this share of the image (arXiv:1505.04597).
        trivial: one of TrivialAugment's fourteen operations for each image (arXiv:2103.10158, "wide").
        erasing: chance that a rectangle takes the mean colour (arXiv:1708.04896).
        cutout: side, in pixels, of a square that takes the mean colour in each image (arXiv:1708.04552).
        mixup: alpha of MixUp (arXiv:1710.09412), a blend with another image of the batch and its label.
        cutmix: alpha of CutMix (arXiv:1905.04899), a rectangle from it. With both, a coin decides for each image.
    """

    crop: int = number(0, ge=0, le=4096)
    flip: bool = False
    degrees: float = number(0.0, ge=0, le=180)
    translate: float = number(0.0, ge=0, le=1)
    scale: float = number(0.0, ge=0, lt=1)
    shear: float = number(0.0, ge=0, lt=90)
    elastic: float = number(0.0, ge=0, le=0.125)
    trivial: bool = False
    erasing: float = number(0.0, ge=0, le=1)
    cutout: int = number(0, ge=0, le=4096)
    mixup: float = number(0.0, ge=0, le=100)
    cutmix: float = number(0.0, ge=0, le=100)
    parts: list[str] = part_list(Interface())
    parts_options: dict[str, Any] = part_options()

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others."""
        return self.mixup > 0 or self.cutmix > 0


@dataclass
class LossConfig:
    """What is minimised; ``label_smoothing`` as in arXiv:1512.00567, section 7.

    ``softmax_cross_entropy`` takes the softmax's output for logits, so that it is applied twice: a common mistake. For
    ten classes such a loss can't fall below 1.461.
    """

    name: str = part(LOSSES, "cross_entropy", interface=Interface(("logits", "targets"), function=True))
    options: dict[str, Any] = part_options()
    label_smoothing: float = number(0.0, ge=0, lt=1)


@dataclass
class OptimizerConfig:
    """An optimiser and what it is set to.

    Weight decay acts on matrices only, not on biases, norms or tables; or, with ``decay_all``, on every parameter.
    ``betas`` belongs to adamw and adam, ``momentum`` to sgd; the other is null. muon has both: its momentum and ``lr``
    act on the blocks' matrices, its ``betas`` and ``adamw_lr`` on everything else, which AdamW trains.
    """

    name: str = part(OPTIMIZERS, MISSING, interface=Interface(("param_groups",), keywords=("lr",)))
    options: dict[str, Any] = part_options()
    lr: float = number(MISSING, gt=0, le=100)
    weight_decay: float = number(MISSING, ge=0, le=10)
    decay_all: bool = False
    betas: list[float] | None = number(None, ge=0, lt=1)
    momentum: float | None = number(None, ge=0, lt=1)
    adamw_lr: float | None = number(None, gt=0, le=100)


@dataclass
class ScheduleConfig:
    """How the learning rate moves, per step: up a linear warm-up, then down a half cosine, or constant.

    ``warmup`` is the share of all steps that warm up.
    """

    name: str = part(SCHEDULES, "cosine", interface=Interface(("step", "total"), function=True))
    options: dict[str, Any] = part_options()
    warmup: float = number(0.1, ge=0, lt=1)


@dataclass
class TrainerConfig:
    """How long and on what. Names are Lightning's where Lightning has one.

    Attributes:
        max_epochs: passes over the training images.
        max_time: the run is stopped, to be gone on with, before its command has taken so long: ``10m``, ``00:10:00``.
        accelerator: where to compute; ``auto`` takes a GPU if there is one.
        devices: processes, one per GPU, or so many on the CPU; null takes every GPU there is.
        precision: ``auto`` is bfloat16 where that is faster (distributed/hardware.py), else float32. ``tf32`` is
            float32 whose matrix products and convolutions a GPU rounds to 10 bits of mantissa.
        compile: what PyTorch's compiler makes faster kernels of: ``blocks``, each by itself; the ``model``; the model
            as CUDA ``graphs``; or ``nothing``. ``auto`` tries where it pays (training/compile.py).
        gradient_clip_val: largest norm of the gradient; null leaves it as it is.
        accumulate_grad_batches: parts that a batch is computed in, one after the other, to save memory. The gradient
            stays what it is, but that dropout draws anew and batch normalisation sees one part at a time.
        deterministic: only operations that give the same bits each time.
        log_every_n_steps: steps between two rows of the training loss in metrics.csv.
    """

    max_epochs: int = number(MISSING, ge=1, le=1_000_000, may_change_on_resume=True)
    max_time: str | None = setting(None, affects_result=False, may_change_on_resume=True)
    accelerator: str = choice(ACCELERATORS, "auto", may_change_on_resume=True)
    devices: int | None = number(1, ge=1, le=1024, may_change_on_resume=True)
    precision: str = choice(PRECISIONS, "auto")
    compile: str = choice(COMPILED, "auto", may_change_on_resume=True)
    gradient_clip_val: float | None = number(1.0, gt=0)
    accumulate_grad_batches: int = number(1, ge=1, le=1024)
    deterministic: bool = False
    log_every_n_steps: int = number(20, ge=1, affects_result=False)


@dataclass
class EarlyStoppingConfig:
    """Stop when ``monitor`` has not improved by ``min_delta`` for ``patience`` epochs."""

    monitor: str = choice(MONITORS, "val/loss")
    patience: int = number(10, ge=1)
    min_delta: float = number(0.0, ge=0)


@dataclass
class EmaConfig:
    """Validate, test and keep an exponential moving average of the weights, ``decay`` per step once warmed up."""

    decay: float = number(0.999, gt=0, lt=1)


@dataclass
class CallbacksConfig:
    """What may watch over training.

    Attributes:
        monitor: chooses the checkpoint that is tested: the best by it, the later one of equals; or simply the last.
        test_curve: measure the test images after each epoch too, for a curve that chooses nothing.
    """

    monitor: str = choice(CHOSEN, "val/acc")
    test_curve: bool = setting(False, in_comparisons=False)
    early_stopping: EarlyStoppingConfig | None = None
    ema: EmaConfig | None = None
    parts: list[str] = part_list(Interface())
    parts_options: dict[str, Any] = part_options()


@dataclass
class WandbConfig:
    """Weights & Biases. The API key is never here: log in with ``wandb login`` or set WANDB_API_KEY.

    Attributes:
        project, entity: where runs go; ``entity`` is a user or a team, null the account's default.
        mode: ``offline`` keeps everything in the run folder, for scripts/wandb_sync.py.
        group: what runs belong together; null is the sweep.
        name: null is what varies in a sweep, else the run folder's name.
        tags: added to the run's own.
        notes: a text about the run.
        checkpoints: which are uploaded as artifacts, with their names as aliases.
        private: send no code version, command, host name, requirements or paths.
        timeout: seconds that training may wait for W&B at its end.
    """

    project: str = "vitrine"
    entity: str | None = None
    mode: str = choice(WANDB_MODES, "online")
    group: str | None = None
    name: str | None = None
    tags: list[str] = setting([])
    notes: str | None = None
    checkpoints: str = choice(WANDB_CHECKPOINTS, "none")
    private: bool = False
    timeout: float = number(60.0, gt=0, le=86_400)


@dataclass
class TensorBoardConfig:
    """TensorBoard event files, in the run folder's ``tensorboard/``."""

    flush_secs: int = number(30, ge=1)


@dataclass
class LoggerConfig:
    """Who else is told, beside the run folder, which always has everything."""

    wandb: WandbConfig | None = None
    tensorboard: TensorBoardConfig | None = None
    parts: list[str] = part_list(Interface())
    parts_options: dict[str, Any] = part_options()


@dataclass
class PathsConfig:
    """Where things lie: runs, data sets without a ``data.root`` of their own, and decoded images."""

    output_dir: str = setting("outputs", path=True)
    data_dir: str = setting("data", path=True)
    cache_dir: str = setting("data/cache", path=True, may_change_on_resume=True)


@dataclass
class DebugConfig:
    """For finding out what is wrong.

    Attributes:
        traceback: show Python's traceback also where one clear message would do.
        limit_batches: batches per epoch, for training, validation and test each; null is all.
        detect_anomaly: stop at the operation whose gradient is not a number (slow).
        profile: print how long each part of training took.
    """

    traceback: bool = setting(False, affects_result=False)
    limit_batches: int | None = number(None, ge=1)
    detect_anomaly: bool = setting(False, in_comparisons=False)
    profile: bool = setting(False, affects_result=False)


@dataclass
class TrainConfig:
    """Everything that ``train.py`` can be told.

    Attributes:
        seed: decides initial weights, the order of images, augmentation and dropout.
        name: word in the run folder's name; null describes the run by what it trains.
        tags: words to find the run by.
        resume: run folder to go on with; null starts a new run.
        like: run folder whose configuration a new run takes, but for what is typed. In that run's run.json, not in its
            config.yaml.
    """

    model: ViTConfig = MISSING
    data: DataConfig = MISSING
    augment: AugmentConfig = setting(AugmentConfig)
    loss: LossConfig = setting(LossConfig)
    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = setting(ScheduleConfig)
    trainer: TrainerConfig = MISSING
    callbacks: CallbacksConfig = setting(CallbacksConfig)
    logger: LoggerConfig = setting(LoggerConfig, affects_result=False, may_change_on_resume=True)
    paths: PathsConfig = setting(PathsConfig, affects_result=False, shared_by_trials=True)
    debug: DebugConfig = setting(DebugConfig, may_change_on_resume=True)
    seed: int = number(0, ge=0, le=2**32 - 1, in_comparisons=False)
    name: str | None = setting(None, affects_result=False)
    tags: list[str] = setting([], affects_result=False)
    resume: str | None = setting(None, affects_result=False, shared_by_trials=True, describes_run=False, path=True)
    like: str | None = setting(None, affects_result=False, describes_run=False, path=True)


@dataclass
class EvalConfig:
    """Everything that ``eval.py`` can be told.

    Attributes:
        run: run folder.
        data_root: where the run's data lies now; null is where it lay when the run was made.
        image_size: size to test at; null is the run's.
        patch_size: size of patches to test with; null is the run's.
        accelerator: as in training.
        traceback: show Python's traceback also where one clear message would do.
        trust: prefixes of the dotted names of the run that may be imported: ``[my_lab]``.
    """

    run: str = setting(MISSING, path=True)
    data_root: str | None = setting(None, path=True)
    image_size: int | None = number(None, ge=1, le=4096)
    patch_size: int | None = number(None, ge=1, le=4096)
    accelerator: str = choice(ACCELERATORS, "auto")
    traceback: bool = False
    trust: list[str] = setting([])
