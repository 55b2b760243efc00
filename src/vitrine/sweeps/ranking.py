"""What a search has found: its trials, best first, for a person and for sweep.json."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from optuna.trial import TrialState
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitrine.config.sweep import OBJECTIVES
from vitrine.sweeps.progress import COLOURS, reached, show_table, show_where, value_told
from vitrine.sweeps.search import Search
from vitrine.sweeps.study import importance
from vitrine.sweeps.sweep import Best, means
from vitrine.sweeps.trial import outcome
from vitrine.text import plural

STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished",
}


@dataclass(frozen=True)
class Row:
    """A trial of a search.

    Attributes:
        number: in the study.
        varies: what was chosen for it.
        state: ``finished``, ``pruned``, ``failed`` or ``unfinished``.
        values: of the metrics that the search goes by, means over its runs; empty if it is not finished.
        why: it failed or was pruned.
        folders: of its runs.
        seconds: that they were trained for.
    """

    number: int
    varies: dict[str, str]
    state: str
    values: dict[str, float]
    why: str
    folders: list[str]
    seconds: float


def rows(search: Search) -> list[Row]:
    """All trials once, those that were chosen again left out: finished ones first, the best at the top."""
    found: dict[tuple[str, ...], Row] = {}
    for trial in search.trials():
        came = [outcome(run.folder) for run in search.runs(trial.number)]
        values = dict(zip(search.settings.metrics, trial.values or [], strict=False))
        why = trial.user_attrs.get("why") or next((one.error for one in came if one.error), "")
        folders = trial.user_attrs["folders"]
        seconds = sum(one.seconds for one in came)
        row = Row(trial.number, trial.user_attrs["varies"], STATES[trial.state], values, why, folders, seconds)
        found.setdefault(tuple(folders), row)
    order = list(STATES.values())
    metric = search.settings.metrics[0]
    sign = -1 if OBJECTIVES[metric] else 1
    return sorted(found.values(), key=lambda row: (order.index(row.state), sign * row.values.get(metric, 0.0)))


def chosen(search: Search, ranked: Sequence[Row]) -> list[Best]:
    """The best trial; where the search goes by several metrics, all that none is better than in each of them."""
    finished = [row for row in ranked if row.state == "finished"]
    if len(search.settings.metrics) == 1:
        best = finished[:1]
    else:
        front = {trial.number for trial in search.study.best_trials}
        best = [row for row in finished if row.number in front]
    return [_best(search, row) for row in best]


def described(search: Search) -> dict[str, Any]:
    """What is to stand in sweep.json of a search; how much each key matters only at its end."""
    ranked = rows(search)
    best = [asdict(one) | {"command": one.command(search.words)} for one in chosen(search, ranked)]
    settings = search.settings
    return {
        "best": best[0] if best else None,
        "search": {
            "sampler": settings.sampler,
            "pruner": settings.pruner,
            "n_trials": search.n_trials,
            "repeats": settings.repeats,
            "metrics": settings.metrics,
            "space": search.study.user_attrs["asked"]["space"],
            "trials": [asdict(row) for row in ranked],
            "infeasible": [one.user_attrs for one in search.infeasible()],
            "pareto": best if len(settings.metrics) > 1 else None,
            "importance": _importance(search) if search.done else None,
        },
    }


def conclude(search: Search) -> int:
    """Show all trials, what they depend on, and the chosen ones as commands; gives how many failed."""
    metrics = search.settings.metrics
    ranked = rows(search)
    _show(search, ranked)
    for metric, shares in _importance(search).items():
        if shares:
            print(f"\n{metric} depends on " + ", ".join(f"{key} {share:.0%}" for key, share in shares.items()))
    if best := chosen(search, ranked):
        print("\nbest on validation:" if len(metrics) == 1 else f"\nnone does better in {' and '.join(metrics)} than")
    for one in best:
        print(f"{reached(one, metrics)}\n  {one.command(search.words)}")
    show_where(search.sweep)
    return _tell_failures(search, ranked)


def _show(search: Search, ranked: Sequence[Row]) -> None:
    metrics = search.settings.metrics
    table = Table(box=None, pad_edge=False)
    for name in (*search.space, *metrics, "seconds", "state"):
        table.add_column(name, justify="right" if name in (*metrics, "seconds") else "left")
    for row in ranked:
        values = [value_told(row.values[metric]) if metric in row.values else "" for metric in metrics]
        state = f"{row.state} {row.why.partition(',')[0]}" if row.state == "pruned" else row.state
        cells = [*(escape(row.varies[key]) for key in search.space), *values]
        table.add_row(*cells, f"{row.seconds:.1f}" if row.seconds else "", Text(state, COLOURS.get(row.state, "")))
    print()
    show_table(table)


def _tell_failures(search: Search, ranked: Sequence[Row]) -> int:
    failed = [row for row in ranked if row.state == "failed"]
    lines = [f"  {','.join(f'{key}={value}' for key, value in row.varies.items())}: {row.why}" for row in failed]
    if failed:
        print("\n".join([f"vitrine: {len(failed)} of {plural(len(ranked), 'trial')} failed:", *lines]), file=sys.stderr)
    in_vain = search.infeasible()
    if in_vain:
        why = in_vain[-1].user_attrs["infeasible"]
        print(
            f"vitrine: {plural(len(in_vain), 'suggestion')} could not be trained, the last because {why}",
            file=sys.stderr,
        )
    return len(failed)


def _importance(search: Search) -> dict[str, dict[str, float]]:
    return {metric: importance(search.study, number) for number, metric in enumerate(search.settings.metrics)}


def _best(search: Search, row: Row) -> Best:
    came = [outcome(run.folder).metrics for run in search.runs(row.number)]
    return Best(row.varies, row.values[search.settings.metrics[0]], means(came), len(came))
