"""Data sets: per split, images as one uint8 tensor or as image files that are not decoded yet.

``DATASETS`` maps the name in ``data.name`` to a function from a ``DataConfig`` to an :class:`ImageDataset`. A new data
set takes one function, one line there, its name in ``SOURCES`` (config/schema.py) and one file in ``conf/data/``. One
that is downloaded is named in ``DOWNLOADED``, and has a line in ``FILES``.
"""

import contextlib
import io
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from vitrine.config.parts import part_at
from vitrine.config.schema import DOWNLOADED, OWN_FILES, DataConfig
from vitrine.config.size import fixed, size_override
from vitrine.config.targets import TARGETS, Target, target_faults
from vitrine.data.decode import ImageFiles
from vitrine.data.file_datasets import csv, huggingface, imagefolder
from vitrine.data.fingerprint import fingerprint
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.data.image_folder import cifar10_folder
from vitrine.data.pixel_store import PixelStore, StoredFiles
from vitrine.data.placement import decoding_workers
from vitrine.data.preparation import resized
from vitrine.data.shards import read_shards, shards_folder
from vitrine.data.split import hold_out
from vitrine.data.user_data import user_dataset
from vitrine.errors import ConfigError, DataError, first_line
from vitrine.files import disk_full
from vitrine.runs.data_changes import SPLITS
from vitrine.text import did_you_mean, nearest, plural

OFFLINE = "offline, use data=digits, or data.root=DIR with a folder that holds the data set"

MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def load_dataset(
    config: DataConfig,
    cache_dir: Path,
    memory: float = math.inf,
    *,
    with_fingerprint: bool = False,
    patience: float = math.inf,
) -> ImageDataset:
    """Read the data set that ``config`` names, and decode and resize its images.

    The parameters and errors are those of :func:`read_dataset` and :func:`decode_dataset`.
    """
    dataset = read_dataset(config, with_fingerprint=with_fingerprint)
    return decode_dataset(dataset, config, cache_dir, memory, patience)


def read_dataset(config: DataConfig, *, with_fingerprint: bool = False) -> ImageDataset:
    """Read the data set that ``config`` names, from shards if there are any; download it if it is missing.

    Image files are not decoded, nor arrays resized.

    Raises:
        DataError: the data set is damaged, unknown, missing and not downloadable, or has another number of classes.
        ConfigError: it has no such targets.
    """
    folder = shards_folder(config.root, config.name)
    if (part := part_at(config, "name")) is not None:
        dataset = user_dataset(part, config)
    else:
        if not folder.is_dir() and config.name not in DATASETS:  # of a run folder, which holds anything
            hint = did_you_mean(nearest(config.name, DATASETS))
            raise DataError(f"this version of vitrine has no data={config.name}{hint}")
        dataset = _from_shards(folder, config.name) if folder.is_dir() else DATASETS[config.name](config)
        if faults := list(target_faults(config.name, config.targets)):
            raise ConfigError(faults)
        if config.targets and config.name in TARGETS:
            dataset = _with_targets(dataset, [(name, TARGETS[config.name][name]) for name in config.targets])
    if len(dataset.classes) != config.num_classes:
        where = config.root if config.name in OWN_FILES else f"data={config.name}"
        count = plural(len(dataset.classes), "class", "classes")
        raise DataError(f"{where} has {count}, not data.num_classes={config.num_classes}")
    return replace(dataset, fingerprint=fingerprint(dataset)) if with_fingerprint else dataset


def decode_dataset(
    dataset: ImageDataset, config: DataConfig, cache_dir: Path, memory: float = math.inf, patience: float = math.inf
) -> ImageDataset:
    """Decode the image files of a data set that was read, and resize arrays to ``config.image_size``.

    These are resized bilinear with antialiasing, whatever the ratio of their sides. Image files are decoded and cached
    in ``cache_dir``, unless all decoded images together exceed ``memory`` bytes: then they stay files. What is not
    decoded after ``patience`` seconds is left for later (data/pixel_store.py).

    Raises:
        DataError: a file cannot be decoded, or images have another number of channels.
    """
    for name in SPLITS:
        split: Split | None = getattr(dataset, name)
        if split is not None and (channels := split.stored.shape[1]) != config.in_channels:
            expected = f"data.in_channels={config.in_channels}"
            raise DataError(f"data={config.name} has {name} images with {plural(channels, 'channel')}, not {expected}")
    has_room, end = dataset.nbytes <= memory, time.monotonic() + patience

    def ready(split: Split) -> Split:
        if isinstance(images := split.images, Tensor):
            return Split(resized(images, config.image_size), split.labels)
        return _decoded(images, split.labels, cache_dir, decoding_workers(config), end) if has_room else split

    return _map_splits(dataset, ready)


