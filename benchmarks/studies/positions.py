"""All positional schemes under one recipe, for the same number of epochs: runs the sweeps and writes docs/positions.md.

python benchmarks/studies/positions.py            # both data sets; resumes what was interrupted, skips what is finished
python benchmarks/studies/positions.py mnist hydra/launcher=process launcher.threads=1
python benchmarks/studies/positions.py --decide   # the same question by sweep=decide, with as few runs as it takes
python benchmarks/studies/positions.py --table    # only writes the page
python benchmarks/studies/positions.py --list     # prints the commands
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from decisions import decide
from seeds import NEUTRAL_IN_SWEEPS, ROOT, STUDIES, device_name, split_arguments, with_remaining_time

from vitrine.compare.comparison import compare
from vitrine.compare.load import RunResult, RunResults, load_results
from vitrine.compare.sequential_rule import Rule
from vitrine.compare.table_formats import markdown

OUT = ROOT / "outputs" / "positions"
JSON = STUDIES / "positions.json"
PAGE = ROOT / "docs" / "positions.md"
SCHEMES = "position=learned,none,learned2d,sincos1d,sincos2d,relative,rope,rope_mixed,alibi2d,conv"
SEEDS = "seed=0,1,2,3,4"
DECIDE = ["sweep=decide", "sweep.max_seeds=5", "sweep.metric=test/acc"]
DATA = {
    "mnist": ("MNIST", "model=vit_nano data=mnist patch=4 augment=digits trainer.max_epochs=2"),
    "cifar10": ("CIFAR-10", "model=vit_nano data=cifar10 patch=4 augment=standard trainer.max_epochs=3"),
}
HEAD = """# Positional schemes compared

Every scheme of `position=` under one recipe, with the same number of epochs and five seeds each. Training is short and
the model small (`vit_nano`, 0.2 million parameters, patches of 4 pixels), to fit a CPU: the results show what a scheme
contributes early in training, not after hundreds of epochs. Nothing was selected on these test accuracies.

Differences are relative to learned positions (`position=learned`), the usual choice in ViTs. They are paired by seed,
with 95 % intervals; see [comparing.md](comparing.md). For the cost of each scheme, timed step by step, see
[variants.md](variants.md). `python benchmarks/studies/positions.py` runs the sweeps and writes this page.
"""
DIFFER = """The intervals of a decision hold for all nine schemes and all looks together, and rest on three to five
pairs: that is what stopping early costs. Those of five seeds each hold one by one where their table has a column
p (Holm). Both are also of different runs: the decision's start from weights that are drawn by parameter name."""


def main() -> None:
    """Run the sweeps, compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--decide", action="store_true", help="train by sweep=decide")
    parser.add_argument("--list", action="store_true", help="print the commands, and do nothing else")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10; downloaded if missing")
    parser.add_argument("arguments", nargs="*", metavar="NAME|KEY=VALUE", help=f"{' or '.join(DATA)}; overrides")
    options = parser.parse_args()
    names, overrides = split_arguments(parser, options.arguments, DATA, NEUTRAL_IN_SWEEPS)
    names = names or list(DATA)
    if options.list:
        print("\n".join(f"python train.py {' '.join(command(name, options.decide))}" for name in names))
        return
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in names:
        folder = OUT / (f"{name}_decided" if options.decide else name)
        if not options.table:
            places = [f"data.root={options.data_root}", f"paths.output_dir={folder.relative_to(ROOT)}"]
            arguments = [*command(name, options.decide), *places, *with_remaining_time(overrides)]
            done = subprocess.run([sys.executable, "train.py", *arguments], cwd=ROOT)
            if done.returncode:  # nothing is concluded from an unfinished sweep
                raise SystemExit(done.returncode)
            before = results.get(name, {})
            if options.decide:
                results[name] = before | {"decided": collect_decided(name, folder)}
            else:
                results[name] = collect(name, folder) | {key: before[key] for key in before if key == "decided"}
            JSON.write_text(json.dumps({data: results[data] for data in DATA if data in results}, indent=1) + "\n")
    PAGE.write_text(page(results))


def command(name: str, decide: bool = False) -> list[str]:
    """Arguments of ``python train.py`` for a data set."""
    return ["-m", *DATA[name][1].split(), SCHEMES, *(DECIDE if decide else [SEEDS])]


def collect(name: str, folder: Path) -> dict[str, Any]:
    """The values of every run of the finished sweep of a data set."""
    results = load_results([folder])
    return {
        "command": " ".join(command(name)),
        "on": device_name(results.runs[0].facts),
        "runs": [run_values(run) for run in results.runs if run.status == "finished"],
    }


def collect_decided(name: str, folder: Path) -> dict[str, Any]:
    """What the finished ``sweep=decide`` of a data set came to, and the values of its runs."""
    (sweep,) = folder.glob("sweeps/*/sweep.json")
    decision = json.loads(sweep.read_text())["decision"]
    return {
        **collect(name, folder),
        "command": " ".join(command(name, decide=True)),
        **{key: decision[key] for key in ("verdicts", "findings", "looks")},
        "count": decision["runs"],
        "most": decision["max_runs"],
    }


def run_values(run: RunResult) -> dict[str, Any]:
    """What a run came to, and how it was computed."""
    facts = run.facts
    return {
        "position": run.config["model.position"],
        "seed": run.seed,
        "commit": (facts.get("code") or {}).get("commit"),
        "precision": facts.get("precision"),
        "device": facts.get("device"),
        "compiled": facts.get("compiled"),
        "images": facts.get("images"),
        "parameters": facts.get("parameters"),
        "flops_per_image": facts.get("flops_per_image"),
        "test/acc": run.metrics["test/acc"],
    }


def table_and_findings(name: str, result: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Table and findings of a data set: from the values of its runs, or as they were stored before there were any."""
    if "runs" not in result:
        return result["table"], result["said"]
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
        for values in result["runs"]
    ]
    compared = compare(RunResults(runs, []), metric="test/acc", baseline="learned")
    sentences = [comparison.sentences[0] for comparison in compared.findings.comparisons]
    marks = [
        caveat for caveat in compared.caveats if "versions of the code" in caveat or "equal seeds differ" in caveat
    ]
    return markdown(compared).splitlines(), [*compared.findings.sentences, *sentences, *marks]


