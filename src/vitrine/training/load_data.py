"""The data of a run: read on every rank, and checked against the configuration."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from vitrine.config import TrainConfig, vit_faults
from vitrine.config.schema import DataConfig
from vitrine.config.serialize import to_plain
from vitrine.config.validate import unequal_shares
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.decode import ImageFile, has_pages, sixteen_bit_values, size_of
from vitrine.data.fingerprint import outline
from vitrine.data.image_dataset import Split
from vitrine.data.placement import Placement
from vitrine.distributed.hardware import Hardware
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DataError, RunError
from vitrine.runs.data_changes import run_changes
from vitrine.runs.flatten import flatten
from vitrine.text import listed, plural, report
from vitrine.training.changed_data import data_facts
from vitrine.training.losses import check_class_names

LOOKED_AT = 10  # pictures that are looked at, or a few more
FEW_LEVELS = 64  # of the 256 that 16 bits become: cameras of 12 and 14 bits use 16 and 64
MAX_LISTED = 3
EACH_CLASS = dict.fromkeys(("val/balanced_acc", "val/macro_f1"), "some of each class")  # means over those with images
PATIENCE = 10.0  # seconds to decode image files in before training; what takes longer is decoded in the first epoch


def load_data(config: TrainConfig, hardware: Hardware, ranks: Ranks) -> ImageDataModule:
    """Read the images on rank 0, which fills the cache and decides where they lie, then on the other ranks.

    Raises:
        DataError: the data is missing or damaged.
        RunError: ranks have different configurations, or read different data.
    """
    check_agreement(config, hardware, ranks)
    patience = PATIENCE if ranks.count == hardware.devices == 1 else math.inf  # other ranks read what rank 0 caches

    def read(placement: Placement | None = None) -> ImageDataModule:
        return ImageDataModule(config, hardware.accelerator, hardware.per_node, placement, patience)

    if ranks.rank > 0:
        shared = ranks.receive()
        data = read(Placement(**shared["placement"]))
        _check_same_data(data, shared["facts"], ranks.rank)
        return data
    data = read()
    check_class_names(config.loss, data.dataset.classes)
    _check_shares(config, len(data.train), hardware.devices)
    if config.resume is None:
        pictures = data.dataset.files.get("train", ())
        pictures = pictures[:: max(1, len(pictures) // LOOKED_AT)]  # evenly spread
        report_upscaling(config, pictures)
        report_pages(pictures)
        report_few_levels(config.data.levels, pictures)
        check_classes(config, data)
    ranks.send({"placement": asdict(data.placement), "facts": data_facts(data)})
    return data


def report_upscaling(config: TrainConfig, pictures: Sequence[ImageFile]) -> None:
    """Report pictures that are scaled up to more than twice their size.

    The size that the report advises is the first that the model can take.
    """
    try:
        sizes = [size_of(picture) for picture in pictures]
    except DataError:  # decoding names the picture
        return
    height, width = config.data.image_hw
    tall, wide = (max(sides) for sides in zip(*sizes, strict=True)) if sizes else (height, width)
    if 2 * tall < height and 2 * wide < width:
        sides = range(max(tall, wide), math.isqrt(height * width))
        side = next((side for side in sides if not vit_faults(replace(config.model, image_size=side))), None)
        hint = f"; data.image_size={side} takes less computation" if side else ""
        report(f"pictures of at most {tall}x{wide} pixels are scaled up to {height}x{width}{hint}")


def report_pages(pictures: Sequence[ImageFile]) -> None:
    """Report pictures with several pages or frames."""
    if paged := [picture for picture in pictures if has_pages(picture)]:
        report(f"warning: of pictures with several pages or frames, such as {paged[0]}, only the first is read")


def report_few_levels(levels: Sequence[int], pictures: Sequence[ImageFile]) -> None:
    """Report pictures of 16 bits that use a small part of ``data.levels``."""
    try:
        found = [values for picture in pictures if (values := sixteen_bit_values(picture)) is not None]
    except DataError:  # decoding names the picture
        return
    if not found or len(found) < len(pictures):
        return
    smallest, largest = min(low for low, _, _ in found), max(high for _, high, _ in found)
    low, high = levels
    first, last = (min(max((value - low) * 256 // (high - low + 1), 0), 255) for value in (smallest, largest))
    if last - first < FEW_LEVELS:
        of = f"{len(found)} of the 16-bit pictures use values from {smallest} to {largest}, which become "
        hint = f"data.levels=[{smallest},{max(largest, smallest + 1)}] spreads them over all"
        if any(has_colours for _, _, has_colours in found):
            hint = "save pictures whose values are stretched from there to 0..65535"
        report(f"warning: {of}{last - first + 1} of 256 grey levels; {hint}")


def check_classes(config: TrainConfig, data: ImageDataModule) -> None:
    """Report classes without a validation or test image.

    Raises:
        DataError: the validation split takes all images of a class, but no fold of a class that is in one group, which
            is reported; or it lacks one, and what is monitored is a mean over classes, or not defined without it.
    """
    if data.train_val_split is not None and config.data.hold_out:  # of one label per picture, drawing it refuses this
        train = data.dataset.train[data.train_val_split.train]
        least = 1 if config.data.folds is None else 2  # each group is in one fold, whatever data.val_seed
        for names in filter(None, _without_images(data, train, least)):
            problem = f"the validation split takes every image of {names}"
            raise DataError(f"{problem}; another data.val_seed may leave some to train on")
        for names in filter(None, _without_images(data, train)):
            of = "" if config.data.group is None else ", all in one group"
            report(f"warning: this fold validates every image of {names}{of}, and trains on none of it")
    names, *others = _without_images(data, data.val)
    hint = _more_classes(config, data) if names else ""
    problem = f"there is no validation image of {names}" if names else "all validation images have the same labels"
    needs = (EACH_CLASS if names else {}) | _undefined(data)
    stopping = config.callbacks.early_stopping
    for metric in (config.callbacks.monitor, "" if stopping is None else stopping.monitor):
        if metric in needs:
            raise DataError(f"{problem}, and {metric} needs {needs[metric]}{hint}")
    if names:
        report(f"warning: {problem}: metrics say nothing of it{hint}")
    for names in filter(None, others):
        report(f"warning: there is no validation image of {names}: metrics say nothing of it")
    for names in filter(None, () if data.test is None else _without_images(data, data.test)):
        report(f"warning: there is no test image of {names}: metrics say nothing of it")


def _undefined(data: ImageDataModule) -> dict[str, str]:
    """Return the metrics that are not defined on the validation images, with what they need."""
    counts = data.val.per_class(len(data.dataset.classes)).tolist()
    needs = {}
    if not any(0 < count < len(data.val) for count in counts):
        needs["val/auroc"] = "some of a class and some without it"
    if not any(counts):
        needs["val/map"] = "some of any class"
    return needs


def _more_classes(config: TrainConfig, data: ImageDataModule) -> str:
    """Return what may give validation images to each class of the first target; empty if that is not known."""
    if data.train_val_split is None or config.data.folds is not None:
        return ""
    known, own = (split.per_class(len(data.dataset.classes)) for split in (data.dataset.train, data.val))
    if config.data.group is None:
        rarest = int(known[known > 0].min())
        return f"; data.val_fraction={math.ceil(100 / rarest) / 100:g} or data.folds={rarest} gives each class some"
    if any(_groups_of(data, 0, index) == 1 for index in ((known > 0) & (own == 0)).nonzero().flatten().tolist()):
        return ""
    groups = data.dataset.groups["train"]
    count = len({groups[row] for row in data.train_val_split.val.tolist()})
    of = f"{count} of {plural(len(set(groups)), 'group')} now"
    return f"; a larger data.val_fraction ({of}) or another data.val_seed may give each class some"


def _groups_of(data: ImageDataModule, target: int, index: int) -> int:
    """Return the number of groups that training images of a class of a target are in; without groups, of images."""
    labels = data.dataset.train.labels[:, target] if target else data.dataset.train.first_labels
    rows = (labels == index if labels.dim() == 1 else labels[:, index]).nonzero().flatten().tolist()
    groups = data.dataset.groups.get("train")
    return len(rows) if groups is None else len({groups[row] for row in rows})


def _without_images(data: ImageDataModule, split: Split, least: int = 1) -> list[str]:
    """Return, for each target, the classes of the training images that a split lacks, with the number of these.

    With ``least`` = 2, only those in several groups.
    """
    found = []
    for number, (target, classes) in enumerate((data.dataset.targets or {"": data.dataset.classes}).items()):
        known, own = (images.per_class(len(classes), number).tolist() for images in (data.dataset.train, split))
        triples = enumerate(zip(known, own, strict=True))
        lost = [index for index, (count, left) in triples if count and not left]
        if least > 1:
            lost = [index for index in lost if _groups_of(data, number, index) >= least]
        names = [f"{classes[index]} ({known[index]} in train)" for index in lost]
        found.append(f"{listed(names, MAX_LISTED)}{f' of target {target}' if lost and number else ''}")
    return found


def check_agreement(config: TrainConfig, hardware: Hardware, ranks: Ranks) -> None:
    """Raise RunError on a rank whose configuration or hardware differs from rank 0's; paths may differ."""
    chosen = {f"hardware.{name}": value for name, value in asdict(hardware).items() if name != "name"}
    own = json.loads(json.dumps(flatten(to_plain(config)) | chosen))
    shared = ranks.share(lambda: own)
    for name in dict.fromkeys([*own, *shared]):
        ours, first = (values.get(name, "not set") for values in (own, shared))
        if ours != first and name != "data.root" and not name.startswith("paths."):
            problem = f"{name} is {ours} on rank {ranks.rank}, and {first} on rank 0"
            raise RunError(f"{problem}; ranks train one run together, with the same configuration")


