"""Images per second of decoding JPEG files in the first epoch, against torchvision's ImageFolder in a DataLoader.

python benchmarks/timing/decoding.py. The files are synthetic, and deleted afterwards.
"""

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import format_ratio, in_turn, milliseconds, publish, ratio
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from vitrine.data.decode import Decoder, ImageFiles
from vitrine.data.image_dataset import Split
from vitrine.data.pixel_store import PixelStore, StoredFiles, StoredSource

BATCH, WORKERS, ROUNDS = 32, 2, 7
SIZES = {"96x72 to 64x64": ((96, 72), 64, 1024), "500x375 to 224x224": ((500, 375), 224, 128)}  # pixels, side, files
FFCV = "https://docs.ffcv.io/benchmarks.html"


def main() -> None:
    """Time both on small and on large files."""
    rows, claims, rounds = [], {}, {}
    for name, (pixels, side, count) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            images = Path(folder) / "class"
            images.mkdir()
            paths = write_files(images, pixels, count)
            times = in_turn(
                {"ours": partial(ours, paths, side), "torchvision": partial(torchvision, Path(folder), side)},
                rounds=ROUNDS,
            )
        rounds[name] = times
        speeds = [f"{count / (milliseconds(seconds) / 1000):,.0f}" for seconds in times.values()]
        gain = format_ratio(ratio(times["torchvision"], times["ours"]))
        rows.append([f"{name}, {count:,} files", *speeds, gain])
        claims[f"decoded images/s, {name}, against torchvision's ImageFolder in a DataLoader"] = gain
    publish(
        "decoding",
        title="Decoding image files",
        text=f"Images per second from JPEG files (quality 90) to batches of {BATCH} of uint8, scaled and cropped, by "
        f"{WORKERS} processes each, their start included. Ours is the first epoch's source, which also keeps the "
        "pixels: from the second epoch on, nothing is decoded. Both decode with Pillow. torchvision scales a large "
        f"file bilinearly, ours bicubically. The load of the machine was {os.getloadavg()[0]:.0f} processes on "
        f"{os.cpu_count()} cores, so that only the ratios say something. FFCV's authors report 31,278 images/s from "
        "JPEG files of 512 pixels in memory, and 172,801 from raw pixels of 256, on the 96 virtual cores of an AWS "
        f"p3dn.24xlarge ([source]({FFCV})); it needs the files converted to its format first.",
        columns=["files", "ours, images/s", "torchvision, images/s", "ours / torchvision"],
        rows=rows,
        claims=claims,
        rounds=rounds,
    )


def write_files(folder: Path, size: tuple[int, int], count: int, seed: int = 0) -> list[Path]:
    """Write ``count`` JPEG files of ``size`` (width, height): smooth colours with noise, as photographs have."""
    generator = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        smooth = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(size)
        noisy = np.asarray(smooth, dtype=np.int16) + generator.integers(-12, 13, (size[1], size[0], 1))
        paths.append(folder / f"{number:05}.jpg")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def ours(paths: list[Path], side: int) -> None:
    """Decode all files in random order, as a first epoch does."""
    files = ImageFiles("benchmark", paths, Decoder(side, 3))
    store = PixelStore(files, Path(), WORKERS)
    rows = torch.arange(len(paths))
    split = Split(StoredFiles(files.label, paths, files.decoder, store, rows), torch.zeros(len(paths)))
    for _ in StoredSource(split, torch.device("cpu"), resident=False).batches(torch.randperm(len(paths)).split(BATCH)):
        pass


def torchvision(root: Path, side: int) -> None:
    """Decode all files as a tutorial would."""
    transform = v2.Compose([v2.Resize(side), v2.CenterCrop(side), v2.PILToTensor()])
    for _ in DataLoader(ImageFolder(root, transform), BATCH, shuffle=True, num_workers=WORKERS):
        pass


if __name__ == "__main__":
    main()
