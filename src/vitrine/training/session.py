"""A session of a run, its first or a later one: train, test, draw and record."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.console import Console

from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import names_of
from vitrine.config.schema import AUTO
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.epoch_plan import derive_seed
from vitrine.distributed import spawn
from vitrine.distributed.rendezvous import Ranks, together
from vitrine.errors import Interrupted, RunError, first_line
from vitrine.files import disk_full
from vitrine.models import build_model, rollout_problem
from vitrine.text import report
from vitrine.tracking.loggers import RunLogger, start_trackers
from vitrine.training.callbacks import stopped_before
from vitrine.training.class_sizes import class_sizes
from vitrine.training.compile import Compiled
from vitrine.training.console import (
    quiet_libraries,
    show_compiled,
    show_compiling,
    show_learning_rate,
    show_result,
    show_start,
    text_console,
)
from vitrine.training.evaluate import Evaluation, classifier_from, evaluate_split
from vitrine.training.flops import flops_per_image, flops_phases, planned_flops
from vitrine.training.initial_weights import check_all_stored, drawn_by_name
from vitrine.training.lifecycle import StartUp
from vitrine.training.lit_module import Classifier
from vitrine.training.losses import class_weights, try_loss
from vitrine.training.lr_range import set_learning_rate
from vitrine.training.memory import peak_memory, reset_peak_memory
from vitrine.training.peak_flops import PeakFlops
from vitrine.training.progress_bar import ProgressBar
from vitrine.training.recovery import replace_lost_best
from vitrine.training.run import Result, TrainingRun
from vitrine.training.schedules import epochs_in, total_steps
from vitrine.training.throughput import Throughput
from vitrine.training.trainer import train
from vitrine.training.weights import load_weights, model_weights, read_checkpoint


def carry_out(run: TrainingRun, data: ImageDataModule, ranks: Ranks) -> Result:
    """Train, test and record on the ranks that there are, or on new ones, one for each device."""
    if run.hardware.devices > ranks.count:
        spawn.run_all(partial(_train_as_spawned_rank, run), run.record, run.hardware.devices, run.hardware.accelerator)
    else:
        train_and_test(run, data, ranks)
    return Result(ranks.share(lambda: run.record.metrics), run.record.path.absolute())


def _train_as_spawned_rank(run: TrainingRun) -> None:
    with quiet_libraries(), run.hardware.set_up(), together() as ranks:
        data = ImageDataModule(run.config, run.hardware.accelerator, run.hardware.per_node, run.placement)
        train_and_test(run, data, ranks)


def train_and_test(run: TrainingRun, data: ImageDataModule, ranks: Ranks) -> None:
    """Train on all ranks; rank 0 also prints, logs, tests and writes the record."""
    if not run.record.path.is_dir():
        raise RunError(f"{run.record.path} is not visible on {socket.gethostname()}; all machines must share it")
    module, first_step, first_epoch = initial_model(run, data)
    ranks.wait_for_all()  # before rank 0 changes the checkpoint
    if ranks.rank == 0:
        _lead(run, data, module, ranks, first_step, first_epoch)
        return
    if run.config.optimizer.lr == AUTO:
        set_learning_rate(run, data, module, ranks)
    train(run, data, module, ranks.launch, callbacks=run.callbacks)


def _lead(
    run: TrainingRun, data: ImageDataModule, module: Classifier, ranks: Ranks, first_step: int, first_epoch: int
) -> None:
    """Train together with the other ranks, test, and show and record both."""
    config, record, console = run.config, run.record, text_console()
    facts, by_epoch = _record_plan(run, data, module, first_epoch)
    show_start(console, run, data, facts, class_sizes(data))
    if config.optimizer.lr == AUTO:
        from vitrine.training.plots import draw_lr_range  # imports matplotlib

        tested = set_learning_rate(run, data, module, ranks)
        draw_lr_range(record, tested.found)
        show_learning_rate(console, tested)
    reset_peak_memory(run.hardware)
    trackers = start_trackers(config, record, first_step, run.group, run.varies, run.stop_by)
    with RunLogger(record, first_step, trackers) as logger:
        best = _train_and_time(run, data, module, ranks, first_step, logger, console, by_epoch)
        if (epochs := module.trainer.current_epoch) < config.trainer.max_epochs:
            record.update(epochs=epochs, training_flops_per_image=round(sum(by_epoch[:epochs]) / epochs))
            print(stopped_before(module.trainer), flush=True)
        if not record.best.exists():
            best = replace_lost_best(record)
        metrics = best | {"train_seconds": round(logger.seconds, 2)}
        selected = classifier_from(config, read_checkpoint(record.best))
        if (evaluation := _test(run, data, selected)) is not None:
            metrics |= evaluation.metrics
        record.write_metrics(metrics)
        _draw(run, data, selected, evaluation)
        logger.conclude(metrics, record.pictures)
    show_result(console, record, metrics, record.facts.get("speed"), without_test=run.group is not None)


def _record_plan(
    run: TrainingRun, data: ImageDataModule, module: Classifier, first_epoch: int
) -> tuple[dict[str, Any], list[int]]:
    """Record how large the model and its training are; return that, and the FLOPs per image of each epoch's steps."""
    config = run.config
    flops = flops_per_image(config.model)
    taught = 0 if run.distillation is None else flops_per_image(run.distillation.trained.model)
    phases = run.record.facts.get("training_flops_phases") or []
    by_epoch = planned_flops(config, flops, phases, first_epoch, of_teacher=taught)
    facts: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in module.model.parameters()),
        "trained_parameters": sum(one.numel() for one in module.model.parameters() if one.requires_grad),
        "flops_per_image": flops,
        "training_flops_per_image": round(sum(by_epoch) / len(by_epoch)),  # mean over epochs
        "epochs": config.trainer.max_epochs,
        "steps_per_epoch": data.steps_per_epoch,
    }
    if run.distillation is not None:
        facts["teacher_flops_per_image"] = taught
    if config.trainer.image_schedule:
        facts["training_flops_phases"] = flops_phases(by_epoch)
    run.record.update(**facts)
    return facts, by_epoch


