"""Console output of a run, apart from the progress bar: its settings at the start and its results at the end."""

import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrine.config import TrainConfig, ViTConfig
from vitrine.config.image_schedule import image_sides
from vitrine.config.loggers import LoggerConfig
from vitrine.config.metrics import BASIC, EXTRA, TITLES, by_class, lower_is_better
from vitrine.config.parts import is_dotted, parts_of
from vitrine.config.schema import AUTO
from vitrine.config.size import format_size
from vitrine.distributed.hardware import Hardware, cpu_supports_bf16
from vitrine.runs import RunRecord
from vitrine.text import listed, one_line, plural, short_number
from vitrine.tracking.wandb_values import completed
from vitrine.training.finetune import has_constant_features

if TYPE_CHECKING:  # it imports Lightning, which takes seconds
    from vitrine.data.datamodule import ImageDataModule
    from vitrine.training.compile import Compiled
    from vitrine.training.lr_range import RangeTest
    from vitrine.training.run import TrainingRun

KERNELS = {"sdpa": "by PyTorch's fused kernel", "explicit": "by two matrix products"}
LONGEST = len("FLOPs per image")  # of the names that a training begins with


def text_console() -> Console:
    """Return a console for standard output; in a notebook for plain text, where Rich makes a display of each line."""
    console = Console()
    return Console(force_jupyter=False, force_terminal=False) if console.is_jupyter else console


def show_start(
    console: Console, run: "TrainingRun", images: "ImageDataModule", facts: Mapping[str, int], classes: str
) -> None:
    """Print a table of data, classes, model, parameters, FLOPs, device, precision, run folder and loggers."""
    config, record, hardware, sizes = run.config, run.record, run.hardware, images.sizes
    model, data = config.model, config.data
    targets = [plural(count, "class", "classes") for count in data.classes_per_target]
    if len(data.targets) > 1:
        targets = [f"{name} of {count}" for name, count in zip(data.targets, targets, strict=True)]
    cropped = "" if data.train_size is None else f", in training cropped from {format_size(data.train_size)}"
    layout = f"{format_size(data.image_size)}x{data.in_channels}{cropped}, {listed(targets)}"
    split = ", ".join(f"{count:,} {name}" for name, count in sizes.items() if count)
    epochs = plural(config.trainer.max_epochs, "epoch")
    batch = plural(min(data.batch_size, sizes["train"]), "image")
    plan = f"{epochs} of {plural(facts['steps_per_epoch'], 'step')} with {batch}"
    tokens = f"{plural(model.tokens, 'token')} of {format_size(model.patch_size)} pixels"
    processes = f", {hardware.devices} processes" if hardware.devices > 1 else ""
    architecture = f"ViT {model.dim} wide, {model.depth} deep, {model.heads} heads; {tokens}, "
    architecture += f"position {model.position}, pool {model.pool}"
    if is_dotted(model.name):
        options = ", ".join(f"{name}={value}" for name, value in model.options.items())
        architecture = f"{model.name}({options})"
    rows = {
        "data": f"{data.name}: {layout}; {split}",
        **({"classes": classes} if classes else {}),
        "images": images.placement.line,
        "model": architecture,
        "parameters": f"{facts['parameters']:,}{_trained(config, facts)}",
        "FLOPs per image": f"{short_number(facts['flops_per_image'])} (forward; a multiply-add is 2)"
        f"{_in_training(config, facts)}",
        "training": f"{plan}, {config.optimizer.name} at {_rate(config)}, seed {config.seed}",
        **_image_sizes(config),
        **_teacher(config, facts),
        "device": f"{hardware.name}{processes}",
        "precision": f"{_precision(hardware)}{_attention(model, hardware)}",
        "run folder": str(record.path),
        **_loggers(config.logger, record),
    }
    if run.pretrained is not None:
        rows["pretrained"] = "; ".join([str(model.pretrained), *run.pretrained.changes])
    _print(console, rows)


def _precision(hardware: Hardware) -> str:
    """Return the precision, with a warning where the processor only emulates it."""
    if hardware.accelerator != "cpu" or hardware.precision != "bf16-mixed" or cpu_supports_bf16():
        return hardware.precision
    return f"{hardware.precision} (slow: this processor has no instructions for it; try trainer.precision=32-true)"


def _attention(model: ViTConfig, hardware: Hardware) -> str:
    """Return how attention is computed, after a comma; nothing for a whole model of the user's."""
    if is_dotted(model.name):
        return ""
    return f", attention {KERNELS[hardware.attention_kernel] if model.uses_kernel else f'by {model.attention}'}"


