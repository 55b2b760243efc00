"""Running the project's commands over seeds to measure them, and reading the run folders they leave."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrine.compare.statistics import Interval
from vitrine.durations import duration_seconds
from vitrine.errors import OutOfTime
from vitrine.runs import RunRecord

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)
BEGAN = time.time()
LEAST_SECONDS = 60  # of trainer.max_time, for another training to be begun
# Words that change how runs are carried out and never what they reach; one that ends in a dot begins them.
WITHOUT_EFFECT = ("trainer.max_time", "trainer.compile", "accelerator")
WITHOUT_EFFECT_ON_A_SWEEP = ("hydra/launcher", "launcher.", *WITHOUT_EFFECT)


def names_and_overrides(
    parser: argparse.ArgumentParser, words: Sequence[str], names: Collection[str], without_effect: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Part what was typed into names of what is to be run, and overrides; ends with a message if one can't be."""
    asked = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if unknown := sorted(set(asked) - set(names)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    for word in overrides:
        key = word.partition("=")[0]
        if key not in without_effect and not key.startswith(tuple(one for one in without_effect if one[-1] == ".")):
            parser.error(f"{word} would change what is measured; what may be set: {', '.join(without_effect)}")
    return asked, overrides


@dataclass(frozen=True)
class Took:
    """What a command took: ``seconds`` from start to end, ``memory`` in bytes at its peak, and its exit code."""

    seconds: float
    memory: int
    code: int


def take(*words: str) -> Took:
    """Run a script of the project as a user would; its output is dropped."""
    start = time.perf_counter()
    quiet = subprocess.DEVNULL
    running = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(running.pid, 0)
    return Took(time.perf_counter() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status))


def train_seeds(folder: Path, words: Sequence[str]) -> None:
    """``python train.py WORDS`` for each seed, under ``folder``.

    Seeds that are there already are left; one that was stopped goes on. Where ``trainer.max_time``, which is for all of
    them together, stops one, this process ends with the same exit code, and the same again goes on.
    """
    for seed in SEEDS:
        place = folder / f"seed-{seed}"
        if finished_runs(place):
            continue
        now = in_what_is_left(words)
        asked = [*now, f"seed={seed}", f"paths.output_dir={place.relative_to(ROOT)}"]
        if begun := sorted(place.glob("runs/*/run.json")):
            asked = [f"resume={begun[-1].parent.relative_to(ROOT)}"]
            asked += [word for word in now if word.startswith("trainer.max_time=")]
        print(f"{time.strftime('%H:%M:%S')} {' '.join(asked)}", flush=True)
        took = take("train.py", *asked)
        note = place / "took.json"
        before = Took(**json.loads(note.read_text())) if note.exists() else Took(0.0, 0, 0)
        if place.exists():  # a mistake leaves nothing
            whole = Took(before.seconds + took.seconds, max(before.memory, took.memory), took.code)
            note.write_text(json.dumps(asdict(whole)))
        if took.code == OutOfTime.exit_code:
            print("out of time; the same command goes on")
            raise SystemExit(took.code)
        if took.code:
            raise SystemExit(f"ended with code {took.code}; python train.py {' '.join(asked)} says why")


def in_what_is_left(words: Sequence[str]) -> list[str]:
    """``words``, with ``trainer.max_time`` less what this process has taken so far; ends it where that is no minute."""
    left = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "trainer.max_time":
            seconds = duration_seconds(value) - int(time.time() - BEGAN)
            if seconds < LEAST_SECONDS:
                print("out of time; the same command goes on")
                raise SystemExit(OutOfTime.exit_code)
            word = f"{key}={seconds}s"
        left.append(word)
    return left


def finished_runs(folder: Path) -> list[dict[str, Any]]:
    """run.json, metrics.json, and what the command took, of each finished run under ``folder``, by seed."""
    found = []
    for path in sorted(folder.glob("**/took.json")):
        took = json.loads(path.read_text())
        if took["code"] == 0:
            (record,) = path.parent.glob("runs/*/run.json")
            facts, metrics = json.loads(record.read_text()), json.loads((record.parent / "metrics.json").read_text())
            found.append({**took, **facts, **metrics, "folder": record.parent})
    return found


