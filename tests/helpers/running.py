"""Running the project's own commands as a user would, and what they need to run on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]

# The smallest training that goes through everything: two epochs of a narrow model on the bundled digits.
SMALL = ["model=vit_nano", "depth=1", "trainer.max_epochs=2", "data.batch_size=256"]


def python(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run python with the given arguments, as a user would, and return what came of it."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", **(env or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def only_run(folder: Path) -> Path:
    """The one run folder under ``folder``."""
    (record,) = folder.glob("**/run.json")
    return record.parent


def make_pictures(
    root: Path, *splits: str, classes: tuple[str, ...] = ("a", "b"), size: tuple[int, int] = (8, 8)
) -> None:
    """Write 20 noisy pictures per class, lighter from class to class, to ``root/SPLIT/CLASS``."""
    generator = np.random.default_rng(0)
    for split in splits or ("train",):
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(20):
                pixels = generator.integers(0, 128, (size[1], size[0], 3)) + 127 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