def _loggers(config: LoggerConfig, record: RunRecord) -> dict[str, str]:
    """Return a row with where the run is logged in addition to its folder, if anywhere."""
    wandb, places = None if config.wandb is None else completed(config.wandb, record), []
    if wandb is not None and wandb.mode != "disabled":
        project = wandb.project if wandb.entity is None else f"{wandb.entity}/{wandb.project}"
        places.append(f"Weights & Biases, project {project} ({wandb.mode})")
    places += [] if config.tensorboard is None else ["TensorBoard files in the run folder"]
    places += [part.name for part in parts_of(config)]
    return {"logged to": listed(places)} if places else {}


def _in_training(config: TrainConfig, facts: Mapping[str, int]) -> str:
    """What patch dropout and smaller images leave of the FLOPs."""
    model, scheduled = config.model, config.trainer.image_schedule is not None
    if model.patch_dropout == 0 and not scheduled:
        return ""
    on = "mean over the epochs" if scheduled else f"on {model.kept_patches} of {model.patches} patches"
    flops = facts["training_flops_per_image"] - facts.get("teacher_flops_per_image", 0)
    return f"; {short_number(flops / 3)} in training, {on}"


def _image_sizes(config: TrainConfig) -> dict[str, str]:
    """Return a row with the sizes of training images, if they change."""
    trainer = config.trainer
    sides = image_sides(trainer.image_schedule, trainer.max_epochs)
    counted = [(side or config.model.image_size, len(list(epochs))) for side, epochs in groupby(sides)]
    if len(counted) == 1 and sides[0] is None:
        return {}
    phases = (f"{format_size(side)} in {plural(count, 'epoch')}" for side, count in counted)
    return {"image sizes": ", then ".join(phases)}


def _teacher(config: TrainConfig, facts: Mapping[str, int]) -> dict[str, str]:
    """Return a row with what teaches, if anything does."""
    distill = config.distill
    if not distill.is_on:
        return {}
    how = distill.name if distill.temperature is None else f"{distill.name} at temperature {distill.temperature:g}"
    flops = short_number(facts["teacher_flops_per_image"])
    return {"teacher": f"{distill.teacher}: {how}, weight {distill.weight:g}; {flops} FLOPs per image"}


def _trained(config: TrainConfig, facts: Mapping[str, int]) -> str:
    """How many parameters are trained, if not all."""
    if config.finetune.name == "full":
        return ""
    once = "; features are computed once" if has_constant_features(config) else ""
    return f", of which {facts['trained_parameters']:,} are trained ({config.finetune.name}){once}"


def _rate(config: TrainConfig) -> str:
    lr, head_lr = config.optimizer.lr, config.finetune.head_lr
    if head_lr is not None and config.finetune.name == "linear_probe":
        return f"{head_lr:g}"
    rate = "a learning rate that a range test finds" if lr == AUTO else f"{lr:g}"
    return rate if head_lr is None else f"{rate}, the head at {head_lr:g}"


def show_learning_rate(console: Console, tested: "RangeTest") -> None:
    """Print what a range test found."""
    steps = plural(tested.steps, "step")
    value = f"{tested.found:g}, by a range test of {steps} in {tested.seconds:.1f} s: lr_range.png"
    _print(console, {"learning rate": value}, LONGEST)