def summary(command: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Test accuracy, time and memory of one command over its seeds, and where that was measured.

    Ends this process where some were trained in another way than others, as where the recipe has changed in between.
    """
    ways = {json.dumps(way_of(run)): run["folder"].relative_to(ROOT) for run in runs}
    if len(ways) > 1:
        raise SystemExit(f"trained in different ways: {', '.join(map(str, ways.values()))}; remove what is out of date")
    accuracy = Interval.of([run["test/acc"] for run in runs])
    return {
        "command": f"python train.py {command}",
        "test/acc": [run["test/acc"] for run in runs],
        "mean": accuracy.mean,
        "half_interval": accuracy.half,
        "seconds": [round(run["seconds"], 1) for run in runs],
        "memory": max(run["memory"] for run in runs),
        "precision": runs[0]["precision"],
        "device": runs[0]["device"],
        "commit": runs[0]["code"].get("commit"),
        "machine": f"{runs[0]['machine']['processor']}, {runs[0]['machine']['cores']} cores",
        "torch": runs[0]["versions"]["torch"],
    }


def way_of(run: Mapping[str, Any]) -> list[Any]:
    """What seeds of one command must share: configuration, device and threads."""
    config = {name: value for name, value in RunRecord(run["folder"]).config.items() if name not in ("seed", "paths")}
    config["trainer"] = {name: value for name, value in config["trainer"].items() if name != "max_time"}
    return [config, run["device"], run["machine"]["processor"]]


def where(facts: Mapping[str, Any]) -> str:
    """What a run was trained on, from its run.json: ``AMD EPYC, 2 cores, torch 2.15.0``."""
    machine = facts["machine"]
    device = facts["device"]
    on = f"{machine['processor']}, {machine['cores']} cores" if device.startswith("CPU") else device
    return f"{on}, torch {facts['versions']['torch']}"


def in_words(one: dict[str, Any]) -> tuple[str, str]:
    """Test accuracy and time of one command."""
    seconds = f"{min(one['seconds']):.0f} to {max(one['seconds']):.0f} s"
    return f"{one['mean']:.4f} ± {one['half_interval']:.4f}", seconds


def costs(summaries: Iterable[dict[str, Any]]) -> list[str]:
    """A table: what each command reaches, and what it costs."""
    lines = ["| command | test accuracy | time, start to end | peak memory |", "|---|---|---|---|"]
    for one in summaries:
        accuracy, seconds = in_words(one)
        lines.append(f"| `{one['command']}` | {accuracy} | {seconds} | {one['memory'] / 1e9:.2f} GB |")
    return lines


def write_heads(summaries: Iterable[dict[str, Any]]) -> None:
    """Say in each recipe what it costs and reaches, in the line that begins with "Measured:"."""
    for one in summaries:
        _, _, recipe = one["command"].partition("experiment=")
        path = ROOT / "conf" / "experiment" / f"{recipe}.yaml"
        if not recipe or "# Measured:" not in path.read_text():
            continue
        accuracy, seconds = in_words(one)
        cost = f"{seconds} start to end, {one['memory'] / 1e9:.1f} GB; {one['machine']}, {one['device']}"
        said = f"# Measured: test accuracy {accuracy} ({len(one['test/acc'])} seeds), {cost}."
        lines = path.read_text().splitlines()
        path.write_text("\n".join(said if line.startswith("# Measured:") else line for line in lines) + "\n")


def write_between(page: Path, name: str, lines: Iterable[str]) -> None:
    """Put lines between ``<!-- NAME: written by ... -->`` and ``<!-- /NAME -->``, in place of what a page has there.

    Raises:
        ValueError: the page has no such marks, or several; it stays as it is.
    """
    marks = rf"(<!-- {name}: [^\n]*-->\n)(?:(?!<!-- /?{name}\b).)*(<!-- /{name} -->)"
    told = "".join(f"{line}\n" for line in lines)
    text, count = re.subn(marks, lambda found: found[1] + told + found[2], page.read_text(), flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} has {count} places between marks of {name}; there must be one")
    page.write_text(text)
