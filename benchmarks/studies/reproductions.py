"""Reproduce public ViT tutorials: as published, with their quirks (faithful), and without them (corrected).

python scripts/reproduce.py                                  # everything a CPU can train; rerun it to continue
python scripts/reproduce.py pulfer_mnist notebook_mnist32    # some tutorials
python scripts/reproduce.py --quirks                         # also the effect of each quirk, one changed at a time
python scripts/reproduce.py --table                          # trains nothing, only writes the page

Runs are written to outputs/reproductions/TUTORIAL/VARIANT/seed-N. A finished run is never repeated, an interrupted one
is resumed. docs/reproductions.md, its JSON record and its figures are made from run folders. Where run folders are
missing, the record keeps its earlier results until as many runs have been trained for as many epochs.
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

from reproductions_page import variant_folder, write_page
from seeds import ROOT

from vitrine import compose
from vitrine.errors import ConfigError
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "reproductions"


@dataclass(frozen=True)
class Tutorial:
    """The published results of a tutorial, and the experiments that reproduce them.

    Attributes:
        title: heading on the page.
        reported: the published result as text; empty if there is none.
        accuracy: lowest and highest test accuracy that the published number can stand for, in [0, 1].
        losses: published training loss after each epoch, in nats.
        loss: published test loss, in nats.
        parameters: published number of parameters of the faithful network.
        seconds: published time of an epoch, shortest and longest.
        epochs: epochs behind the published result; shorter runs do not measure it.
        notes: statements that no run shows.
        quirks: one change each that removes a quirk from the faithful experiment; overrides separated by spaces.
    """

    title: str
    reported: str
    parameters: int
    accuracy: tuple[float, float] | None = None
    losses: list[float] = field(default_factory=list)
    loss: float | None = None
    seconds: tuple[float, float] | None = None
    epochs: int = 0
    notes: str = ""
    quirks: dict[str, str] = field(default_factory=dict)


TUTORIALS = {
    "comsci_mnist": Tutorial(
        title="T1: comsci MNIST ViT",
        reported="98.5 % in 15 epochs",
        accuracy=(0.985, 0.985),
        parameters=854_308,
        quirks={
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
        quirks={
            "cross-entropy on logits": "loss=cross_entropy",
            "attention over all channels": "attention=joint",
            "an output projection": "model.out_projection=true",
            "a final norm": "model.final_norm=true",
        },
    ),
    "notebook_mnist32": Tutorial(
        title="T3: MNIST at 32x32 (notebook)",
        reported="93 % (truncated to whole percents), loss 1.530, after 10 epochs",
        accuracy=(0.93, 0.94),
        loss=1.530,
        losses=[1.768, 1.634, 1.622, 1.613, 1.605, 1.559, 1.542, 1.536, 1.535, 1.530],
        parameters=5_689,
        quirks={
            "cross-entropy on logits": "loss=cross_entropy",
            "a final norm": "model.final_norm=true",
            "images at their own size": "data.image_size=28 patch=14",
        },
    ),
    "vit_base_anatomy": Tutorial(
        title="T4: ViT-Base anatomy",
        reported="",
        parameters=86_567_656,
        notes="The notes report no result, and their code cannot run. The network they describe, with 1000 classes, "
        "has the parameter shapes and count of torchvision's `vit_b_16`, and computes the same outputs and gradients "
        "from the same weights (tests/models/test_against_torchvision.py). It is fine-tuned from a state "
        "dict, or from published weights, which have to be downloaded (tests/training/test_pretrained.py).",
    ),
    "intuitive_cifar10": Tutorial(
        title="T5: mini ViT on CIFAR-10",
        reported="nearly 78 % after 100 epochs",
        accuracy=(0.775, 0.785),
        parameters=3_228_426,
        epochs=100,
    ),
}
ON_REQUEST = {"vit_base_anatomy", "intuitive_cifar10"}  # the first needs --pictures, the second a GPU


@dataclass(frozen=True)
class Job:
    """A run to train: a tutorial's variant with a seed.

    Attributes:
        overrides: arguments of ``train.py``.
        folder: where its run folder and log.txt are written.
        epochs: number of epochs of the finished run.
    """

    overrides: tuple[str, ...]
    folder: Path
    epochs: int

    @property
    def run(self) -> Path | None:
        """Its run folder, if it has been started."""
        runs = sorted(self.folder.glob("runs/*/run.json"))
        return runs[-1].parent if runs else None

    @property
    def finished(self) -> bool:
        """Whether its run has finished."""
        return self.run is not None and self.facts["status"] == "finished"

    @property
    def facts(self) -> dict[str, Any]:
        """Content of its run.json."""
        assert self.run is not None
        return RunRecord(self.run).facts

    def execute(self, threads: int | None = None) -> None:
        """Start or resume the run; ``threads`` limits its CPU threads."""
        name = self.folder.relative_to(OUT)
        if self.finished:
            if (done := self.facts["epochs"]) < self.epochs:
                print(f"{name} finished after {done} of {self.epochs} epochs; delete it to train all of them")
            return
        resumes = self.run is not None and (self.run / "checkpoints" / "last.ckpt").exists()
        overrides = [f"resume={self.run}"] if resumes else [*self.overrides, f"paths.output_dir={self.folder}"]
        print(f"{time.strftime('%H:%M:%S')} {name}{' (resumed)' if resumes else ''}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with (self.folder / "log.txt").open("a") as log:
            command = [sys.executable, "train.py", *overrides]
            code = subprocess.call(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | limit)
        if code:
            print(f"{name} ended with exit code {code}; see {self.folder / 'log.txt'}", flush=True)


def jobs(name: str, options: argparse.Namespace) -> Iterator[Job]:
    """The runs of a tutorial."""
    tutorial = TUTORIALS[name]
    common = [f"paths.cache_dir={options.cache_dir}", *options.overrides]
    common += [f"data.root={options.pictures if name == 'vit_base_anatomy' else options.data_root}"]
    variants = {"faithful": ["faithful"], "corrected": ["corrected"]}
    if options.quirks:
        variants |= {change: ["faithful", *overrides.split()] for change, overrides in tutorial.quirks.items()}
    for variant, (experiment, *overrides) in variants.items():
        arguments = (f"experiment=tutorials/{name}/{experiment}", *overrides, *common)
        epochs = compose(arguments).trainer.max_epochs
        for seed in range(options.seeds):
            folder = variant_folder(OUT / name, variant) / f"seed-{seed}"
            yield Job((*arguments, f"seed={seed}"), folder, epochs)


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tutorials", nargs="*", metavar="TUTORIAL", help=", ".join(TUTORIALS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--quirks", action="store_true", help="also train with one quirk changed at a time")
    parser.add_argument("--oddities", action="store_true", dest="quirks", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time; they share the CPU's cores (1)")
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10; downloaded if missing")
    parser.add_argument("--pictures", help="folder with train/CLASS/ and test/CLASS/, for vit_base_anatomy")
    parser.add_argument("--cache-dir", default="data/cache")
    parser.add_argument("--overrides", nargs="*", default=[], help="more overrides for train.py: accelerator=gpu")
    parser.add_argument("--words", nargs="*", dest="overrides", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.tutorials) - set(TUTORIALS)):
        parser.error(f"unknown tutorial: {', '.join(unknown)}; choose from {', '.join(TUTORIALS)}")
    if not options.table:
        names = options.tutorials or [name for name in TUTORIALS if name not in ON_REQUEST]
        if "vit_base_anatomy" in names and not (options.pictures and Path(options.pictures, "test").is_dir()):
            parser.error("vit_base_anatomy needs --pictures DIR, with pictures in DIR/train/CLASS/ and DIR/test/CLASS/")
        try:
            todo = sorted((job for name in names for job in jobs(name, options)), key=_priority)
        except ConfigError as error:
            parser.error(str(error))
        threads = max(1, (os.cpu_count() or 1) // options.workers) if options.workers > 1 else None
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(partial(Job.execute, threads=threads), todo))
    write_page(TUTORIALS, OUT)


def _priority(job: Job) -> tuple[bool, int]:
    """Sort key: the variants of the main table first, seed by seed."""
    in_main_table = job.folder.parent.name in ("faithful", "corrected")
    return not in_main_table, int(job.folder.name.removeprefix("seed-"))


if __name__ == "__main__":
    main()
