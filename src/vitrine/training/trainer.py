"""The Lightning trainer of a run: hardware, callbacks and plugins from the configuration."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor

from vitrine.config import TrainConfig
from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import build_list
from vitrine.config.schedule_free import is_schedule_free
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.feature_source import Extract
from vitrine.distributed.hardware import lightning_deterministic
from vitrine.distributed.launch import Launch
from vitrine.errors import Interrupted
from vitrine.signals import restored_handlers
from vitrine.tracking.loggers import RunLogger
from vitrine.training.callbacks import CompleteCache, EarlyStopping, Pruning, TrainingLog
from vitrine.training.checkpoints import AtomicCheckpointIO, Checkpoints
from vitrine.training.compile import Compilation, Compiled, Showing
from vitrine.training.ema import AverageBeforeValidation, ExponentialMovingAverage
from vitrine.training.finetune import has_constant_features
from vitrine.training.graceful_stop import GracefulStop, TimeLimit
from vitrine.training.lit_module import Classifier
from vitrine.training.run import TrainingRun
from vitrine.training.schedule_free import ScheduleFreeWeights


class LaunchedEnvironment(TorchElasticEnvironment):
    """Ranks that exist already, whoever launched them; their process group is initialised before Lightning starts."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.launch.count

    def global_rank(self) -> int:
        """Return this process's rank."""
        return self.launch.rank

    def local_rank(self) -> int:
        """Return its rank on this machine, which is its GPU's number."""
        return self.launch.local_rank

    def node_rank(self) -> int:
        """Return the number of its machine."""
        return self.launch.rank // (self.launch.count // self.launch.nodes)


class NullProfiler(PassThroughProfiler):
    """Profiler that does nothing, at 0.2 us per action: Lightning's takes 1 us, 47 times in a step."""

    context = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return a context that does nothing."""
        return self.context


def train(
    run: TrainingRun,
    data: ImageDataModule,
    module: Classifier,
    launch: Launch | None,
    *,
    logger: RunLogger | None = None,
    callbacks: Sequence[Callback] = (),
    on_compiled: Callable[[Compiled], None] = lambda compiled: None,
    showing: Showing = lambda limit: nullcontext(),
) -> dict[str, float]:
    """Train from the run's last checkpoint, or from the start.

    Args:
        run: the run.
        data: its images.
        module: the model, initialised.
        launch: this rank's place among several; ``None`` if it trains alone.
        logger: takes metrics, on rank 0.
        callbacks: Lightning callbacks in addition to the configured ones.
        on_compiled: called once with the compiler's result, before the first step.
        showing: makes the context manager entered while compiling; see :class:`Compilation`.

    Returns:
        The validation metrics of the best epoch, and ``best_epoch``, its number from 1.
    """
    config, record = run.config, run.record
    checkpoints = Checkpoints(record, config.callbacks.monitor, config.callbacks.keep_every)
    stop = GracefulStop(checkpoints, TimeLimit(run.stop_by, data.sizes))
    pruning = [] if run.pruning_rule is None else [Pruning(run.pruning_rule, stop)]
    trainer = build_trainer(
        run,
        launch,
        # GracefulStop listens for signals before Compilation starts, which takes long.
        [
            *_configured_callbacks(config),
            *callbacks,
            checkpoints,
            *pruning,
            stop,
            CompleteCache(data, stop),
            _compilation(run, on_compiled, showing),
        ],
        max_epochs=config.trainer.max_epochs,
        limit_val_batches=config.debug.limit_batches,
        profiler="simple" if config.debug.profile else NullProfiler(),
        logger=logger or False,
    )
    if has_constant_features(config):
        data.features_of = _extraction(trainer, module)
    last = record.last if record.last.exists() else None
    with restored_handlers(), failing_in_one_line(config):
        trainer.fit(module, datamodule=data, ckpt_path=last, weights_only=True)
    if stop.asked:  # by a signal after the last epoch's check
        raise Interrupted
    if config.debug.profile and logger is not None:
        print(trainer.profiler.summary())  # type: ignore[attr-defined]
    return checkpoints.best


def build_trainer(
    run: TrainingRun, launch: Launch | None, callbacks: Sequence[Callback], **settings: Any
) -> pl.Trainer:
    """Return a trainer on the hardware of the run, with further ``settings`` of Lightning's trainer."""
    config, hardware = run.config, run.hardware
    trainer = pl.Trainer(
        accelerator=hardware.accelerator,
        devices=hardware.per_node,
        num_nodes=hardware.nodes,
        strategy="ddp" if hardware.devices > 1 else "auto",
        precision=hardware.lightning_precision,  # type: ignore[arg-type]
        deterministic=lightning_deterministic(config.trainer.deterministic),
        limit_train_batches=config.debug.limit_batches,
        detect_anomaly=config.debug.detect_anomaly,
        callbacks=list(callbacks),
        log_every_n_steps=config.trainer.log_every_n_steps,
        # Given, as Lightning would otherwise guess from any Slurm variables in the environment.
        plugins=[AtomicCheckpointIO(), LightningEnvironment() if launch is None else LaunchedEnvironment(launch)],
        default_root_dir=run.record.path,
        enable_checkpointing=False,  # Checkpoints does it
        enable_progress_bar=False,  # ProgressBar does it
        enable_model_summary=False,
        use_distributed_sampler=False,  # the loaders give each rank its share
        num_sanity_val_steps=0,
        **settings,
    )
    # GracefulStop handles signals. Lightning's own handler of SIGTERM communicates with the other ranks, and deadlocks
    # if they are inside a collective.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    log_metrics: Any = trainer._logger_connector.log_metrics

    def log_as_own_rows(metrics: Mapping[str, Any], step: int | None = None) -> None:
        if metrics:  # of `module.log`; Lightning counts epochs and steps from 0
            log_metrics({**metrics, "epoch": trainer.current_epoch + 1}, trainer.global_step)

    trainer._logger_connector.log_metrics = log_as_own_rows  # type: ignore[method-assign]
    return trainer


def _extraction(trainer: pl.Trainer, module: Classifier) -> Extract:
    """Return a function from images to features, in the precision of training."""

    def extract(images: Tensor) -> Tensor:
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            return module.features(images)

    return extract


def _configured_callbacks(config: TrainConfig) -> list[Callback]:
    callbacks: list[Callback] = [TrainingLog(config.trainer.log_every_n_steps), AverageBeforeValidation()]
    if (average := config.callbacks.ema) is not None:
        callbacks.append(ExponentialMovingAverage(average.decay))
    if is_schedule_free(config.optimizer):
        callbacks.append(ScheduleFreeWeights())
    if (stopping := config.callbacks.early_stopping) is not None:
        callbacks.append(EarlyStopping(stopping))
    return [*callbacks, *build_list(config.callbacks, Callback)]


def _compilation(run: TrainingRun, on_compiled: Callable[[Compiled], None], showing: Showing) -> Compilation:
    mode = run.config.trainer.compile
    if has_constant_features(run.config):
        mode = "nothing"  # the blocks are called once
    if mode == "auto":  # a resumed run is compiled as it was, unless it has moved to where that is not tried
        before = run.record.facts.get("compiled", mode)
        one_gpu = run.hardware.accelerator == "cuda" and run.hardware.devices == 1
        mode = before if before != "graphs" or one_gpu else mode
    may_measure = not (run.config.trainer.deterministic or run.config.debug.detect_anomaly)
    return Compilation(mode, may_measure, on_compiled, showing, run.stop_by)
