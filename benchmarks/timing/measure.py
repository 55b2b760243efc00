"""Time alternatives against each other, and keep the results: speed.json, each round in rounds/, and docs/speed.md.

Machines are shared and noisy. So alternatives are timed within one process, each once per round in random order, and
only ratios within a round are claimed.
"""

import csv
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from vitrine.runs.provenance import code_state, machine

sys.path.append(str(Path(__file__).parents[1]))  # commands.py and pages.py serve the studies as well

from commands import ROOT, run_command
from pages import markdown_table, write_between

__all__ = [
    "ROOT",
    "ROUNDS",
    "TIMING",
    "at_commit",
    "format_ratio",
    "in_turn",
    "markdown_table",
    "measured_on",
    "milliseconds",
    "publish",
    "ratio",
    "run_command",
    "synchronize",
    "write_between",
    "write_rounds",
]

TIMING = ROOT / "benchmarks" / "timing"
JSON = TIMING / "speed.json"
ROUNDS = TIMING / "rounds"
PAGE = ROOT / "docs" / "speed.md"
HEAD = """# How fast it is, and how that was measured

Each section comes from one benchmark. Unless it says otherwise, alternatives are timed in one process, each once per
round in random order, with the same number of threads on the machine named below the table. A ratio is the median over
rounds of the ratio within a round, with a 95 % interval from order statistics. Sections that name no file of rounds
were measured before rounds were kept. `python benchmarks/timing/gpu.py` measures what needs a GPU.
"""


def in_turn(
    alternatives: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds that each alternative takes, once per round; the order is shuffled in each round."""
    order = list(alternatives)
    for _ in range(warm_up):
        for name in order:
            alternatives[name]()
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            synchronize()
            begin = time.perf_counter()
            alternatives[name]()
            synchronize()
            times[name].append(time.perf_counter() - begin)
    return times


def ratio(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Median over at least six rounds of the ratio within a round, and its 95 % interval from order statistics."""
    assert len(times) >= 6, "fewer than six rounds give no 95 % interval"
    ratios = np.sort(np.divide(times, others))
    low = max(0, int(stats.binom.ppf(0.025, len(ratios), 0.5)) - 1)
    return [round(float(value), 4) for value in (np.median(ratios), ratios[low], ratios[-1 - low])]


def format_ratio(ratios: Sequence[float]) -> str:
    """``3.1x [2.9, 3.4]``."""
    median, low, high = ratios
    return f"{median:.3g}x [{low:.3g}, {high:.3g}]"


def publish(
    name: str,
    *,
    title: str,
    text: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    claims: Mapping[str, str],
    rounds: Mapping[str, Mapping[str, Sequence[float]]],
    script: str | None = None,
    device: str | None = None,
) -> None:
    """Store the result of a benchmark, and write the pages that show it.

    Args:
        name: of the result, and of the file of its rounds.
        title: heading of its section.
        text: what was compared, and how.
        columns: of its table.
        rows: of its table.
        claims: rows of the page's first table: what was measured, and the number.
        rounds: what the table was computed from: for each case, what each alternative measured in each round, in
            seconds unless ``text`` names another unit. Empty if the table has every value.
        script: name of the benchmark's file; ``None`` is ``name``.
        device: name of the GPU; ``None`` is the CPU.
    """
    if rounds:
        write_rounds(ROUNDS / f"{name}.csv", rounds)
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    result = {"title": title, "text": text, "columns": columns, "rows": rows, "claims": claims, **measured_on(device)}
    results[name] = {**result, "script": script or name}
    JSON.write_text(json.dumps(results, indent=1) + "\n")
    write_pages()
    lines = [*markdown_table(columns, rows), *(f"{claim}: {number}" for claim, number in claims.items())]
    print("\n".join(["", title, *lines]))


def write_rounds(path: Path, rounds: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Write every single value, a row each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "alternative", "round", "value"])
        for case, alternatives in rounds.items():
            for alternative, values in alternatives.items():
                writer.writerows([case, alternative, number, f"{value:.7g}"] for number, value in enumerate(values))


def measured_on(device: str | None = None) -> dict[str, Any]:
    """The machine and the commit of what was measured just now, and whether the code differs from it.

    Args:
        device: name of the GPU; ``None`` is the CPU.
    """
    about, code = machine(), code_state()[0]
    devices = [device] if device else []
    devices += [about["processor"], f"{about['cores']} cores", f"torch {torch.__version__.split('+')[0]}"]
    where = ", ".join(devices)
    return {"machine": where, "commit": code.get("commit"), "changed": code.get("changed", False)}


def at_commit(result: Mapping[str, Any]) -> str:
    """``, at commit 1f2e3d4`` of a result, for a page; empty if it is unknown."""
    if not result.get("commit"):
        return ""
    return f", at commit {result['commit'][:7]}{' with uncommitted changes' if result.get('changed') else ''}"


def write_pages() -> None:
    """Write docs/speed.md from the stored results: what they come to, then a section for each."""
    results = json.loads(JSON.read_text())
    claims = [claim for result in results.values() for claim in result["claims"].items()]
    parts = [HEAD, "\n", "\n".join(markdown_table(("what", "measured"), claims)), "\n"]
    for name, result in results.items():
        parts += [f"\n## {result['title']}\n\n{result['text']}\n\n"]
        parts += ["\n".join(markdown_table(result["columns"], result["rows"])), "\n\n"]
        values = ROUNDS / f"{name}.csv"
        each = f" Each round: `{values.relative_to(ROOT)}`." if values.exists() else ""
        command = f"python benchmarks/timing/{result.get('script', name)}.py"
        parts.append(f"`{command}` on {result['machine']}{at_commit(result)}.{each}\n")
    PAGE.write_text("".join(parts))


def milliseconds(times: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return 1000 * statistics.median(times)


def synchronize() -> None:
    """Wait until the GPU has finished, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    write_pages()
