"""Checks of a whole configuration: each value's limits, and values of several keys that exclude each other."""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrine.config.augment_faults import augmentation_fits_the_image, mixing_faults, repeats_faults
from vitrine.config.distill_faults import distill_faults
from vitrine.config.fields import faults
from vitrine.config.finetune_faults import finetune_faults
from vitrine.config.groups import group_faults
from vitrine.config.image_schedule import image_schedule_faults, unused_sizes
from vitrine.config.keys import key_facts, keys, sections_where, structure_faults, value_at
from vitrine.config.lightning_callbacks import callback_faults
from vitrine.config.loss import LOSSES, LossConfig, class_weight_fault
from vitrine.config.metric_faults import metric_faults
from vitrine.config.model_faults import unread_positions, vit_faults
from vitrine.config.parts import is_dotted, load, part_faults
from vitrine.config.schedule import KEYS_OF_SCHEDULES, schedule_faults
from vitrine.config.schedule_free import schedule_free_faults
from vitrine.config.schema import (
    AUTO,
    LEVELS,
    OPTIMIZER_LIBRARIES,
    OPTIMIZERS,
    OWN_FILES,
    DataConfig,
    TrainConfig,
)
from vitrine.config.size import size_override
from vitrine.config.wandb_faults import wandb_faults
from vitrine.durations import duration_seconds
from vitrine.errors import Fault
from vitrine.redact import SECRET_PROBLEM, secret_keys
from vitrine.text import as_override, listed

SIZES_IN_EPOCHS = {"trainer.image_schedule", "trainer.max_epochs"}
PIXELS = "must be from 0 to 1, as pixels are; divide statistics of pixels from 0 to 255 by 255"
WITH_MOMENTUM = ("sgd", "muon")
WITH_BETAS = tuple(name for name in OPTIMIZERS if name not in WITH_MOMENTUM or name == "muon")


def train_faults(config: TrainConfig, sound: TrainConfig | None = None) -> list[Fault]:
    """Return all faults in ``config`` that can be found without its data and, unless a user's part needs it, torch.

    Values in sections that are those of ``sound``, a configuration without faults, are only checked against others.
    """
    if sound is None and (misplaced := list(structure_faults(config))):
        return misplaced
    sections = {} if sound is None else {name: part for name, part in vars(sound).items() if is_dataclass(part)}
    known: dict[str, Any] = dict.fromkeys(
        name for name, section in sections.items() if getattr(config, name) is section
    )
    new = replace(config, **known)
    found = [] if new.model is None else vit_faults(new.model, "model.")
    others = replace(new, model=None)  # type: ignore[arg-type]
    found += [*faults(others), *part_faults(others)]
    found += [Fault(key, "", SECRET_PROBLEM) for key in secret_keys(new)]
    broken = {fault.key for fault in found}
    for uses, check in _CHECKS:
        if not broken & set(uses):  # a value outside its limits is reported once
            found += check(config)
    found += [] if found else unread_positions(config.model)
    trainer, is_new = config.trainer, config.resume is None
    # A resumed run may have other epochs; a short trial of a command, as with debug=quick, may leave out sizes.
    if is_new and config.debug.limit_batches is None and not {fault.key for fault in found} & SIZES_IN_EPOCHS:
        found += unused_sizes(trainer.image_schedule, trainer.max_epochs)
    return found


def resume_faults(recorded: TrainConfig, given: TrainConfig) -> list[Fault]:
    """Return a fault for each key whose value in ``given`` differs from the run's, but may not change on resume."""
    changeable = ", ".join(sections_where(TrainConfig, may_change_on_resume=True))
    found = []
    for key in keys(TrainConfig):
        known = key_facts(TrainConfig, key)
        before, after = value_at(recorded, key), value_at(given, key)
        if known.path and before is not None and after is not None:
            before, after = Path(before).absolute(), Path(after).absolute()
        if before != after and known.describes_run and not known.may_change_on_resume:
            problem = f"is {as_override(before)} in the run, and cannot change on resume; what can: {changeable}"
            found.append(Fault(key, as_override(after), problem))
    return found


