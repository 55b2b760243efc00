"""A folder of pictures through predict.py and through timm's inference.py, with the same weights, in turn.

python benchmarks/timing/predict.py INFERENCE.PY [PICTURES]. The first argument is the script at the top of timm's
repository, which its package leaves out. With fewer than 10,000 pictures nothing is published.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import torch
from measure import ROOT, format_ratio, in_turn, publish, ratio
from PIL import Image

from vitrine import compose, fit, load_run

ROUNDS, PICTURES, CLASSES, SIZE = 6, 10_000, 10, 32
PRECISIONS = {"32-true": "float32, as timm's", "auto": "as trained by default"}
# Keeps timm's names and shapes: its own model takes the weights.
MODEL = ["model=vit_tiny", "position=learned", "pool=cls", "patch=4", "data=imagefolder", f"data.image_size={SIZE}"]
BRIEF = ["trainer.max_epochs=1", "debug.limit_batches=1", "data.storage=disk", "accelerator=cpu"]
TIMM = ["--model", "vit_tiny_patch16_224", "--num-classes", str(CLASSES), "--input-size", "3", str(SIZE), str(SIZE)]
TIMM += ["--model-kwargs", f"img_size={SIZE}", "patch_size=4", "--crop-pct", "1", "--interpolation", "bicubic"]
TIMM += ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5", "--device", "cpu", "--label-type", "none"]
TIMM += ["--topk", "1", "--include-index", "--fullname", "--no-console-results"]


def main(inference: Path, pictures: int) -> None:
    """Time both commands, from start to exit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder / "pictures", pictures)
        rows, claims, rounds = [], {}, {}
        for precision, meaning in PRECISIONS.items():
            ours, theirs = commands(folder, inference, precision)
            times = in_turn({"ours": ours, "timm": theirs}, rounds=ROUNDS)
            rounds[meaning] = times
            agreed = agreement(folder / "ours.csv", folder / "timm.csv")
            speeds = [f"{pictures / float(np.median(times[each])):,.0f}" for each in ("ours", "timm")]
            gain = format_ratio(ratio(times["timm"], times["ours"]))
            rows.append([meaning, *speeds, gain, f"{agreed:.2%}"])
            claims[f"`predict.py` on {pictures:,} pictures, against timm's inference.py, {meaning}"] = gain
    columns = ["our precision", "ours, images/s", "timm, images/s", "timm / ours", "equal predictions"]
    if pictures < PICTURES:
        print(*(" | ".join(map(str, row)) for row in [columns, *rows]), sep="\n")
        return
    text = (
        f"A folder of {pictures:,} PNG files of {SIZE} x {SIZE} pixels, classified by `vit_tiny` with patches of 4 on "
        f"the CPU; whole commands, start-up included, with their default workers and batches. timm {timm.__version__}."
    )
    title = "Classifying a folder"
    publish("predict", title=title, text=text, columns=columns, rows=rows, claims=claims, rounds=rounds)


def write_pictures(folder: Path, count: int) -> None:
    """Write random pictures in class folders, for training and for classifying."""
    random = np.random.default_rng(0)
    for index in range(count):
        path = folder / "test" / str(index % CLASSES) / f"{index:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(path)
        if index < 64 * CLASSES:
            (folder / "train" / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / "train" / path.parent.name)


def commands(folder: Path, inference: Path, precision: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Train for a step, and return both commands with these weights."""
    paths = [f"data.root={folder / 'pictures'}", f"paths.output_dir={folder}", f"paths.cache_dir={folder / 'cache'}"]
    overrides = [*MODEL, *BRIEF, *paths, f"trainer.precision={precision}", "data.mean=[0.5]", "data.std=[0.5]"]
    run = load_run(fit(compose(overrides)).run_dir)
    torch.save(run.model.state_dict(), folder / "weights.pth")
    pictures = folder / "pictures" / "test"
    ours = [ROOT / "predict.py", f"run={run.record.path}", f"input={pictures}", f"output={folder / 'ours.csv'}"]
    theirs = [inference, pictures, *TIMM, "--checkpoint", folder / "weights.pth", "--results-file", folder / "timm.csv"]
    return runner([*ours, "accelerator=cpu"]), runner(theirs)


def runner(words: list[object]) -> Callable[[], object]:
    """Return a function that runs a Python script to its end."""
    command = [sys.executable, *map(str, words)]
    return lambda: subprocess.run(command, check=True, capture_output=True)


def agreement(ours: Path, theirs: Path) -> float:
    """Return the share of pictures that both give the same class."""
    with ours.open() as one, theirs.open() as other:
        found = {Path(row["path"]).name: row["class"] for row in csv.DictReader(one)}
        expected = {Path(row["filename"]).name: row["index"] for row in csv.DictReader(other)}
    assert found.keys() == expected.keys()
    return float(np.mean([found[name] == expected[name] for name in found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else PICTURES)
