"""Train a command over seeds, measure it, and summarise the run folders it leaves."""

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.durations import duration_seconds
from vitrine.errors import OutOfTime
from vitrine.runs import RunRecord
from vitrine.text import listed

sys.path.append(str(Path(__file__).parents[1]))  # commands.py and pages.py serve the timings as well

from commands import ROOT, CommandCost, run_command
from pages import markdown_table, write_between

__all__ = [
    "NEUTRAL",
    "NEUTRAL_IN_SWEEPS",
    "OTHER_WEIGHTS",
    "ROOT",
    "SEEDS",
    "STUDIES",
    "commit_of",
    "commits_of",
    "cost_table",
    "device_name",
    "finished_runs",
    "format_result",
    "had_other_weights",
    "markdown_table",
    "other_weights_note",
    "run_command",
    "split_arguments",
    "summarize",
    "train_seed",
    "train_seeds",
    "with_remaining_time",
    "write_between",
    "write_recipe_heads",
]

STUDIES = ROOT / "benchmarks" / "studies"
SEEDS = (0, 1, 2)
STARTED = time.time()
MIN_SECONDS = 60  # of trainer.max_time that must be left to start another training
# Keys of overrides that change how a run is executed and never its result; a trailing dot stands for a whole section.
NEUTRAL = ("trainer.max_time", "trainer.compile", "accelerator")
NEUTRAL_IN_SWEEPS = ("hydra/launcher", "launcher.", *NEUTRAL)
# Commits of published trainings that lack 8c59cc28, since which initial weights are drawn by parameter name.
OTHER_WEIGHTS_COMMITS = ("0987be6", "2dd94c2", "48dfb4b", "aa41349")
OTHER_WEIGHTS = "when initial weights were drawn in another order: today's values differ"


def split_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str], names: Collection[str], neutral: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Split arguments into names and overrides; exits with an error if a name is unknown or an override not neutral."""
    asked = [argument for argument in arguments if "=" not in argument]
    overrides = [argument for argument in arguments if "=" in argument]
    if unknown := sorted(set(asked) - set(names)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(names)}")
    for override in overrides:
        key = override.partition("=")[0]
        if key not in neutral and not key.startswith(tuple(prefix for prefix in neutral if prefix[-1] == ".")):
            parser.error(f"{override} would change the result; overrides allowed here: {', '.join(neutral)}")
    return asked, overrides


def train_seeds(folder: Path, overrides: Sequence[str], at_once: int = 1) -> None:
    """Run ``python train.py OVERRIDES`` for each seed, under ``folder``, several seeds ``at_once``.

    Finished seeds are skipped, an interrupted one is resumed. ``trainer.max_time`` limits all seeds together: when it
    is used up, this process exits with the same code as the training, and running it again continues. After a seed that
    fails, none is started.
    """
    for start in range(0, len(SEEDS), at_once):
        with ThreadPoolExecutor(at_once) as pool:
            seeds = SEEDS[start : start + at_once]
            list(pool.map(lambda seed: train_seed(folder / f"seed-{seed}", seed, overrides), seeds))


def train_seed(place: Path, seed: int, overrides: Sequence[str]) -> None:
    """Run ``python train.py OVERRIDES seed=SEED``, or resume it, in ``place``, unless it has finished there."""
    if finished_runs(place):
        return
    limited = with_remaining_time(overrides)
    arguments = [*limited, f"seed={seed}", f"paths.output_dir={place.relative_to(ROOT)}"]
    if started := sorted(place.glob("runs/*/run.json")):
        arguments = [f"resume={started[-1].parent.relative_to(ROOT)}"]
        arguments += [override for override in limited if override.startswith("trainer.max_time=")]
    print(f"{time.strftime('%H:%M:%S')} {' '.join(arguments)}", flush=True)
    cost = run_command("train.py", *arguments)
    note = place / "took.json"
    before = CommandCost(**json.loads(note.read_text())) if note.exists() else CommandCost(0.0, 0, 0)
    if place.exists():  # a refused command writes no folder
        total = CommandCost(before.seconds + cost.seconds, max(before.memory, cost.memory), cost.code)
        note.write_text(json.dumps(asdict(total)))
    if cost.code == OutOfTime.exit_code:
        print("out of time; rerun the same command to continue")
        raise SystemExit(cost.code)
    if cost.code:
        raise SystemExit(f"exit code {cost.code}; run `python train.py {' '.join(arguments)}` to see why")


def with_remaining_time(overrides: Sequence[str]) -> list[str]:
    """The overrides, with ``trainer.max_time`` reduced by the time this process has used.

    Raises:
        SystemExit: less than a minute is left.
    """
    limited = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "trainer.max_time":
            seconds = duration_seconds(value) - int(time.time() - STARTED)
            if seconds < MIN_SECONDS:
                print("out of time; rerun the same command to continue")
                raise SystemExit(OutOfTime.exit_code)
            override = f"{key}={seconds}s"
        limited.append(override)
    return limited


def finished_runs(folder: Path) -> list[dict[str, Any]]:
    """run.json, metrics.json and the command's cost of each finished run under ``folder``, sorted by seed."""
    runs = []
    for path in sorted(folder.glob("**/took.json")):
        cost = json.loads(path.read_text())
        if cost["code"] == 0:
            (record,) = path.parent.glob("runs/*/run.json")
            facts, metrics = json.loads(record.read_text()), json.loads((record.parent / "metrics.json").read_text())
            runs.append({**cost, **facts, **metrics, "folder": record.parent})
    return runs


