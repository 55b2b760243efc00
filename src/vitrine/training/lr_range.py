"""The learning-rate range test behind ``optimizer.lr=auto`` (arXiv:1506.01186, section 3.3).

A copy of the model trains on the run's first batches while the learning rate rises from step to step; half the rate
with the lowest loss is chosen. The model itself, and the random state, stay as they were. Divergence ends the test.

Lightning's ``Tuner.lr_find`` does not serve here: it gives every parameter group the same rate, which undoes those of
layers; it steps the rate in automatic optimisation only; and it restores the model from a checkpoint on disk.
"""

import csv
import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.seed import isolate_rng
from torch.optim import Optimizer

from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.schedule import ScheduleConfig
from vitrine.config.schedule_free import is_schedule_free
from vitrine.config.schema import AUTO, OptimizerConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.signals import restored_handlers
from vitrine.training.graceful_stop import GracefulStop, TimeLimit
from vitrine.training.lit_module import Classifier
from vitrine.training.optim import build_optimizer
from vitrine.training.run import TrainingRun
from vitrine.training.schedule_free import ScheduleFreeWeights
from vitrine.training.trainer import NullProfiler, build_trainer
from vitrine.untrusted import read_bytes

LOWEST, HIGHEST, STEPS = 1e-6, 10.0, 100
MAX_CURVE = 1024**2  # bytes of lr_range.csv, which has a row for each step
SHARE = 0.5  # of the rate with the lowest loss: beyond it, training is unstable
DIVERGED = 4.0  # times the running mean at the start, above the lowest: the loss has diverged
CURVE = "lr_range.csv"
SMOOTHING = 5  # steps on each side in the running mean of the loss


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test; stored in run.json under ``lr_range``, and its curve in lr_range.csv.

    Attributes:
        found: the learning rate.
        steps: optimiser steps that the test took.
        seconds: time that it took.
    """

    found: float
    steps: int
    seconds: float


def with_lr(config: OptimizerConfig, lr: float) -> OptimizerConfig:
    """Return ``config`` with ``lr`` in place of each ``auto``."""
    return replace(config, lr=lr, adamw_lr=lr if config.adamw_lr == AUTO else config.adamw_lr)


def set_learning_rate(run: TrainingRun, data: ImageDataModule, module: Classifier, ranks: Ranks) -> RangeTest:
    """Give ``module`` the learning rate of a range test, or of the one that the run has had already.

    Every rank calls this; they test together, and rank 0 records the result in run.json.

    Raises:
        RunError: the loss falls at no learning rate.
        Interrupted: stopped by a signal or by ``trainer.max_time``; nothing is recorded.
    """
    earlier = ranks.share(lambda: run.record.facts.get("lr_range"))
    tested = RangeTest(**earlier) if earlier else _range_test(run, data, module, ranks)
    module.config = replace(module.config, optimizer=with_lr(module.config.optimizer, tested.found))
    return tested


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> float:
    """Return ``SHARE`` of the rate with the lowest smoothed loss, to three digits.

    Args:
        rates: rising by a constant factor.
        losses: loss of the step at each rate, in nats.

    Raises:
        RunError: the smoothed loss is nowhere lower than at the start.
    """
    mean = smoothed(losses)
    lowest = int(np.argmin(mean)) if len(mean) else 0
    if lowest == 0:
        span = f"{rates[0]:g} to {rates[-1]:g}"
        problem = f"the loss falls at no learning rate from {span}, see {CURVE}"
        raise RunError(f"optimizer.lr=auto: {problem}; set optimizer.lr=NUMBER")
    return float(f"{SHARE * rates[lowest]:.3g}")


def smoothed(losses: Sequence[float]) -> np.ndarray:
    """Return the running mean over ``SMOOTHING`` steps on either side, up to the first loss that is not finite."""
    count = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    known = np.asarray(losses[:count], dtype=np.float64)
    window = [known[max(0, index - SMOOTHING) : index + SMOOTHING + 1] for index in range(count)]
    return np.array([part.mean() for part in window])


def diverged(losses: Sequence[float]) -> bool:
    """Whether the last loss is not finite, or the running mean far above the lowest.

    Single losses do not count: on small batches of a trained model they differ tenfold.
    """
    if not math.isfinite(losses[-1]):
        return True
    if len(losses) < (window := 2 * SMOOTHING + 1):
        return False
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    low = means.min()
    return bool(means[-1] > low + DIVERGED * max(abs(low), abs(means[0])))  # losses may be negative


def _range_test(run: TrainingRun, data: ImageDataModule, module: Classifier, ranks: Ranks) -> RangeTest:
    begin = time.perf_counter()
    rising = RisingRate(run.config.optimizer)
    stop = GracefulStop(None, TimeLimit(run.stop_by, data.sizes))
    callbacks: list[Callback] = [rising, stop]
    if is_schedule_free(run.config.optimizer):
        callbacks.append(ScheduleFreeWeights())
    with isolate_rng(), restored_handlers(), failing_in_one_line(run.config):
        copy = deepcopy(module)
        copy.config = replace(
            run.config,
            optimizer=with_lr(run.config.optimizer, LOWEST),
            schedule=ScheduleConfig("constant", warmup=0.0),
            trainer=replace(run.config.trainer, on_divergence="continue"),
        )
        settings: dict[str, Any] = {"max_epochs": -1, "max_steps": STEPS, "limit_val_batches": 0, "logger": False}
        trainer = build_trainer(run, ranks.launch, callbacks, profiler=NullProfiler(), **settings)
        trainer.fit(copy, datamodule=data)
    if ranks.rank == 0:
        write_curve(run.record, rising.rates, rising.losses)  # also where it shows no rate
    found = best_rate(rising.rates, rising.losses)
    tested = RangeTest(found, len(rising.rates), round(time.perf_counter() - begin, 2))
    if ranks.rank == 0:
        run.record.update(lr_range=asdict(tested))
    return tested


def write_curve(record: RunRecord, rates: Sequence[float], losses: Sequence[float]) -> None:
    """Write lr_range.csv: the rate and the loss of each step."""
    rows = [f"{rate!r},{loss!r}\n" for rate, loss in zip(rates, losses, strict=True)]
    record.write(CURVE, "".join(["lr,loss\n", *rows]))


def read_curve(record: RunRecord) -> tuple[list[float], list[float]]:
    """Return rates and losses of lr_range.csv.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or larger than ``MAX_CURVE``.
        LookupError, TypeError: a row lacks a value.
    """
    lines = read_bytes(record.path / CURVE, MAX_CURVE).decode().splitlines()
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise ValueError(str(error)) from None
    return [float(row["lr"]) for row in rows], [float(row["loss"]) for row in rows]


class RisingRate(Callback):
    """Raises the learning rate by a constant factor from step to step, until the loss diverges.

    Args:
        optimizer: the run's, with ``auto`` where the rate is sought.

    Attributes:
        rates: learning rate of each step, ``optimizer.lr``; those of layers are in proportion to it.
        losses: training loss of each step, over all ranks.
    """

    def __init__(self, optimizer: OptimizerConfig) -> None:
        self.optimizer = optimizer
        self.rates: list[float] = []
        self.losses: list[float] = []

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Find the parameter groups whose rate follows ``optimizer.lr``; others have one of their own."""
        assert isinstance(module, Classifier)
        build = partial(build_optimizer, model=module.model, finetune=module.config.finetune, fused=False)
        low, high = (build(with_lr(self.optimizer, rate)) for rate in (LOWEST, HIGHEST))
        pairs = zip(low.param_groups, high.param_groups, strict=True)
        self._follows = [one["lr"] != other["lr"] for one, other in pairs]

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Set the rates of the step."""
        factor = (HIGHEST / LOWEST) ** (len(self.rates) / (STEPS - 1))
        optimizer: Optimizer = trainer.optimizers[0]
        for group, follows in zip(optimizer.param_groups, self._follows, strict=True):
            group["lr"] = group["initial_lr"] * (factor if follows else 1.0)
        self.rates.append(LOWEST * factor)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Keep the loss; stop when it has diverged."""
        assert isinstance(module, Classifier)
        self.losses.append(float(module.unlogged_steps()[:, 0].mean()))
        module.unlogged.clear()
        if diverged(self.losses):
            trainer.should_stop = True
