"""Timing several ways of doing one thing in turn, and keeping what came out: benchmarks/speed.json, docs/speed.md.

Machines are shared and noisy, so ways are compared within one process, one after the other in each round, and only
ratios are claimed.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from running import ROOT, write_between
from scipy import stats

from vitrine.runs.provenance import code_state, machine

JSON = ROOT / "benchmarks" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
HEAD = """# How fast it is, and how that was measured

Each part was measured by its own command, in one process and in turn, on the machine that stands below it; what was
compared is on the same machine with the same number of threads. Ratios are medians over rounds of the ratio within a
round, with a 95 % interval from order statistics. `python benchmarks/gpu.py` measures what needs a GPU.
"""

Times = dict[str, list[float]]


def in_turn(ways: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1) -> Times:
    """Seconds that each way takes, once in each round, in an order drawn anew."""
    order = list(ways)
    for _ in range(warm_up):
        for name in order:
            ways[name]()
    times: Times = {name: [] for name in ways}
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            wait()
            begin = time.perf_counter()
            ways[name]()
            wait()
            times[name].append(time.perf_counter() - begin)
    return times


def ratio(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Median over six rounds or more of the ratio within a round, and its 95 % interval from order statistics."""
    assert len(times) >= 6, "fewer give no interval of 95 %"
    ratios = np.sort(np.divide(times, others))
    low = max(0, int(stats.binom.ppf(0.025, len(ratios), 0.5)) - 1)
    return [round(float(one), 4) for one in (np.median(ratios), ratios[low], ratios[-1 - low])]


def in_words(ratios: Sequence[float]) -> str:
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
) -> None:
    """Keep what a benchmark has found, and write the pages that show it.

    Args:
        name: of its file.
        title: what was compared.
        text: how.
        columns: of its table.
        rows: of its table.
        claims: what README says of it: a sentence, and the figure.
    """
    found = json.loads(JSON.read_text()) if JSON.exists() else {}
    about = machine()
    where = f"{about['processor']}, {about['cores']} cores, torch {torch.__version__.split('+')[0]}"
    found[name] = {"title": title, "text": text, "columns": columns, "rows": rows, "claims": claims, "machine": where}
    found[name]["commit"] = code_state()[0].get("commit")
    JSON.write_text(json.dumps(found, indent=1) + "\n")
    write_pages()
    print("\n".join(["", title, *table(columns, rows), *(f"{claim}: {figure}" for claim, figure in claims.items())]))


def write_pages() -> None:
    """docs/speed.md, and README's table."""
    found = json.loads(JSON.read_text())
    parts = [HEAD]
    for name, one in found.items():
        parts += [f"\n## {one['title']}\n\n{one['text']}\n\n", "\n".join(table(one["columns"], one["rows"])), "\n\n"]
        at = f", at commit {one['commit'][:7]}" if one.get("commit") else ""
        parts.append(f"`python benchmarks/{name}.py` on {one['machine']}{at}.\n")
    PAGE.write_text("".join(parts))
    claims = [(claim, figure) for one in found.values() for claim, figure in one["claims"].items()]
    lines = [*table(("what", "measured"), claims), "", f"On {next(iter(found.values()))['machine']}; [docs/speed.md]"]
    lines[-1] += "(docs/speed.md) says how."
    write_between(ROOT / "README.md", "speed", lines)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A Markdown table; numbers to three digits."""
    cells = [[_short(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [list(columns), ["---"] * len(columns), *cells]]


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def milliseconds(times: Sequence[float]) -> float:
    """The median."""
    return 1000 * statistics.median(times)


def wait() -> None:
    """Until a GPU is done, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
