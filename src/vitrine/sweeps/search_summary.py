"""Summary of a search: its trials from best to worst, as a table, and as entries of sweep.json."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from vitrine.config.metrics import lower_is_better
from vitrine.sweeps.progress import COLOURS, format_metric, trial_table, varying_cells
from vitrine.sweeps.selected import print_selected
from vitrine.sweeps.summary import (
    DIVERGED,
    LONGEST,
    format_seconds,
    mixed_images,
    mixed_versions,
    print_all_trials,
    print_best_of_search,
    print_location,
    print_reasons,
    warn,
)
from vitrine.sweeps.sweep import BestConfiguration, mean_metrics
from vitrine.sweeps.trial import label_of
from vitrine.text import plural, print_table, report

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from vitrine.sweeps.search import Search

STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "unfinished"}  # Optuna's and ours
ORDER = ("finished", "pruned", "diverged", "failed", "unfinished")  # Optuna has no state for diverged trials


@dataclass(frozen=True)
class RankedTrial:
    """A trial of a search; an entry of sweep.json.

    Attributes:
        number: number in the study.
        varies: values that were suggested.
        state: one of ``ORDER``.
        values: objectives, means over its runs; empty unless finished.
        why: reason of a failure, of divergence or of pruning.
        folders: names of its run folders.
        seconds: training time over all its runs.
    """

    number: int
    varies: dict[str, str]
    state: str
    values: dict[str, float]
    why: str
    folders: list[str]
    seconds: float


def rank_trials(search: "Search") -> list[RankedTrial]:
    """All trials of a search, each configuration once: finished ones first, the best at the top."""
    found: dict[tuple[str, ...], RankedTrial] = {}
    for trial in search.trials():
        results = search.results(trial.number)
        ranked = RankedTrial(
            number=trial.number,
            varies=trial.user_attrs["varies"],
            state="diverged" if "diverged" in trial.user_attrs else STATES[trial.state.name],
            values=_objectives(trial, search.settings.metrics),
            why=trial.user_attrs.get("diverged")
            or trial.user_attrs.get("why")
            or next((result.error for result in results if result.error), ""),
            folders=trial.user_attrs["folders"],
            seconds=sum(result.seconds for result in results),
        )
        found.setdefault(tuple(ranked.folders), ranked)
    metric = search.settings.metrics[0]
    sign = 1 if lower_is_better(metric) else -1
    return sorted(found.values(), key=lambda trial: (ORDER.index(trial.state), sign * trial.values.get(metric, 0.0)))


def _objectives(trial: "FrozenTrial", metrics: Sequence[str]) -> dict[str, float]:
    """The objectives of a finished trial; empty of others: Optuna gives a pruned trial the value of its last epoch."""
    return dict(zip(metrics, trial.values or [], strict=True)) if trial.state.name == "COMPLETE" else {}


def best_trials(search: "Search", ranked: Sequence[RankedTrial]) -> list[BestConfiguration]:
    """The best trial; with several objectives, the Pareto front."""
    best = [trial for trial in ranked if trial.state == "finished"]
    if len(search.settings.metrics) == 1:
        best = best[:1]
    else:
        front = {trial.number for trial in search.study.best_trials}
        best = [trial for trial in best if trial.number in front]
    found = []
    for trial in best:
        metrics = [result.metrics for result in search.results(trial.number)]
        mean = trial.values[search.settings.metrics[0]]
        # The study has the objectives, too: someone may have deleted a run's folder.
        found.append(BestConfiguration(trial.varies, mean, mean_metrics(metrics) | trial.values, len(metrics)))
    return found


def describe_search(search: "Search") -> dict[str, Any]:
    """Entries of sweep.json for a search; the importance of keys only once it is done."""
    ranked = rank_trials(search)
    best = [asdict(trial) | {"command": trial.command(search.sweep.shared)} for trial in best_trials(search, ranked)]
    settings = search.settings
    return {
        "complete": search.complete,
        "best": best[0] if best else None,
        "search": {
            "sampler": settings.sampler,
            "pruner": settings.pruner,
            "n_trials": search.n_trials,
            "repeats": settings.repeats,
            "metrics": settings.metrics,
            "space": search.study.user_attrs["asked"]["space"],
            "trials": [asdict(trial) for trial in ranked],
            "infeasible": [trial.user_attrs for trial in search.infeasible()],
            "pareto": best if len(settings.metrics) > 1 else None,
            "importance": search.importance() if search.complete else None,
        },
    }


def print_search(search: "Search") -> int:
    """Print the best ``LONGEST`` trials of a search, the importance of keys and the best; return how many failed."""
    metrics, ranked = search.settings.metrics, rank_trials(search)
    table = trial_table(list(search.space), [*metrics, "seconds"], ["status"])
    for trial in ranked[:LONGEST]:
        values = [format_metric(trial.values[metric]) if metric in trial.values else "" for metric in metrics]
        shown = f"{trial.state} {trial.why.partition(',')[0]}" if trial.state == "pruned" else trial.state
        status = Text(shown, COLOURS.get(trial.state, ""))
        table.add_row(*varying_cells(list(search.space), trial.varies), *values, format_seconds(trial.seconds), status)
    print()
    print_table(table)
    if len(ranked) > LONGEST:
        print_all_trials(f"{LONGEST} best of {plural(len(ranked), 'trial')}", search.sweep)
    for metric, shares in search.importance().items():
        if shares:
            parts = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
            print(f"\nimportance for {metric}, over finished trials: {parts} (chance included)")
    best = best_trials(search, ranked)
    print_best_of_search(best, metrics, search.sweep.shared)
    if len(metrics) == 1 and best:
        finished = [search.results(trial.number) for trial in ranked if trial.state == "finished"]
        kept = [trial for trial in finished if all(metrics[0] in one.metrics for one in trial)]  # folders not deleted
        groups = [dict[Hashable, float](enumerate(one.metrics[metrics[0]] for one in trial)) for trial in kept]
        seeds = [search.command.seed + number for number in range(search.settings.repeats)]
        if kept[:1] == finished[:1]:
            print_selected(best[0], search.sweep.shared, groups, 0, seeds, metrics[0])
    print_location(search.sweep)
    runs = {trial.number: search.results(trial.number) for trial in ranked if trial.state == "finished"}
    warn(mixed_versions(runs.values()))
    pairs = [(trial.varies, result) for trial in ranked for result in runs.get(trial.number, ())]
    warn(mixed_images([varies for varies, _ in pairs], [result for _, result in pairs]))
    return _print_search_failures(search, ranked)


def _print_search_failures(search: "Search", ranked: Sequence[RankedTrial]) -> int:
    lines: dict[str, list[str]] = {"diverged": [], "failed": []}
    for trial in ranked:
        if trial.state in lines:
            lines[trial.state].append(f"{label_of(trial.varies)}: {trial.why}")
    print_reasons(lines["diverged"], len(ranked), DIVERGED)
    print_reasons(lines["failed"], len(ranked), "failed")
    if infeasible := search.infeasible():
        last = infeasible[-1].user_attrs["infeasible"]
        are = plural(len(infeasible), "suggestion was", "suggestions were")
        report(f"{are} invalid and skipped; the last one: {last}")
    return len(lines["failed"])
