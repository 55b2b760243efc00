"""Reasons why a comparison is refused, or why its findings are weaker than they look."""

import json
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from vitrine.compare.failures import failed_configurations
from vitrine.compare.folds import Fold
from vitrine.compare.load import RunResult, as_typed
from vitrine.compare.metric import Metric
from vitrine.compare.notes import confounded_keys, is_set_by
from vitrine.compare.predictions import Predictions
from vitrine.compare.run_groups import MAX_LISTED, Property, groups_of, nested_fact, sizes
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.speeds import speed_caveats
from vitrine.compare.table import ConfigurationRow, Table, is_group, seed_of
from vitrine.config.metrics import bias_of
from vitrine.config.schema import OWN_FILES
from vitrine.runs.data_changes import Fingerprint, changes
from vitrine.text import listed, plural

MANY_ROWS = 6  # from here on, selection on the test set is a concern
FEW_GROUPS = 20  # of test images: a kind that one of twenty is of is missing from as many in one case of three


def unequal_images(runs: Sequence[RunResult], metric: Metric) -> str:
    """Return how the images differ that the metric was measured on in the runs; empty if they do not."""
    stage = metric.name.partition("/")[0]
    if stage == "test":
        of_images = _images_of(runs, lambda run: "test")
        groups = _finest_groups(
            runs, _data_name, lambda run: _image_count(run, "test"), lambda run: run.labels_hash or None, of_images
        )
        return _unequal("use different test sets", groups, "test")
    if stage == "val":
        return next(filter(None, map(_unequal_validation, by_fold(runs))), "")
    return ""


def _unequal_validation(runs: Sequence[RunResult]) -> str:
    groups = _finest_groups(runs, lambda run: run.facts.get("validation"), _images_of(runs, _validation_source))
    return _unequal("use different validation splits", groups, _validation_source(runs[0]))


def _unequal(problem: str, groups: dict[Hashable, list[RunResult]], split: str) -> str:
    """The problem with what differs in a split, and who has which images; empty for a single group."""
    if len(groups) < 2:
        return ""
    differ = _difference(groups, split)
    members = "; ".join(
        f"{_image_count(first, 'test') or _data_name(first)}: {first.name}"
        f"{f' and {len(others)} more' if others else ''}"
        for first, *others in list(groups.values())[:MAX_LISTED]
    )
    return f"these runs {problem}{f' ({differ})' if differ else ''}: {members}"


def unequal_losses(runs: Sequence[RunResult], metric: Metric) -> str:
    """Return how the losses differ that the runs are measured by; empty if they do not, and for other metrics.

    Label smoothing and weights of classes are of training alone.
    """
    if metric.kind != "loss":
        return ""
    groups = _finest_groups(runs, _loss, lambda run: nested_fact(run, "parts", str(run.config.get("loss.name"))))
    return f"these runs measure different losses: {sizes(groups)}" if len(groups) > 1 else ""


def caveats(
    table: Table, metric: Metric, unfinished: Sequence[RunResult], damaged: Sequence[tuple[str, str]]
) -> list[str]:
    """Return a sentence for each reason to doubt the findings."""
    runs = [run for row in table.rows for run in row.runs.values()]
    return [
        *_few_seeds(table),
        *_different_data(table, runs),
        *_different_conditions(table, runs),
        *_confounded_or_selected(table, metric, runs),
        *_left_out(table, unfinished, damaged),
    ]


def _few_seeds(table: Table) -> Iterator[str]:
    if few := [row.label for row in table.rows if row.seeds < MIN_SEEDS]:
        which = "every row" if len(few) == len(table.rows) else listed(few, MAX_LISTED)
        yield f"fewer than {MIN_SEEDS} seeds, too few to estimate a mean: {which}"


def _different_data(table: Table, runs: Sequence[RunResult]) -> Iterator[str]:
    """Yield how training and validation images differ between the runs."""
    folds = by_fold(runs)
    counts = () if len(folds) > 1 or _varies_in_size(table) else (lambda run: _image_count(run, "train"),)
    if len(groups := _finest_groups(runs, _data_name, _data_source, *counts)) > 1:
        yield f"runs were trained on different data: {sizes(groups)}"
    elif differ := _difference(groups_of(runs, _images_of(runs, lambda run: "train")), "train"):
        yield f"runs were trained on different images: {differ}"
    if len(folds) > 1:
        yield _fold_caveat(table)
    elif len(groups := groups_of(runs, lambda run: run.facts.get("validation"))) > 1:
        yield f"runs selected their checkpoints on different validation splits: {sizes(groups)}"
    if draws := sorted(set[str]().union(*map(_shared_draws, table.rows))):
        seeds, part, draw = "all seeds", "part", "this draw"
        if len(draws) > 1:
            seeds, part, draw = "the seeds of a row", "parts", "these draws"
        yield (
            f"{seeds} train on the same {part} of the images (data.subset_seed={','.join(draws)}): intervals are about "
            f"{draw}, and do not cover how much others, above all of few images, would differ"
        )


