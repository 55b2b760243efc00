"""What keeps a comparison from being one, and what weakens it."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from vitrine.compare.load import Run
from vitrine.compare.metric import Metric
from vitrine.compare.table import Table
from vitrine.errors import RunError
from vitrine.text import listed, plural

FEW_SEEDS = 3
SHOWN = 4  # names in a list; of more, their number
MANY_ROWS = 6  # from here on the best of them is likely to owe something to its luck


def refuse_other_images(runs: Sequence[Run], metric: Metric) -> None:
    """Raise RunError where the metric was not measured on the same images in all runs."""
    stage = metric.name.partition("/")[0]
    if stage == "val":
        groups = _groups(runs, lambda run: run.facts.get("validation"))
        problem = "were validated on different images"
    elif stage == "test":
        groups = _told_apart(runs, _name, lambda run: _counted(run, "test"), lambda run: run.labels or None)
        problem = "were tested on different test sets"
    else:
        return
    if len(groups) < 2:
        return
    listed = "; ".join(
        f"{_counted(first, 'test') or _name(first)}: {first.name}{f' and {len(others)} more' if others else ''}"
        for first, *others in list(groups.values())[:4]
    )
    raise RunError(f"these runs {problem}, so their {metric.title} cannot be compared; give runs of one: {listed}")


def caveats(table: Table, metric: Metric, unfinished: Sequence[Run], damaged: Sequence[tuple[str, str]]) -> list[str]:
    """One sentence for each thing that a reader has to know before believing the table."""
    runs = [run for row in table.rows for run in row.runs.values()]
    told = []
    few = [row.label for row in table.rows if row.seeds < FEW_SEEDS]
    if few:
        which = "every row" if len(few) == len(table.rows) else listed(few, SHOWN)
        told.append(f"fewer than {FEW_SEEDS} seeds, which say little of a mean: {which}")
    if len(groups := _told_apart(runs, _name, _place, lambda run: _counted(run, "train"))) > 1:
        told.append(f"runs were trained on different data: {_shares(groups)}")
    checks: list[tuple[str, Callable[[Run], Hashable]]] = [
        ("were chosen on different validation images", lambda run: run.facts.get("validation")),
        ("trained for different numbers of epochs", lambda run: run.facts.get("epochs")),
        ("were made by different versions of the code", _code),
        ("were made with different versions of torch", lambda run: _inside(run, "versions", "torch")),
    ]
    for problem, of in checks:
        if len(groups := _groups(runs, of)) > 1:
            told.append(f"runs {problem}: {_shares(groups)}")
    for what, of in (("device", _device), ("machine", lambda run: _inside(run, "machine", "processor"))):
        if any(run.images_per_second for run in runs) and len(groups := _groups(runs, of)) > 1:
            told.append(f"images/s and times were measured on more than one {what}: {_shares(groups)}")
            break
    if any(_inside(run, "code", "changed") for run in runs):
        count = sum(bool(_inside(run, "code", "changed")) for run in runs)
        told.append(f"{count} of {len(runs)} runs were made by code that was not committed; their code.diff says what")
    for key, values in table.along.items():
        told.append(f"along with {' and '.join(table.columns)} changes {key}: {listed(values, SHOWN)}")
    if metric.name.startswith("test/") and len(table.rows) >= MANY_ROWS:
        told.append(
            f"the best of {len(table.rows)} rows is chosen on the test images themselves, and so looks better than "
            "it is; --metric val/acc chooses without them"
        )
    if table.repeated:
        names = listed([run.name for run in table.repeated], SHOWN)
        told.append(f"the same configuration and seed ran again later; left out: {names}")
    pruned = sum(run.status == "pruned" for run in unfinished)
    others = [f"{run.name} ({run.status})" for run in unfinished if run.status != "pruned"]
    if unfinished:
        are = "runs are" if len(unfinished) > 1 else "run is"
        counted = [f"{pruned} pruned by their search"] if pruned else []
        told.append(f"{len(unfinished)} {are} not finished and not counted: {listed([*counted, *others], SHOWN)}")
    if damaged:
        records = "records are" if len(damaged) > 1 else "record is"
        told.append(f"{len(damaged)} {records} damaged and not counted: {listed([why for _, why in damaged], SHOWN)}")
    return told


def _name(run: Run) -> str | None:
    """Of the data set."""
    return run.data or None


def _place(run: Run) -> str | None:
    """The data set, and of one's own pictures the folder; None where that is private."""
    if run.data != "imagefolder":
        return _name(run)
    root = run.config.get("data.root")
    return f"{run.data} in {root}" if root else None


def _counted(run: Run, part: str) -> str | None:
    """The data set, and how many of its images are of ``part``; None where that isn't known, as W&B may not know it."""
    images = run.facts.get("images")
    count = images.get(part) if isinstance(images, dict) else None
    return f"{run.data}, {plural(count, 'image')}" if isinstance(count, int) else None


def _code(run: Run) -> Hashable:
    commit = _inside(run, "code", "commit")
    return str(commit)[:7] if commit else None


def _device(run: Run) -> Hashable:
    return run.facts.get("device")


def _inside(run: Run, section: str, key: str) -> Any:
    values = run.facts.get(section)
    return values.get(key) if isinstance(values, dict) else None


def _groups(runs: Sequence[Run], of: Callable[[Run], Hashable]) -> dict[Hashable, list[Run]]:
    """Runs by what ``of`` says of them; those it says nothing of belong nowhere."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        if (value := of(run)) is not None:
            groups.setdefault(value, []).append(run)
    return groups


def _told_apart(runs: Sequence[Run], *ways: Callable[[Run], Hashable]) -> dict[Hashable, list[Run]]:
    """Groups by that of several things which tells most of them apart."""
    return max((_groups(runs, of) for of in ways), key=len)


def _shares(groups: dict[Hashable, list[Run]]) -> str:
    return listed([f"{value} ({plural(len(members), 'run')})" for value, members in groups.items()], SHOWN)