def _train_and_time(
    run: TrainingRun,
    data: ImageDataModule,
    module: Classifier,
    ranks: Ranks,
    first_step: int,
    logger: RunLogger,
    console: Console,
    training_flops: Sequence[float],
) -> dict[str, float]:
    """Train with a progress bar, record the speed, and return the metrics of the best epoch.

    ``training_flops`` are those of a step, per image, in each epoch.
    """
    start_up = StartUp(run, first_step)
    throughput = Throughput(training_flops.__getitem__, partial(PeakFlops.of, run.hardware))
    progress = ProgressBar(console, run.config.trainer.max_epochs, module.steps)

    def on_compiled(compiled: Compiled) -> None:
        start_up.compiled(compiled.what, compiled.seconds)
        throughput.start_clock(module.device)
        show_compiled(console, compiled)

    def record_speed() -> None:
        if throughput.steps:
            speed = throughput.summary | start_up.summary(throughput.first_step)
            run.record.update(speed=speed, **peak_memory(run.hardware))

    try:
        best = train(
            run,
            data,
            module,
            ranks.launch,
            logger=logger,
            callbacks=[throughput, progress, *run.callbacks],
            on_compiled=on_compiled,
            showing=partial(show_compiling, console),
        )
    except Interrupted:  # perhaps after the last step: then the session that tests has none to measure
        record_speed()
        raise
    record_speed()
    return best


def initial_model(run: TrainingRun, data: ImageDataModule) -> tuple[Classifier, int, int]:
    """Return the model that training starts from or resumes with, and the optimiser steps and epochs done before."""
    config, labels = run.config, data.train.first_labels
    torch.manual_seed(derive_seed(config.seed))  # for draws outside of the model
    # A new head must differ from that of a run with this seed, in which the pretrained features may have been trained.
    seed = config.seed if run.pretrained is None else derive_seed(config.seed, "pretrained")
    with_kernel = replace(config.model, attention_kernel=run.hardware.attention_kernel)
    model = drawn_by_name(partial(build_model, with_kernel), seed)
    if parts := names_of(config.model):
        with failing_in_one_line(config.model):
            shape = (2, config.model.in_channels, *config.model.image_hw)
            check_all_stored(partial(build_model, with_kernel), shape, parts)
    with torch.random.fork_rng(devices=[]):
        try_loss(config)
    weights = class_weights(config.loss, labels, data.dataset.classes, config.model.num_classes)
    images = min(config.data.batch_size, len(labels))
    checkpoint = read_checkpoint(run.record.last) if run.record.last.exists() else None
    steps = data.steps
    if checkpoint is not None:
        steps = total_steps(checkpoint, config.trainer.max_epochs, data.steps_per_epoch)
    module = Classifier(config, steps, images, class_weights=weights, model=model, distillation=run.distillation)
    if run.hardware.precision == "64-true":  # before weights are restored or averaged, not when training begins
        module.double()
    if checkpoint is not None:
        source = str(run.record.last)
        load_weights(module.model, model_weights(checkpoint), source)  # a clear error if they do not fit
        return module, checkpoint["global_step"], epochs_in(checkpoint)
    if run.pretrained is not None:
        run.pretrained.copy_to(module.model)
    return module, 0, 0


def _test(run: TrainingRun, data: ImageDataModule, module: Classifier) -> Evaluation | None:
    """Test the selected model on rank 0, and write predictions.npz; ``None`` if there are no test images."""
    if data.test is None:
        return None
    tested = evaluate_split(run.config, module, data, run.hardware)
    tested.save(run.record)
    return tested


def _draw(run: TrainingRun, data: ImageDataModule, module: Classifier, tested: Evaluation | None) -> None:
    """Draw the run: its curves, its confusion on the test images, and what the selected model attends to."""
    from vitrine.figure_style import drawable
    from vitrine.training.plots import draw_attention, draw_confusion, draw_curves  # imports matplotlib

    record, classes = run.record, drawable(data.dataset.classes)
    with _reporting("curves"):
        draw_curves(record)
    if tested is not None and not run.config.data.multi_label:
        with _reporting("confusion"):
            draw_confusion(record, tested.logits, tested.labels, classes)
    if not rollout_problem(module.model):
        with _reporting("attention"):
            draw_attention(record, module, data.test or data.val, classes)


@contextmanager
def _reporting(picture: str) -> Iterator[None]:
    """Report why a picture could not be drawn, on which no result depends; a full disk ends the run."""
    try:
        yield
    except Exception as error:
        if disk_full(error) is not None:
            raise
        report(f"{picture}.png could not be drawn: {first_line(error)}")