def summarize(command: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Test accuracy, time and memory of a command over its seeds, and the machine that they were measured on.

    Raises:
        SystemExit: the runs differ in more than the seed, for instance because the recipe has changed in between.
    """
    setups = {json.dumps(_setup(run)): run["folder"].relative_to(ROOT) for run in runs}
    if len(setups) > 1:
        raise SystemExit(f"trained in different ways: {', '.join(map(str, setups.values()))}; remove the outdated ones")
    accuracy = ConfidenceInterval.of([run["test/acc"] for run in runs])
    return {
        "command": f"python train.py {command}",
        "seeds": [RunRecord(run["folder"]).config["seed"] for run in runs],
        "test/acc": [run["test/acc"] for run in runs],
        "commits": [run["code"].get("commit") for run in runs],
        "mean": accuracy.mean,
        "half_interval": accuracy.half_width,
        "seconds": [round(run["seconds"], 1) for run in runs],
        "memory": max(run["memory"] for run in runs),
        "precision": runs[0]["precision"],
        "device": runs[0]["device"],
        "machine": f"{runs[0]['machine']['processor']}, {runs[0]['machine']['cores']} cores",
        "torch": runs[0]["versions"]["torch"],
    }


def _setup(run: Mapping[str, Any]) -> list[Any]:
    """What the seeds of a command must share: configuration, device and processor."""
    config = {name: value for name, value in RunRecord(run["folder"]).config.items() if name not in ("seed", "paths")}
    config["trainer"] = {name: value for name, value in config["trainer"].items() if name != "max_time"}
    return [config, run["device"], run["machine"]["processor"]]


def device_name(facts: Mapping[str, Any]) -> str:
    """Device and torch version of a run, from its run.json: ``AMD EPYC, 2 cores, torch 2.15.0``."""
    machine = facts["machine"]
    device = facts["device"]
    name = f"{machine['processor']}, {machine['cores']} cores" if device.startswith("CPU") else device
    return f"{name}, torch {facts['versions']['torch']}"


def format_result(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Test accuracy with its interval, and the range of times, of a summary."""
    seconds = dict.fromkeys(f"{limit(summary['seconds']):.0f}" for limit in (min, max))
    return f"{summary['mean']:.4f} ± {summary['half_interval']:.4f}", f"{' to '.join(seconds)} s"


def commit_of(record: RunRecord) -> str | None:
    """The commit that trained a run, if that is known.

    Raises:
        SystemExit: it was trained by code that was not committed.
    """
    code = record.facts.get("code") or {}
    if code.get("changed"):
        raise SystemExit(f"{record.path}: trained by code that was not committed; remove it, and train it again")
    commit: str | None = code.get("commit")
    return commit


def commits_of(summaries: Iterable[Mapping[str, Any]]) -> str:
    """At which commits results were measured: ``commit 1f2e3d4``, ``commits 1f2e3d4 and 5a6b7c8``."""
    found = [commit for summary in summaries for commit in summary["commits"]]
    commits = sorted({commit[:7] for commit in found if commit})
    unknown = f"; {found.count(None)} of {len(found)} runs did not record their commit" if None in found else ""
    return f"commit{'s' if len(commits) > 1 else ''} {listed(commits)}{unknown}"


def had_other_weights(commits: Iterable[str | None]) -> bool:
    """Whether one of the commits draws other initial weights than today's code, with the same seed."""
    return any(commit and commit[:7] in OTHER_WEIGHTS_COMMITS for commit in commits)


def other_weights_note(commits: Iterable[str | None]) -> list[str]:
    """The line below a table whose † marks results of such commits; none if there are none."""
    return [f"† Trained {OTHER_WEIGHTS}."] if had_other_weights(commits) else []


def cost_table(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of commands: test accuracy, † where the initial weights were others, time and memory."""
    lines = ["| command | test accuracy | time, start to end | peak memory |", "|---|---|---|---|"]
    for summary in summaries:
        accuracy, seconds = format_result(summary)
        accuracy += " †" * had_other_weights(summary["commits"])
        lines.append(f"| `{summary['command']}` | {accuracy} | {seconds} | {summary['memory'] / 1e9:.2f} GB |")
    return lines


def write_recipe_heads(summaries: Iterable[Mapping[str, Any]]) -> None:
    """Write cost and result of each recipe to the line of its file that begins with "# Measured:"."""
    for summary in summaries:
        _, _, recipe = summary["command"].partition("experiment=")
        path = ROOT / "conf" / "experiment" / f"{recipe}.yaml"
        if not recipe or "# Measured:" not in path.read_text():
            continue
        accuracy, seconds = format_result(summary)
        beside = f" ({summary['at_once']} seeds at once)" if summary.get("at_once", 1) > 1 else ""
        cost = f"{seconds} start to end{beside}, {summary['memory'] / 1e9:.1f} GB"
        where = f"{summary['machine']}, {summary['device']}"
        head = f"# Measured: test accuracy {accuracy} ({len(summary['test/acc'])} seeds), {cost}; {where}."
        lines = path.read_text().splitlines()
        path.write_text("\n".join(head if line.startswith("# Measured:") else line for line in lines) + "\n")
