"""Reproduce public ViT tutorials: as they were made (faithful), and without what is odd in them (corrected).

python scripts/reproduce.py                                  # all that a CPU can do; goes on where it was stopped
python scripts/reproduce.py pulfer_mnist notebook_mnist32    # some
python scripts/reproduce.py --oddities                       # also what each oddity costs, one changed at a time
python scripts/reproduce.py --table                          # runs nothing, only writes the page

Runs lie under outputs/reproductions/TUTORIAL/VARIANT/seed-N. A finished one is never run again, an interrupted one goes
on from its last checkpoint. docs/reproductions.md, its JSON and its pictures are made from run folders; what the JSON
says of runs that are not there stays until as many have been trained for as long.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reproductions_page import folder_of, write_page

from vitrine import compose
from vitrine.errors import ConfigError
from vitrine.runs import RunRecord

ROOT = Path(__file__).parents[1]
OUT = ROOT / "outputs" / "reproductions"


@dataclass(frozen=True)
class Tutorial:
    """What a tutorial reports, and what is run to see whether it is so.

    Attributes:
        title: what it is called in the page.
        reported: its result, in words; empty where there is none.
        accuracy: lowest and highest test accuracy that the reported number may stand for, in [0, 1].
        losses: published training loss after each epoch.
        loss: published test loss.
        parameters: of the faithful network, as published.
        seconds: published time of an epoch, shortest and longest.
        epochs: that the reported result took; shorter runs don't measure it.
        shown: what there is to say of it that no run shows.
        oddities: one switch each, changed in the faithful experiment to see what it costs; words of the command line.
    """

    title: str
    reported: str
    parameters: int
    accuracy: tuple[float, float] | None = None
    losses: list[float] = field(default_factory=list)
    loss: float | None = None
    seconds: tuple[float, float] | None = None
    epochs: int = 0
    shown: str = ""
    oddities: dict[str, str] = field(default_factory=dict)


TUTORIALS = {
    "comsci_mnist": Tutorial(
        title="T1: comsci MNIST ViT",
        reported="98.5 % in 15 epochs",
        accuracy=(0.985, 0.985),
        parameters=854_308,
        oddities={
            "10 classes, not 100": "model.num_classes=10",
            "weight decay decoupled, on matrices": "optimizer=adamw optimizer.lr=3e-4 optimizer.weight_decay=1e-4 "
            "optimizer.decay_all=false",
        },
    ),
    "pulfer_mnist": Tutorial(
        title="T2: MyViT on MNIST (PDF guide)",
        reported="78.85 %, loss 1.67, after 5 epochs",
        accuracy=(0.7885, 0.7885),
        loss=1.67,
        losses=[2.11, 1.84, 1.76, 1.70, 1.68],
        parameters=1_642,
        seconds=(76.0, 81.0),
        oddities={
            "cross-entropy on logits": "loss=cross_entropy",
            "attention over all channels": "attention=joint",
            "an output projection": "model.out_projection=true",
            "a final norm": "model.final_norm=true",
        },
    ),
    "notebook_mnist32": Tutorial(
        title="T3: MNIST at 32x32 (notebook)",
        reported="93 % (cut to whole percents), loss 1.530, after 10 epochs",
        accuracy=(0.93, 0.94),
        loss=1.530,
        losses=[1.768, 1.634, 1.622, 1.613, 1.605, 1.559, 1.542, 1.536, 1.535, 1.530],
        parameters=5_689,
        oddities={
            "cross-entropy on logits": "loss=cross_entropy",
            "a final norm": "model.final_norm=true",
            "images at their own size": "data.image_size=28 patch=14",
        },
    ),
    "vit_base_anatomy": Tutorial(
        title="T4: ViT-Base anatomy",
        reported="",
        parameters=86_567_656,
        shown="The notes report no result, and their code can't run. Their network at 1000 classes has the names, "
        "shapes and parameters of torchvision's `vit_b_16` and computes the same with the same weights, forward and "
        "backward (tests/models/test_against_torchvision.py). It is fine-tuned from a state dict as well as from "
        "published weights, which need a network (tests/training/test_pretrained.py).",
    ),
    "intuitive_cifar10": Tutorial(
        title="T5: mini ViT on CIFAR-10",
        reported="nearly 78 % after 100 epochs",
        accuracy=(0.775, 0.785),
        parameters=3_228_426,
        epochs=100,
    ),
}
BY_NAME_ONLY = {"vit_base_anatomy", "intuitive_cifar10"}  # one needs --pictures, the other a GPU


@dataclass(frozen=True)
class Job:
    """One run: a tutorial's variant with a seed, and how many epochs are asked for."""

    words: tuple[str, ...]
    folder: Path
    epochs: int

    @property
    def run(self) -> Path | None:
        """Its run folder, if it has been started."""
        found = sorted(self.folder.glob("runs/*/run.json"))
        return found[-1].parent if found else None

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.run is not None and self.facts["status"] == "finished"

    @property
    def facts(self) -> dict[str, Any]:
        """What its run folder says of it."""
        assert self.run is not None
        return RunRecord(self.run).facts

    def carry_out(self, threads: int | None = None) -> None:
        """Run it, or go on with it where it was stopped; with so many threads on a CPU, if a number is given."""
        if self.finished:
            if (done := self.facts["epochs"]) < self.epochs:
                name = self.folder.relative_to(OUT)
                print(f"{name} is finished after {done} of {self.epochs} epochs; delete it to run all")
            return
        started = self.run is not None and (self.run / "checkpoints" / "last.ckpt").exists()
        words = [f"resume={self.run}"] if started else [*self.words, f"paths.output_dir={self.folder}"]
        print(
            f"{time.strftime('%H:%M:%S')} {self.folder.relative_to(OUT)}{' (goes on)' if started else ''}", flush=True
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with (self.folder / "log.txt").open("a") as log:
            command = [sys.executable, "train.py", *words]
            code = subprocess.call(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | limit)
        if code:
            print(
                f"{self.folder.relative_to(OUT)} ended with code {code}; {self.folder / 'log.txt'} says why", flush=True
            )


def jobs(name: str, options: argparse.Namespace) -> Iterator[Job]:
    """The runs of a tutorial, those that its row in the table needs first."""
    tutorial = TUTORIALS[name]
    common = [f"paths.cache_dir={options.cache_dir}", *options.words]
    common += [f"data.root={options.pictures if name == 'vit_base_anatomy' else options.data_root}"]
    variants = {"faithful": ["faithful"], "corrected": ["corrected"]}
    if options.oddities:
        variants |= {change: ["faithful", *words.split()] for change, words in tutorial.oddities.items()}
    for variant, (experiment, *words) in variants.items():
        typed = (f"experiment=tutorials/{name}/{experiment}", *words, *common)
        epochs = compose(typed).trainer.max_epochs
        for seed in range(options.seeds):
            yield Job((*typed, f"seed={seed}"), folder_of(OUT / name, variant) / f"seed-{seed}", epochs)


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tutorials", nargs="*", metavar="TUTORIAL", help=", ".join(TUTORIALS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--oddities", action="store_true", help="also change one oddity at a time")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, which share the CPU's cores")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--data-root", default="data", help="where MNIST and CIFAR-10 lie, or are downloaded to")
    parser.add_argument("--pictures", help="a folder of pictures in train/CLASS/ and test/CLASS/, for vit_base_anatomy")
    parser.add_argument("--cache-dir", default="data/cache")
    parser.add_argument("--words", nargs="*", default=[], help="more for train.py: accelerator=gpu")
    options = parser.parse_args()
    if unknown := sorted(set(options.tutorials) - set(TUTORIALS)):
        parser.error(f"no tutorial is called {', '.join(unknown)}; there are {', '.join(TUTORIALS)}")
    if not options.table:
        names = options.tutorials or [name for name in TUTORIALS if name not in BY_NAME_ONLY]
        if "vit_base_anatomy" in names and not (options.pictures and Path(options.pictures, "test").is_dir()):
            parser.error("vit_base_anatomy needs --pictures DIR, with pictures in DIR/train/CLASS/ and DIR/test/CLASS/")
        try:
            todo = sorted((job for name in names for job in jobs(name, options)), key=_rank)
        except ConfigError as error:
            parser.error(str(error))
        threads = max(1, (os.cpu_count() or 1) // options.workers) if options.workers > 1 else None
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(partial(Job.carry_out, threads=threads), todo))
    write_page(TUTORIALS, OUT)


def _rank(job: Job) -> tuple[bool, int]:
    """First what the table needs, seed by seed."""
    needed = job.folder.parent.name in ("faithful", "corrected")
    return not needed, int(job.folder.name.removeprefix("seed-"))


if __name__ == "__main__":
    main()