class _Elapsed:
    """``text, 12 s``, counted from its creation whenever it is drawn."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.begin = time.monotonic()

    def __rich__(self) -> str:
        return f"{self.text}, {time.monotonic() - self.begin:.0f} s"


@contextmanager
def show_compiling(console: Console, limit: float | None) -> Iterator[None]:
    """Show for how long the compiler has been at work; ``limit`` is that of a trial in seconds."""
    doing = "compiling" if limit is None else f"trying the compiler (at most {limit:.0f} s)"
    if console.is_terminal:
        with console.status(_Elapsed(doing)):
            yield
    else:
        print(doing, file=console.file, flush=True)
        yield


def show_compiled(console: Console, compiled: "Compiled") -> None:
    """Print what was compiled, or why nothing was compiled."""
    what = {"nothing": "not used", "blocks": "each block", "graphs": "the model, as CUDA graphs"}
    _print(console, {"compiler": f"{what.get(compiled.what, 'the model')}: {compiled.why}"}, LONGEST)


def show_result(
    console: Console,
    record: RunRecord,
    metrics: Mapping[str, float],
    speed: Mapping[str, float | None] | None = None,
    *,
    without_test: bool = False,
    epoch: int | None = None,
) -> None:
    """Print a table of a run's metrics, best epoch or the ``epoch`` that was asked for, speed and folder.

    ``without_test`` leaves the test accuracy out: where validation images were measured, and of a sweep's trial, as the
    sweep shows the best configuration's.
    """
    rows = {}
    for stage, title in (("val", "validation"), ("test", "test"))[: 1 if without_test else 2]:
        if f"{stage}/acc" in metrics:
            rows[f"{title} accuracy"] = f"{metrics[f'{stage}/acc']:.4f}"
            of_target = f"{stage}/acc/"
            targets = [name.removeprefix(of_target) for name in metrics if name.startswith(of_target)]
            rows |= {f"{title} accuracy of {target}": f"{metrics[of_target + target]:.4f}" for target in targets}
            rows[f"{title} loss"] = f"{metrics[f'{stage}/loss']:.4f}"
            rows |= _further_rows(stage, title, metrics)
    if "test/acc" not in metrics and not without_test:
        rows["test accuracy"] = "the data has no test images"
    if "best_epoch" in metrics:
        monitor = record.config["callbacks"]["monitor"]
        extreme = "lowest" if lower_is_better(monitor) else "highest"
        best = "the best on validation" if monitor == "val/acc" else f"the {extreme} {monitor}"
        if math.isnan(metrics.get(monitor, 0.0)):
            best = f"{monitor} was NaN in every epoch"
        chosen = "the last" if monitor == "last" else best
        rows["chosen checkpoint"] = f"epoch {metrics['best_epoch']:.0f}, {chosen}"
    if epoch is not None:
        rows["chosen checkpoint"] = f"epoch {epoch}"
    if "train_seconds" in metrics:
        rows["training time"] = f"{metrics['train_seconds']:.1f} s"
    rows |= _speed_rows(speed or {})
    rows["run folder"] = str(record.path)
    _print(console, rows)


def _further_rows(stage: str, title: str, metrics: Mapping[str, float]) -> dict[str, str]:
    """Metrics other than accuracy and loss in one row, the user's last, and those of each class in another."""
    found = [key.removeprefix(f"{stage}/") for key in metrics if key.startswith(f"{stage}/") and key.count("/") == 1]
    names = [name for name in dict.fromkeys((*EXTRA, *found)) if name not in BASIC and f"{stage}/{name}" in metrics]
    values = [f"{TITLES.get(name, name.replace('_', ' '))} {metrics[f'{stage}/{name}']:.4f}" for name in names]
    rows = {f"{title} metrics": ", ".join(values)} if values else {}
    classes = by_class(metrics, stage)
    return rows | ({f"{title} by class": ", ".join(classes)} if classes else {})


def _speed_rows(speed: Mapping[str, float | None]) -> dict[str, str]:
    rows = {}
    if "images_per_second" in speed:
        slow, share = speed["images_per_second_slow"], speed["data_share"]
        rows["speed"] = (
            f"{speed['images_per_second']:,.0f} images/s ({slow:,.0f} in the slowest twentieth of the steps); "
            f"{share:.1%} of the time waiting for data"
        )
        promised = speed["mfu_datasheet"]
        rows["model FLOP/s"] = (
            f"{short_number(speed['flops_per_second'] or 0)}, {speed['mfu_measured']:.0%} of a matrix product's here"
        )
        rows["model FLOP/s"] += "" if promised is None else f", {promised:.0%} of the datasheet's"
    if "startup_seconds" in speed:
        rows["start-up"] = f"{speed['startup_seconds']:.1f} s"
    if (speed.get("compile_seconds") or 0) >= 1:  # less is the time to decide that compilation doesn't pay off
        rows["compiler"] = f"{speed['compile_seconds']:.1f} s, included in the training time"
    return rows


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence library messages that a user can't act on; errors still show."""
    names = (
        "lightning.pytorch",
        "lightning.fabric",
        "lightning.pytorch.utilities.rank_zero",
        "torch.distributed",
        "torch.utils.cpp_extension",  # it reports that CUDA is missing
    )
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _print(console: Console, rows: Mapping[str, str], width: int = 0) -> None:
    """Print a line per row, never broken at the console's width, so that paths can be copied whole.

    Values line up behind the longest name; further right if it has fewer than ``width`` letters.
    """
    width = max(width, *map(len, rows))
    for name, value in rows.items():
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", one_line(value)), soft_wrap=True)
    console.file.flush()