def unequal_shares(config: TrainConfig, devices: int, shown: str = "trainer.devices={}") -> str:
    """Return why a batch cannot be split evenly between ``devices`` ranks, ``shown`` in messages; "" if it can."""
    shown = shown.format(devices)
    if devices > 1 and not config.data.drop_last:
        return f"leaves a last batch that cannot be split evenly between {shown}; set data.drop_last=true"
    if config.data.batch_size % devices:
        return f"must be divisible by {shown}"
    if config.augment.mixes and devices > 1 and config.data.batch_size % (2 * devices):
        return f"must be divisible by twice {shown}: augment.mixup and augment.cutmix take pairs"
    return ""


def unequal_parts(config: TrainConfig, devices: int) -> str:
    """Return why the share of each of ``devices`` ranks cannot be accumulated in equal parts; "" if it can."""
    each = config.data.batch_size // devices
    if each % config.trainer.accumulate_grad_batches == 0:
        return ""
    return f"must divide the {each} images of each rank" if devices > 1 else f"must divide data.batch_size={each}"


def _channel_statistics(config: TrainConfig) -> Iterator[Fault]:
    data = config.data
    for key, values in (("data.mean", data.mean), ("data.std", data.std)):
        if len(values) not in (1, data.in_channels):
            several = f" or {data.in_channels}, one per channel" if data.in_channels > 1 else ""
            nearest = f"{key}=[{sum(values) / len(values):.4g}]" if values else ""
            advice = "`vitrine channel-statistics` prints those of your data"
            yield Fault(key, str(values), f"needs 1 value{several}; {advice}", nearest)
        if not all(0 <= value <= 1 for value in values):
            yield Fault(key, str(values), PIXELS)


def _own_files(config: TrainConfig) -> Iterator[Fault]:
    data = config.data
    if len(data.levels) != 2 or data.levels[0] >= data.levels[1]:
        yield Fault("data.levels", str(data.levels), "must be two values: of black, and a larger one, of white")
    if data.name in OWN_FILES:
        if data.crop_pct != 1 and data.resize != "crop":
            problem = f"belongs to data.resize=crop, not to data.resize={data.resize}"
            yield Fault("data.crop_pct", str(data.crop_pct), problem)
        return
    sources = f"is for data={listed(OWN_FILES)}"
    if data.storage == "disk":
        yield Fault("data.storage", "disk", f"{sources}: data={data.name} is always read into memory")
    problem = f"{sources}: the images of data={data.name} are arrays of one size"
    if data.resize != "crop":
        yield Fault("data.resize", data.resize, problem)
    if data.crop_pct != 1:
        yield Fault("data.crop_pct", str(data.crop_pct), problem)
    if data.train_size is not None:
        yield Fault("data.train_size", size_override(data.train_size), problem)
    if tuple(data.levels) != LEVELS:
        yield Fault("data.levels", str(data.levels), f"{sources}: the images of data={data.name} are of 8 bits")


def _max_time(config: TrainConfig) -> Iterator[Fault]:
    given = config.trainer.max_time
    if given is None:
        return
    try:
        duration_seconds(given)
    except ValueError as error:
        near = f"trainer.max_time={given}s, or trainer.max_time={given}m" if given.isdigit() else ""
        yield Fault("trainer.max_time", given, str(error), near)