def at_train_size(split: Split, config: DataConfig) -> Split:
    """Return images to train on, not decoded yet, at ``data.train_size``; as they are where it is null.

    Raises:
        DataError: they are no image files.
    """
    if config.train_size is None:
        return split
    files = split.stored
    if not isinstance(files, ImageFiles):
        given = f"data.train_size={size_override(config.train_size)}"
        raise DataError(f"{given}: {config.root} is packed, as images of one size; train from its files")
    decoder = replace(files.decoder, size=fixed(config.train_size), crop_pct=1.0)
    return Split(replace(files, decoder=decoder), split.labels)


def missing_file(config: DataConfig) -> Path | None:
    """Return the first file that :func:`load_dataset` would download; ``None`` if there is nothing to download."""
    root = Path(config.root)
    if config.name not in DOWNLOADED:
        return None
    if shards_folder(root, config.name).is_dir() or (config.name == "cifar10" and (root / "cifar10").is_dir()):
        return None
    return next((file for file in FILES[config.name](root) if not file.is_file()), None)


def refuse_download(data: DataConfig, advice: str = "") -> None:
    """Raise DataError if the data is not where a run names it: others may have made the run, so nothing is downloaded.

    Args:
        data: of the run.
        advice: ends the message.
    """
    if (file := missing_file(data)) is not None:
        raise DataError(f"{file}, which the run used, is not there from this folder{advice}")
    if data.name in OWN_FILES and not Path(data.root).exists():
        raise DataError(f"{data.root}, which the run used, is not there from this folder{advice}")


def _map_splits(dataset: ImageDataset, function: Callable[[Split], Split]) -> ImageDataset:
    val, test = (split and function(split) for split in (dataset.val, dataset.test))  # first, as a rule the smaller
    return replace(dataset, train=function(dataset.train), val=val, test=test)


def _with_targets(dataset: ImageDataset, targets: Sequence[tuple[str, Target]]) -> ImageDataset:
    """Replace the classes of a data set by the answers that follow from them."""
    answers = torch.tensor([[target.of(label) for _, target in targets] for label in range(len(dataset.classes))])
    dataset = _map_splits(dataset, lambda split: Split(split.images, answers[split.labels].squeeze(1)))
    names = {name: list(target.classes) for name, target in targets}
    return replace(dataset, classes=names[targets[0][0]], targets=names)


def _from_shards(folder: Path, name: str) -> ImageDataset:
    classes, arrays = read_shards(folder, name)
    splits = {split: Split(*map(torch.from_numpy, pair)) for split, pair in arrays.items()}
    return ImageDataset(classes, splits["train"], splits.get("val"), splits.get("test"))


def _decoded(files: ImageFiles, labels: Tensor, cache_dir: Path, workers: int, end: float) -> Split:
    """Return a split with its images in memory, or, where decoding takes longer than to ``end``, stored files."""
    store = PixelStore(files, cache_dir, workers)
    if store.complete(end - time.monotonic()):
        return Split(store.pixels, labels)
    rows = torch.arange(len(files))
    return Split(StoredFiles(files.label, files.paths, files.decoder, store, rows), labels)


