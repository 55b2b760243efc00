"""Growth of time and memory with a step's sizes, with the images of a data set, and with the runs in a folder.

python benchmarks/timing/growth.py             # every part: ten minutes, 5 GB of disk; writes docs/growth.md
python benchmarks/timing/growth.py step runs   # some parts; the stored results of the others stay
python benchmarks/timing/growth.py --page      # only writes the page and its picture

Files are synthetic, and deleted afterwards.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import ROOT, TIMING, at_commit, in_turn, markdown_table, measured_on, milliseconds, run_command
from PIL import Image
from startup import TRAINING, first_step
from step import as_trained, training_step

from vitrine import compose
from vitrine.data.shards import shards_folder, write_shards
from vitrine.training.flops import flops_per_image

JSON = TIMING / "growth.json"
PAGE = ROOT / "docs" / "growth.md"
FIGURE = ROOT / "docs" / "images" / "growth.png"
ROUNDS = 7
BASE = {"data.batch_size": 64, "model.depth": 4, "model.patch_size": 4, "model.dim": 128}
GROWN = {
    "images in a batch": ("data.batch_size", (32, 64, 128, 256)),
    "blocks": ("model.depth", (2, 4, 8, 16)),
    "tokens": ("model.patch_size", (8, 4, 2, 1)),
    "width": ("model.dim", (64, 128, 256, 512)),
}
IMAGES = (1_000, 10_000, 100_000, 1_000_000)
RUNS = (100, 1_000, 10_000, 100_000)
FEW = 100_000  # up to here, a command is timed three times
HEAD = """# How time and memory grow

Each table varies one size and leaves the others alone. The exponent is that of growth since the row above: with 1, time
doubles when the size does; below 1, it grows more slowly. `python benchmarks/timing/growth.py` measures all of it.

![Time against size, both logarithmic](images/growth.png)
"""

Row = dict[str, Any]


def main() -> None:
    """Measure the parts asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--page", action="store_true", help="measure nothing, only write the page")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {unknown.pop()}; allowed are {', '.join(PARTS)}")
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in [] if options.page else options.parts or PARTS:
        results[name] = {"curves": PARTS[name](), **measured_on()}
        results = {part: results[part] for part in PARTS if part in results}
        JSON.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))
    draw(results)


def step() -> dict[str, list[Row]]:
    """A training step, with each of its sizes varied."""
    curves: dict[str, list[Row]] = {}
    with as_trained():
        for name, (key, values) in GROWN.items():
            configs = {}
            for value in values:
                sizes = [f"{size}={number}" for size, number in (BASE | {key: value}).items()]
                fixed = ["model=vit_nano", "data=mnist", "data.image_size=32", "model.heads=4", "accelerator=cpu"]
                configs[str(value)] = compose([*fixed, *sizes])
            steps: dict[str, Callable[[], object]] = {}
            for value, config in configs.items():
                images = torch.randn(config.data.batch_size, 1, 32, 32)
                steps[value] = training_step(config, images, torch.zeros(len(images), dtype=torch.int64))
            times = in_turn(steps, rounds=ROUNDS, warm_up=2)
            curves[name] = [
                {
                    "size": config.model.tokens if name == "tokens" else int(value),
                    "seconds": milliseconds(times[value]) / 1000,
                    "flops": 3 * flops_per_image(config.model) * config.data.batch_size,
                }
                for value, config in configs.items()
            ]
    return curves


def data() -> dict[str, list[Row]]:
    """A training of one step, from the command's start to that step, on ever more images."""
    curves: dict[str, list[Row]] = {"packed images": [], "image files": []}
    for count in IMAGES:
        with tempfile.TemporaryDirectory() as folder:
            write_packed(Path(folder), count)
            curves["packed images"].append(started(count, "data=mnist", f"data.root={folder}"))
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), count)
            small = ["data.image_size=64", "model.patch_size=8", "data.storage=disk"]
            curves["image files"].append(started(count, "data=imagefolder", f"data.root={folder}", *small))
    return curves


