"""The data of a run: loaded, split, placed and batched."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from vitrine.config.schema import TrainConfig
from vitrine.data.batch_source import BatchSource, PinnedMemorySource, StreamingSource
from vitrine.data.datasets import at_train_size, decode_dataset, read_dataset
from vitrine.data.decode import ImageFile, ImageFiles
from vitrine.data.feature_source import Extract, FeatureSource
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.data.leakage import warn_of_equal_files
from vitrine.data.loader import EvalLoader, TrainLoader, batches_at_once, batches_per_epoch
from vitrine.data.pixel_store import PixelStore, StoredFiles, StoredSource
from vitrine.data.placement import Placement, choose_placement, memory_budget
from vitrine.data.split import TrainValSplit, hold_out_groups, split_fold, split_train_val, strata, training_subset
from vitrine.data.transforms.augment import build_augmentation
from vitrine.data.transforms.mixup import build_mixing
from vitrine.errors import DataError


class ImageDataModule(pl.LightningDataModule):
    """Loads the data when constructed, as the model and the record need its sizes and classes.

    Args:
        config: configuration of the run.
        accelerator: ``cpu``, ``cuda`` or ``mps``.
        devices: number of ranks on this machine.
        placement: where the images lie, if another process has chosen it already.
        patience: seconds to decode image files for; what is left is decoded when it is needed.

    Attributes:
        dataset: the data set as its source provides it, ``train`` not decoded where a part of it is; with a
            fingerprint, unless another process has chosen ``placement``.
        placement: where its images lie.
        train_val_split: the random validation split; ``None`` if the data set has a validation split of its own.
        train, val, test: splits for training, model selection and the final test; ``test`` may be ``None``.
        tested: ``test``, or ``val`` to take validation images for the final test.
        features_of: maps images to features; if set, training and validation batches have these in place of images.

    Raises:
        DataError: the data cannot be read or split.
    """

    def __init__(
        self,
        config: TrainConfig,
        accelerator: str = "cpu",
        devices: int = 1,
        placement: Placement | None = None,
        patience: float = math.inf,
    ) -> None:
        super().__init__()
        self.config = config
        memory = memory_budget(config.data.storage if placement is None else placement.place, devices)
        self.dataset: ImageDataset = read_dataset(config.data, with_fingerprint=placement is None)
        self.train_val_split = self._validation_split()
        train, val = self._chosen()
        whole, stored = at_train_size(self.dataset.train, config.data), self.dataset
        if whole is not stored.train:  # what is validated on is decoded once more, at the size of evaluation
            stored = replace(stored, train=whole, val=stored.val if val is None else stored.train[val])
            val = None
        used = (train if val is None else torch.cat([train, val])).unique()
        lacks_room = stored.nbytes > memory if placement is None else placement.part
        # With room for all, all are decoded: their cache serves each choice of some.
        if part := lacks_room and len(used) < len(whole) and isinstance(whole.stored, ImageFiles):
            stored = replace(stored, train=whole[used])
            train, val = torch.searchsorted(used, train), None if val is None else torch.searchsorted(used, val)
        stored = decode_dataset(stored, config.data, Path(config.paths.cache_dir), memory, patience)
        own_val = stored.val if self.train_val_split is None else None
        self.dataset = replace(stored, train=whole if part else stored.train, val=own_val)
        self._stores = [split.stored.store for split in stored.splits if isinstance(split.stored, StoredFiles)]
        if placement is None:
            chosen = choose_placement(config.data, stored, accelerator, devices, memory)
        self.placement = placement or replace(chosen, part=part)
        self._streams: list[StreamingSource | StoredSource] = []
        self.features_of: Extract | None = None
        self.tested = "test"
        self.train = stored.train if len(train) == len(stored.train) else stored.train[train]
        own = stored.val if val is None else stored.train[val]
        assert own is not None  # the data's, or drawn
        self.val, self.test = own, stored.test
        if placement is None:
            warn_of_equal_files(config.data.root, self._files())

    @property
    def validation_hash(self) -> str:
        """Hash of the validation split: runs with equal hashes were selected on the same images."""
        return self.train_val_split.hash if self.train_val_split else "the data's own"

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images in each split."""
        return {"train": len(self.train), "val": len(self.val), "test": 0 if self.test is None else len(self.test)}

    @property
    def steps_per_epoch(self) -> int:
        """Training steps per epoch."""
        data = self.config.data
        steps = batches_per_epoch(len(self.train), data.batch_size, drop_last=data.drop_last)
        return min(steps, self.config.debug.limit_batches or steps)

    @property
    def steps(self) -> int:
        """Training steps of the whole run."""
        return self.steps_per_epoch * self.config.trainer.max_epochs

    @property
    def incomplete(self) -> list[PixelStore]:
        """Stores of images that are not all decoded and cached yet."""
        return [store for store in self._stores if not store.cached]

    def train_dataloader(self) -> TrainLoader:
        """Return this rank's training batches, which start at the trainer's current epoch and batch."""
        trainer, augment = self._trainer(), self.config.augment

        def position() -> tuple[int, int]:
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

        data, source, at_once = self.config.data, self._source(self.train), 1
        # A user's part may reckon with a batch; features are stored, not augmented.
        if isinstance(source, Split) and not augment.parts and self.features_of is None:
            at_once = batches_at_once(source.device.type, data.batch_size * data.in_channels * math.prod(data.train_hw))
        return TrainLoader(
            self._features(source),
            batch_size=data.batch_size,
            at_once=at_once,
            before_last=self._decode_validated,
            augmentation=build_augmentation(augment, data),
            mixing=build_mixing(augment, self.config.model.num_classes),
            seed=self.config.seed,
            position=position,
            drop_last=data.drop_last,
            balanced=self.train.first_labels if data.sampling == "balanced" else None,
            repeats=augment.repeats,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )

    def val_dataloader(self) -> list[EvalLoader]:
        """Return this rank's validation batches; with ``callbacks.test_curve`` also its test batches."""
        return [self._eval_loader(self._features(self._source(split))) for split in self._validated]

    def test_dataloader(self) -> EvalLoader:
        """Return this rank's batches of the split that is :attr:`tested`."""
        split = self.val if self.tested == "val" else self.test
        assert split is not None
        return self._eval_loader(self._source(split))

    def groups_of(self, name: str) -> Sequence[str] | None:
        """Return the name of the group of each image of ``val`` or ``test``; ``None`` without ``data.group``."""
        if name == "test" or self.train_val_split is None:
            return self.dataset.groups.get(name)
        names = self.dataset.groups.get("train")
        return None if names is None else [names[row] for row in self.train_val_split.val.tolist()]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch as it is: the sources have moved it already."""
        return batch

    def teardown(self, stage: str) -> None:
        """Stop decoding workers."""
        while self._streams:
            self._streams.pop().close()

    def on_exception(self, exception: BaseException) -> None:
        """Stop decoding workers: Lightning does not call ``teardown`` after an error."""
        self.teardown("")

    def _validation_split(self) -> TrainValSplit | None:
        """Draw the validation images from the training images, unless the data set has its own."""
        data, train, classes = self.config.data, self.dataset.train, self.dataset.classes
        if self.dataset.val is not None:
            if data.folds is not None:
                problem = "is for data without a validation split of its own, which this has"
                raise DataError(f"data.folds={data.folds} {problem}")
            return None
        labels = strata(train.first_labels, data.folds or 2, classes)
        names = () if data.multi_label else classes
        groups = None if data.group is None else self.dataset.groups["train"]
        if data.folds is not None and data.fold is not None:
            return split_fold(labels, data.folds, data.fold, data.val_seed, names, groups)
        if groups is not None:
            return hold_out_groups(labels, groups, data.val_fraction, data.val_seed, names)
        return split_train_val(labels, data.val_fraction, data.val_seed, names)

    def _chosen(self) -> tuple[Tensor, Tensor | None]:
        """Return the rows of the training images to train on, and to validate on: ``None`` if the data has others."""
        data, labels, split = self.config.data, self.dataset.train.first_labels, self.train_val_split
        train = torch.arange(len(labels)) if split is None or not data.hold_out else split.train
        if data.train_fraction is not None or data.per_class is not None:
            chosen = training_subset(
                strata(labels[train], 1),
                data.subset_seed,
                fraction=data.train_fraction,
                count=data.per_class,
                classes=self.dataset.classes,
            )
            train = train[chosen]
        return train, None if split is None else split.val

    def _files(self) -> dict[str, tuple[Sequence[ImageFile], Tensor]]:
        """The image files and labels of each split; those to validate on are not to train on, unless both are one."""
        dataset, split = self.dataset, self.train_val_split
        labels = {name: getattr(dataset, name).labels for name in dataset.files}
        files = {name: (found, labels[name]) for name, found in dataset.files.items()}
        if files and split is not None and self.config.data.hold_out:
            found, own = files["train"]
            for name, part in (("train", split.train), ("val", split.val)):
                files[name] = [found[row] for row in part.tolist()], own[part]
        return files

    @property
    def _validated(self) -> list[Split]:
        """The splits that are evaluated after each epoch."""
        splits = [self.val, self.test] if self.config.callbacks.test_curve else [self.val]
        return [split for split in splits if split is not None]

    def _decode_validated(self) -> None:
        """Decode what the next validation would, so that a damaged file ends training where its steps can be saved."""
        for split in self._validated:
            if not isinstance(files := split.stored, StoredFiles):
                continue
            if len(missing := files.rows[~files.store.known[files.rows]]):
                for _ in files.store.decode(missing.split(self._eval_batch_size)):
                    pass

    def _features(self, source: BatchSource) -> BatchSource:
        return source if self.features_of is None else FeatureSource(source, self.features_of, self._eval_batch_size)

    @property
    def _eval_batch_size(self) -> int:
        """Images of a rank at once where nothing is trained; of large batches, those of a part of a training step."""
        part = self.config.data.batch_size // self.config.trainer.accumulate_grad_batches
        return max(256, part) // self._trainer().world_size

    def _eval_loader(self, source: BatchSource) -> EvalLoader:
        rank, world_size = self._trainer().global_rank, self._trainer().world_size
        return EvalLoader(source, batch_size=self._eval_batch_size, rank=rank, world_size=world_size)

    def _source(self, split: Split) -> BatchSource:
        device = self._trainer().strategy.root_device
        if isinstance(split.stored, StoredFiles):
            in_memory = device.type == "cpu" or (self.placement.place == "memory" and device.type == "cuda")
            self._streams.append(StoredSource(split, device, resident=not in_memory))
            return self._streams[-1]
        if self.placement.place == "disk":
            self._streams.append(StreamingSource(split, device, self.placement.workers))
            return self._streams[-1]
        if self.placement.place == "memory" and device.type == "cuda":
            return PinnedMemorySource(split, device)
        if device.type == "cpu":
            return split
        images = split.images
        assert isinstance(images, Tensor)
        return Split(images.to(device), split.labels.to(device))

    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None
        return self.trainer
