"""Progress of a sweep: a live table in a terminal, else a line for each trial that starts or ends."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitrine.durations import clock
from vitrine.errors import DiskFull, RunError
from vitrine.runs.live import Progress, read_progress
from vitrine.runs.status import ENDED
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Trial, TrialResult, read_result
from vitrine.text import one_line, plural, printable, report

COLOURS = {
    "finished": "green",
    "pruned": "blue",
    "diverged": "magenta",
    "failed": "red",
    "interrupted": "yellow",
    "running": "cyan",
}
LIVE_ROWS = 12  # trials in the live table: the running ones and the last ones that ended


class SweepProgress:
    """Collects trial results, writes sweep.json and shows both; a listener of a trial queue.

    Args:
        sweep: the sweep; a search adds trials to it.
        results: what each trial's folder holds at the start.
        live: redraw a table in place, which needs a terminal that nothing else writes to.
        describe: further entries of sweep.json.
        status: lines about all trials together, shown when they change.
    """

    def __init__(
        self,
        sweep: Sweep,
        results: Sequence[TrialResult],
        *,
        live: bool,
        describe: Callable[[], dict[str, Any]] = dict,
        status: Callable[[], list[str]] = list,
    ) -> None:
        self.sweep = sweep
        self.results = list(results)
        self._describe, self._status = describe, status
        self._shown: list[str] = []  # of the status, as it was when a trial last ended
        self._written = 0  # trials in sweep.json
        self._best: float | None = None  # mean of the best trial of a search by one metric
        self._changed = False  # whether a trial has started or ended in this session
        self._started: dict[int, float] = {}
        self._finished = 0  # in this session
        self._session_start = time.monotonic()
        self._live = Live(get_renderable=self._draw, console=Console(), refresh_per_second=1) if live else None

    def __enter__(self) -> Self:
        self._write_trials()
        finished = sum(result.status == "finished" for result in self.results)
        already = f", {finished:,} already finished" if finished else ""
        most = "at most " if self.sweep.planned > len(self.results) else ""
        trials = f"sweep    {most}{plural(self.sweep.total, 'trial')}{already}"
        if (same := self.sweep.combinations - len(self.sweep.trials)) > 0:
            trials += f"; {same:,} of {self.sweep.combinations:,} combinations train the same as others"
        print(printable(f"{trials}\nfolder   {self.sweep.folder}"), flush=True)
        if self._live:
            self._shown = self._status()
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def trial_started(self, trial: Trial) -> None:
        """Show that a trial was started."""
        self._add_new_trials()
        self._changed = True
        self.results[trial.number] = TrialResult("running")
        self._started[trial.number] = time.monotonic()
        if self._written < len(self.results):
            self._write()
        if not self._live:
            print(printable(f"\ntrial {trial.number + 1} of {self.sweep.total}: {trial.label}"), flush=True)

    def trial_ended(self, trial: Trial, result: TrialResult) -> None:
        """Take a trial's result; show it if the trial was started here."""
        self._add_new_trials()
        self._changed = True
        self.results[trial.number] = result
        if self._live:
            self._shown = self._status()
        if self._started.pop(trial.number, None) is None:
            return
        self._finished += result.status == "finished"
        self._write()
        if not self._live:
            metric = self.sweep.metric
            detail = f"{metric} {format_metric(result.metrics[metric])}" if metric in result.metrics else result.error
            left = self._time_left()
            status = "interrupted" if result.status == "new" else result.status  # before its first step
            parts = [f": {detail}" if detail else "", f" ({left} left)" if left else ""]
            print(printable(f"trial {trial.number + 1} of {self.sweep.total} {status}{''.join(parts)}"), flush=True)
            lines = self._status()
            print("".join(f"  {line}\n" for line in lines if line not in self._shown), end="", flush=True)
            self._shown = lines

    def record_results(self) -> None:
        """Read the results of trials that were not reported, and write sweep.json a last time if anything changed."""
        self._add_new_trials()
        before = list(self.results)
        for trial, result in zip(self.sweep.trials, self.results, strict=True):
            if result.status not in ENDED:  # on a full disk the folder may lack a failure that is known here
                self.results[trial.number] = read_result(trial.folder)
        if self._changed or self.results != before:
            self._write()

    def _write(self) -> None:
        try:
            self._write_trials()
        except DiskFull:  # the trials' folders hold everything, and the next one to be written reports it
            pass
        except RunError as error:
            report(error)

    def _write_trials(self) -> None:
        self._add_new_trials()
        extra = self._describe()
        best = extra.get("best")
        self._best = best["mean"] if best and not extra["search"]["pareto"] else None
        self.sweep.write(self.results, extra)
        self._written = len(self.results)

    def _add_new_trials(self) -> None:
        """Extend the results by trials that a search has added since."""
        self.results += [TrialResult("new")] * (len(self.sweep.trials) - len(self.results))

    def _time_left(self) -> str:
        """Time for the remaining trials at the pace of this session, as text; empty if unknown."""
        remaining = self.sweep.total - sum(result.status in ENDED for result in self.results)
        if not self._finished or not remaining:
            return ""
        return clock((time.monotonic() - self._session_start) / self._finished * remaining)

    def _draw(self) -> Group:
        """The live table, a progress bar and a line of totals.

        Called in a thread of its own, while trials are added, start and end: it works on copies.
        """
        metric, total = self.sweep.metric, self.sweep.total
        trials, started = list(self.sweep.trials), dict(self._started)
        results = [*self.results, *[TrialResult("new")] * len(trials)][: len(trials)]
        running = [trial for trial in trials if trial.number in started]
        ended = [trial for trial in trials if trial.number not in started and results[trial.number].status in COLOURS]
        table = trial_table(self.sweep.keys, ["epoch", "loss", metric], ["left", "status"])
        for trial in [*ended[-max(2, LIVE_ROWS - len(running)) :], *running][-LIVE_ROWS:]:
            result = results[trial.number]
            value = format_metric(result.metrics[metric]) if metric in result.metrics else ""
            cells, status, shown = ["", "", value, ""], result.status, result.status
            if trial.number in started:
                cells, status = progress_cells(read_progress(trial.folder, metric)), "running"
                shown = f"running {clock(time.monotonic() - started[trial.number])}"
            table.add_row(*varying_cells(self.sweep.keys, trial.varies), *cells, Text(shown, COLOURS[status]))
        counts = Counter(result.status for result in results)
        done = sum(counts[status] for status in ENDED)
        line = [f"{done} of {total}"]
        line[0] += "".join(f", {counts[status]} {status}" for status in ("diverged", "failed") if counts[status])
        best = self.sweep.best(results)
        if (mean := best.mean if best else self._best) is not None:
            line.append(f"best {metric} {format_metric(mean)}")
        if left := self._time_left():
            line.append(f"{left} left")
        return Group(table, *map(Text, self._shown), ProgressBar(total, done, width=40), Text("; ".join(line)))


def progress_cells(progress: Progress) -> list[str]:
    """Epoch, loss, metric and time left of a running trial as table cells."""
    return [
        f"{progress.epoch}/{progress.epochs}" if progress.epochs else "",
        "" if progress.loss is None else f"{progress.loss:.3f}",
        format_metric(progress.curve[-1]) if progress.curve else "",
        "" if progress.left is None else clock(progress.left),
    ]


def trial_table(keys: Sequence[str], numbers: Sequence[str], texts: Sequence[str]) -> Table:
    """An empty table of trials: a column for each varying key, then numbers, then texts."""
    table = Table(box=None, pad_edge=False)
    for name in keys:
        table.add_column(escape(one_line(name)))
    for name in numbers:
        table.add_column(name, justify="right")
    for name in texts:
        table.add_column(name)
    return table


def varying_cells(keys: Sequence[str], varies: dict[str, str]) -> list[str]:
    """A trial's values of the varying keys as table cells."""
    return [escape(one_line(varies.get(key, ""))) for key in keys]


def format_metric(value: float) -> str:
    """A metric as tables show it: four decimals, or thousands separators from 100 on."""
    return f"{value:.4f}" if value < 100 else f"{value:,.0f}"
