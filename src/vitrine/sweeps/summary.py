"""Summaries of sweeps and searches: tables for people, and a search's entries in sweep.json."""

import shlex
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitrine.config.sweep import DECISION_METRICS, OBJECTIVES
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.provenance import program, same_command
from vitrine.runs.status import ENDED
from vitrine.sweeps.progress import COLOURS, format_metric, trial_table, varying_cells
from vitrine.sweeps.selected import print_selected, print_selection
from vitrine.sweeps.sweep import (
    METRIC,
    BestConfiguration,
    Sweep,
    best_configuration,
    by_configuration,
    mean_metrics,
    mixed_versions,
    read_sweep,
)
from vitrine.sweeps.trial import TrialResult, label_of, read_result
from vitrine.text import did_you_mean, nearest, one_line, plural, print_table, printable, report

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from vitrine.sweeps.search import Search

STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "unfinished"}  # Optuna's and ours
DIVERGED = "diverged; only rerun=true or other code tries them again"
ORDER = ("finished", "pruned", "diverged", "failed", "unfinished")  # Optuna has no state for diverged trials


@dataclass(frozen=True)
class SweepSummary:
    """State of a sweep on disk.

    Attributes:
        folder: folder of the sweep.
        keys: keys or groups that vary.
        common: flags and overrides that the commands of all trials share.
        varies: varying overrides of each trial that was ever asked for.
        results: result of each trial.
        folders: folder of each trial.
        metric: selects the best configuration.
        time_left: time for the rest, with as many trials at a time as now; ``None`` if unknown.
        to_come: trials that a search or a decision has not suggested yet, at most.
        complete: whether a search or a decision has ended, with however many trials.
        findings: of ``sweep=decide``, what it says about each configuration; ``None`` of other sweeps.
        problem: why the sweep cannot be read; then all else is empty.
    """

    folder: Path
    keys: list[str]
    common: list[str]
    varies: list[dict[str, str]]
    results: list[TrialResult]
    folders: list[Path]
    metric: str = METRIC
    to_come: int = 0
    complete: bool = False
    time_left: timedelta | None = None
    findings: list[str] | None = None
    problem: str = ""

    @classmethod
    def read(cls, folder: Path) -> "SweepSummary":
        """Read the sweep in ``folder``."""
        try:
            known = read_sweep(folder)
            folders = [folder / trial["folder"] for trial in known["trials"]]
            varies = [dict(trial["varies"]) for trial in known["trials"]]
            keys, common = list(known["keys"]), [*known.get("sources", []), *known["common"]]
            if (metric := known["metric"]) not in (allowed := OBJECTIVES | DECISION_METRICS):
                raise RunError(f"{folder / 'sweep.json'}: metric {metric} is not one of {', '.join(allowed)}")
            decision = known.get("decision")
            said = None if decision is None else [str(text) for text in decision["findings"].values()]
        except KeyError as error:
            return cls(folder, [], [], [], [], [], problem=f"{folder / 'sweep.json'} has no {error}")
        except (RunError, TypeError, AttributeError) as error:
            return cls(folder, [], [], [], [], [], problem=str(error))
        results = [read_result(path) for path in folders]
        complete = known.get("complete") is True
        to_come = 0 if complete else max(0, (known.get("planned") or 0) - len(results))
        time_left = _time_left(folders, results, to_come)
        return cls(folder, keys, common, varies, results, folders, metric, to_come, complete, time_left, said)

    @property
    def counts(self) -> Counter[str]:
        """Number of trials with each status."""
        return Counter(result.status for result in self.results)

    @property
    def total(self) -> int:
        """Number of trials, those to come included."""
        return len(self.results) + self.to_come

    @property
    def has_ended(self) -> bool:
        """Whether no trial is left."""
        return self.complete or sum(self.counts[status] for status in ENDED) == self.total

    @property
    def best(self) -> BestConfiguration | None:
        """The best configuration so far; ``None`` for a sweep that has verdicts."""
        return None if self.findings is not None else best_configuration(self.varies, self.results, self.metric)


def find_sweeps(root: Path, name: str | None = None) -> list[SweepSummary]:
    """Read the sweeps under ``root``, the newest last; or only the one with this name or path.

    Raises:
        RunError: there is none.
    """
    folders = sorted((path.parent for path in root.glob("*/sweep.json")), key=lambda folder: folder.stat().st_mtime)
    if name is not None:
        chosen = Path(name) if (Path(name) / "sweep.json").exists() else root / name
        if not (chosen / "sweep.json").exists():
            hint = did_you_mean(nearest(name, [folder.name for folder in folders]))
            raise RunError(f"there is no sweep called {name} in {root}{hint}")
        folders = [chosen]
    if not folders:
        raise RunError(f"there are no sweeps in {root}; start one: {program('train')} -m patch=2,4 seed=0,1,2")
    return [SweepSummary.read(folder) for folder in folders]


