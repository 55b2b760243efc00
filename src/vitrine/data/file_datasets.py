"""Data sets of image files: class folders, a CSV file, a Hugging Face data set. Nothing is decoded here."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrine.config.schema import DataConfig
from vitrine.config.size import fixed
from vitrine.data.decode import MODES, Decoder, ImageFile, ImageFiles
from vitrine.data.groups import group_of, likely_groups, refuse_shared
from vitrine.data.hub_dataset import HubDataset
from vitrine.data.image_csv import SEPARATOR, read_csv
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.data.image_folder import SUFFIXES, scan_folder
from vitrine.data.labelled_files import Label
from vitrine.errors import DataError
from vitrine.text import listed, printable, report

Labelled = tuple[Sequence[ImageFile], torch.Tensor]  # files, and their labels as Split has them
MAX_LISTED = 2


def imagefolder(config: DataConfig) -> ImageDataset:
    """Image files in class folders, ``ROOT/{train,val,test}/<class>/``; warns of files that are left out."""
    folder = scan_folder(config.root)
    if folder.left_out:
        report(f"warning: {config.root}: left out: {folder.left_out}; pictures are {', '.join(sorted(SUFFIXES))}")
    dataset = _of_files(config, f"{config.root}/train", folder.root.name, folder.classes, _labelled(folder.splits))
    if config.group is None:
        return dataset
    groups = {
        split: [group_of(Path(*file.relative_to(folder.root).parts[2:]), config.group) for file, _ in images]
        for split, images in folder.splits.items()
    }
    refuse_shared(groups, config.root)
    return replace(dataset, groups=groups)


def csv(config: DataConfig) -> ImageDataset:
    """Image files that a CSV file lists."""
    table = read_csv(config.root, multi_label=config.multi_label, targets=config.targets, group=config.group)
    refuse_shared(table.groups, config.root)
    if config.group is None:
        _name_likely_groups(table.unread, config.root)
    if not config.multi_label and (several := [name for name in table.classes if SEPARATOR in name]):
        hint = "data.multi_label=true makes them several labels of an image"
        report(f"warning: {config.root}: {listed(several, MAX_LISTED)} taken for one label each; {hint}")
    if config.multi_label and not any(
        len(label) != 1 for _, label in table.splits["train"] if isinstance(label, tuple)
    ):
        report(f"warning: {config.root}: no image of train has several labels, or none; {SEPARATOR} separates them")
    hot = len(table.classes) if config.multi_label else None
    dataset = _of_files(config, config.root, table.root.stem, table.classes, _labelled(table.splits, hot))
    dataset = replace(dataset, groups=table.groups)
    if not config.targets:
        return dataset
    if (counts := [len(classes) for classes in table.targets.values()]) != config.target_classes:
        raise DataError(f"{config.root} has {counts} classes of {config.targets}, not {config.target_classes}")
    return replace(dataset, targets={name: list(map(printable, names)) for name, names in table.targets.items()})


def huggingface(config: DataConfig) -> ImageDataset:
    """A data set of the Hugging Face ``datasets`` library, as its ``save_to_disk`` writes it."""
    found = HubDataset.scan(config.root)
    splits: dict[str, Labelled] = {}
    for name, split in found.splits.items():
        splits[name] = split.read(len(found.classes), f"{config.root}: {name}")
    dataset = _of_files(config, config.root, found.root.name, found.classes, splits)
    if config.group is None:
        _name_likely_groups(found.splits["train"].others, config.root)
        return dataset
    groups = {name: split.groups(config.group, f"{config.root}: {name}") for name, split in found.splits.items()}
    refuse_shared(groups, config.root)
    return replace(dataset, groups=groups)


def _name_likely_groups(unread: Sequence[str], root: str) -> None:
    if likely := likely_groups(unread):
        hint = f"data.group={likely} keeps the images of each together, in one split"
        report(f"warning: {root}: column {likely} is not read; {hint}")


def _labelled(splits: Mapping[str, Sequence[tuple[Path, Label]]], classes: int | None = None) -> dict[str, Labelled]:
    """Files and labels as :class:`Split` has them; with ``classes``, an image has any number of these."""
    return {
        name: ([path for path, _ in images], _labels([label for _, label in images], classes))
        for name, images in splits.items()
    }


def _labels(found: Sequence[Label], classes: int | None) -> torch.Tensor:
    if classes is None:
        return torch.tensor(found)
    labels = np.zeros((len(found), classes), np.uint8)
    for row, own in zip(labels, found, strict=True):
        row[np.array(own, int)] = 1
    return torch.from_numpy(labels)


def _of_files(
    config: DataConfig, where: str, label: str, classes: Sequence[str], labelled: Mapping[str, Labelled]
) -> ImageDataset:
    """Return a data set of files.

    Args:
        config: the data set's configuration.
        where: what lists its classes, for messages.
        label: part of the cache's file names.
        classes: names of the classes.
        labelled: files and labels of each split; ``train`` is one of them.
    """
    if config.in_channels not in MODES:
        allowed = "1 (grey), 3 (RGB) or 4 (RGBA)"
        raise DataError(f"data.in_channels={config.in_channels}: image files are decoded to {allowed} channels")
    by_letters = defaultdict(list)
    for name in classes:
        by_letters[name.casefold()].append(name)
    if alike := [listed(names) for names in by_letters.values() if len(names) > 1]:
        differ = f"classes {listed(alike, MAX_LISTED, separator='; ')} differ in capital letters only"
        report(f"warning: {where}: {differ}; if they are one class, give them one name")
    levels = config.levels[0], config.levels[1]
    size = fixed(config.image_size)
    decoder = Decoder.with_mean(size, config.in_channels, config.resize, config.mean, levels, config.crop_pct)
    splits = {
        name: Split(ImageFiles(f"{label}-{name}", files, decoder), labels) for name, (files, labels) in labelled.items()
    }
    names = [printable(name) for name in classes]  # a folder's name need not be valid text
    files = {name: files for name, (files, _) in labelled.items()}
    return ImageDataset(names, splits["train"], splits.get("val"), splits.get("test"), files=files)
