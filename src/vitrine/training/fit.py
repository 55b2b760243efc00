"""Where all parts meet: a configuration goes in; a trained, tested and recorded model comes out."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.profilers import PassThroughProfiler
from rich.console import Console

from vitrine.config import TrainConfig, train_faults
from vitrine.config.serialize import to_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.epoch_plan import derive_seed
from vitrine.data.placement import Placement
from vitrine.distributed import spawn as processes
from vitrine.distributed.hardware import Hardware, choose
from vitrine.distributed.rendezvous import enter, launched, share
from vitrine.durations import duration_seconds
from vitrine.errors import ConfigError, Interrupted, RunError
from vitrine.runs import RunRecord, provenance
from vitrine.runs.record import now
from vitrine.tracking.loggers import RunLogger, invite
from vitrine.training.callbacks import Judge, ProgressBar, Pruning, TrainingLog
from vitrine.training.checkpoints import AtomicCheckpointIO, Checkpoints, load_weights, model_weights, read_checkpoint
from vitrine.training.compile import Compilation, Compiled
from vitrine.training.console import quiet_libraries, show_compiled, show_result, show_start
from vitrine.training.ema import ExponentialMovingAverage
from vitrine.training.evaluate import classifier_from, test
from vitrine.training.graceful_stop import CleanStop, TimeLimit, signals_given_back
from vitrine.training.lit_module import Classifier
from vitrine.training.plots import can_be_drawn, draw_attention, draw_confusion, draw_curves
from vitrine.training.pretrained import Pretrained
from vitrine.training.throughput import (
    Machine,
    Speed,
    datasheet_peak,
    flops_per_image,
    forget_peak_memory,
    matmul_peak,
    peak_memory,
)


@dataclass(frozen=True)
class Result:
    """What a run has reached.

    Attributes:
        metrics: ``val/acc``, ``val/loss`` of the chosen epoch, ``test/acc``, ``test/loss`` where there are test images,
            ``best_epoch`` and ``train_seconds``.
        run_dir: the run folder.
    """

    metrics: dict[str, float]
    run_dir: Path


@dataclass(frozen=True)
class Run:
    """A run about to be trained, in as many processes as its hardware says; plain enough to be sent to each of them.

    Attributes:
        config: everything the run is made with.
        record: its folder.
        hardware: what it computes on.
        began: when its command began, as ``time.time()`` gives it.
        storage: where its images lie.
        stop_by: when its command must have ended, likewise; ``None`` leaves it the time it takes.
        group: word that runs of one sweep share, for trackers.
        varies: what distinguishes the run in its group, as it was typed.
        pretrained: weights to start from, if it doesn't start from its own checkpoint.
        judge: stops it early, if anybody does.
    """

    config: TrainConfig
    record: RunRecord
    hardware: Hardware
    began: float
    storage: Placement
    stop_by: float | None = None
    group: str | None = None
    varies: str = ""
    pretrained: Pretrained | None = None
    judge: Judge | None = None


def fit(
    config: TrainConfig,
    *,
    folder: Path | None = None,
    group: str | None = None,
    varies: str = "",
    facts: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    time_from: float | None = None,
    judge: Judge | None = None,
) -> Result:
    """Train, choose the best epoch on validation, test it once, and leave a run folder.

    Of several processes that torchrun or srun has started, only the first returns; the others follow it to its end.

    Args:
        config: what to train; see :func:`vitrine.compose`.
        folder: the run folder to make; ``None`` is one with a new name in ``runs/`` under ``paths.output_dir``.
        group: word that runs of one sweep share.
        varies: what distinguishes the run among those of its group.
        facts: further entries of run.json.
        callbacks: Lightning callbacks beside the configured ones; in one process only.
        began: when the command began, as ``time.time()`` gives it, for the time that starting up takes; else now.
        time_from: when ``trainer.max_time`` began, likewise; else as ``began``. A multirun's trials share one time.
        judge: asked after each epoch whether to stop; it must be possible to pickle.

    Raises:
        ConfigError: ``config`` can't work; nothing has been written.
        DataError: the data is missing or damaged; nothing has been written.
        RunError: the run folder can't be written, or the weights to start from can't be read.
        Interrupted: a signal asked to stop, or, as ``OutOfTime``, the clock did; the run can be gone on with.
        Pruned: ``judge`` asked to stop; nothing has been tested.
    """
    enter()
    began = time.time() if began is None else began
    if found := train_faults(config):
        raise ConfigError(found)
    like, config = config.like, replace(config, like=None)
    with quiet_libraries():
        hardware = choose(config)
        with hardware.set_up():
            pretrained = Pretrained.prepare(config.model)
            data = ImageDataModule(config, hardware.accelerator, hardware.per_node)
            runs = Path(config.paths.output_dir) / "runs"
            record = RunRecord.at(folder) if folder else RunRecord.create(runs, _word(config, varies))
            end = stop_by(config, began if time_from is None else time_from)
            run = Run(config, record, hardware, began, data.placement, end, group, varies, pretrained, judge)
            with recorded(record):
                record.update(**facts or {})
                _write_origin(run, data, like)
                return carry_out(run, data, callbacks)


def stop_by(config: TrainConfig, since: float) -> float | None:
    """When a run whose time began at ``since`` must have ended."""
    limit = config.trainer.max_time
    return None if limit is None else since + duration_seconds(limit)


@contextmanager
def recorded(record: RunRecord) -> Iterator[None]:
    """Mark the run as running, then as what became of it."""
    record.start()
    try:
        yield
    except BaseException as error:
        if record.facts.get("status") == "finished" or record.end_with(error) != "interrupted":
            raise
        kind = type(error) if isinstance(error, Interrupted) else Interrupted
        raise kind(f"{kind.reason}; go on with: python train.py resume={record.path}") from None


def carry_out(run: Run, data: ImageDataModule, callbacks: Sequence[Callback] = ()) -> Result:
    """Train from where the run's last checkpoint stands, or from the start; test, and end the record."""
    if run.hardware.devices == 1:
        train_and_test(run, data, callbacks)
    elif launched() is None:
        processes.run_all(partial(_train_in_process, run), run.record, run.hardware)
    else:
        share(partial(_train_in_process, run), partial(train_and_test, run, data, callbacks))
    return Result(run.record.metrics, run.record.path)