def print_overview(sweeps: Sequence[SweepSummary]) -> None:
    """Print a line for each sweep; unreadable sweeps go to stderr."""
    statuses = ("finished", "pruned", "diverged", "running", "failed")
    table = Table("sweep", "trials", *statuses, "left", "best", "with", "time left", box=None, pad_edge=False)
    for sweep in sweeps:
        numbers = [sweep.counts[status] for status in statuses]
        best = sweep.best
        value = f"{sweep.metric} {format_metric(best.mean)}" if best else ""
        row = [sweep.total, *numbers, sweep.total - sum(numbers), value, best.label if best else ""]
        table.add_row(*(escape(one_line(cell)) for cell in (sweep.folder.name, *row, sweep.time_left or "")))
    print_table(table)
    for sweep in sweeps:
        _warn(sweep.problem)


def print_trials(sweep: SweepSummary) -> None:
    """Print each trial of a sweep, and the command of the best configuration, or what the sweep decided.

    Raises:
        RunError: the sweep cannot be read.
    """
    if sweep.problem:
        raise RunError(sweep.problem)
    keys = [escape(one_line(key)) for key in sweep.keys]
    table = Table(*keys, sweep.metric, "seconds", "status", box=None, pad_edge=False)
    for varies, result in zip(sweep.varies, sweep.results, strict=True):
        value = format_metric(result.metrics[sweep.metric]) if sweep.metric in result.metrics else ""
        status = f"{result.status}: {result.error}" if result.error else result.status
        table.add_row(*varying_cells(sweep.keys, varies), value, _seconds(result.seconds), escape(one_line(status)))
    print_table(table)
    if best := sweep.best:
        command = printable(best.command(sweep.common))
        print(f"\nbest on validation: {_describe_best(best, [sweep.metric])}\n  {command}")
        print_selection(best, sweep.common, sweep.varies, sweep.results, sweep.metric)
    if sweep.findings:
        print("\n" + "\n".join(map(printable, sweep.findings)))
    if sweep.time_left is not None:
        print(f"time left: {sweep.time_left}")
    _warn_of_versions(sweep.varies, sweep.results)


def print_sweep(sweep: Sweep, results: Sequence[TrialResult]) -> None:
    """Print all trials of a grid and the command of the best configuration; failures go to stderr."""
    table = trial_table(sweep.keys, [METRIC, "seconds"], ["status"])
    for trial, result in zip(sweep.trials, results, strict=True):
        value = f"{result.metrics[METRIC]:.4f}" if METRIC in result.metrics else ""
        status = Text(result.status, COLOURS.get(result.status, ""))
        table.add_row(*varying_cells(sweep.keys, trial.varies), value, _seconds(result.seconds), status)
    print()
    print_table(table)
    if best := sweep.best(results):
        print(f"\nbest on validation: {_describe_best(best, [METRIC])}\n  {best.command(sweep.shared)}")
        print_selection(best, sweep.shared, [trial.varies for trial in sweep.trials], results, METRIC)
    print_location(sweep)
    _warn_of_versions([trial.varies for trial in sweep.trials], results)
    print_failures(sweep, results)


def print_failures(sweep: Sweep, results: Sequence[TrialResult]) -> int:
    """Print to stderr which trials diverged or failed; return how many failed."""
    for problem, means in (("diverged", DIVERGED), ("failed", f"failed; rerun {same_command()} to retry them")):
        pairs = zip(sweep.trials, results, strict=True)
        lines = [
            f"{trial.label or trial.folder.name}: {result.error}" for trial, result in pairs if result.status == problem
        ]
        _print_reasons(lines, len(results), means)
    return sum(result.status == "failed" for result in results)


