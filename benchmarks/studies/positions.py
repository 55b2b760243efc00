"""All positional schemes under one recipe, for the same number of epochs: runs the sweeps and writes docs/positions.md.

python benchmarks/studies/positions.py            # both data sets; resumes what was interrupted, skips what is finished
python benchmarks/studies/positions.py mnist hydra/launcher=process launcher.threads=1
python benchmarks/studies/positions.py --table    # only writes the page
python benchmarks/studies/positions.py --list     # prints the commands

A data set is decided first, by sweep=decide; then the seeds that this did not need are trained, so that a plan of five
seeds each is compared with the decision on the same runs.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from decisions import decide
from seeds import NEUTRAL_IN_SWEEPS, ROOT, STUDIES, device_name, split_arguments, with_remaining_time

from vitrine.compare.comparison import Comparison, compare
from vitrine.compare.difference import Difference
from vitrine.compare.load import RunResult, RunResults, load_results
from vitrine.compare.sequential_rule import MIN_SEEDS, Rule
from vitrine.compare.table_formats import markdown

OUT = ROOT / "outputs" / "positions"
JSON = STUDIES / "positions.json"
PAGE = ROOT / "docs" / "positions.md"
SCHEMES = ["learned", "none", "learned2d", "sincos1d", "sincos2d", "relative", "rope", "rope_mixed", "alibi2d", "conv"]
SEEDS = range(5)
DECIDE = [f"position={','.join(SCHEMES)}", "sweep=decide", f"sweep.max_seeds={len(SEEDS)}", "sweep.metric=test/acc"]
DATA = {
    "mnist": ("MNIST", "model=vit_nano data=mnist patch=4 augment=digits trainer.max_epochs=2"),
    "cifar10": ("CIFAR-10", "model=vit_nano data=cifar10 patch=4 augment=standard trainer.max_epochs=3"),
}
HEAD = """# Positional schemes compared

Every scheme of `position=` under one recipe, with the same number of epochs. Training is short and the model small
(`vit_nano`, 0.2 million parameters, patches of 4 pixels), to fit a CPU: the results show what a scheme contributes
early in training, not after hundreds of epochs. Nothing was selected on these test accuracies.

Differences are relative to learned positions (`position=learned`), the usual choice in ViTs. They are paired by seed,
with 95 % intervals; see [comparing.md](comparing.md). For the cost of each scheme, timed step by step, see
[variants.md](variants.md). `python benchmarks/studies/positions.py` trains the runs and writes this page.
"""
DIFFER = """Both are of the same runs. The intervals of a decision hold for all nine schemes, after three, four and five
seeds alike, and for other test images of the same kind; they are wider where it stopped early. Those of five seeds each
hold for all nine schemes after five seeds, on these test images."""


def main() -> None:
    """Run the sweeps, compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--list", action="store_true", help="print the commands, and do nothing else")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10; downloaded if missing")
    parser.add_argument("arguments", nargs="*", metavar="NAME|KEY=VALUE", help=f"{' or '.join(DATA)}; overrides")
    options = parser.parse_intermixed_args()
    names, overrides = split_arguments(parser, options.arguments, DATA, NEUTRAL_IN_SWEEPS)
    names = names or list(DATA)
    if options.list:
        print("\n".join(f"python train.py {' '.join(command(name))}" for name in names))
        return
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in names:
        if not options.table:
            folders = OUT / f"{name}_decided", OUT / f"{name}_rest"
            common = [f"data.root={options.data_root}", *overrides]
            train([*command(name), *common], folders[0])
            results[name] = collect_decided(name, folders[0])
            for scheme, seeds in missing(results[name]["runs"]).items():
                sweep = ["-m", *DATA[name][1].split(), f"position={scheme}", f"seed={','.join(map(str, seeds))}"]
                train([*sweep, *common], folders[1])
            results[name]["runs"] += runs_in(folders[1])
            JSON.write_text(json.dumps({data: results[data] for data in DATA if data in results}, indent=1) + "\n")
    PAGE.write_text(page(results))


def train(arguments: Sequence[str], folder: Path) -> None:
    """Run ``python train.py`` with runs under ``folder``; exit with its code if it does not finish."""
    place = f"paths.output_dir={folder.relative_to(ROOT)}"
    done = subprocess.run([sys.executable, "train.py", *with_remaining_time(arguments), place], cwd=ROOT)
    if done.returncode:  # nothing is concluded from an unfinished sweep
        raise SystemExit(done.returncode)


def command(name: str) -> list[str]:
    """Arguments of ``python train.py`` for a data set."""
    return ["-m", *DATA[name][1].split(), *DECIDE]