def _train_in_process(run: Run, rank: int) -> None:
    """What one of several processes does: each reads the data by itself."""
    if not run.record.path.is_dir():
        raise RunError(f"{run.record.path} is not seen from {socket.gethostname()}; all machines must share its folder")
    with quiet_libraries(), run.hardware.set_up():
        data = ImageDataModule(run.config, run.hardware.accelerator, run.hardware.per_node, run.storage)
        train_and_test(run, data, rank=rank)


def train_and_test(run: Run, data: ImageDataModule, callbacks: Sequence[Callback] = (), rank: int = 0) -> None:
    """What each process of a run does; the first one also shows, tests, and writes the record."""
    module, done = _at_the_start(run, data)
    if rank > 0:
        _train(run, data, module, callbacks, lambda compiled: None)
    else:
        _lead(run, data, module, done, callbacks)


def _at_the_start(run: Run, data: ImageDataModule) -> tuple[Classifier, int]:
    """The model as training begins with it, and how many steps it has behind it."""
    torch.manual_seed(derive_seed(run.config.seed))
    module = Classifier(run.config, data.steps, min(run.config.data.batch_size, len(data.train)))
    last = run.record.last
    if last.exists():
        checkpoint = read_checkpoint(last)
        load_weights(module.model, model_weights(checkpoint), str(last))  # says clearly what does not fit
        return module, checkpoint["global_step"]
    if run.pretrained is not None:
        run.pretrained.copy_to(module.model)
    return module, 0


