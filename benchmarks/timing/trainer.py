"""Overhead of the trainer over a plain loop of the same step: python benchmarks/timing/trainer.py.

The model is tiny, so that the loop around it dominates. Lightning's bare trainer, as in its documentation's first
example, is timed as well.
"""

import random
import tempfile
import time

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from measure import publish
from step import as_trained
from torch import Tensor

from vitrine import compose, fit
from vitrine.config import TrainConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.image_dataset import Batch
from vitrine.data.loader import TrainLoader
from vitrine.data.transforms.augment import build_augmentation
from vitrine.distributed.hardware import choose_hardware
from vitrine.training import session
from vitrine.training.console import quiet_libraries
from vitrine.training.lit_module import Classifier
from vitrine.training.optim import build_optimizer
from vitrine.training.schedules import build_schedule
from vitrine.training.throughput import Throughput

ROUNDS, EPOCHS = 31, 2
OVERRIDES = [
    "model=vit_nano",
    "model.dim=8",
    "depth=1",
    "model.heads=1",
    "data.batch_size=8",
    "augment=none",
    "accelerator=cpu",
    "trainer.compile=nothing",
    f"trainer.max_epochs={EPOCHS}",
]


class RecordedThroughput(Throughput):
    """A Throughput callback that keeps its step times after training."""

    seconds: np.ndarray

    def on_train_end(self, trainer: object, module: object) -> None:
        """Keep the steps after the first epoch."""
        RecordedThroughput.seconds = np.concatenate(self.steps[1:])


class StepTimer(Callback):
    """Seconds of each step after the first epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start the clock."""
        self.last = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        """Record the step."""
        now = time.perf_counter()
        if trainer.current_epoch > 0:
            self.seconds.append(now - self.last)
        self.last = now


class BareModule(pl.LightningModule):
    """The same model, loss, optimizer and schedule as a minimal Lightning module."""

    def __init__(self, config: TrainConfig, steps: int) -> None:
        super().__init__()
        self.config, self.steps = config, steps
        self.classifier = Classifier(config, steps, config.data.batch_size)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss, and no more."""
        images, labels = batch
        return self.classifier.criterion(self.classifier(images), labels)

    def configure_optimizers(self) -> dict[str, object]:
        """As the run's."""
        optimizer = build_optimizer(self.config.optimizer, self.classifier.model)
        schedule = build_schedule(self.config.schedule, optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Time our training, Lightning's bare trainer and a plain loop in each round."""
    session.Throughput = RecordedThroughput
    torch.set_num_threads(1)  # more threads slow down a model this small
    loops = {"train.py": fitted, "Lightning's bare trainer": lightning_alone, "plain loop": plain_loop}
    times: dict[str, list[float]] = {name: [] for name in loops}
    shuffle = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        kernel = choose_hardware(compose(OVERRIDES)).attention_kernel  # all three compute attention as `fit` does
        config = compose([*OVERRIDES, f"model.attention_kernel={kernel}", f"paths.output_dir={folder}"])
        fit(config)  # the first training of a process takes longer
        for _ in range(ROUNDS):
            for name in shuffle.sample(list(loops), len(loops)):
                times[name].append(float(np.median(loops[name](config))))
    ours, bare, plain = times.values()
    rows = [
        [name, *overhead(seconds, plain)]
        for name, seconds in (("`train.py`", ours), ("Lightning's bare trainer", bare))
    ]
    publish(
        "trainer",
        title="The trainer",
        text="Milliseconds that `fit` (Lightning's loop, callbacks, logging, progress bar, graceful stops) adds to a "
        "step of a plain loop with the same loader, model and optimizer; and that Lightning's trainer adds with "
        "only a loss and an optimizer, without logging or callbacks. The plain step takes "
        f"{1000 * np.min(plain):.2f} ms: a model of width 8 with one block, 8 images, one thread. Each of {ROUNDS} "
        "rounds gives the median step of each loop. The first column is the difference between the fastest rounds, "
        "which other work on the machine disturbed least; the second is the median difference.",
        columns=["trained by", "added to a step, ms", "median over rounds"],
        rows=rows,
        claims={
            "added by the trainer to a plain loop of the same step": f"{rows[0][1]:.2f} ms a step "
            f"(Lightning's bare trainer: {rows[1][1]:.2f})"
        },
        rounds={"step": times},
    )


def overhead(seconds: list[float], plain: list[float]) -> list[float]:
    """Difference between the minima, and median difference, in milliseconds."""
    differences = np.min(seconds) - np.min(plain), np.median(np.subtract(seconds, plain))
    return [round(1000 * float(value), 3) for value in differences]


def loader_of(config: TrainConfig, data: ImageDataModule, epoch: int) -> TrainLoader:
    """The loader that `fit` uses."""
    return TrainLoader(
        data.train,
        batch_size=config.data.batch_size,
        augmentation=build_augmentation(config.augment, config.data),
        seed=config.seed,
        position=lambda: (epoch, 0),
    )


def fitted(config: TrainConfig) -> np.ndarray:
    """Seconds of each step after the first epoch, as `train.py` trains."""
    fit(config)
    return RecordedThroughput.seconds


def lightning_alone(config: TrainConfig) -> np.ndarray:
    """Seconds of each step after the first epoch, with Lightning's bare trainer."""
    data, timer = ImageDataModule(config), StepTimer()
    with quiet_libraries():
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            gradient_clip_val=1.0,
            callbacks=[timer],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(BareModule(config, data.steps), loader_of(config, data, 0))
    return np.array(timer.seconds)


def plain_loop(config: TrainConfig) -> np.ndarray:
    """Seconds of each step after the first epoch, in a plain loop."""
    data = ImageDataModule(config)
    module = Classifier(config, data.steps, config.data.batch_size).train()
    optimizer = build_optimizer(config.optimizer, module.model)
    schedule = build_schedule(config.schedule, optimizer, data.steps)
    seconds = []
    for epoch in range(EPOCHS):
        begin = time.perf_counter()
        for images, labels in loader_of(config, data, epoch):
            loss = module.criterion(module(images), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            end = time.perf_counter()
            if epoch > 0:
                seconds.append(end - begin)
            begin = end
    return np.array(seconds)


if __name__ == "__main__":
    with as_trained():
        main()