def missing(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The seeds that a scheme has no run of, by scheme."""
    known = {(run["position"], run["seed"]) for run in runs}
    seeds = {scheme: [seed for seed in SEEDS if (scheme, seed) not in known] for scheme in SCHEMES}
    return {scheme: left for scheme, left in seeds.items() if left}


def collect_decided(name: str, folder: Path) -> dict[str, Any]:
    """What the finished ``sweep=decide`` of a data set came to, and the values of its runs."""
    (sweep,) = folder.glob("sweeps/*/sweep.json")
    decision = json.loads(sweep.read_text())["decision"]
    return {
        "command": " ".join(command(name)),
        "decided": {
            **{key: decision[key] for key in ("verdicts", "looks")},
            "count": decision["runs"],
            "most": decision["max_runs"],
        },
        "runs": runs_in(folder),
    }


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """The values of the finished runs under a folder; none if it does not exist."""
    runs = load_results([folder]).runs if folder.exists() else []
    return [run_values(run) for run in runs if run.status == "finished"]


def run_values(run: RunResult) -> dict[str, Any]:
    """What a run came to, and how it was computed."""
    facts = run.facts
    return {
        "position": run.config["model.position"],
        "seed": run.seed,
        "commit": (facts.get("code") or {}).get("commit"),
        "precision": facts.get("precision"),
        "machine": device_name(facts),
        "device": facts.get("device"),
        "compiled": facts.get("compiled"),
        "images": facts.get("images"),
        "parameters": facts.get("parameters"),
        "flops_per_image": facts.get("flops_per_image"),
        "test/acc": run.metrics["test/acc"],
    }


def compared(name: str, values_of: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare the runs of a data set with learned positions."""
    runs = [
        RunResult(
            name=f"{values['position']}-{values['seed']}",
            status="finished",
            config={"model.position": values["position"], "seed": values["seed"], "data.name": name},
            overrides={"position": values["position"], "seed": str(values["seed"])},
            facts={**values, "code": {"commit": values["commit"]}},
            metrics={"test/acc": values["test/acc"]},
            history=[],
        )
        for values in values_of
    ]
    return compare(RunResults(runs, []), metric="test/acc", baseline="learned")


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Text of docs/positions.md."""
    parts = [HEAD]
    for name, (title, _) in DATA.items():
        parts.append(f"\n## {title}\n\n")
        if name not in results:
            parts.append(f"Not yet measured: `python train.py {' '.join(command(name))}`.\n")
            continue
        result, runs = results[name], results[name]["runs"]
        comparison = compared(name, runs)
        parts.append("\n".join([*decided_lines(result, comparison), "", f"### {title}, five seeds each", ""]) + "\n")
        parts.append(f"The same runs, and those that were not needed: {len(runs)} runs{measured(runs)}.\n\n")
        parts.append(markdown(comparison).rstrip("\n") + "\n")
    return "".join(parts)


def measured(runs: Sequence[Mapping[str, Any]]) -> str:
    """Where, and at which commit."""
    machines = " and ".join(sorted({run["machine"] for run in runs}))
    return f", on {machines}, at commit {' and '.join(sorted({run['commit'][:7] for run in runs}))}"


def decided_lines(result: Mapping[str, Any], comparison: Comparison) -> list[str]:
    """Verdicts of ``sweep=decide`` beside those of five seeds each."""
    decided = result["decided"]
    lines = [
        f"`python train.py {result['command']}`: {decided['count']} of {decided['most']} runs.",
        "",
        "| position | verdict | difference (points) | seeds | five seeds each |",
        "| --- | --- | --: | --: | --- |",
    ]
    fixed = {found.row.values["position"]: found for found in comparison.findings.comparisons}
    differ = []
    for arm, verdict in decided["verdicts"].items():
        scheme, look = arm.partition("=")[2], decided["looks"][arm][-1]
        other = fixed[scheme].verdict.replace("inconclusive", "undecided")
        lines.append(f"| {scheme} | {verdict} | {points(look)} | {look['seeds']} | {other} |")
        if other != verdict:
            differ.append(f"- {scheme}, {verdict} and not {other}: {why(look, fixed[scheme].difference)}")
    others = ["Other verdicts than those of five seeds each:", "", *differ] if differ else ["None differs."]
    return [*lines, "", *others, "", *DIFFER.splitlines(), *read_again(result)]


def points(found: Mapping[str, Any]) -> str:
    """A difference and its interval, in points."""
    mean, low, high = (f"{100 * found[key]:+.2f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def why(look: Mapping[str, Any], five: Difference) -> str:
    """Why the last look at a scheme led to another verdict than five seeds."""
    all_five = points(asdict(five))
    if look["seeds"] < len(SEEDS):
        first = f"{100 * look['mean']:+.2f} points (r = {look['correlation']:.2f})"
        return f"over the first {look['seeds']} seeds it differs by {first}, over all five by {all_five}"
    return (
        f"it differs by {points(look)} after three looks, for other images too, and by {all_five} after one, for these"
    )


def read_again(result: Mapping[str, Any]) -> list[str]:
    """How many of the runs the present rule wants, and what it says of them; nothing if it wants as many."""
    decided = result["decided"]
    schemes = [arm.partition("=")[2] for arm in decided["looks"]]
    values = {(run["position"], run["seed"]): run["test/acc"] for run in result["runs"]}
    x = np.array([[values[scheme, seed] for seed in SEEDS] for scheme in ["learned", *schemes]])
    images = np.array(
        [
            [looks[min(look, len(looks) - 1)]["image_error"] for look in range(len(SEEDS) - MIN_SEEDS + 1)]
            for looks in decided["looks"].values()
        ]
    )
    rule = Rule.of_arms(len(schemes), 0.05, None, MIN_SEEDS, len(SEEDS), "group_sequential", paired=True)
    found = decide(rule, x[None], images[None])
    verdicts, seeds = found.verdict[0], found.seeds[0]
    if (runs := seeds.sum() + seeds.max()) == decided["count"]:
        return []
    said: dict[str, list[str]] = {}
    for scheme, verdict, count in zip(schemes, verdicts, seeds, strict=True):
        said.setdefault(f"{verdict or 'undecided'} after {count} seeds", []).append(scheme)
    return [
        "",
        "These verdicts are those of an earlier rule, in which each scheme had a variance of its own. Under the",
        f"present rule, schemes share an estimate of the variance over seeds, and {runs} of the {decided['most']} runs",
        "suffice. (Where it tests a scheme after more seeds than the earlier rule did, the error over test images is",
        "that of the earlier rule's last test.)",
        "",
        *(f"- {says}: {', '.join(names)}" for says, names in said.items()),
    ]


if __name__ == "__main__":
    main()