def runs() -> dict[str, list[Row]]:
    """Listing ever more runs: copies of the record of one."""
    curves: dict[str, list[Row]] = {"runs listed for the first time": [], "runs listed again": []}
    with tempfile.TemporaryDirectory() as out:
        assert run_command("train.py", *TRAINING, f"paths.output_dir={out}").code == 0
        (record,) = Path(out).glob("runs/*/run.json")
        files = {name: (record.parent / name).read_bytes() for name in ("run.json", "config.yaml", "metrics.json")}
        for count in RUNS:
            folder = Path(out) / "many"
            for number in range(count):
                run = folder / f"sweep-{number // 100}" / f"run-{number:06}"
                run.mkdir(parents=True)
                for name, content in files.items():
                    (run / name).write_bytes(content)
            for rows in curves.values():
                begin = time.perf_counter()
                command = [sys.executable, "scripts/runs.py", "list", str(folder)]
                subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                rows.append({"size": count, "seconds": time.perf_counter() - begin})
            shutil.rmtree(folder)
    return curves


PARTS = {"step": step, "data": data, "runs": runs}


def write_packed(folder: Path, count: int) -> None:
    """Write random images of 28x28 as `vitrine pack` does, and 100 for the test."""
    generator = np.random.default_rng(0)

    def images(number: int) -> tuple[np.ndarray, np.ndarray]:
        pixels = generator.integers(0, 256, (number, 1, 28, 28), dtype=np.uint8)
        return pixels, np.arange(number, dtype=np.int64) % 10

    splits = {"train": images(count), "test": images(100)}
    write_shards(shards_folder(folder, "mnist"), "mnist", [str(digit) for digit in range(10)], splits, 60_000_000)


def write_files(folder: Path, count: int) -> None:
    """Write JPEG files of 96x72 in ten class folders: a hundred pictures, each file with other bytes after its end."""
    pictures = []
    for number in range(100):
        noise = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        file = BytesIO()
        Image.fromarray(noise).resize((96, 72)).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    for split, files in (("train", count), ("test", 100)):
        for number in range(10):
            (folder / split / f"{number}").mkdir(parents=True)
        for number in range(files):
            content = pictures[number % 100] + f"{split} {number}".encode()
            (folder / split / f"{number % 10}" / f"{number:07}.jpg").write_bytes(content)


def started(count: int, *overrides: str) -> Row:
    """Seconds from a command's start to its first step on ``count`` images, and its peak memory in bytes."""
    seconds, memory = zip(*(first_step(*overrides) for _ in range(3 if count <= FEW else 1)), strict=True)
    return {"size": count, "seconds": median(seconds), "memory": max(memory), "all": seconds}


def exponents(rows: Sequence[Row], key: str = "seconds") -> list[float]:
    """Exponent of growth from each row to the next."""
    return [math.log(more[key] / less[key]) / math.log(more["size"] / less["size"]) for less, more in pairwise(rows)]


def page(results: Mapping[str, Any]) -> str:
    """Text of docs/growth.md."""
    parts = [HEAD]
    for name, part in results.items():
        curves = part["curves"]
        title, text = ABOUT[name](curves)
        parts.append(f"\n## {title}\n\n{text}\n")
        for size, rows in curves.items():
            parts.append("\n" + "\n".join(markdown_table(*table(size, rows))) + "\n")
        parts.append(f"\n`python benchmarks/timing/growth.py {name}` on {part['machine']}{at_commit(part)}.\n")
    return "".join(parts)


