"""What a person sees of a sweep: a live table while it runs, or plain lines; a table of all trials at its end."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitrine.sweeps.sweep import METRIC, Best, Sweep
from vitrine.sweeps.trial import OVER, Outcome, Trial, outcome
from vitrine.text import clock, plural

COLOURS = {"finished": "green", "pruned": "blue", "failed": "red", "interrupted": "yellow", "running": "cyan"}
SHOWN = 12  # trials at most in the live table: those that run, and the last ones that ended


class Board:
    """Keeps what became of each trial, writes sweep.json, and shows both.

    Args:
        sweep: whose trials they are.
        outcomes: what each has come to before.
        live: redraw a table in place, which needs a terminal that nothing else writes to.
    """

    def __init__(self, sweep: Sweep, outcomes: Sequence[Outcome], *, live: bool) -> None:
        self.sweep = sweep
        self.console = Console()
        self.outcomes = list(outcomes)
        self._began: dict[int, float] = {}
        self._took: list[float] = []
        self._start = time.monotonic()
        self._live = Live(get_renderable=self._draw, console=self.console, refresh_per_second=2) if live else None

    def __enter__(self) -> Self:
        self.sweep.write(self.outcomes)
        counts = Counter(one.status for one in self.outcomes)
        done = f", {counts['finished']} of them finished before" if counts["finished"] else ""
        print(f"sweep    {plural(self.sweep.total, 'trial')}{done}\nfolder   {self.sweep.folder}", flush=True)
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def begins(self, trial: Trial) -> None:
        """A trial is begun."""
        self._grow()
        self.outcomes[trial.number] = Outcome("running")
        self._began[trial.number] = time.monotonic()
        if not self._live:
            print(f"\ntrial {trial.number + 1} of {self.sweep.total}: {trial.told}", flush=True)

    def ended(self, trial: Trial, came: Outcome) -> None:
        """A trial has ended, or another process has ended it."""
        self._grow()
        self.outcomes[trial.number] = came
        began = self._began.pop(trial.number, None)
        if began is None:
            return
        if came.status == "finished":
            self._took.append(time.monotonic() - began)
        self._write()
        if not self._live:
            metric = self.sweep.metric
            said = f"{metric} {value_told(came.metrics[metric])}" if metric in came.metrics else came.error
            left = self._left()
            told = (f": {said}" if said else "") + (f"; left {left}" if left else "")
            status = "interrupted" if came.status == "new" else came.status  # before it came to anything
            print(f"trial {trial.number + 1} of {self.sweep.total} {status}{told}", flush=True)

    def conclude(self) -> None:
        """Look again at the trials that have not been told the end of, and write sweep.json a last time."""
        self._grow()
        for trial, came in zip(self.sweep.trials, self.outcomes, strict=True):
            if came.status not in (*OVER, "failed"):  # a full disk may have kept a failure from its folder
                self.outcomes[trial.number] = outcome(trial.folder)
        self._write()

    def _write(self) -> None:
        try:
            self.sweep.write(self.outcomes)
        except OSError as error:  # the trials' folders have it all
            print(f"vitrine: cannot write {self.sweep.folder / 'sweep.json'}: {error.strerror}", file=sys.stderr)

    def _grow(self) -> None:
        """Take in trials that a search has made since."""
        self.outcomes += [Outcome("new")] * (len(self.sweep.trials) - len(self.outcomes))

    def _left(self) -> str:
        """How long the rest takes, by the pace so far of the trials that finished in this session."""
        rest = self.sweep.total - sum(one.status in (*OVER, "failed") for one in self.outcomes)
        if not self._took or not rest:
            return ""
        pace = (time.monotonic() - self._start) / len(self._took)
        return clock(pace * rest)

    def _draw(self) -> Group:
        self._grow()
        counts, metric = Counter(one.status for one in self.outcomes), self.sweep.metric
        running = [trial for trial in self.sweep.trials if trial.number in self._began]
        ended = [
            trial
            for trial in self.sweep.trials
            if trial.number not in self._began and self.outcomes[trial.number].status in COLOURS
        ]
        table = Table(box=None, pad_edge=False)
        for name in (*self.sweep.keys, metric, "state"):
            table.add_column(name, justify="right" if name == metric else "left")
        for trial in [*ended[-max(2, SHOWN - len(running)) :], *running][-SHOWN:]:
            came = self.outcomes[trial.number]
            status = "running" if trial.number in self._began else came.status
            seconds = time.monotonic() - self._began.get(trial.number, time.monotonic())
            state = f"running {clock(seconds)}" if status == "running" else status
            value = value_told(came.metrics[metric]) if metric in came.metrics else ""
            table.add_row(*_cells(self.sweep, trial), value, Text(state, COLOURS[status]))
        over = sum(counts[status] for status in (*OVER, "failed"))
        total = self.sweep.total
        line = f"{over} of {total}" + (f", {counts['failed']} failed" if counts["failed"] else "")
        best, left = self.sweep.best(self.outcomes), self._left()
        line += f"; best {metric} {value_told(best.mean)}" if best else ""
        line += f"; left {left}" if left else ""
        return Group(table, ProgressBar(total, over, width=40), Text(line))


def show_end(sweep: Sweep, outcomes: Sequence[Outcome]) -> None:
    """All trials by what varies; the best configuration as a command; failed trials with their reasons, to stderr."""
    table = Table(box=None, pad_edge=False)
    for name in (*sweep.keys, METRIC, "seconds", "state"):
        table.add_column(name, justify="right" if name in (METRIC, "seconds") else "left")
    for trial, came in zip(sweep.trials, outcomes, strict=True):
        value = f"{came.metrics[METRIC]:.4f}" if METRIC in came.metrics else ""
        seconds = f"{came.seconds:.1f}" if came.seconds else ""
        table.add_row(*_cells(sweep, trial), value, seconds, Text(came.status, COLOURS.get(came.status, "")))
    print()
    show_table(table)
    if best := sweep.best(outcomes):
        print(f"\nbest on validation: {reached(best, [METRIC])}\n  {best.command(sweep.common)}")
    show_where(sweep)
    failed = [(trial, came) for trial, came in zip(sweep.trials, outcomes, strict=True) if came.status == "failed"]
    if failed:
        lines = [f"  {trial.told or trial.folder.name}: {came.error}" for trial, came in failed]
        head = f"vitrine: {len(failed)} of {plural(len(outcomes), 'trial')} failed; the same command tries them again:"
        print("\n".join([head, *lines]), file=sys.stderr)


def show_table(table: Table) -> None:
    """Print a table, fitted to a terminal; in files and pipes lines are whole."""
    console = Console()
    (console if console.is_terminal else Console(width=10_000)).print(table)


def show_where(sweep: Sweep) -> None:
    """Where the sweep lies, and what compares its trials."""
    print(f"\nsweep folder  {sweep.folder}\ncompare       python scripts/compare.py {sweep.folder}", flush=True)


def reached(best: Best, metrics: Sequence[str]) -> str:
    """What a configuration is, what it has reached, and what the test images say of it."""
    told = ",".join(f"{key}={value}" for key, value in best.varies.items()) or "what was trained"
    seeds = f", mean of {plural(best.count, 'seed')}" if best.count > 1 else ""
    values = ", ".join(f"{name} {value_told(best.metrics[name])}" for name in metrics)
    test = f"; test/acc {best.metrics['test/acc']:.4f}" if "test/acc" in best.metrics else ""
    return f"{told} ({values}{test}{seeds})"


def value_told(value: float) -> str:
    """A metric as it stands in tables."""
    return f"{value:.4f}" if value < 100 else f"{value:,.0f}"


def _cells(sweep: Sweep, trial: Trial) -> list[str]:
    return [escape(trial.varies.get(key, "")) for key in sweep.keys]