def _optimizer_options(config: TrainConfig) -> Iterator[Fault]:
    optimizer = config.optimizer
    if optimizer.name == "muon" and is_dotted(config.model.name):
        problem = f"trains the blocks of Vision Transformers, which model={config.model.name} lacks"
        yield Fault("optimizer", "muon", problem, "optimizer=adamw")
    if optimizer.lr is None:
        yield Fault("optimizer.lr", "null", f"must be a number, or {AUTO}", f"optimizer.lr={AUTO}")
    if optimizer.lr == AUTO and config.finetune.name == "linear_probe" and config.finetune.head_lr is not None:
        problem = "finds a rate that nothing is trained at: finetune=linear_probe trains the head, at finetune.head_lr"
        yield Fault("optimizer.lr", AUTO, problem, "finetune.head_lr=null")
    if optimizer.adamw_lr == AUTO != optimizer.lr:
        problem = f"is what the range test of optimizer.lr={AUTO} finds, and optimizer.lr is {optimizer.lr}"
        yield Fault("optimizer.adamw_lr", AUTO, problem, f"optimizer.lr={AUTO}")
    for key, used in (("betas", WITH_BETAS), ("momentum", WITH_MOMENTUM), ("adamw_lr", ("muon",))):
        value = getattr(optimizer, key)
        if optimizer.name in used and value is None:
            yield Fault(f"optimizer.{key}", "null", f"is required by optimizer={optimizer.name}")
        if optimizer.name not in used and value is not None:
            yield Fault(f"optimizer.{key}", str(value), f"belongs to {listed(used)}, not to optimizer={optimizer.name}")
    if optimizer.nesterov and optimizer.name != "sgd":
        problem = f"belongs to sgd, not to optimizer={optimizer.name}"
        yield Fault("optimizer.nesterov", "true", problem, "optimizer.nesterov=false")
    elif optimizer.nesterov and optimizer.momentum == 0:
        yield Fault("optimizer.momentum", "0.0", "must be > 0 with optimizer.nesterov=true", "optimizer.momentum=0.9")
    library = OPTIMIZER_LIBRARIES.get(optimizer.name, "")
    if library and find_spec(library) is None:
        yield Fault("optimizer", optimizer.name, f"takes {library}: pip install -e '.[optimizers]'")
    if optimizer.betas is not None and len(optimizer.betas) != 2:
        yield Fault("optimizer.betas", str(optimizer.betas), "must be two numbers, such as [0.9,0.999]")


def _settings_of_built_in_parts(config: TrainConfig) -> Iterator[Fault]:
    loss, schedule = config.loss, config.schedule
    for section, name, key, value in (
        ("loss", loss.name, "loss.label_smoothing", loss.label_smoothing),
        ("loss", loss.name, "loss.class_weights", loss.class_weights),
        ("schedule", schedule.name, "schedule.warmup", schedule.warmup),
    ):
        if is_dotted(name) and value:
            problem = f"is not passed to {section}={name}; make it an option of that part"
            yield Fault(key, str(value), problem, f"{key}={'null' if key.endswith('weights') else '0.0'}")


def _attention_kernel(config: TrainConfig) -> Iterator[Fault]:
    kernel, own = config.model.attention_kernel, config.model.attention
    if kernel == "auto" or not is_dotted(own) or config.model.pool == "map":
        return
    bases = getattr(load(own), "__mro__", None)  # a function may return an attention of vitrine's
    if bases and "vitrine.models.attention" not in {base.__module__ for base in bases}:
        problem = f"is not passed to model.attention={own}; make it an option of that part"
        yield Fault("model.attention_kernel", kernel, problem, "model.attention_kernel=auto")


def _parts_of_the_data(config: TrainConfig) -> Iterator[Fault]:
    data = config.data
    if data.train_fraction is not None and data.per_class is not None:
        problem = f"is given together with data.train_fraction={data.train_fraction:g}; set one of them"
        yield Fault("data.per_class", str(data.per_class), problem)
    if data.folds is not None and data.fold is None:
        problem = f"needs the fold to validate on, from 0; all of them in turn: -m data.fold=range({data.folds})"
        yield Fault("data.folds", str(data.folds), problem, "data.fold=0")
    elif data.fold is not None and data.folds is None:
        yield Fault("data.fold", str(data.fold), "needs the number of folds", "data.folds=5")
    elif data.fold is not None and data.folds is not None and data.fold >= data.folds:
        yield Fault("data.fold", str(data.fold), f"must be < {data.folds}, the number of folds: they count from 0")
    if data.subset_seed != DataConfig.subset_seed and data.train_fraction is None and data.per_class is None:
        problem = "draws the images of data.train_fraction or data.per_class, and neither is set"
        yield Fault("data.subset_seed", str(data.subset_seed), problem, f"data.subset_seed={DataConfig.subset_seed}")
    if data.val_fraction != DataConfig.val_fraction and data.folds is not None:
        problem = f"has no effect with data.folds={data.folds}: a fold is the validation split"
        yield Fault(
            "data.val_fraction", f"{data.val_fraction:g}", problem, f"data.val_fraction={DataConfig.val_fraction}"
        )


