"""What readers of the tutorials are invited to try, on T2: costs and accuracies, for docs/reproductions.md.

python benchmarks/studies/things_to_try.py --data-root DIR   # trains what is missing, the cheapest first
python benchmarks/studies/things_to_try.py --table           # trains nothing, only writes the page

Costs are computed from the models. Accuracies are those of things_to_try.json, which has the value of each run. Runs
are written to outputs/things_to_try/CHANGE/seed-N; a finished run is never repeated, an interrupted one is resumed.
"""

import argparse
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch
from reproductions import Job
from reproductions_page import PENDING
from reproductions_runs import longest, variant_folder
from seeds import ROOT, SEEDS, STUDIES, commit_of, device_name, markdown_table, write_between

from vitrine.command.compose import Point, points
from vitrine.command.sources import composing
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.config import TrainConfig, ViTConfig
from vitrine.models import VisionTransformer
from vitrine.text import listed
from vitrine.training.flops import flops_per_image

OUT = ROOT / "outputs" / "things_to_try"
JSON = STUDIES / "things_to_try.json"
PAGE = ROOT / "docs" / "reproductions.md"
EXPERIMENT = "experiment=tutorials/pulfer_mnist/faithful"
ITSELF = "T2 itself"
# Trained after the others, on a processor that rounds otherwise, with T2 itself beside them.
LATER = ("model.dim=4", "data.targets=[digit,above5]")
ITSELF_LATER = "T2 itself, without AVX-512"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        text: what to try; ``{tokens}`` stands for the number of tokens.
        overrides: of T2, separated by spaces; those with several values make a sweep.
        trained: whether it is cheap enough to be trained, and its data is here.
    """

    text: str
    overrides: str
    trained: bool = True

    @property
    def arguments(self) -> list[str]:
        """Arguments of ``train.py``."""
        return [*(["-m"] if self.swept else []), EXPERIMENT, *self.overrides.split()]

    @property
    def swept(self) -> bool:
        """Whether an override has several values."""
        return any("," in override and "[" not in override for override in self.overrides.split())


ROWS = (
    Row(ITSELF, ""),
    Row("pixels as tokens: {tokens} in place of 50", "patch=1", trained=False),
    Row("overlapping patches: {tokens} tokens", "model.patch_stride=2"),
    Row("images that are not square: {tokens} tokens", "data.image_size=[28,20]"),
    Row("more or fewer heads", "model.heads=1,2,4,8"),
    Row("more or fewer blocks", "model.depth=1,2,4"),
    Row("narrower or wider tokens", "model.dim=4,8,16,32"),
    Row("other positions, or none", "position=sincos1d,sincos2d,learned,none"),
    Row("norms after the residual sum, or before and after each branch", "norm_placement=pre,post,sandwich"),
    Row("batch norm or RMSNorm in place of layer norm", "norm=layernorm,batchnorm,rmsnorm"),
    Row("blocks without residuals", "model.residual=false"),
    Row("the mean over tokens in place of the class token", "pool=mean model.class_token=false"),
    Row("less training data, and proportionally fewer steps", "data.train_fraction=0.1,0.3"),
    Row("a second head, for another question of the same image: is it above 5?", "data.targets=[digit,above5]"),
    Row("clothes in place of digits", "data=fashion_mnist", trained=False),
)


def main() -> None:
    """Train what is missing, two runs at a time on a thread each; write per-run values and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--data-root", default="data", help="folder of MNIST; downloaded if missing")
    options = parser.parse_args()
    codes = [0]
    if not options.table:
        with ThreadPoolExecutor(2) as pool:
            codes = list(pool.map(lambda job: job.execute(threads=1), jobs(options.data_root)))
    JSON.write_text(json.dumps(collect(), indent=1) + "\n")
    write_page()
    if any(codes):
        raise SystemExit(1)


def jobs(data_root: str) -> list[Job]:
    """The runs to train: each change over the seeds, the cheapest change first."""
    changes = {change(point): point for row in ROWS if row.trained for point in runs_of(row)}
    found = []
    for name, point in sorted(changes.items(), key=lambda item: (item[0] != ITSELF, cost(item[1].config))):
        for seed in SEEDS:
            arguments = (*point.overrides, f"data.root={data_root}", "paths.cache_dir=data/cache", f"seed={seed}")
            folder = variant_folder(OUT, name) / f"seed-{seed}"
            found.append(Job(arguments, folder, point.config.trainer.max_epochs, f"{name}, seed {seed}"))
    return found


@cache
def runs_of(row: Row) -> list[Point]:
    """The runs of a row's command."""
    return points("train", [EXPERIMENT, *row.overrides.split()], multirun=row.swept)