def _lead(run: Run, data: ImageDataModule, module: Classifier, done: int, callbacks: Sequence[Callback]) -> None:
    """Train as the first process, which also shows, tests, and writes the record."""
    config, record = run.config, run.record
    console = Console()
    flops = flops_per_image(config.model)
    facts = {
        "parameters": sum(parameter.numel() for parameter in module.model.parameters()),
        "flops_per_image": flops,
        "epochs": config.trainer.max_epochs,
        "steps_per_epoch": data.steps_per_epoch,
    }
    record.update(**facts)
    started = None if run.pretrained is None else run.pretrained.changes
    show_start(console, config, record, run.hardware, facts, data.sizes, data.placement.line, started)
    speed = Speed(flops, _machine(run.hardware))
    forget_peak_memory(run.hardware)  # of measuring the machine
    with RunLogger(record, done, invite(config, record, done, run.group, run.varies, run.stop_by)) as logger:
        starting = time.time() - run.began  # what metrics.csv's seconds leave out
        progress = ProgressBar(console, config.trainer.max_epochs, data.steps)
        compiled: list[Compiled] = []

        def tell(what: Compiled) -> None:
            compiled.append(what)
            start = {"step": done, "seconds": round(starting, 2), "compiling": round(what.seconds, 2)}
            starts = [*record.facts.get("start_ups", []), start]
            record.update(compiled=what.what, start_ups=starts)  # as which it goes on, if it is stopped
            speed.start_clock(module.device)
            show_compiled(console, what)

        best = _train(run, data, module, [speed, progress, *callbacks], tell, logger)
        processes.part()  # what follows is done by one process alone
        metrics = best | {"train_seconds": round(logger.seconds, 2)}
        figures = speed.figures | _start_up(run, speed, compiled)
        record.update(speed=figures, **peak_memory(run.hardware))
        pictures = {"curves": draw_curves(record)}
        module = classifier_from(config, read_checkpoint(record.best))
        if data.test is not None:
            outcome = test(config, module, data, run.hardware)
            outcome.save(record)
            metrics |= outcome.metrics
            pictures["confusion"] = draw_confusion(record, outcome.logits, outcome.labels, data.dataset.classes)
        if can_be_drawn(config.model):
            pictures["attention"] = draw_attention(record, module, data.test or data.val, data.dataset.classes)
        record.write_metrics(metrics)
        logger.conclude(metrics, pictures)
    chosen = "the last" if config.callbacks.monitor == "last" else ""
    show_result(console, record, metrics, chosen, figures, of_sweep=run.group is not None)


def _machine(hardware: Hardware) -> Machine:
    """What the hardware can do, over all its devices."""
    here = matmul_peak(hardware.accelerator, hardware.precision, torch.get_num_threads())
    promised = datasheet_peak(hardware.name, hardware.precision) if hardware.accelerator == "cuda" else None
    return Machine(here * hardware.devices, promised and promised * hardware.devices)


def _start_up(run: Run, speed: Speed, compiled: Sequence[Compiled]) -> dict[str, float]:
    """Seconds from the command's start to its first step, those of compiling apart."""
    compiling = sum(one.seconds for one in compiled)
    began = run.began if speed.first_step is None else speed.first_step - compiling
    return {"startup_seconds": round(began - run.began, 2), "compile_seconds": round(compiling, 2)}


class Unprofiled(PassThroughProfiler):
    """Times nothing. Lightning's own does neither, but makes a generator for each of some fifty actions in a step."""

    nothing = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """Do nothing around an action."""
        return self.nothing