def _print_reasons(lines: Sequence[str], total: int, problem: str) -> None:
    """Print which of ``total`` trials have a problem, a line for each; nothing if there are none."""
    if lines:
        report("\n  ".join([f"{len(lines)} of {total} trials {problem}:", *lines]))


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
    sign = -1 if OBJECTIVES[metric] else 1
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
    """Print all trials of a search, the importance of keys and the best trials; return how many trials failed."""
    metrics, ranked = search.settings.metrics, rank_trials(search)
    table = trial_table(list(search.space), [*metrics, "seconds"], ["status"])
    for trial in ranked:
        values = [format_metric(trial.values[metric]) if metric in trial.values else "" for metric in metrics]
        shown = f"{trial.state} {trial.why.partition(',')[0]}" if trial.state == "pruned" else trial.state
        status = Text(shown, COLOURS.get(trial.state, ""))
        table.add_row(*varying_cells(list(search.space), trial.varies), *values, _seconds(trial.seconds), status)
    print()
    print_table(table)
    for metric, shares in search.importance().items():
        if shares:
            parts = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
            print(f"\nimportance for {metric}, over finished trials: {parts}")
    if best := best_trials(search, ranked):
        print("\nbest on validation:" if len(metrics) == 1 else f"\nPareto front of {' and '.join(metrics)}:")
    for configuration in best:
        print(f"{_describe_best(configuration, metrics)}\n  {configuration.command(search.sweep.shared)}")
    if len(metrics) == 1 and best:
        finished = [search.results(trial.number) for trial in ranked if trial.state == "finished"]
        kept = [trial for trial in finished if all(metrics[0] in one.metrics for one in trial)]  # folders not deleted
        groups = [dict[Hashable, float](enumerate(one.metrics[metrics[0]] for one in trial)) for trial in kept]
        seeds = [search.command.seed + number for number in range(search.settings.repeats)]
        if kept[:1] == finished[:1]:
            print_selected(best[0], search.sweep.shared, groups, 0, seeds, metrics[0])
    print_location(search.sweep)
    _warn(mixed_versions(search.results(trial.number) for trial in ranked if trial.state == "finished"))
    return _print_search_failures(search, ranked)


def _print_search_failures(search: "Search", ranked: Sequence[RankedTrial]) -> int:
    lines: dict[str, list[str]] = {"diverged": [], "failed": []}
    for trial in ranked:
        if trial.state in lines:
            lines[trial.state].append(f"{label_of(trial.varies)}: {trial.why}")
    _print_reasons(lines["diverged"], len(ranked), DIVERGED)
    _print_reasons(lines["failed"], len(ranked), "failed")
    if infeasible := search.infeasible():
        last = infeasible[-1].user_attrs["infeasible"]
        are = plural(len(infeasible), "suggestion was", "suggestions were")
        report(f"{are} invalid and skipped; the last one: {last}")
    return len(lines["failed"])


def _describe_best(best: BestConfiguration, metrics: Sequence[str]) -> str:
    """``patch=2 (val/acc 0.9800; test/acc 0.9700, mean of 3 runs)``."""
    runs = f", mean of {best.count} runs" if best.count > 1 else ""  # over seeds, folds, or both
    values = ", ".join(f"{name} {format_metric(best.metrics[name])}" for name in metrics)
    test = f"; test/acc {best.metrics['test/acc']:.4f}" if "test/acc" in best.metrics else ""
    fewer = f"; {plural(best.left_out, 'configuration')} with fewer runs left out" if best.left_out else ""
    return printable(f"{best.label or 'the only configuration'} ({values}{test}{runs}{fewer})")


def print_location(sweep: Sweep) -> None:
    """Print where a sweep is, and how to compare its runs."""
    compare = f"{program('compare')} {shlex.quote(str(sweep.folder))}"
    print(printable(f"\nsweep folder  {sweep.folder}\ncompare       {compare}"), flush=True)


def _warn_of_versions(varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult]) -> None:
    _warn(mixed_versions(list(members.values()) for members in by_configuration(varies, results).values()))


def _warn(message: str) -> None:
    if message:
        report(message)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds else ""


def _time_left(folders: list[Path], results: list[TrialResult], to_come: int) -> timedelta | None:
    """Time for the unfinished trials at the mean duration of the finished ones."""
    durations = [result.seconds for result in results if result.status == "finished" and result.seconds]
    running = [folder for folder, result in zip(folders, results, strict=True) if result.status == "running"]
    if not durations or not running:
        return None
    mean = fmean(durations)
    waiting = to_come + sum(result.status in ("new", "interrupted", "damaged") for result in results)
    rest = sum(max(0.0, mean - _running_seconds(folder)) for folder in running)
    return timedelta(seconds=round((waiting * mean + rest) / len(running)))


def _running_seconds(folder: Path) -> float:
    """Seconds since a running trial was started or resumed."""
    facts = RunRecord(folder).facts
    began = facts["resumed"][-1]["at"] if facts.get("resumed") else facts.get("started")
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(began or "")).total_seconds()
    except (ValueError, TypeError):  # not known, or no time with its zone
        return 0.0
