"""The way from paths to a comparison: find, choose, check, group, test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vitrine.compare.caveats import caveats, refuse_other_images
from vitrine.compare.findings import Findings, findings
from vitrine.compare.load import Gathered, Run
from vitrine.compare.metric import Metric, choose
from vitrine.compare.predictions import Judged
from vitrine.compare.statistics import Interval
from vitrine.compare.table import Row, Table, rest_of, tabulate
from vitrine.errors import RunError


@dataclass(frozen=True)
class Summary:
    """A row in numbers.

    Attributes:
        row: which.
        values: the metric of each run.
        interval: their mean over seeds; of a main effect, the mean over what else was chosen stands for each seed.
        best, worst: of them, by the metric's own sense.
        parameters, flops: of the model, and of its forward pass for an image; ``None`` where not recorded.
        images_per_second: mean over runs that recorded it.
        train_seconds: mean training time, validation included.
        seconds: mean training time to the target, of runs that reached it; ``None`` if none did or none was asked for.
        reached: how many reached it.
    """

    row: Row
    values: list[float]
    interval: Interval
    best: float
    worst: float
    parameters: int | None
    flops: int | None
    images_per_second: float | None
    train_seconds: float | None
    seconds: Interval | None
    reached: int


@dataclass(frozen=True)
class Compared:
    """A comparison, ready to be shown.

    Attributes:
        table: every configuration; of a main effect, a row per value.
        full: every configuration.
        metric: what they are compared by.
        target: validation accuracy to be reached, if one was asked for.
        summaries: the table's rows in numbers, best mean first.
        findings: what can be said.
        caveats: what weakens it.
        judged: stored predictions, by the run's name.
    """

    table: Table
    full: Table
    metric: Metric
    target: float | None
    summaries: list[Summary]
    findings: Findings
    caveats: list[str]
    judged: dict[str, Judged]

    @cached_property
    def runs(self) -> list[Run]:
        """Those that are counted."""
        return [run for row in self.full.rows for run in row.runs.values()]


def compare(
    found: Gathered,
    *,
    metric: str | None = None,
    by: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    smallest: float | None = None,
) -> Compared:
    """Compare the finished runs among ``found``.

    Args:
        found: runs, and what could not be read.
        metric: its name; test accuracy, or what all runs have, if none is given.
        by: a choice whose main effect is asked for, over all that the others chose.
        baseline: the row that others are compared with; the one that was started first if none is given.
        target: validation accuracy for the time to it, in [0, 1].
        smallest: the difference that one wants to be able to see, in the metric's own unit.

    Raises:
        RunError: nothing is finished, there is no common metric, no such column or baseline, or the runs were
            measured on different images.
    """
    judged, damaged = _judge(found.runs)
    found = Gathered([run for run in found.runs if run.name not in dict(damaged)], [*found.damaged, *damaged])
    finished = [run for run in found.runs if run.status == "finished"]
    unfinished = [run for run in found.runs if run.status != "finished"]
    if not finished:
        raise RunError(_nothing(found))
    chosen = choose(finished, metric)
    diverged = [run for run in finished if not math.isfinite(run.metrics[chosen.name])]
    finished = [run for run in finished if run not in diverged]
    if not finished:
        raise RunError(f"every run diverged: {chosen.name} is no number in any of the {len(diverged)}")
    refuse_other_images(finished, chosen)
    full = tabulate(finished)
    table = full.by(by) if by else full
    against = table.row(baseline) if baseline else table.rows[0]
    said = findings(table, chosen, against, judged if _same_images(finished) else {}, smallest)
    summaries = [summarise(row, chosen, target) for row in table.rows]
    summaries.sort(key=lambda one: one.interval.mean, reverse=not chosen.lower_is_better)
    warned = caveats(table, chosen, unfinished, found.damaged)
    rests = {rest_of(key) for row in table.rows for key in row.runs}
    if by and any(len(row.runs) < len(rests) * row.seeds for row in table.rows):
        warned.append(
            f"not every combination ran with every {by} and seed: differences are of those that ran on both sides, "
            "means of all"
        )
    if diverged:
        names = ", ".join(run.name for run in diverged[:4])
        warned.append(
            f"{len(diverged)} of the runs diverged, {chosen.name} being no number, and are not counted: {names}"
        )
    return Compared(table, full, chosen, target, summaries, said, warned, judged)


def summarise(row: Row, metric: Metric, target: float | None = None) -> Summary:
    """A row in numbers."""
    runs = list(row.runs.values())
    values = [float(run.metrics[metric.name]) for run in runs]
    speeds = [run.images_per_second for run in runs if run.images_per_second is not None]
    trained = [run.metrics["train_seconds"] for run in runs if "train_seconds" in run.metrics]
    times = [] if target is None else [run.seconds_to(target) for run in runs]
    reached = [seconds for seconds in times if seconds is not None]
    return Summary(
        row,
        values,
        Interval.of(list(row.measured(metric.name).values())),
        min(values) if metric.lower_is_better else max(values),
        max(values) if metric.lower_is_better else min(values),
        _largest(runs, "parameters"),
        _largest(runs, "flops_per_image"),
        float(np.mean(speeds)) if speeds else None,
        float(np.mean(trained)) if trained else None,
        Interval.of(reached) if reached else None,
        len(reached),
    )


def _judge(runs: Sequence[Run]) -> tuple[dict[str, Judged], list[tuple[str, str]]]:
    """Stored predictions by the run's name, and the runs whose predictions are damaged, with why."""
    judged, damaged = {}, []
    for run in runs:
        try:
            if run.labels and run.status == "finished":
                judged[run.name] = Judged.of(run)
        except RunError as error:
            damaged.append((run.name, str(error)))
    return judged, damaged


def _largest(runs: Sequence[Run], fact: str) -> int | None:
    return max((int(run.facts[fact]) for run in runs if isinstance(run.facts.get(fact), int)), default=None)


def _same_images(runs: Sequence[Run]) -> bool:
    return len({run.labels for run in runs if run.labels}) == 1


def _nothing(found: Gathered) -> str:
    states = [run.status for run in found.runs] + ["damaged"] * len(found.damaged)
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    first = f"; {found.damaged[0][1]}" if found.damaged else ""
    return f"no run is finished, so there is nothing to compare: {counts}{first}"