def _train(
    run: Run,
    data: ImageDataModule,
    module: Classifier,
    watchers: Sequence[Callback],
    tell: Callable[[Compiled], None],
    logger: RunLogger | None = None,
) -> dict[str, float]:
    """Train from the last checkpoint, or from the start; gives the metrics of the best epoch and its number.

    ``tell`` is given what was compiled.
    """
    config, hardware = run.config, run.hardware
    checkpoints = Checkpoints(run.record, config.callbacks.monitor)
    stop = CleanStop(checkpoints, None if run.stop_by is None else TimeLimit(run.stop_by, data.sizes))
    averaging, stopping = config.callbacks.ema, config.callbacks.early_stopping
    asked = config.trainer.compile
    if asked == "auto":  # a run that goes on is compiled as it was
        asked = run.record.facts.get("compiled", asked)
    trials = not (config.trainer.deterministic or config.debug.detect_anomaly)
    callbacks: list[Callback] = [TrainingLog(config.trainer.log_every_n_steps)]
    if averaging is not None:
        callbacks.append(ExponentialMovingAverage(averaging.decay))
    if stopping is not None:
        mode = "max" if stopping.monitor == "val/acc" else "min"
        callbacks.append(EarlyStopping(stopping.monitor, stopping.min_delta, stopping.patience, mode=mode))
    ending = [stop] if run.judge is None else [Pruning(run.judge, stop), stop]
    trainer = pl.Trainer(
        max_epochs=config.trainer.max_epochs,
        accelerator=hardware.accelerator,
        devices=hardware.per_node,
        num_nodes=hardware.nodes,
        strategy="ddp" if hardware.devices > 1 else "auto",
        precision=hardware.lightning_precision,  # type: ignore[arg-type]
        deterministic=config.trainer.deterministic,
        limit_train_batches=config.debug.limit_batches,
        limit_val_batches=config.debug.limit_batches,
        detect_anomaly=config.debug.detect_anomaly,
        profiler="simple" if config.debug.profile else Unprofiled(),
        logger=logger or False,
        # Compiling takes long: signals are listened to before.
        callbacks=[*callbacks, *watchers, checkpoints, *ending, Compilation(asked, trials, tell)],
        # Which processes there are is known: Lightning would go by whatever Slurm has set around it.
        plugins=[AtomicCheckpointIO(), TorchElasticEnvironment() if hardware.devices > 1 else LightningEnvironment()],
        default_root_dir=run.record.path,
        enable_checkpointing=False,  # Checkpoints does it
        enable_progress_bar=False,  # ProgressBar does it
        enable_model_summary=False,
        use_distributed_sampler=False,  # the loaders give each process its share
        num_sanity_val_steps=0,
    )
    last = run.record.last if run.record.last.exists() else None
    with signals_given_back():
        trainer.fit(module, datamodule=data, ckpt_path=last, weights_only=True)
    if config.debug.profile and logger is not None:
        print(trainer.profiler.summary())  # type: ignore[attr-defined]
    return checkpoints.best


def _write_origin(run: Run, data: ImageDataModule, like: str | None) -> None:
    """Write all that is known before training: configuration, command, code, versions, machine, data."""
    code, difference = provenance.code_state()
    if difference:
        run.record.write("code.diff", difference)
    run.record.update(
        id=run.record.name,
        started=now(),
        command=provenance.command(),
        code=code,
        versions=provenance.versions(),
        machine=provenance.machine(),
        device=run.hardware.name,
        processes=run.hardware.devices,
        precision=run.hardware.precision,
        attention_kernel=run.hardware.attention_kernel,
        images=data.sizes,
        storage=asdict(data.placement),
        classes=data.dataset.classes,
        validation=data.validation_hash,
        group=run.group,
        varies=run.varies,
        like=like,
        tags=run.config.tags,
        pretrained=None if run.pretrained is None else [run.pretrained.source, *run.pretrained.changes],
    )
    run.record.write_config(to_plain(run.config))


def _word(config: TrainConfig, varies: str) -> str:
    """What a run folder's name says of the run."""
    model = config.model
    word = varies or f"{config.data.name}-{model.dim}x{model.depth}-p{model.patch_size}-{model.position}-s{config.seed}"
    word = config.name or word
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in word)[:100]