def page(results: dict[str, dict[str, Any]]) -> str:
    """Text of docs/positions.md."""
    parts = [HEAD]
    for name, (title, _) in DATA.items():
        parts.append(f"\n## {title}\n\n")
        if name not in results:
            parts.append(f"Not yet measured: `python train.py {' '.join(command(name))}`.\n")
            continue
        result = results[name]
        table, said = table_and_findings(name, result)
        parts.append(f"`python train.py {result['command']}`, on {result['on']}.{since(result)}\n\n")
        parts.append("\n".join([*table, "", *(f"- {finding}" for finding in said)]) + "\n")
        if decided := result.get("decided"):
            parts.append("\n".join(["", f"### {title}, decided", "", *decided_lines(decided, said)]) + "\n")
    return "".join(parts)


def decided_lines(decided: Mapping[str, Any], said: Sequence[str]) -> list[str]:
    """Verdicts of ``sweep=decide`` beside those of five seeds each, which are read from the sentences ``said``."""
    lines = [
        f"`python train.py {decided['command']}`, on {decided['on']}: {decided['count']} of {decided['most']} runs.",
        "",
        "| position | verdict | difference (points) | seeds | five seeds each |",
        "| --- | --- | --: | --: | --- |",
    ]
    differ = []
    for arm, verdict in decided["verdicts"].items():
        scheme, look = arm.partition("=")[2], decided["looks"][arm][-1]
        found = [word for word in ("better", "worse") if f"{scheme} is {word} than learned" in "\n".join(said)]
        fixed = found[0] if found else "undecided"
        mean, low, high = (f"{100 * look[key]:+.2f}" for key in ("mean", "low", "high"))
        lines.append(f"| {scheme} | {verdict} | {mean} [{low}, {high}] | {look['seeds']} | {fixed} |")
        if fixed != verdict:
            differ.append(f"- {scheme}, {verdict} and not {fixed}: {why(verdict, look)}")
    others = ["Other verdicts than those of five seeds each:", "", *differ, "", DIFFER] if differ else ["None differs."]
    return [*lines, "", *others, *read_again(decided)]


def read_again(decided: Mapping[str, Any]) -> list[str]:
    """How many of the same runs the present rule wants, and what it says of them; nothing if it wants as many.

    A seed that was not trained is taken as wanted, so the number is never too small.
    """
    schemes = [arm.partition("=")[2] for arm in decided["looks"]]
    values = {(run["position"], run["seed"]): run["test/acc"] for run in decided["runs"]}
    x = np.array([[values.get((scheme, seed), np.nan) for seed in range(5)] for scheme in ["learned", *schemes]])
    images = np.full((len(schemes), 3), np.nan)  # looks after 3, 4 and 5 seeds
    for known, looks in zip(images, decided["looks"].values(), strict=True):
        known[: len(looks)] = [look["image_error"] for look in looks]
    rule = Rule.of_arms(len(schemes), 0.05, None, 3, 5, "group_sequential", paired=True)
    found = decide(rule, x[None], images[None])
    verdicts, seeds, halves = found.verdict[0], found.seeds[0], found.half[0]
    if (runs := seeds.sum() + seeds.max()) == decided["count"]:
        return []
    unknown = "not known, since a next look is at all of them, and lacks a seed that was not trained"
    said: dict[str, list[str]] = {}
    for scheme, verdict, count, half in zip(schemes, verdicts, seeds, halves, strict=True):
        says = f"{verdict or 'undecided'} after {count} seeds" if np.isfinite(half) else unknown
        said.setdefault(says, []).append(scheme)
    most = "at most " if unknown in said else ""
    return [
        "",
        "These runs were decided while each scheme had a variance of its own. Since then, schemes share what their",
        f"seeds say about it, and {most}{runs} of {decided['most']} runs are enough:",
        "",
        *(f"- {says}: {', '.join(names)}" for says, names in said.items()),
    ]


def why(verdict: str, look: Mapping[str, Any]) -> str:
    """Why the last look at a scheme led to its verdict."""
    low, high = (f"{100 * look[key]:+.2f}" for key in ("low", "high"))
    seeds, r = look["seeds"], f"r = {look['correlation']:.2f}"
    if verdict != "undecided":
        return f"after {seeds} pairs, which correlate with {r}, its interval excludes zero"
    end = "all five seeds were trained" if seeds == 5 else f"a verdict had become improbable after {seeds} seeds"
    return f"{end}, and its interval, {low} to {high}, includes zero"


def since(result: Mapping[str, Any]) -> str:
    """What has changed since results were measured of which only the table was kept."""
    if "runs" in result:
        return ""
    return (
        f" Measured at commit {result['commit']}: p-values are after Holm's correction and intervals hold one by one, "
        "for these images; initial weights were not yet drawn by parameter name."
    )


if __name__ == "__main__":
    main()
