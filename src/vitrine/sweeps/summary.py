"""Summaries of sweeps as tables: those in a folder, and a grid at its end. That of a search is in search_summary.py."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitrine.config.sweep import DATA_KEYS, OBJECTIVES
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.provenance import program, same_command
from vitrine.runs.status import ENDED
from vitrine.sweeps.progress import COLOURS, format_metric, trial_table, varying_cells
from vitrine.sweeps.selected import overlap_of_folds, print_selection
from vitrine.sweeps.sweep import (
    METRIC,
    BestConfiguration,
    Sweep,
    best_configuration,
    by_configuration,
    ranked_configurations,
    read_sweep,
)
from vitrine.sweeps.trial import TrialResult, read_result
from vitrine.text import did_you_mean, listed, nearest, one_line, plural, print_table, printable, report

LONGEST = 100  # rows of a table that ends a sweep: more hide what comes before it, and take a second per thousand
DIVERGED = "diverged; only rerun=true or other code tries them again"


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
        unranked: folders of the trials that a search does not rank: one of their runs failed, or has not ended.
        metrics: objectives of a search by several metrics; else empty.
        front: Pareto front of a search by several metrics.
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
    unranked: frozenset[Path] = frozenset()
    metrics: Sequence[str] = ()
    front: Sequence[BestConfiguration] = ()
    problem: str = ""

    @classmethod
    def read(cls, folder: Path) -> "SweepSummary":
        """Read the sweep in ``folder``."""
        try:
            known = read_sweep(folder)
            folders = [folder / trial["folder"] for trial in known["trials"]]
            varies = [dict(trial["varies"]) for trial in known["trials"]]
            keys, common = list(known["keys"]), [*known.get("sources", []), *known["common"]]
            if None in [*keys, *common, *chain(*map(dict.values, varies))]:
                raise RunError(f"{folder / 'sweep.json'}: keys, common and varies must hold text, not null")
            if (metric := known["metric"]) not in OBJECTIVES and not re.fullmatch(r"(val|test)/\w+", metric):
                allowed = f"val/NAME, test/NAME or one of {', '.join(OBJECTIVES)}"
                raise RunError(f"{folder / 'sweep.json'}: metric {metric} is not {allowed}")
            decision = known.get("decision")
            said = None if decision is None else [str(text) for text in decision["findings"].values()]
            results = [read_result(path) for path in folders]
            of_search = _of_search(known["search"], folders, results) if known.get("search") else {}
        except KeyError as error:
            return cls(folder, [], [], [], [], [], problem=f"{folder / 'sweep.json'} has no {error}")
        except (RunError, TypeError, AttributeError) as error:
            return cls(folder, [], [], [], [], [], problem=str(error))
        complete = known.get("complete") is True
        to_come = 0 if complete else max(0, (known.get("planned") or 0) - len(results))
        time_left = _time_left(folders, results, to_come)
        return cls(
            folder, keys, common, varies, results, folders, metric, to_come, complete, time_left, said, **of_search
        )

    @property
    def counts(self) -> Counter[str]:
        """Number of trials with each status."""
        return Counter(result.status for result in self.results)

    @property
    def total(self) -> int:
        """Number of trials, those to come included; once complete, only those that began."""
        return len(self.results) + self.to_come - (self.counts["new"] if self.complete else 0)

    @property
    def has_ended(self) -> bool:
        """Whether no trial is left."""
        return self.complete or sum(self.counts[status] for status in ENDED) == self.total

    @property
    def best(self) -> BestConfiguration | None:
        """The best configuration so far; ``None`` for a sweep with verdicts, several metrics or several data sets."""
        has_one = self.findings is None and not self.metrics
        return best_configuration(*self.ranked, self.metric) if has_one else None

    @property
    def ranked(self) -> tuple[list[dict[str, str]], list[TrialResult]]:
        """Varying overrides and results of the trials that are ranked."""
        trials = list(zip(self.folders, self.varies, self.results, strict=True))
        kept = [(varies, result) for folder, varies, result in trials if folder not in self.unranked]
        return [varies for varies, _ in kept], [result for _, result in kept]


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
        warn(sweep.problem)


def print_trials(sweep: SweepSummary) -> None:
    """Print each trial of a sweep, and the command of the best configuration, or what the sweep decided.

    Raises:
        RunError: the sweep cannot be read.
    """
    if sweep.problem:
        raise RunError(sweep.problem)
    print_table(_table_of_trials(sweep.keys, sweep.metric, sweep.varies, sweep.results, with_errors=True))
    if sweep.metrics:
        print_best_of_search(sweep.front, sweep.metrics, sweep.common)
    elif sweep.findings is None:
        trials = zip(sweep.varies, sweep.results, sweep.folders, strict=True)
        _print_best(sweep.common, *sweep.ranked, sweep.metric, [*trials])
    if sweep.findings:
        print("\n" + "\n".join(map(printable, sweep.findings)))
    if sweep.time_left is not None:
        print(f"time left: {sweep.time_left}")
    _warn_of_mixtures(sweep.varies, sweep.results)


def print_sweep(sweep: Sweep, results: Sequence[TrialResult]) -> None:
    """Print the trials of a grid and the command of the best configuration; failures go to stderr.

    Of more than ``LONGEST`` trials, it prints the means of the best configurations, and the command that lists all.
    """
    print()
    varies = [trial.varies for trial in sweep.trials]
    if len(sweep.trials) <= LONGEST:
        print_table(_table_of_trials(sweep.keys, sweep.metric, varies, results))
    else:
        _print_configurations(sweep, results)
    folders = [trial.folder for trial in sweep.trials]
    _print_best(sweep.shared, varies, results, sweep.metric, [*zip(varies, results, folders, strict=True)])
    print_location(sweep)
    _warn_of_mixtures(varies, results)
    print_failures(sweep, results)


def print_best_of_search(best: Sequence[BestConfiguration], metrics: Sequence[str], common: Sequence[str]) -> None:
    """Print the best configuration of a search, or its Pareto front if it has several metrics; nothing if empty."""
    if best:
        heading = "best on validation" if len(metrics) == 1 else f"Pareto front of {' and '.join(metrics)}"
        print(f"\n{printable(heading)}:")
    for one in best:
        print(f"{describe_best(one, metrics)}\n  {printable(one.command(common))}")


def _print_best(
    common: Sequence[str],
    varies: Sequence[Mapping[str, str]],
    results: Sequence[TrialResult],
    metric: str,
    trials: Sequence[tuple[Mapping[str, str], TrialResult, Path]],
) -> None:
    """Print the best configuration with its command, of each data set; ``trials`` are all, with their folders."""
    for some, theirs in _by_data_set(varies, results):
        if best := best_configuration(some, theirs, metric):
            command = printable(best.command(common))
            print(f"\nbest on validation: {describe_best(best, [metric])}\n  {command}")
            try:
                overlap = overlap_of_folds(best, trials)
            except RunError as error:
                warn(str(error))
            else:
                print_selection(best, common, some, theirs, metric, overlap)


def _by_data_set(
    varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult]
) -> list[tuple[list[Mapping[str, str]], list[TrialResult]]]:
    """Overrides and results of the trials on each data set that a sweep names."""
    found: dict[str, tuple[list[Mapping[str, str]], list[TrialResult]]] = {}
    for overrides, result in zip(varies, results, strict=True):
        some, theirs = found.setdefault(overrides.get("data", ""), ([], []))
        some.append(overrides)
        theirs.append(result)
    return list(found.values())


def _table_of_trials(
    keys: Sequence[str],
    metric: str,
    varies: Sequence[dict[str, str]],
    results: Sequence[TrialResult],
    *,
    with_errors: bool = False,
) -> Table:
    table = trial_table(keys, [metric, "seconds"], ["status"])
    for overrides, result in zip(varies, results, strict=True):
        value = format_metric(result.metrics[metric]) if metric in result.metrics else ""
        shown = f"{result.status}: {result.error}" if with_errors and result.error else result.status
        status = Text(one_line(shown), COLOURS.get(result.status, ""))
        table.add_row(*varying_cells(keys, overrides), value, format_seconds(result.seconds), status)
    return table


def _print_configurations(sweep: Sweep, results: Sequence[TrialResult]) -> None:
    """Print the best ``LONGEST`` configurations with finished trials, and the command that lists all trials."""
    found = ranked_configurations([trial.varies for trial in sweep.trials], results, sweep.metric)
    keys = [key for key in sweep.keys if any(key in one.varies for one in found)]
    table = trial_table(keys, ["runs", f"mean {sweep.metric}"], [])
    for one in found[:LONGEST]:
        table.add_row(*varying_cells(keys, one.varies), str(one.count), format_metric(one.mean))
    if found:
        print_table(table)
    cut = f"{LONGEST} best of " if len(found) > LONGEST else ""
    print_all_trials(f"{cut}{plural(len(found), 'configuration')} of {len(sweep.trials):,} trials", sweep)


def print_all_trials(shown: str, sweep: Sweep) -> None:
    """Print what a table has ``shown`` of trials that are too many for it, and the command that lists all."""
    print(printable(f"{shown}; each trial: {program('sweeps')} {shlex.quote(str(sweep.folder))}"))


def print_failures(sweep: Sweep, results: Sequence[TrialResult]) -> int:
    """Print to stderr which trials diverged or failed; return how many failed."""
    for problem, means in (("diverged", DIVERGED), ("failed", f"failed; rerun {same_command()} to retry them")):
        pairs = zip(sweep.trials, results, strict=True)
        lines = [
            f"{trial.label or trial.folder.name}: {result.error}" for trial, result in pairs if result.status == problem
        ]
        print_reasons(lines, len(results), means)
    return sum(result.status == "failed" for result in results)


def print_reasons(lines: Sequence[str], total: int, problem: str) -> None:
    """Print which of ``total`` trials have a problem, a line for each; nothing if there are none."""
    if lines:
        report("\n  ".join([f"{len(lines)} of {total} trials {problem}:", *lines]))


def describe_best(best: BestConfiguration, metrics: Sequence[str]) -> str:
    """``patch=2 (val/acc 0.9800; test/acc 0.9700, mean of 3 runs)``."""
    runs = f", mean of {best.count} runs" if best.count > 1 else ""  # over seeds, folds, or both
    values = ", ".join(f"{name} {format_metric(best.metrics[name])}" for name in metrics if name in best.metrics)
    test = f"; test/acc {best.metrics['test/acc']:.4f}" if "test/acc" in best.metrics else ""
    fewer = f"; {plural(best.left_out, 'configuration')} with fewer runs left out" if best.left_out else ""
    return printable(f"{best.label or 'the only configuration'} ({values}{test}{runs}{fewer})")


def print_location(sweep: Sweep) -> None:
    """Print where a sweep is, and how to compare its runs."""
    across = " --across data" if "data" in sweep.keys else ""  # each data set has its own test images
    compare = f"{program('compare')} {shlex.quote(str(sweep.folder))}{across}"
    print(printable(f"\nsweep folder  {sweep.folder}\ncompare       {compare}"), flush=True)


def _warn_of_mixtures(varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult]) -> None:
    warn(mixed_versions(list(members.values()) for members in by_configuration(varies, results).values()))
    for some, theirs in _by_data_set(varies, results):
        warn(mixed_images(some, theirs))


def mixed_versions(groups: Iterable[Collection[TrialResult]]) -> str:
    """A warning if trials are averaged whose fingerprints have different versions; else empty."""
    found = [{result.fingerprint_version for result in group} for group in groups]
    versions = sorted(set[int]().union(*(group for group in found if len(group) > 1)))
    if not versions:
        return ""
    return (
        f"warning: means include trials of different versions of vitrine (fingerprint versions {listed(versions)}); "
        "rerun=true trains all of them again in a new folder"
    )


def mixed_images(varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult]) -> str:
    """A warning if finished trials were validated on different data, but for those of other folds; else empty.

    Runs of earlier versions do not have the labels, which are compared where they are known.
    """
    first: dict[tuple[str, str], dict[str, str]] = {}  # what is known of the data, by fold and division
    count = unlike = 0
    for overrides, result in zip(varies, results, strict=True):
        if result.status == "finished" and any(result.validation):
            data = dict(zip(("images", "labels"), result.validation, strict=True))
            data |= {key: overrides.get(key, "") for key in ("data", *DATA_KEYS)}
            fold = overrides.get("data.fold", "")
            known = first.setdefault((fold, overrides.get("data.val_seed", "") if fold else ""), {})
            unlike += any(known.setdefault(name, value) != value for name, value in data.items() if value)
            count += 1
    if not unlike:
        return ""
    return (
        f"warning: {unlike} of {plural(count, 'trial')} were validated on other images or labels than the first, "
        "so the best need not be better than the others"
    )


def warn(message: str) -> None:
    """Print a warning to stderr, unless it is empty."""
    if message:
        report(message)


def format_seconds(seconds: float) -> str:
    """As tables show it, ``12.3``; empty where nothing was trained."""
    return f"{seconds:.1f}" if seconds else ""


def _of_search(search: Mapping[str, Any], folders: Sequence[Path], results: Sequence[TrialResult]) -> dict[str, Any]:
    """What a search adds to the summary of its sweep, from its entry in sweep.json; its states may be behind."""
    ended = {folder.name for folder, result in zip(folders, results, strict=True) if result.status == "finished"}
    ranked = {name for trial in search["trials"] if ended.issuperset(trial["folders"]) for name in trial["folders"]}
    front = search.get("pareto") or ()
    return {
        "unranked": frozenset(folder for folder in folders if folder.name not in ranked),
        "metrics": search["metrics"] if len(search["metrics"]) > 1 else (),
        "front": [BestConfiguration(one["varies"], one["mean"], one["metrics"], one["count"]) for one in front],
    }


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
