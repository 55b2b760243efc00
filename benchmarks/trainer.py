"""What the trainer adds to a plain loop of the same step: python benchmarks/trainer.py.

The model is as small as models get, so that the loop around it shows.
"""

import tempfile
import time

import numpy as np
import torch
from timing import publish

from vitrine import compose, fit
from vitrine.config import TrainConfig
from vitrine.data.augment import build_augmentation
from vitrine.data.loader import TrainLoader
from vitrine.data.module import ImageData
from vitrine.training import fit as fitting
from vitrine.training.classifier import Classifier
from vitrine.training.optim import build_optimizer, build_schedule
from vitrine.training.speed import Speed

ROUNDS, EPOCHS = 9, 4
WORDS = [
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


class Watched(Speed):
    """Leaves its step times where they are found after training."""

    seconds: np.ndarray

    def on_train_end(self, trainer: object, module: object) -> None:
        """Keep the steps after the first epoch."""
        Watched.seconds = np.concatenate(self.steps[1:])


def main() -> None:
    """Train and loop in turn."""
    fitting.Speed = Watched
    torch.set_num_threads(1)  # for so small a model, more only wait for each other
    added, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        config = compose([*WORDS, f"paths.output_dir={folder}"])
        fit(config)  # the first in a process takes longer
        for _ in range(ROUNDS):
            fit(config)
            plain = np.median(plain_loop(config))
            added.append(float(np.median(Watched.seconds) - plain))
            steps.append(float(plain))
    low, median, high = (1000 * value for value in np.quantile(added, [0, 0.5, 1]))
    publish(
        "trainer",
        title="The trainer",
        text="Milliseconds that training by `fit` (Lightning's loop, callbacks, log, progress, clean stops) adds to a "
        f"step of a plain loop with the same loader, model and optimiser. The plain step takes "
        f"{1000 * np.median(steps):.2f} ms: a model of width 8 with one block, on 8 images, one thread. Medians of "
        f"{ROUNDS} rounds, in turn; the range is over rounds.",
        columns=["added to a step, ms", "least", "most"],
        rows=[[median, low, high]],
        claims={"added by the trainer to a plain loop of the same step": f"{median:.2f} ms a step"},
    )


def plain_loop(config: TrainConfig) -> np.ndarray:
    """Seconds of each step after the first epoch."""
    data = ImageData(config)
    module = Classifier(config, data.steps, config.data.batch_size).train()
    optimizer = build_optimizer(config.optimizer, module.model)
    schedule = build_schedule(config.schedule, optimizer, data.steps)
    seconds = []
    for epoch in range(EPOCHS):
        loader = TrainLoader(
            data.train,
            batch_size=config.data.batch_size,
            augmentation=build_augmentation(config.augment, config.data),
            seed=config.seed,
            position=lambda epoch=epoch: (epoch, 0),
        )
        begin = time.perf_counter()
        for images, labels in loader:
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
    main()
