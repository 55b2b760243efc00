"""The data of a run, ready for training: read, split, brought to the device, cut into batches."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from vitrine.config.schema import TrainConfig
from vitrine.data.batch_source import Feed, FromDisk, FromMemory
from vitrine.data.datasets import Images, Split, load
from vitrine.data.loader import EvalLoader, TrainLoader
from vitrine.data.placement import Storage, choose, memory_room
from vitrine.data.split import HeldOut, hold_out
from vitrine.data.transforms.augment import build_augmentation
from vitrine.data.transforms.mixup import Mixing


class ImageData(pl.LightningDataModule):
    """Loads when it is made, so that what the data is like is known before a model is built.

    Args:
        config: of the run.
        accelerator: where the run computes: ``cpu``, ``cuda`` or ``mps``.
        devices: in how many processes.
        storage: where the images lie, if that was chosen already, by the process that started this one.

    Attributes:
        images: the data set as the source gives it.
        storage: where its images lie.
        held_out: the validation split; ``None`` where the source has validation images of its own.
        train, val, test: the splits to train, choose and test on; ``test`` is ``None`` where there is none.

    Raises:
        DataError: the data cannot be read or split.
    """

    def __init__(
        self, config: TrainConfig, accelerator: str = "cpu", devices: int = 1, storage: Storage | None = None
    ) -> None:
        super().__init__()
        self.config = config
        memory = memory_room(config.data.storage if storage is None else storage.place, devices)
        self.images: Images = load(config.data, Path(config.paths.cache_dir), memory)
        self.storage = storage or choose(config.data, self.images, accelerator, devices, memory)
        self._streams: list[FromDisk] = []
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
            self._feed(self.train),
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
        """Nothing to do: batches are on the device already."""
        return batch

    def teardown(self, stage: str) -> None:
        """End what decodes pictures."""
        while self._streams:
            self._streams.pop().close()

    def on_exception(self, exception: BaseException) -> None:
        """End what decodes pictures: Lightning tears nothing down after an error."""
        self.teardown("")

    def _eval_loader(self, split: Split) -> EvalLoader:
        trainer = self._trainer()
        batch_size = max(256, self.config.data.batch_size) // trainer.world_size
        return EvalLoader(
            self._feed(split), batch_size=batch_size, rank=trainer.global_rank, world_size=trainer.world_size
        )

    def _feed(self, split: Split) -> Feed:
        device = self._trainer().strategy.root_device
        if self.storage.place == "disk":
            self._streams.append(FromDisk(split, device, self.storage.workers))
            return self._streams[-1]
        assert isinstance(split.images, Tensor)
        if self.storage.place == "memory" and device.type == "cuda":
            return FromMemory(split, device)
        return Split(split.images.to(device), split.labels.to(device))

    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None
        return self.trainer
