"""Compare runs: select the metric, group runs by configuration, test the differences, collect caveats."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vitrine.compare.caveats import caveats, grouped_images, unequal_images, unequal_losses, unequal_pairs
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.decided import SweepDecision
from vitrine.compare.findings import Findings, findings
from vitrine.compare.history import History
from vitrine.compare.left_out import LeftOut
from vitrine.compare.load import RunResult, RunResults
from vitrine.compare.looks import interim_caveat, sweeps_of
from vitrine.compare.metric import Metric, choose_metric
from vitrine.compare.notes import notes
from vitrine.compare.predictions import Predictions, with_common_groups
from vitrine.compare.row_mean import mean_of
from vitrine.compare.table import ConfigurationRow, Table, tabulate
from vitrine.config.metrics import difference_problem
from vitrine.errors import RunError
from vitrine.text import listed, plural


@dataclass(frozen=True)
class RowSummary:
    """A row in numbers.

    Attributes:
        row: the row.
        values: the metric of each run.
        interval: mean over seeds; in a main effect, each seed counts with its mean over the other columns.
        best, worst: of the values, by the metric's direction.
        parameters, flops: of the model, and of its forward pass per image: the least and the most of all runs, which
            differ where a main effect averages over models; ``None`` if not recorded.
        images_per_second: mean over the runs that recorded it.
        train_seconds: mean training time, validation included.
        seconds_to_target: mean training time to the target over the runs that reached it; ``None`` without any.
        reached_target: number of runs that reached the target.
    """

    row: ConfigurationRow
    values: list[float]
    interval: ConfidenceInterval
    best: float
    worst: float
    parameters: tuple[int, int] | None
    flops: tuple[int, int] | None
    images_per_second: float | None
    train_seconds: float | None
    seconds_to_target: ConfidenceInterval | None
    reached_target: int


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs, ready to be shown.

    Attributes:
        table: the rows that are compared: configurations, or the values of a main effect.
        configurations: the table of all configurations.
        metric: what they are compared by.
        target: target validation accuracy, if given.
        summaries: the rows of ``table`` in numbers, the best mean first.
        findings: what the tests show.
        notes: how to read the table, in sentences below it.
        caveats: what weakens the findings.
        predictions: stored predictions, by the run's name.
    """

    table: Table
    configurations: Table
    metric: Metric
    target: float | None
    summaries: list[RowSummary]
    findings: Findings
    notes: list[str]
    caveats: list[str]
    predictions: dict[str, Predictions]

    @property
    def sentences(self) -> list[str]:
        """All findings: about the table, then about each row."""
        return [*self.findings.sentences, *(said for tested in self.findings.comparisons for said in tested.sentences)]

    @cached_property
    def runs(self) -> list[RunResult]:
        """The runs that are compared."""
        return [run for row in self.configurations.rows for run in row.runs.values()]


def compare(
    results: RunResults,
    *,
    metric: str | None = None,
    by: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    difference_of_interest: float | None = None,
    accept_changed_data: bool = False,
    fixed_images: bool = False,
) -> Comparison:
    """Compare the finished runs among ``results``.

    Args:
        results: runs, and damaged runs.
        metric: name of the metric; by default that by which the sweep was decided (``sweep=decide``), else test
            accuracy, or the first of ``PREFERRED`` that all runs have.
        by: a column whose main effect is compared; by default, every configuration is a row.
        baseline: the row that others are compared with; by default that of the sweep's decision, or the one that the
            sweep lists first; of several sweeps, that of the one that began first; outside sweeps, the one that was
            started first.
        target: validation accuracy in (0, 1] for the time to reach it.
        difference_of_interest: the difference to plan the number of seeds for, and to call rows equal within, in the
            metric's unit: below 1 for a metric in [0, 1].
        fixed_images: the test images are all that matter; otherwise they are a sample, like seeds, where predictions
            are stored.
        accept_changed_data: compare runs whose metric was measured on different images, with a caveat.

    Raises:
        RunError: no run is finished, there is no common metric, no such column, baseline or difference, the runs were
            evaluated on different images or by different losses, or seeds of a sweep that has decided were left out.
    """
    measured = _Measured.of(results, metric)
    chosen, decision = measured.metric, measured.decision
    if difference_of_interest is not None and (problem := difference_problem(chosen.name, difference_of_interest)):
        raise RunError(f"a difference of {difference_of_interest:g} in {chosen.title} {problem}")
    unequal = _unequal(measured, accept_changed_data=accept_changed_data)
    configurations = tabulate(measured.runs)
    table = configurations.main_effect(by) if by else configurations
    left_out = LeftOut.of(table, results.left_out)
    if decision is not None and left_out.rows:
        raise RunError("the sweep has decided by all of its seeds; leave out no seeds: compare without seed=")
    first = _first_row(table, decision)
    reference = table.row(baseline) if baseline else first
    selected = baseline is not None and _is_selected(reference, first, table, chosen)
    equal_labels = len({run.labels_hash for run in measured.runs if run.labels_hash}) == 1
    comparable = with_common_groups(measured.predictions) if equal_labels and not unequal else {}
    sweeps = sweeps_of(table)
    unfinished = [*measured.unfinished, *(replace(run, status="diverged") for run in measured.diverged)]
    history = History.of(table, sweeps, decision, left_out, unfinished)
    found = findings(
        table,
        reference,
        chosen,
        comparable,
        history,
        difference_of_interest=difference_of_interest,
        all_pairs=selected,
        fixed_images=fixed_images,
    )
    summaries = [summarise(row, chosen, target) for row in table.rows]
    summaries.sort(key=lambda summary: summary.interval.mean, reverse=not chosen.lower_is_better)
    doubts = [
        unequal,
        *caveats(table, chosen, measured.unfinished, measured.damaged),
        *unequal_pairs(table, reference),
        _grouped_caveat(measured, comparable, found),
        "" if table.is_balanced or not by else _unbalanced_caveat(by),
        "" if history.growth is None else history.growth.caveat,
        interim_caveat(sweeps),
        *left_out.caveats,
    ]
    if decision is not None:
        options = {"--difference": difference_of_interest is not None, "--fixed-images": fixed_images}
        ignored = [option for option, given in options.items() if given]
        other_question = bool(by) or chosen.name != decision.metric or reference is not first
        doubts += _decision_caveats(decision, ignored, other_question=other_question)
    doubts += [
        _selection_caveat(reference, len(table.rows)) if selected else "",
        _lost_caveat(measured.diverged, f"diverged ({chosen.name} is NaN or infinite) and"),
        _lost_caveat(measured.undefined, f"without a defined {chosen.name}"),
    ]
    lines = notes(table, [summary.interval for summary in summaries], found.method)
    warnings = [doubt for doubt in doubts if doubt]
    return Comparison(table, configurations, chosen, target, summaries, found, lines, warnings, measured.predictions)