def few_groups_caveat(count: int, rules: Sequence[str]) -> str:
    """Return what intervals over groups of test images leave in doubt, in a sentence; empty unless these are few.

    Args:
        count: number of groups; 0 if images come in none.
        rules: values of ``data.group``.
    """
    if not 0 < count < FEW_GROUPS:
        return ""
    return (
        f"test images come in {count} groups (data.group={' and '.join(rules)}): intervals for other images do not "
        "know of kinds of groups that are rare, and not among them"
    )


def grouped_images(
    runs: Sequence[RunResult], stored: Mapping[str, Predictions], used: Mapping[str, Predictions], *, new_images: bool
) -> str:
    """Return what groups of images leave in doubt, in a sentence; empty if images have none.

    Args:
        runs: those that are compared.
        stored: predictions by the run's name.
        used: the same, with the groups that all runs have in common.
        new_images: whether intervals over seeds are for other images, too.
    """
    rules = sorted({str(group) for run in runs if (group := run.config.get("data.group"))})
    grouped = next((found for found in used.values() if found.groups is not None), None)
    if grouped is not None:
        return few_groups_caveat(len(grouped.observations), rules)
    if not rules:
        return ""
    differ = any(found.groups is not None for found in stored.values())
    why = "which differ between runs" if differ else "and in which ones is not stored"
    hint = "; --fixed-images has intervals over seeds for these images" if new_images else ""
    return (
        f"test images come in groups (data.group={' and '.join(rules)}), {why}: p-values and intervals over images "
        f"take each as independent, so both are too small{hint}"
    )


def _different_conditions(table: Table, runs: Sequence[RunResult]) -> Iterator[str]:
    """Yield how epochs, code, versions and hardware differ between the runs."""
    checks: list[tuple[str, Property]] = [
        ("trained for different numbers of epochs", _epochs),
        ("used different versions of the code", _commit),
        ("used different versions of torch", lambda run: nested_fact(run, "versions", "torch")),
        ("have trial fingerprints of different versions, so a row may average over different algorithms", _identity),
    ]
    for problem, property_of in checks:
        if len(groups := groups_of(runs, property_of)) > 1:
            yield f"runs {problem}: {sizes(groups)}"
    for teacher, taught in groups_of(runs, lambda run: nested_fact(run, "teacher", "run")).items():
        if len(groups_of(taught, lambda run: nested_fact(run, "teacher", "sha256"))) > 1:
            yield f"{len(taught)} runs were taught by different weights of the same teacher, {teacher}"
    if moved := sum(map(_moved, runs)):
        what = "another device, precision or version of torch"
        yield f"{moved} of {plural(len(runs), 'run')} had {what} before resuming; see resumed in run.json"
    yield from speed_caveats(table)
    if changed := sum(bool(nested_fact(run, "code", "changed")) for run in runs):
        yield f"{changed} of {plural(len(runs), 'run')} used uncommitted code; see code.diff in their folders"


def _moved(run: RunResult) -> bool:
    """Whether a session of a run was computed differently from the last."""
    replaced = [again.get("before") or {} for again in run.facts.get("resumed") or ()]
    return any({"device", "precision", "versions.torch"} & {*before} for before in replaced)


def _confounded_or_selected(table: Table, metric: Metric, runs: Sequence[RunResult]) -> Iterator[str]:
    """Yield what other keys may explain a difference, and where the metric was selected on."""
    for behind, keys in confounded_keys(table).items():
        if is_set_by(behind, table):
            continue  # a note below the table lists them
        sets, them = "sets" if len(behind) == 1 else "set", "it" if len(keys) == 1 else "them"
        unless = f" unless {listed(behind)} {sets} {them}" if all(map(is_group, behind)) else ""
        yield f"changing along with {listed(behind)}, so confounded{unless}: {listed(keys, MAX_LISTED)}"
    if selected := best_epoch_caveat(metric, [run.config.get("callbacks.monitor") for run in runs]):
        yield selected
    if len(table.rows) > 1 and (bias := bias_of(metric.name)):
        yield bias
    if metric.name.startswith("test/") and len(table.rows) >= MANY_ROWS:
        yield (
            f"the best of {len(table.rows)} rows is selected on the test set, which makes its score optimistic; "
            "--metric val/acc selects on the validation split"
        )