def table(size: str, rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a curve's table."""
    columns = [size, "time", "exponent"]
    cells = [[f"{row['size']:,}", readable(row["seconds"])] for row in rows]
    for cell, exponent in zip(cells, ["", *(f"{value:.2f}" for value in exponents(rows))], strict=True):
        cell.append(exponent)
    if "flops" in rows[0]:
        columns += ["exponent of its FLOPs", "GFLOP/s"]
        work = ["", *(f"{value:.2f}" for value in exponents(rows, "flops"))]
        for cell, exponent, row in zip(cells, work, rows, strict=True):
            cell += [exponent, f"{row['flops'] / row['seconds'] / 1e9:,.0f}"]
    if "memory" in rows[0]:
        columns.append("peak memory of a process")
        for cell, row in zip(cells, rows, strict=True):
            cell.append(f"{row['memory'] / 1e9:.2f} GB")
    return columns, cells


def readable(seconds: float) -> str:
    """``61 ms``, ``4.2 s``, ``61 s``."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def about_step(curves: Mapping[str, list[Row]]) -> tuple[str, str]:
    """Title and text of the section on a training step."""
    steeper = [
        f"{rows[at]['size']:,} to {rows[at + 1]['size']:,} {name}"
        for name, rows in curves.items()
        for at, (seconds, flops) in enumerate(zip(exponents(rows), exponents(rows, "flops"), strict=True))
        if seconds > flops + 0.1
    ]
    where = f"from {', '.join(steeper)}" if steeper else "nowhere"
    return (
        "A training step",
        "A ViT of width 128 with 4 blocks and 4 heads, on 64 images of 32x32 in patches of 4 (64 tokens), with one of "
        "these sizes varied. FLOPs count the matrix products, forward and backward: they are linear in images and "
        "blocks, quadratic in the width, and, of attention alone, quadratic in the tokens. Time's "
        f"exponent exceeds that of FLOPs by more than 0.1 {where}.",
    )


def about_data(curves: Mapping[str, list[Row]]) -> tuple[str, str]:
    """Title and text of the section on data sets."""
    added = {name: seconds_per_million(rows) for name, rows in curves.items()}
    return (
        "The images of a data set",
        "From the start of `python train.py` to its first training step, on a warm disk without a cache. Packed "
        "images (28x28, `vitrine pack`) are read into memory, and their checksums verified. Image files (JPEG, 96x72) "
        "are listed, split and fingerprinted, and streamed (`data.storage=disk`). Up to 100,000 images, times are "
        f"medians of three commands. From 100,000 to 1,000,000, the time grows by "
        f"{readable(added['packed images'])} for each million of packed images, and by "
        f"{readable(added['image files'])} for each million of files.",
    )


def seconds_per_million(rows: Sequence[Row]) -> float:
    """Seconds for a million more, between the largest two sizes."""
    less, more = rows[-2:]
    return (more["seconds"] - less["seconds"]) / (more["size"] - less["size"]) * 1e6


def about_runs(curves: Mapping[str, list[Row]]) -> tuple[str, str]:
    """Title and text of the section on runs."""
    ((_, first), (_, again)) = curves.items()
    return (
        "The runs of a folder",
        "`python scripts/runs.py list` on ever more finished runs. The first list reads every record and writes an "
        f"index; later ones read what has changed. {first[-1]['size']:,} runs take {readable(first[-1]['seconds'])}, "
        f"then {readable(again[-1]['seconds'])}.",
    )


ABOUT = {"step": about_step, "data": about_data, "runs": about_runs}


def draw(results: Mapping[str, Any]) -> None:
    """Draw every part's time against size, beside a line of exponent 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(results), 3.6), layout="constrained")
    for axes, (name, part) in zip(figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        for size, rows in part["curves"].items():
            smallest = rows[0]["size"] if name == "step" else 1
            sizes = [row["size"] / smallest for row in rows]
            axes.plot(sizes, [row["seconds"] for row in rows], marker="o", markersize=3, label=size)
        low, high = axes.get_xlim()
        bottom = min(row["seconds"] for rows in part["curves"].values() for row in rows)
        start = max(low, min(sizes))
        axes.plot([start, high], [bottom, bottom * high / start], color="#999999", linestyle=":", label="exponent 1")
        axes.set(xscale="log", yscale="log", title=ABOUT[name](part["curves"])[0], ylabel="seconds")
        axes.set_xlabel("size, relative to the smallest" if name == "step" else "number")
        axes.legend(frameon=False, fontsize="small")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