def change(point: Point) -> str:
    """What a run changes of T2, as overrides; that of values which are T2's own is ``ITSELF``."""
    return ITSELF if point.config == runs_of(ROWS[0])[0].config else " ".join(point.overrides[1:])


def cost(config: TrainConfig) -> float:
    """Matrix products of a training, in FLOPs of forward passes on all its images, up to a constant."""
    return flops_per_image(config.model) * (config.data.train_fraction or 1)


def collect() -> dict[str, list[dict[str, Any]]]:
    """Each change's runs, once those of all seeds have finished, and recorded ones where they have not.

    Raises:
        SystemExit: a run was trained by code that was not committed.
    """
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in {change(point): None for row in ROWS if row.trained for point in runs_of(row)} | {ITSELF_LATER: None}:
        runs = [one.run for one in longest(variant_folder(OUT, name)) if one.run.record.status == "finished"]
        if len(runs) == len(SEEDS):
            results[name] = [measured(run) for run in runs]
    return results


def measured(run: Any) -> dict[str, Any]:
    """A run's entry in the record."""
    facts = run.record.facts
    return {
        "run": facts["id"],
        "seed": run.config.seed,
        **{name: value for name, value in run.metrics.items() if re.fullmatch("test/acc(/.*)?", name)},
        "commit": commit_of(run.record),
        "precision": facts["precision"],
        "device": facts["device"],
        "machine": device_name(facts),
    }


def write_page() -> None:
    """Write the table from the models and the record."""
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    write_between(PAGE, "things to try", table(results))


def table(results: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Lines of the table, and where its accuracies were measured."""
    kept = {name: runs for name, runs in results.items() if comparable(runs, results.get(ITSELF, []))}
    columns = ["to try", "forward pass", "parameters", "test accuracy", "command"]
    with composing():
        lines = markdown_table(columns, [cells(row, kept) for row in ROWS])
    if kept:
        runs = [run for runs in kept.values() for run in runs]
        where = sorted({f"{run['machine']}, {run['device']}" for run in runs})
        if beside := kept.get(ITSELF_LATER):
            values = listed([f"{run['test/acc']:.4f}" for run in beside])
            there = "on a processor without AVX-512, which rounds otherwise"
            lines += ["", f"† Trained later, {there}: compare with what T2 itself reached there, {reached(beside)}"]
            lines += [f"(seeds 0, 1 and 2: {values})."]
        lines += ["", f"Trained by commit {runs[0]['commit'][:7]} in {runs[0]['precision']} on {'; '.join(where)}."]
    return lines


def comparable(runs: list[dict[str, Any]], those_of_itself: list[dict[str, Any]]) -> bool:
    """Whether a change has been trained over all seeds, and T2 as well, all by one commit."""
    seeds = [[run["seed"] for run in some] for some in (runs, those_of_itself)]
    return seeds == [list(SEEDS)] * 2 and len({run["commit"] for run in (*runs, *those_of_itself)}) == 1


def cells(row: Row, results: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """A row of the table; where not all values of the command have the same, each has its own, in their order."""
    found = runs_of(row)
    flops = [flops_per_image(point.config.model) for point in found]
    of_itself = flops_per_image(runs_of(ROWS[0])[0].config.model)
    costs = [f"{count / of_itself:.3g}" for count in flops] if row.overrides else [f"{of_itself / 1e6:.3g} MFLOPs"]
    accuracies = []
    for point in found:
        runs = results.get(change(point))
        accuracies.append(PENDING if runs is None else reached(runs) + " †" * (change(point) in LATER))
    return [
        row.text.format(tokens=found[0].config.model.tokens),
        once(costs),
        once([f"{parameters(point.config.model):,}" for point in found]),
        once(accuracies) if row.trained else "",
        f"`python train.py {shlex.join(row.arguments)}`",
    ]


def reached(runs: Sequence[Mapping[str, Any]]) -> str:
    """Test accuracy over the seeds; that of a second target in parentheses."""
    values = {name: [run[name] for run in runs] for name in runs[0] if name.startswith("test/acc")}
    found = {name.removeprefix("test/acc/"): str(ConfidenceInterval.of(some)) for name, some in values.items()}
    digit = found.pop("test/acc")
    return " ".join([digit, *(f"({target}: {text})" for target, text in found.items())])


def once(texts: Sequence[str]) -> str:
    """The texts in a cell, or what all of them are."""
    return "; ".join(texts if len(set(texts)) > 1 else texts[:1])


def parameters(config: ViTConfig) -> int:
    """Number of parameters of a model."""
    with torch.device("meta"):
        return sum(values.numel() for values in VisionTransformer(config).parameters())


if __name__ == "__main__":
    main()