def _multi_label(config: TrainConfig) -> Iterator[Fault]:
    data, loss, model = config.data, config.loss, config.model
    if not data.multi_label:
        return
    if data.name != "csv":
        problem = f"is for data=csv, whose labels are then separated by |; data={data.name} has one label per image"
        yield Fault("data.multi_label", "true", problem)
        return
    if loss.name in LOSSES and loss.name != "binary_cross_entropy":
        problem = "is of one class per image, and data.multi_label=true has several"
        yield Fault("loss", loss.name, problem, "loss=binary_cross_entropy")
    for key, value, off in (
        ("loss.label_smoothing", loss.label_smoothing, "0.0"),
        ("loss.class_weights", loss.class_weights, "null"),
        ("data.per_class", data.per_class, "null"),
    ):
        if value:
            problem = "is for one label per image, and data.multi_label=true has several"
            yield Fault(key, as_override(value), problem, f"{key}={off}")
    if data.sampling == "balanced":
        problem = "is for one label per image, and data.multi_label=true has several"
        yield Fault("data.sampling", "balanced", problem, "data.sampling=shuffle")
    if model.num_classes != data.num_classes and not data.targets:
        problem = f"must be {data.num_classes}, the number of classes, with data.multi_label=true"
        yield Fault("model.num_classes", str(model.num_classes), problem)


def _targets(config: TrainConfig) -> Iterator[Fault]:
    data, loss, model = config.data, config.loss, config.model
    if data.targets and data.multi_label:
        problem = "is for one target, whose images have several labels; leave data.targets out, or set it to false"
        yield Fault("data.multi_label", "true", problem)
    if len(data.targets) < 2:
        return
    several = f"and data.targets=[{','.join(data.targets)}] are several"
    for key, value, off in (
        ("loss.class_weights", loss.class_weights, "null"),
        ("augment.mixup", config.augment.mixup, "0"),
        ("augment.cutmix", config.augment.cutmix, "0"),
    ):
        if value:
            yield Fault(key, as_override(value), f"is for one target, {several}", f"{key}={off}")
    if model.num_classes != (needed := sum(data.classes_per_target)):
        problem = f"must be {needed}, the classes of all targets together"
        yield Fault("model.num_classes", str(model.num_classes), problem)


def _loss_fits_the_data(config: TrainConfig) -> Iterator[Fault]:
    loss = config.loss
    if loss.name == "focal" and loss.gamma is None:
        yield Fault("loss.gamma", "null", "is required by loss=focal", "loss.gamma=2.0")
    if loss.name != "focal" and loss.gamma is not None:
        yield Fault("loss.gamma", f"{loss.gamma:g}", f"belongs to focal, not to loss={loss.name}", "loss=focal")
    if loss.class_weights != "effective" and loss.class_weights_beta != LossConfig.class_weights_beta:
        problem = f"belongs to effective, not to loss.class_weights={as_override(loss.class_weights)}"
        yield Fault("loss.class_weights_beta", f"{loss.class_weights_beta:g}", problem, "loss.class_weights=effective")
    if loss.class_weights is None:
        return
    if (found := class_weight_fault(loss.class_weights, config.data.num_classes)) is not None:
        yield found
    elif config.data.sampling == "balanced":
        problem = "corrects for sizes of classes that data.sampling=balanced has evened out; set one of them"
        yield Fault("loss.class_weights", as_override(loss.class_weights), problem)


