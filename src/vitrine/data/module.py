"""The data of a run, ready for training: read, split, moved to the device, cut into batches."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from vitrine.config.schema import TrainConfig
from vitrine.data.augment import build_augmentation
from vitrine.data.loader import EvalLoader, TrainLoader
from vitrine.data.mixing import Mixing
from vitrine.data.sources import Images, Split, load
from vitrine.data.split import HeldOut, hold_out


class ImageData(pl.LightningDataModule):
    """Loads when it is made, so that what the data is like is known before a model is built.

    Attributes:
        images: the data set as the source gives it.
        held_out: the validation split; ``None`` where the source has validation images of its own.
        train, val, test: the splits to train, choose and test on; ``test`` is ``None`` where there is none.

    Raises:
        DataError: the data cannot be read or split.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.config = config
        self.images: Images = load(config.data, Path(config.paths.cache_dir))
        self.held_out: HeldOut | None = None
        if self.images.val is not None:
            self.train, self.val = self.images.train, self.images.val
        else:
            self.held_out = hold_out(self.images.train.labels, config.data.val_fraction, config.data.val_seed)
            self.train = self.images.train[self.held_out.train] if config.data.hold_out else self.images.train
            self.val = self.images.train[self.held_out.val]
        self.test = self.images.test

    @property
    def held_out_hash(self) -> str:
        """What tells validation splits apart."""
        return self.held_out.hash if self.held_out else "the data's own"

    @property
    def sizes(self) -> dict[str, int]:
        """Images in each split."""
        return {"train": len(self.train), "val": len(self.val), "test": 0 if self.test is None else len(self.test)}

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in a pass over the training images."""
        steps = len(self.train) // min(self.config.data.batch_size, len(self.train))
        return min(steps, self.config.debug.limit_batches or steps)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.steps_per_epoch * self.config.trainer.max_epochs

    def train_dataloader(self) -> TrainLoader:
        """Batches of this process, on its device, from where training stands."""
        trainer, augment = self._trainer(), self.config.augment

        def position() -> tuple[int, int]:
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

        return TrainLoader(
            self._on_device(self.train),
            batch_size=self.config.data.batch_size,
            augmentation=build_augmentation(augment, self.config.data),
            mixing=Mixing(augment.mixup, augment.cutmix, self.config.model.num_classes) if augment.mixes else None,
            seed=self.config.seed,
            position=position,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )

    def val_dataloader(self) -> list[EvalLoader]:
        """This process's share of the validation images; and of the test images, where their curve is wanted."""
        splits = [self.val, self.test] if self.config.callbacks.test_curve else [self.val]
        return [self._eval_loader(split) for split in splits if split is not None]

    def test_dataloader(self) -> EvalLoader:
        """This process's share of the test images."""
        assert self.test is not None
        return self._eval_loader(self.test)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Nothing to do: batches are made on the device."""
        return batch

    def _eval_loader(self, split: Split) -> EvalLoader:
        trainer = self._trainer()
        batch_size = max(256, self.config.data.batch_size) // trainer.world_size
        return EvalLoader(
            self._on_device(split), batch_size=batch_size, rank=trainer.global_rank, world_size=trainer.world_size
        )

    def _on_device(self, split: Split) -> Split:
        device = self._trainer().strategy.root_device
        return Split(split.images.to(device), split.labels.to(device))

    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None
        return self.trainer