def digits(config: DataConfig) -> ImageDataset:
    """scikit-learn's digits, 8 x 8, 17 grey levels scaled to 0..255. The test split is fixed: a fifth of each class."""
    package = find_spec("sklearn")  # importing it would be a quarter of the time before the first training step
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = torch.from_numpy(np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    split = hold_out(labels, 360, seed=0)
    train, test = (Split(images[part], labels[part]) for part in (split.train, split.val))
    return ImageDataset([str(digit) for digit in range(10)], train, None, test)


def mnist(config: DataConfig) -> ImageDataset:
    """MNIST in torchvision's layout, ``ROOT/MNIST/raw``; MD5 checksums are verified."""
    from torchvision import datasets

    raw = Path(config.root) / "MNIST" / "raw"
    for name, md5 in MNIST_MD5.items():  # before torchvision reads them, so that the message names the damaged file
        refuse_damaged(raw / name, md5, _download_lock(datasets.MNIST, config.root))
    return _torchvision(datasets.MNIST, config, raw)


def fashion_mnist(config: DataConfig) -> ImageDataset:
    """Fashion-MNIST in torchvision's layout, ``ROOT/FashionMNIST/raw``."""
    from torchvision import datasets

    return _torchvision(datasets.FashionMNIST, config, Path(config.root) / "FashionMNIST" / "raw")


def cifar10(config: DataConfig) -> ImageDataset:
    """CIFAR-10 in torchvision's layout, or as image files in ``ROOT/cifar10/{train,test}/<class>/``."""
    from torchvision import datasets

    if (folder := cifar10_folder(config.root)) is not None:
        return imagefolder(replace(config, root=str(folder)))
    return _torchvision(datasets.CIFAR10, config, Path(config.root) / datasets.CIFAR10.base_folder)


def cifar100(config: DataConfig) -> ImageDataset:
    """CIFAR-100 in torchvision's layout."""
    from torchvision import datasets

    return _torchvision(datasets.CIFAR100, config, Path(config.root) / "cifar-100-python")


DATASETS: dict[str, Callable[[DataConfig], ImageDataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagefolder": imagefolder,
    "csv": csv,
    "huggingface": huggingface,
}


def _mnist_files(folder: str, root: Path) -> list[Path]:
    return [root / folder / "raw" / name for name in MNIST_MD5]


def _cifar_files(torchvision_name: str, root: Path) -> list[Path]:
    from torchvision import datasets

    cifar = getattr(datasets, torchvision_name)
    names = [cifar.meta["filename"], *(name for name, _ in [*cifar.train_list, *cifar.test_list])]
    return [root / cifar.base_folder / name for name in names]


# From data.root to the files that a data set is downloaded to.
FILES: dict[str, Callable[[Path], list[Path]]] = {
    "mnist": partial(_mnist_files, "MNIST"),
    "fashion_mnist": partial(_mnist_files, "FashionMNIST"),
    "cifar10": partial(_cifar_files, "CIFAR10"),
    "cifar100": partial(_cifar_files, "CIFAR100"),
}


def _torchvision(dataset: Callable[..., Any], config: DataConfig, folder: Path) -> ImageDataset:
    """Read both splits of a torchvision data set; download it if it is missing, one process at a time."""
    splits = []
    root = Path(config.root)
    for train in (True, False):
        try:
            data = _read_or_download(dataset, root, train)
        except DataError:
            raise
        except Exception as error:  # torchvision raises many types of exceptions on damaged bytes
            raise DataError(f"{folder} is damaged: {first_line(error)}; delete it to download it again") from error
        images = torch.as_tensor(np.asarray(data.data))
        labels = torch.as_tensor(np.asarray(data.targets), dtype=torch.int64)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        if len(images) != len(labels) or not len(labels) or int(labels.max()) >= len(data.classes):
            raise DataError(f"{folder} is damaged: {len(images)} images, {len(labels)} labels up to {labels.max()}")
        splits.append(Split(images, labels))
    return ImageDataset(list(data.classes), splits[0], None, splits[1])


def refuse_damaged(path: Path, md5: str, lock: Path) -> None:
    """Raise DataError for a file with another checksum, unless a process that holds the lock is still writing it."""
    from torchvision.datasets.utils import check_integrity

    def is_damaged() -> bool:
        return path.is_file() and not check_integrity(path, md5)

    if not is_damaged():
        return
    with contextlib.suppress(OSError), FileLock(lock):  # a folder that cannot be written to is not downloaded to
        if not is_damaged():
            return
    raise DataError(f"{path} is damaged (MD5 checksum mismatch); delete it to download it again")


def _download_lock(dataset: Callable[..., Any], root: str | Path) -> Path:
    return Path(root) / f".{dataset.__name__}.lock"


def _read_or_download(dataset: Callable[..., Any], root: Path, train: bool) -> Any:
    try:
        return dataset(root, train=train)
    except RuntimeError as error:
        if "not found" not in str(error):
            raise
        meta = getattr(dataset, "meta", None)
        files = [*getattr(dataset, "train_list", []), *getattr(dataset, "test_list", [])]  # CIFAR has these
        for name, md5 in [*files, *([(meta["filename"], meta["md5"])] if meta else [])]:
            path = root / getattr(dataset, "base_folder", "") / name
            refuse_damaged(path, md5, _download_lock(dataset, root))
    name = dataset.__name__
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(_download_lock(dataset, root)):
            print(f"downloading {name} to {root}", flush=True)
            with contextlib.redirect_stdout(io.StringIO()):
                return dataset(root, train=train, download=True)  # verifies the archives' MD5 checksums
    except (OSError, RuntimeError) as error:
        if (full := disk_full(error, root)) is not None:
            raise full from error
        reason = textwrap.shorten(str(error), 160, placeholder=" ...")
        raise DataError(f"{name} was not found in {root} and could not be downloaded ({reason}); {OFFLINE}") from None
