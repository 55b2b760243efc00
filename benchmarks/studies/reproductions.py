"""Reproduce five ViT tutorials: as published, with their quirks (faithful), and without them (corrected).

python scripts/reproduce.py                                  # the three on MNIST; rerun it to continue
python scripts/reproduce.py intuitive_cifar10                # hours on a CPU, like vit_base_anatomy only if named
python scripts/reproduce.py pulfer_mnist notebook_mnist32    # some tutorials
python scripts/reproduce.py --quirks                         # also the effect of each quirk, one changed at a time
python scripts/reproduce.py --table                          # trains nothing, only writes the page

A slice of a long training, which leaves the page as it is:

python scripts/reproduce.py intuitive_cifar10 --train --variants faithful --seeds 1 --overrides trainer.max_time=1h

Runs are written to outputs/reproductions/TUTORIAL/VARIANT/seed-N, or under --out. A finished run is never repeated, an
interrupted one is resumed; the exit code is not 0 until all are finished. docs/reproductions.md, its JSON record and
its figures are made from run folders; at a constant learning rate, those of unfinished runs too, which are shorter runs
so far. Where run folders are missing, the record keeps its earlier results until as many runs have been trained for as
many epochs; runs of other seeds by the same commit join it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reproductions_page import write_page
from reproductions_runs import variant_folder
from seeds import ROOT
from tutorials import TUTORIALS

from vitrine import compose
from vitrine.errors import ConfigError, OutOfTime
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "reproductions"
MAIN_VARIANTS = ("faithful", "corrected")
ON_REQUEST = {"vit_base_anatomy", "intuitive_cifar10"}  # the first needs --pictures, the second hours


@dataclass(frozen=True)
class Job:
    """A run to train: a tutorial's variant with a seed.

    Attributes:
        overrides: arguments of ``train.py``.
        folder: where its run folder and log.txt are written.
        epochs: number of epochs of the finished run.
        label: tutorial, variant and seed.
    """

    overrides: tuple[str, ...]
    folder: Path
    epochs: int
    label: str

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

    def execute(self, threads: int | None = None) -> int:
        """Start or resume the run, and return its exit code; ``threads`` limits its CPU threads."""
        if self.finished:
            if (done := self.facts["epochs"]) < self.epochs:
                print(f"{self.label} finished after {done} of {self.epochs} epochs; delete it to train all of them")
            return 0
        resumes = self.run is not None and (self.run / "checkpoints" / "last.ckpt").exists()
        slices = [override for override in self.overrides if override.startswith("trainer.max_time=")]
        overrides = [f"resume={self.run}", *slices] if resumes else [*self.overrides, f"paths.output_dir={self.folder}"]
        print(f"{time.strftime('%H:%M:%S')} {self.label}{' (resumed)' if resumes else ''}", flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with (self.folder / "log.txt").open("a") as log:
            command = [sys.executable, "train.py", *overrides]
            code = subprocess.call(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | limit)
        if code == OutOfTime.exit_code:
            print(f"{self.label} is out of time; rerun to resume", flush=True)
        elif code:
            print(f"{self.label} ended with exit code {code}; see {self.folder / 'log.txt'}", flush=True)
        return code


def jobs(name: str, options: argparse.Namespace) -> Iterator[Job]:
    """The runs of a tutorial."""
    tutorial = TUTORIALS[name]
    common = [f"paths.cache_dir={options.cache_dir}", *options.overrides]
    common += [f"data.root={options.pictures if name == 'vit_base_anatomy' else options.data_root}"]
    variants = {name: [name] for name in MAIN_VARIANTS}
    variants |= {quirk.change: ["faithful", *quirk.overrides.split()] for quirk in tutorial.quirks}
    asked = options.variants or (variants if options.quirks else MAIN_VARIANTS)
    for variant, (experiment, *overrides) in variants.items():
        if variant not in asked:
            continue
        arguments = (f"experiment=tutorials/{name}/{experiment}", *overrides, *common)
        epochs = compose(arguments).trainer.max_epochs
        for seed in range(options.seeds):
            folder = variant_folder((options.out or OUT) / name, variant) / f"seed-{seed}"
            yield Job((*arguments, f"seed={seed}"), folder, epochs, f"{name}/{variant}/seed-{seed}")


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tutorials", nargs="*", metavar="TUTORIAL", help=", ".join(TUTORIALS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--quirks", action="store_true", help="also train with one quirk changed at a time")
    parser.add_argument("--variants", nargs="*", help="faithful, corrected, names of quirks' changes (all)")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time; they share the CPU's cores (1)")
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--train", action="store_true", help="only train, write no page")
    parser.add_argument("--out", type=Path, help="folder of the runs (outputs/reproductions)")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10; downloaded if missing")
    parser.add_argument("--pictures", help="folder with train/CLASS/ and test/CLASS/, for vit_base_anatomy")
    parser.add_argument("--cache-dir", default="data/cache")
    parser.add_argument("--overrides", nargs="*", default=[], help="more overrides for train.py: accelerator=gpu")
    options = parser.parse_args()
    if unknown := sorted(set(options.tutorials) - set(TUTORIALS)):
        parser.error(f"unknown tutorial: {', '.join(unknown)}; choose from {', '.join(TUTORIALS)}")
    codes = [0]
    changes = {quirk.change for tutorial in TUTORIALS.values() for quirk in tutorial.quirks}
    if unknown := sorted(set(options.variants or ()) - changes - set(MAIN_VARIANTS)):
        known = ", ".join([*MAIN_VARIANTS, *sorted(changes)])
        parser.error(f"unknown variant: {', '.join(unknown)}; choose from {known}")
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
            codes = list(pool.map(partial(Job.execute, threads=threads), todo))
    if not options.train:
        write_page(TUTORIALS, options.out or OUT)
    if any(codes):
        raise SystemExit(OutOfTime.exit_code if set(codes) <= {0, OutOfTime.exit_code} else 1)


def _priority(job: Job) -> tuple[bool, int]:
    """Sort key: the variants of the main table first, seed by seed."""
    in_main_table = job.folder.parent.name in MAIN_VARIANTS
    return not in_main_table, int(job.folder.name.removeprefix("seed-"))


if __name__ == "__main__":
    main()