def _check_same_data(data: ImageDataModule, first: Mapping[str, Any], rank: int) -> None:
    """Raise RunError where the labels, names or validation split of this rank's data are not rank 0's, ``first``."""
    own = {**data_facts(data), "data_fingerprint": outline(data.dataset)}
    if found := run_changes(first, own):
        problem = f"the data of rank {rank}, data.root={data.config.data.root}, is not that of rank 0"
        differs = listed(found, separator="; ")
        raise RunError(f"{problem}: {differs}; ranks train one run together, on the same data")


def _check_shares(config: TrainConfig, images: int, devices: int) -> None:
    """Raise DataError where a batch is cut to so few training images that ranks would get unequal shares of it."""
    size = config.data.batch_size
    cut = replace(config, data=replace(config.data, batch_size=images))
    if images < size and (problem := unequal_shares(cut, devices)):
        unit = 2 * devices if config.augment.mixes else devices
        hint = f"set data.batch_size={images // unit * unit}" if images >= unit else "take fewer devices"
        raise DataError(
            f"data.batch_size={size} is cut to the {images} training images, a number that {problem}; {hint}"
        )


def check_split_keys(config: TrainConfig, data: ImageDataModule) -> None:
    """Raise DataError where a key chooses validation images although the data has a validation split.

    ``data.hold_out`` is not checked: reproductions set it for every data set.
    """
    if data.train_val_split is not None:
        return
    for key in ("val_fraction", "val_seed"):
        if (value := getattr(config.data, key)) != (default := getattr(DataConfig, key)):
            problem = "is for data without a validation split of its own, which this has"
            raise DataError(f"data.{key}={value} {problem}; leave it at data.{key}={default}")