@dataclass(frozen=True)
class _Measured:
    """The runs that can be compared, by which metric, and why others cannot.

    Attributes:
        runs: finished, with a finite value of the metric.
        metric: what they are compared by.
        decision: what ``sweep=decide`` decided, if it trained them.
        predictions: stored predictions, by the run's name.
        unfinished: failed, interrupted or still training.
        diverged: finished, with losses that are NaN or infinite.
        undefined: finished, with losses, but the metric is not defined on these images.
        damaged: name and problem of runs that cannot be read.
    """

    runs: list[RunResult]
    metric: Metric
    decision: SweepDecision | None
    predictions: dict[str, Predictions]
    unfinished: list[RunResult]
    diverged: list[RunResult]
    undefined: list[RunResult]
    damaged: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, results: RunResults, metric: str | None) -> "_Measured":
        """Sort out ``results``. Raises RunError if no run is left."""
        predictions, unreadable = _load_predictions(results.runs)
        damaged = [*results.damaged, *unreadable]
        sound = [run for run in results.runs if run.name not in dict(unreadable)]
        finished = [run for run in sound if run.status == "finished"]
        if not finished:
            raise RunError(_nothing_finished(sound, damaged))
        decision = SweepDecision.of(finished)
        chosen = choose_metric(finished, metric if metric or decision is None else decision.metric)
        lost = [run for run in finished if not math.isfinite(run.metrics[chosen.name])]
        diverged = [run for run in lost if not _has_finite_losses(run)]
        undefined = [run for run in lost if run not in diverged]
        runs = [run for run in finished if run not in lost]
        if not runs:
            where = f"NaN or infinite in {plural(len(lost), 'run')}"
            undefined_here = f"{chosen.name} is not defined on these images: it is {where}"
            raise RunError(undefined_here if undefined else f"every run diverged: {chosen.name} is {where}")
        unfinished = [run for run in sound if run.status != "finished"]
        return cls(runs, chosen, decision, predictions, unfinished, diverged, undefined, damaged)


def _unequal(measured: _Measured, *, accept_changed_data: bool) -> str:
    """A caveat if the metric was measured on different images. Raises RunError unless that is accepted."""
    runs, metric = measured.runs, measured.metric
    if losses := unequal_losses(runs, metric):
        raise RunError(f"cannot compare {metric.title}: {losses}; compare another metric, as with --metric test/acc")
    unequal = unequal_images(runs, metric)
    if unequal and not accept_changed_data:
        sets = list(dict.fromkeys(filter(None, (run.data for run in runs))))
        only = f" (data={sets[0]} leaves out others, --across data compares on each)" if len(sets) > 1 else ""
        hint = f"give runs of only one of them{only}, or --accept-changed-data"
        raise RunError(f"cannot compare {metric.title}: {unequal}; {hint}")
    return unequal


