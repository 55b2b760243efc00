"""Data sets: each source gives its images as one uint8 tensor per split, or as pictures yet to be decoded.

``SOURCES`` maps the word of ``data=`` to a function from a ``DataConfig`` to :class:`Images`. A new data set is one
function, one line there, and one file in ``conf/data/``.
"""

import contextlib
import hashlib
import io
import math
import textwrap
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from vitrine.config.schema import DataConfig
from vitrine.data.cache import cached
from vitrine.data.decode import MODES, Decoder, Pictures
from vitrine.data.image_folder import ImageFolder
from vitrine.data.shards import folder_of, read_packed
from vitrine.errors import DataError, first_line

OFFLINE = "python train.py data=digits works without a network, and so does data.root=DIR with the data set in it"

MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) uint8 and their labels (N,) int64; or pictures still on disk, which indexing decodes."""

    images: Tensor | Pictures
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> "Split":
        """Some of the images; pictures stay on disk."""
        kept = self.images
        images = kept.index_select(0, indices) if isinstance(kept, Tensor) else kept.subset(indices)
        return Split(images, self.labels.index_select(0, indices))

    @property
    def device(self) -> torch.device:
        """Where the labels are, and the images unless they are on disk."""
        return self.labels.device

    def batches(self, chosen: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """For each of ``chosen``, (B,) int64 indices in memory: (B, C, H, W) uint8 images and (B,) int64 labels."""
        together = torch.cat([torch.empty(0, dtype=torch.int64), *chosen]).to(self.device)
        for indices in together.split([len(some) for some in chosen]):
            images = self.images
            pixels = images.index_select(0, indices) if isinstance(images, Tensor) else images[indices]
            yield pixels, self.labels.index_select(0, indices)


@dataclass(frozen=True)
class Images:
    """A data set. ``val`` is there only where the source has one of its own, ``test`` only where there is one."""

    classes: list[str]
    train: Split
    val: Split | None
    test: Split | None

    @property
    def nbytes(self) -> int:
        """Bytes of all images, decoded."""
        return sum(split.images.nbytes for split in (self.train, self.val, self.test) if split is not None)


def load(config: DataConfig, cache_dir: Path, memory: float = math.inf) -> Images:
    """Read the data set that ``config`` names, packed or as its source has it, downloading it where it is neither.

    Images of another size than ``config.image_size`` are resized to it, bilinear with antialiasing. Pictures are
    decoded, and kept in the cache, unless they would take more than ``memory`` bytes: then they stay on disk.

    Raises:
        DataError: it is missing and cannot be downloaded, damaged, or of other channels than ``config`` says.
    """
    folder = folder_of(config.root, config.name)
    images = _packed(folder, config.name) if folder.is_dir() else SOURCES[config.name](config)
    if images.nbytes <= memory:
        val, test = (split and _decoded(split, cache_dir) for split in (images.val, images.test))
        images = Images(images.classes, _decoded(images.train, cache_dir), val, test)
    channels = images.train.images.shape[1]
    if channels != config.in_channels:
        given = f"data.in_channels={config.in_channels}"
        raise DataError(f"data={config.name} has images of {channels} channels, not {given}")
    size = config.image_size
    val, test = (split and _resized(split, size) for split in (images.val, images.test))
    return Images(images.classes, _resized(images.train, size), val, test)


def lacking(config: DataConfig) -> Path | None:
    """The first file that :func:`load` would download; ``None`` where all is there, or can't be downloaded."""
    from torchvision import datasets

    root = Path(config.root)
    if folder_of(root, config.name).is_dir() or (config.name == "cifar10" and (root / "cifar10").is_dir()):
        return None
    files: list[Path] = []
    match config.name:
        case "mnist" | "fashion_mnist":
            raw = root / {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[config.name] / "raw"
            files = [raw / name for name in MNIST_MD5]
        case "cifar10" | "cifar100":
            one = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[config.name]
            names = [one.meta["filename"], *(name for name, _ in [*one.train_list, *one.test_list])]
            files = [root / one.base_folder / name for name in names]
    return next((file for file in files if not file.is_file()), None)


def _packed(folder: Path, name: str) -> Images:
    classes, arrays = read_packed(folder, name)
    splits = {split: Split(*map(torch.from_numpy, pair)) for split, pair in arrays.items()}
    return Images(classes, splits["train"], splits.get("val"), splits.get("test"))


def _decoded(split: Split, cache_dir: Path) -> Split:
    pictures = split.images
    if isinstance(pictures, Tensor):
        return split
    decoder = pictures.decoder
    images = cached(
        cache_dir,
        label=pictures.label,
        sources=pictures.paths,
        settings={"image_size": decoder.size, "in_channels": decoder.channels},
        make=lambda: decoder.read(pictures.paths),
    )
    return Split(torch.from_numpy(images), split.labels)


def _resized(split: Split, size: int) -> Split:
    if isinstance(split.images, Pictures) or split.images.shape[2:] == (size, size):
        return split
    from torchvision.transforms.v2.functional import resize

    some = split.images.split(1024)  # in parts: each is a float tensor for a while
    return Split(torch.cat([resize(images, [size, size], antialias=True) for images in some]), split.labels)


def digits(config: DataConfig) -> Images:
    """scikit-learn's digits: 16 grey levels, scaled to 0..255. A fifth of each class is the test set, for good."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    every = Split(images, torch.from_numpy(bunch.target.astype(np.int64)))
    train, test = train_test_split(np.arange(len(every)), test_size=360, stratify=bunch.target, random_state=0)
    classes = [str(digit) for digit in range(10)]
    return Images(classes, every[torch.from_numpy(np.sort(train))], None, every[torch.from_numpy(np.sort(test))])


def mnist(config: DataConfig) -> Images:
    """MNIST in torchvision's layout, ``ROOT/MNIST/raw``; the files are compared with their known MD5 sums."""
    from torchvision import datasets

    raw = Path(config.root) / "MNIST" / "raw"
    for name, known in MNIST_MD5.items():  # before they are read, so that the message names the file that is damaged
        path = raw / name
        if path.is_file() and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != known:
            raise DataError(f"{path} is damaged: its MD5 sum is not that of MNIST; delete it to download it again")
    return _torchvision(datasets.MNIST, config, raw)


def fashion_mnist(config: DataConfig) -> Images:
    """Fashion-MNIST in torchvision's layout, ``ROOT/FashionMNIST/raw``."""
    from torchvision import datasets

    return _torchvision(datasets.FashionMNIST, config, Path(config.root) / "FashionMNIST" / "raw")


def cifar10(config: DataConfig) -> Images:
    """CIFAR-10 in torchvision's layout, or as pictures in ``ROOT/cifar10/{train,test}/<class>/``."""
    from torchvision import datasets

    batches = Path(config.root) / "cifar-10-batches-py"
    pictures = Path(config.root) / "cifar10"
    if pictures.is_dir() and not batches.is_dir():
        return imagefolder(replace(config, root=str(pictures)))
    return _torchvision(datasets.CIFAR10, config, batches)


def cifar100(config: DataConfig) -> Images:
    """CIFAR-100 in torchvision's layout."""
    from torchvision import datasets

    return _torchvision(datasets.CIFAR100, config, Path(config.root) / "cifar-100-python")


def imagefolder(config: DataConfig) -> Images:
    """Pictures in class folders, not decoded yet."""
    if config.in_channels not in MODES:
        raise DataError(f"data.in_channels={config.in_channels}: pictures have 1 (grey), 3 (colour) or 4 (with alpha)")
    folder = ImageFolder.scan(config.root)
    if len(folder.classes) != config.num_classes:
        raise DataError(
            f"{config.root}/train has {len(folder.classes)} classes, not data.num_classes={config.num_classes}"
        )
    decoder = Decoder(config.image_size, config.in_channels)
    splits: dict[str, Split | None] = {"val": None, "test": None}
    for name, found in folder.splits.items():
        pictures = Pictures(f"{folder.root.name}-{name}", [path for path, _ in found], decoder)
        splits[name] = Split(pictures, torch.tensor([label for _, label in found]))
    train = splits["train"]
    assert train is not None  # ImageFolder.scan makes sure of it
    return Images(folder.classes, train, splits["val"], splits["test"])


SOURCES: dict[str, Callable[[DataConfig], Images]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagefolder": imagefolder,
}


def _torchvision(dataset: Callable[..., Any], config: DataConfig, folder: Path) -> Images:
    """Both splits of a torchvision data set; downloads it where it is not there, one process at a time."""
    splits = []
    root = Path(config.root)
    for train in (True, False):
        try:
            data = _read_or_download(dataset, root, train)
        except DataError:
            raise
        except Exception as error:  # torchvision raises whatever the damaged bytes lead to
            raise DataError(f"{folder} is damaged: {first_line(error)}; delete it to download it again") from error
        images = torch.as_tensor(np.asarray(data.data))
        labels = torch.as_tensor(np.asarray(data.targets), dtype=torch.int64)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        if len(images) != len(labels) or not len(labels) or int(labels.max()) >= len(data.classes):
            raise DataError(f"{folder} is damaged: {len(images)} images, {len(labels)} labels up to {labels.max()}")
        splits.append(Split(images, labels))
    return Images(list(data.classes), splits[0], None, splits[1])


def _read_or_download(dataset: Callable[..., Any], root: Path, train: bool) -> Any:
    from torchvision.datasets.utils import check_integrity

    try:
        return dataset(root, train=train)
    except RuntimeError as error:
        if "not found" not in str(error):
            raise
        meta = getattr(dataset, "meta", None)
        files = [*getattr(dataset, "train_list", []), *getattr(dataset, "test_list", [])]  # of CIFAR
        for name, md5 in [*files, *([(meta["filename"], meta["md5"])] if meta else [])]:
            path = root / getattr(dataset, "base_folder", "") / name
            if path.is_file() and not check_integrity(str(path), md5):
                raise DataError(f"{path} is damaged: its MD5 sum is not what it should be; delete it") from None
    name = getattr(dataset, "__name__", "the data set")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock"):
            print(f"downloading {name} to {root}", flush=True)
            with contextlib.redirect_stdout(io.StringIO()):
                return dataset(root, train=train, download=True)  # torchvision checks the archives' MD5 sums
    except (OSError, RuntimeError) as error:
        reason = textwrap.shorten(str(error), 160, placeholder=" ...")
        raise DataError(f"{name} is not in {root} and could not be downloaded ({reason}); {OFFLINE}") from None
