"""A live view of a sweep or a run from another terminal: how far each trial is, with its curve."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.live import Progress, read_progress
from vitrine.runs.status import ENDED
from vitrine.sweeps.progress import COLOURS, format_metric, progress_cells, trial_table, varying_cells
from vitrine.sweeps.summary import SweepSummary, find_sweeps
from vitrine.sweeps.trial import TrialResult
from vitrine.text import one_line, plural, print_table, printable

REFRESH_SECONDS = 1.0
CURVE_WIDTH = 24
LEVELS = "▁▂▃▄▅▆▇█"
LARGEST = 1e100  # value in a curve: the span of larger ones may be infinite


def watch(root: Path, name: str | None, *, once: bool = False) -> None:
    """Show a sweep or a run until it has ended, or once; the newest under ``root`` if ``name`` is ``None``.

    Raises:
        RunError: there is no such sweep or run.
    """
    folder = _chosen(root, name)
    console = Console()
    if once or not console.is_terminal:
        shown, _ = _view(folder)
        for part in shown:
            print_table(part) if isinstance(part, Table) else console.print(part, soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            shown, ended = _view(folder, rows=max(3, console.height - 6))
            live.update(Group(*shown), refresh=True)
            if ended:
                return
            time.sleep(REFRESH_SECONDS)


def sparkline(values: Sequence[float]) -> str:
    """A curve of the last ``CURVE_WIDTH`` values in block characters, from the least to the largest value."""
    shown = [value for value in values if abs(value) < LARGEST][-CURVE_WIDTH:]  # False for NaN
    if not shown:
        return ""
    least, span = min(shown), max(shown) - min(shown)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round((value - least) / span * top) if span else top // 2] for value in shown)


def _chosen(root: Path, name: str | None) -> Path:
    """The folder of the sweep or run to show."""
    if name is not None:
        if (Path(name) / "run.json").exists():
            return Path(name)
        return find_sweeps(root / "sweeps", name)[0].folder
    candidates = [*root.glob("sweeps/*/sweep.json"), *root.glob("runs/*/run.json")]
    if not candidates:
        raise RunError(f"there are no sweeps or runs in {root}; give a folder, or --root DIR")
    return max(candidates, key=lambda path: path.stat().st_mtime).parent


def _view(folder: Path, rows: int | None = None) -> tuple[list[Table | Text | ProgressBar], bool]:
    """What to show, and whether it has ended."""
    return _sweep_view(SweepSummary.read(folder), rows) if (folder / "sweep.json").exists() else _run_view(folder)


def _run_view(folder: Path) -> tuple[list[Table | Text | ProgressBar], bool]:
    record = RunRecord.open(folder)
    progress = read_progress(folder)
    table = _table([], "val/acc")
    table.add_row(*_cells(TrialResult(record.status), progress))
    return [Text(printable(folder)), table], record.has_ended()


def _sweep_view(sweep: SweepSummary, rows: int | None) -> tuple[list[Table | Text | ProgressBar], bool]:
    if sweep.problem:
        raise RunError(sweep.problem)
    order = sorted(range(len(sweep.results)), key=lambda number: (sweep.results[number].status == "running", number))
    begun = [number for number in order if sweep.results[number].status != "new"]
    table = _table(sweep.keys, sweep.metric)
    for number in begun[-rows:] if rows else begun:
        result = sweep.results[number]
        progress = read_progress(sweep.folders[number], sweep.metric)
        table.add_row(*varying_cells(sweep.keys, sweep.varies[number]), *_cells(result, progress, sweep.metric))
    done = sum(sweep.counts[status] for status in ENDED)
    line = [f"{done} of {'at most ' if sweep.to_come else ''}{plural(sweep.total, 'trial')}"]
    line += [f"{count} {status}" for status, count in sorted(sweep.counts.items()) if status in ("failed", "diverged")]
    if best := sweep.best:
        label = f", {one_line(best.label)}" if best.label else ""  # empty for the only configuration
        line.append(f"best {sweep.metric} {format_metric(best.mean)}{label}")
    if sweep.time_left is not None:
        line.append(f"{sweep.time_left} left")
    shown: list[Table | Text | ProgressBar]
    shown = [Text(printable(sweep.folder)), table, ProgressBar(sweep.total, done, width=40), Text("; ".join(line))]
    return shown, sweep.has_ended


def _table(keys: Sequence[str], metric: str) -> Table:
    table = trial_table(keys, ["epoch", "loss", metric], [f"{metric} by epoch", "left", "status"])
    table.columns[-3].no_wrap = True
    return table


def _cells(result: TrialResult, progress: Progress, metric: str = "val/acc") -> list[str | Text]:
    epoch, loss, value, left = progress_cells(progress)
    if metric in result.metrics:  # that of the selected epoch, not of the last one
        value = format_metric(result.metrics[metric])
    left = left if result.status == "running" else ""
    status = Text(one_line(result.status), COLOURS.get(result.status, ""))
    return [epoch, loss, value, sparkline(progress.curve), left, status]