def summarise(row: ConfigurationRow, metric: Metric, target: float | None = None) -> RowSummary:
    """Compute the numbers of a row."""
    runs = list(row.runs.values())
    values = [float(run.metrics[metric.name]) for run in runs]
    throughputs = [run.images_per_second for run in runs if run.images_per_second is not None]
    times = [run.metrics["train_seconds"] for run in runs if "train_seconds" in run.metrics]
    times_to_target = [] if target is None else [run.seconds_to(target) for run in runs]
    reached = [seconds for seconds in times_to_target if seconds is not None]
    return RowSummary(
        row,
        values,
        mean_of(row, metric),
        min(values) if metric.lower_is_better else max(values),
        max(values) if metric.lower_is_better else min(values),
        range_of(runs, "parameters"),
        range_of(runs, "flops_per_image"),
        float(np.mean(throughputs)) if throughputs else None,
        float(np.mean(times)) if times else None,
        ConfidenceInterval.of(reached) if reached else None,
        len(reached),
    )


def _first_row(table: Table, decision: SweepDecision | None) -> ConfigurationRow:
    """The baseline if none is named: that of the sweep's decision, or the first row."""
    decided = [row for row in table.rows if decision is not None and decision.is_baseline(row)]
    return decided[0] if len(decided) == 1 else table.rows[0]


def _is_selected(baseline: ConfigurationRow, first: ConfigurationRow, table: Table, metric: Metric) -> bool:
    """Whether a baseline that was named may owe this to its result: it is not the first row, but the best or worst."""
    means = {row.label: np.mean(list(row.values_by_seed(metric.name).values())) for row in table.rows}
    extremes = (min(means.values()), max(means.values()))
    return len(table.rows) > 2 and baseline is not first and means[baseline.label] in extremes


def _grouped_caveat(measured: _Measured, comparable: Mapping[str, Predictions], found: Findings) -> str:
    """What to know of groups of test images, where a finding is over images."""
    new_images = any(one.difference.new_images for one in found.comparisons)
    if not new_images and all(one.on_images is None for one in found.comparisons):
        return ""
    return grouped_images(measured.runs, measured.predictions, comparable, new_images=new_images)


def _unbalanced_caveat(by: str) -> str:
    return (
        f"not every combination ran with every {by} and seed: differences use only the runs that match on both "
        "sides, means use all runs"
    )


def _decision_caveats(decision: SweepDecision, ignored: Sequence[str], *, other_question: bool) -> list[str]:
    """What a decided sweep cannot answer any more, and the options that it has no use for."""
    sentences = []
    if other_question:
        sentences.append(
            f"seeds were added until {decision.metric} decided between configurations: p-values and intervals of a "
            "fixed number of seeds do not hold, and other comparisons have no verdict"
        )
    if ignored:
        verb = "does" if len(ignored) == 1 else "do"
        sentences.append(
            f"{listed(ignored)} {verb} not apply: the sweep announced its own rule, sweep.difference included, before "
            "its first run"
        )
    return sentences


def _selection_caveat(baseline: ConfigurationRow, rows: int) -> str:
    return (
        f"the baseline, {baseline.label}, has the best or worst mean, so it may have been chosen by its result: "
        f"intervals hold for all {math.comb(rows, 2)} pairs of rows"
    )


def _has_finite_losses(run: RunResult) -> bool:
    """Whether the run has not diverged, though another metric, such as AUROC of one class, is not defined."""
    losses = [run.metrics[name] for name in ("val/loss", "test/loss") if name in run.metrics]
    return bool(losses) and all(map(math.isfinite, losses))


def _lost_caveat(lost: Sequence[RunResult], how: str) -> str:
    names, verb = listed([run.name for run in lost], 4), "is" if len(lost) == 1 else "are"
    return f"{plural(len(lost), 'run')} {how} {verb} left out: {names}" if lost else ""


def _load_predictions(runs: Sequence[RunResult]) -> tuple[dict[str, Predictions], list[tuple[str, str]]]:
    """Stored predictions by the run's name, and the runs with damaged predictions, with the problem."""
    predictions, damaged = {}, []
    for run in runs:
        try:
            if run.labels_hash and run.status == "finished":
                predictions[run.name] = Predictions.of(run)
        except RunError as error:
            damaged.append((run.name, str(error)))
    return predictions, damaged


def range_of(runs: Sequence[RunResult], fact: str) -> tuple[int, int] | None:
    """Return the least and the most of a fact in run.json; ``None`` if no run has it."""
    known = [run.facts[fact] for run in runs if run.facts.get(fact) is not None]
    return (min(known), max(known)) if known else None


def _nothing_finished(runs: Sequence[RunResult], damaged: Sequence[tuple[str, str]]) -> str:
    states = [run.status for run in runs] + ["damaged"] * len(damaged)
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    first = f"; {damaged[0][1]}" if damaged else ""
    return f"nothing to compare: {f'no run is finished ({counts})' if counts else 'there is no run'}{first}"