def _left_out(table: Table, unfinished: Sequence[RunResult], damaged: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield which runs the means are without, and why."""
    if table.superseded:
        names = listed([run.name for run in table.superseded], MAX_LISTED)
        yield f"left out, since the same configuration and seed ran again later: {names}"
    if diverged := [run.name for run in unfinished if run.status == "diverged"]:
        names = listed(diverged, MAX_LISTED)
        yield f"{plural(len(diverged), 'run')} diverged; the means are of the others, and thus too good: {names}"
    if failed := failed_configurations(table, unfinished):
        yield listed(failed, MAX_LISTED, "; ")
    if others := [run for run in unfinished if run.status != "diverged"]:
        yield _unfinished(others)
    if damaged:
        are = "record is damaged and" if len(damaged) == 1 else "records are damaged and"
        problems = listed([problem for _, problem in damaged], MAX_LISTED)
        yield f"{len(damaged)} {are} left out: {problems}"


def best_epoch_caveat(metric: Metric, monitored: Collection[Any]) -> str:
    """Return what it means if a metric is among those that chose the epochs of runs; empty if it is not."""
    if metric.name not in monitored:
        return ""
    return (
        f"{metric.name} is that of each run's best epoch on the same images, which favours configurations whose epochs "
        "scatter: compare a test metric, or train with callbacks.monitor=last"
    )


def by_fold(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Return the runs of each fold, if all are of cross-validation; else all runs as one group."""
    groups: dict[Hashable, list[RunResult]] = {}
    for run in runs:
        if not isinstance(run.repetition, Fold):
            return [list(runs)]
        groups.setdefault(run.repetition.of_all_seeds, []).append(run)
    return list(groups.values())


def _shared_draws(row: ConfigurationRow) -> set[str]:
    """The draws of a part of the training images, if each seed of a row trains on all of them; empty if they vary."""
    by_seed: dict[Hashable, set[str]] = {}
    for key, run in row.runs.items():
        if _is_on_a_part(run):
            by_seed.setdefault(seed_of(key), set()).add(str(run.config.get("data.subset_seed", 0)))
    first, *others = by_seed.values() or [set()]
    return first if all(draws == first for draws in others) else set()


def _is_on_a_part(run: RunResult) -> bool:
    return run.config.get("data.per_class") is not None or run.config.get("data.train_fraction") not in (None, 1)


def _varies_in_size(table: Table) -> bool:
    """Whether the number of training images is what rows differ in."""
    return bool({"data.train_fraction", "data.per_class"} & set(table.columns))


def _fold_caveat(table: Table) -> str:
    """What intervals over folds allow for, and which rows lack folds."""
    text = (
        "folds share training images: intervals and p-values are corrected for it (Nadeau and Bengio, 2003), and are "
        "about other training images of the same number, not about the model trained on all of them"
    )
    folds = [{fold for key in row.runs if isinstance(fold := seed_of(key), Fold)} for row in table.rows]
    divisions = {(fold.split, fold.count) for some in folds for fold in some}
    lacking = []
    for row, some in zip(table.rows, folds, strict=True):
        counts = {fold.count for fold in some}
        whole = sum(count for _, count in divisions if count in counts)
        lacking += [f"{row.label} ({row.seeds} of {whole})"] if row.seeds < whole else []
    return text + (f"; not every fold ran: {listed(lacking, MAX_LISTED)}" if lacking else "")


# Facts of a run that change its rounding, or more; the keys that set them, and their name in a sentence.
NUMERICS = (
    ("device", ("trainer.accelerator", "trainer.devices"), "device or number of threads"),
    ("precision", ("trainer.precision",), "precision"),
    ("compiled", ("trainer.compile",), "compilation"),
)


def unequal_pairs(table: Table, baseline: ConfigurationRow) -> list[str]:
    """Return a sentence for each way in which runs with equal seeds were computed differently, if not on purpose."""
    pairs = [
        (run, baseline.runs[key])
        for row in table.rows
        if row is not baseline
        for key, run in row.runs.items()
        if key in baseline.runs
    ]
    sentences = []
    for fact, keys, what in NUMERICS:
        known = [(ours.facts.get(fact), theirs.facts.get(fact)) for ours, theirs in pairs]
        differing = [(ours, theirs) for ours, theirs in known if ours and theirs and ours != theirs]
        if differing and not set(keys) & {*table.columns, *table.confounded}:
            values = listed(sorted({str(value) for pair in differing for value in pair}), MAX_LISTED)
            sentences.append(
                f"{len(differing)} of {plural(len(pairs), 'pair')} with equal seeds differ in {what} ({values}): part "
                "of their difference may be due to that, and they share less than their seed"
            )
    return sentences


def _unfinished(runs: Sequence[RunResult]) -> str:
    pruned = sum(run.status == "pruned" for run in runs)
    names = [f"{pruned} pruned by the search"] if pruned else []
    names += [f"{run.name} ({run.status})" for run in runs if run.status != "pruned"]
    are = "run is" if len(runs) == 1 else "runs are"
    return f"{len(runs)} {are} not finished and left out: {listed(names, MAX_LISTED)}"


def _data_name(run: RunResult) -> str | None:
    return run.data or None


def _data_source(run: RunResult) -> str | None:
    """The data set, and of the user's own image files their place; ``None`` if that is private."""
    if run.data not in OWN_FILES:
        return _data_name(run)
    root = run.config.get("data.root")
    return f"{run.data} in {root}" if root else None


def _loss(run: RunResult) -> str | None:
    """What ``val/loss`` and ``test/loss`` of a run are; of several targets, it is a sum."""
    if (name := run.config.get("loss.name")) is None:
        return None
    keys = sorted(key for key in run.config if key == "loss.gamma" or key.startswith("loss.options."))
    values = [f"{key}={as_typed(run.config[key])}" for key in keys if run.config[key] is not None]
    targets = len(run.config.get("data.targets") or ())
    return " ".join([str(name), *values, *([f"of {targets} targets"] if targets > 1 else [])])


def _image_count(run: RunResult, split: str) -> str | None:
    """The data set and the size of a split; ``None`` if it is not known, as for some runs at W&B."""
    count = nested_fact(run, "images", split)
    return None if count is None else f"{run.data}, {plural(count, 'image')}"


def _fingerprint(run: RunResult) -> Fingerprint:
    """The fingerprint of the run's data; empty for runs of earlier versions and for those from W&B."""
    return run.facts.get("data_fingerprint") or {}


def _validation_source(run: RunResult) -> str:
    """The split that the run's validation images are from."""
    return "val" if "val" in _fingerprint(run) else "train"


def _images_of(runs: Sequence[RunResult], split_of: Callable[[RunResult], str]) -> Property:
    """A property that tells apart images by their fingerprints; of files and packed images, by what both have."""
    found = {run.name: _fingerprint(run).get(split_of(run)) for run in runs}
    known = [set(split) for split in found.values() if split is not None]
    shared = sorted(set.intersection(*known)) if known else []

    def images(run: RunResult) -> Hashable:
        split = found[run.name]
        return None if split is None else json.dumps([split[key] for key in shared])

    return images


def _difference(groups: dict[Hashable, list[RunResult]], split: str) -> str:
    """What differs in a split between the data of the first two groups; empty if that is not known."""
    first, other = ([members[0] for members in groups.values()] * 2)[:2] if groups else (None, None)
    if first is None or other is None or first.data != other.data:
        return ""
    return "".join(changes(_fingerprint(first), _fingerprint(other), splits=[split]))


def _commit(run: RunResult) -> str | None:
    commit = nested_fact(run, "code", "commit")
    return str(commit)[:7] if commit else None


def _epochs(run: RunResult) -> Any:
    """Epochs planned: how many a run with early stopping trained is a result."""
    stops = run.config.get("callbacks.early_stopping.patience") is not None
    return run.config.get("trainer.max_epochs") if stops else run.facts.get("epochs")


def _identity(run: RunResult) -> str | None:
    """Version of the rules that tell which trials are the same; trials of earlier releases have none, which is 1."""
    if not run.facts.get("varies") and "fingerprint_version" not in run.facts:
        return None
    return f"version {run.facts.get('fingerprint_version', 1)}"


def _finest_groups(runs: Sequence[RunResult], *properties: Property) -> dict[Hashable, list[RunResult]]:
    """Runs by the property that makes most groups."""
    return max((groups_of(runs, property_of) for property_of in properties), key=len)
