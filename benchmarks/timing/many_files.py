"""From Enter to the first training step on many image files: python benchmarks/timing/many_files.py [FILES].

The files are synthetic JPEGs in class folders, written once and deleted afterwards: some minutes, and 3 KB each.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from decoding import write_files
from measure import ROOT, publish

from vitrine.text import plural

FILES, CLASSES, ROUNDS = 100_000, 10, 2
PIXELS, SIDE, BATCH = (96, 72), 64, 32
TRAINING = ["model=vit_nano", "accelerator=cpu", "data=imagefolder", f"data.image_size={SIDE}", "model.patch_size=8"]
# What a training does first, in a loop of one's own.
TORCHVISION = f"""
import sys, torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
transform = v2.Compose([v2.Resize({SIDE}), v2.CenterCrop({SIDE}), v2.PILToTensor()])
loader = DataLoader(ImageFolder(sys.argv[1], transform), {BATCH}, shuffle=True, num_workers=2)
next(iter(loader))
"""
# A callback that ends the process at the end of the first step, as no setting does.
FIRST_STEP = """
import os, signal
from lightning.pytorch.callbacks import Callback
class FirstStep(Callback):
    def on_train_batch_end(self, *given):
        os.killpg(0, signal.SIGKILL)
"""


def main() -> None:
    """Time the first step of a training beside the first batch of torchvision."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images" / "train"
        for number in range(CLASSES):
            (images / f"{number}").mkdir(parents=True)
            write_files(images / f"{number}", PIXELS, count // CLASSES, seed=number)
        (Path(folder) / "first_step.py").write_text(FIRST_STEP)
        commands = {"ours": partial(ours, folder), "torchvision": partial(torchvision, images)}
        times: dict[str, list[float]] = {name: [] for name in commands}
        shuffle = random.Random(0)
        for _ in range(1 + ROUNDS):  # the first is a warm-up
            for name in shuffle.sample(list(commands), len(commands)):
                times[name].append(commands[name]())
    times = {name: all_[1:] for name, all_ in times.items()}
    seconds = {name: f"{median(all_):.1f} s ({min(all_):.1f} to {max(all_):.1f})" for name, all_ in times.items()}
    publish(
        "many_files",
        title=f"The first step on {count:,} image files",
        text=f"Seconds of a fresh process on {count:,} JPEG files of {PIXELS[0]}x{PIXELS[1]} in {CLASSES} folders, on "
        f"a warm disk without a cache of decoded images. `python train.py data=imagefolder` ends after its first step: "
        "it has listed, split and fingerprinted all files, and tried the compiler, as for each training of more than "
        "ten minutes. torchvision's ImageFolder in a DataLoader ends with its first batch. Where images are streamed "
        "(`data.storage=disk`), the first step comes sooner: [growth.md](growth.md). The load of the machine was "
        f"{plural(round(os.getloadavg()[0]), 'process', 'processes')} on {os.cpu_count()} cores.",
        columns=["what", "seconds: median (fastest to slowest)"],
        rows=[
            ["`python train.py`, to the end of its first step", seconds["ours"]],
            ["ImageFolder and DataLoader, to the first batch", seconds["torchvision"]],
        ],
        claims={
            f"first step on {count:,} image files, beside the first batch of ImageFolder": " and ".join(
                seconds.values()
            )
        },
        rounds={f"{count:,} files": times},
    )


def ours(folder: str) -> float:
    """Seconds of a training until its first step has ended, in a process that then kills itself."""
    with tempfile.TemporaryDirectory() as out:
        paths = [f"data.root={folder}/images", f"paths.output_dir={out}", f"paths.cache_dir={out}/cache"]
        command = [sys.executable, str(ROOT / "train.py"), *TRAINING, f"data.batch_size={BATCH}", *paths]
        command.append("callbacks.parts=[first_step.FirstStep]")
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        if done.returncode != -signal.SIGKILL:
            raise SystemExit(f"the training ended with {done.returncode}, before its first step")
        time.sleep(1)  # decoding processes end
    return seconds


def torchvision(images: Path) -> float:
    """Seconds until the first batch is decoded as a tutorial would."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", TORCHVISION, str(images)], check=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