def _batch_splits(config: TrainConfig) -> Iterator[Fault]:
    devices, parts = config.trainer.devices or 1, config.trainer.accumulate_grad_batches
    if problem := unequal_shares(config, devices):
        yield Fault("data.batch_size", str(config.data.batch_size), problem)
    elif problem := unequal_parts(config, devices):
        yield Fault("trainer.accumulate_grad_batches", str(parts), problem)


def _activation_checkpointing(config: TrainConfig) -> Iterator[Fault]:
    key, model = "trainer.activation_checkpointing", config.model
    if not config.trainer.activation_checkpointing:
        return
    if is_dotted(model.name):
        problem = f"recomputes the blocks of Vision Transformers, which model={model.name} lacks"
        yield Fault(key, "true", problem, f"{key}=false")
    elif model.norm == "batchnorm":
        problem = "computes each block twice, which would count each batch twice in the averages of norm=batchnorm"
        yield Fault(key, "true", problem, f"{key}=false")


def _model_fits_the_data(config: TrainConfig) -> Iterator[Fault]:
    model, data = config.model, config.data
    if model.num_classes < data.num_classes:
        problem = f"must be >= {data.num_classes}, the number of classes of data={data.name}"
        yield Fault("model.num_classes", str(model.num_classes), problem)
    for key in ("image_size", "in_channels"):
        if (value := getattr(model, key)) != getattr(data, key):
            given, images = size_override(value), size_override(getattr(data, key))
            problem = f"differs from the images, data.{key}={images}; set data.{key} only"
            yield Fault(f"model.{key}", given, problem, f"data.{key}={given}")


# Each check with the keys that it is skipped for if they are outside their limits.
_CHECKS: tuple[tuple[tuple[str, ...], Callable[[TrainConfig], Iterator[Fault]]], ...] = (
    (("data.mean", "data.std"), _channel_statistics),
    (("data.resize", "data.crop_pct", "data.levels"), _own_files),
    ((), group_faults),
    ((), _max_time),
    ((), _optimizer_options),
    (("model.depth", "finetune.blocks"), finetune_faults),
    (("distill.name", "distill.weight", "distill.temperature", "data.num_classes"), distill_faults),
    (("trainer.image_schedule", "model.image_size", "model.patch_size", "model.patch_stride"), image_schedule_faults),
    (("optimizer.name",), schedule_free_faults),
    (("optimizer.name", "callbacks.parts"), callback_faults),
    (
        tuple(f"schedule.{key}" for key in ("warmup", "end", *KEYS_OF_SCHEDULES)),
        lambda config: schedule_faults(config.schedule),
    ),
    ((), _settings_of_built_in_parts),
    (("model.attention", "model.attention_kernel"), _attention_kernel),
    (
        ("data.folds", "data.fold", "data.train_fraction", "data.per_class", "data.subset_seed", "data.val_fraction"),
        _parts_of_the_data,
    ),
    (("data.num_classes", "callbacks.monitor", "callbacks.early_stopping.monitor"), metric_faults),
    (("data.name", "loss.name", "data.sampling", "data.num_classes"), _multi_label),
    (("data.num_classes", "data.target_classes"), _targets),
    (("loss.name", "loss.class_weights_beta", "data.num_classes", "data.sampling"), _loss_fits_the_data),
    (("data.batch_size", "trainer.devices", "trainer.accumulate_grad_batches"), _batch_splits),
    (("trainer.activation_checkpointing", "model.norm"), _activation_checkpointing),
    (
        ("data.image_size", "data.train_size", "augment.crop", "augment.cutout", "augment.resized_crop"),
        augmentation_fits_the_image,
    ),
    (("augment.mixup", "augment.cutmix", "augment.mix_share", "data.batch_size"), mixing_faults),
    (("augment.repeats", "data.batch_size", "data.sampling"), repeats_faults),
    ((), _model_fits_the_data),
    (("logger.parts", "logger.wandb.checkpoints"), wandb_faults),
)
