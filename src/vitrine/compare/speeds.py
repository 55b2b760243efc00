"""Whether measured speeds and times say something about configurations, or about what else their machines did."""

from collections.abc import Hashable, Iterator, Sequence
from statistics import fmean

from vitrine.compare.load import RunResult
from vitrine.compare.run_groups import Property, groups_of, nested_fact, sizes
from vitrine.compare.table import Table, other_values_of
from vitrine.text import plural

EQUAL_COST = 1.02  # costs, such as speeds, within 2 % count as equal


def speed_caveats(table: Table) -> list[str]:
    """Return a sentence for each reason why images/s and training times of these rows are hard to compare."""
    runs = [run for row in table.rows for run in row.runs.values()]
    speeds, times = [run.images_per_second for run in runs], [run.metrics.get("train_seconds") for run in runs]
    known = {"images/s": speeds, "times": times}
    if not (measured := " and ".join(what for what, values in known.items() if any(values))):
        return []
    found = [*_different_hardware(runs, measured)]
    return found if len(table.rows) < 2 else [*found, *_shared_machines(runs, measured), *_scatter(table)]


def _different_hardware(runs: Sequence[RunResult], measured: str) -> Iterator[str]:
    hardware: list[tuple[str, Property]] = [
        ("devices", lambda run: run.facts.get("device")),
        ("machines", lambda run: nested_fact(run, "machine", "processor")),
    ]
    for what, property_of in hardware:
        if len(groups := groups_of(runs, property_of)) > 1:
            yield f"{measured} were measured on different {what}: {sizes(groups)}"
            return


def _shared_machines(runs: Sequence[RunResult], measured: str) -> Iterator[str]:
    """Whether runs trained at the same time on one machine; of a run that was resumed, it is not known when it did."""
    hosts: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        host, ended = run.facts.get("host"), run.facts.get("ended")
        if host and ended and not run.facts.get("resumed"):
            hosts.setdefault(str(host), []).append((run.started, str(ended)))
    shared = sum(map(_overlapping, hosts.values()))
    if shared:
        yield (
            f"{shared} of {plural(len(runs), 'run')} shared a machine with another of them while they ran, which "
            f"affects {measured}"
        )


def _overlapping(times: Sequence[tuple[str, str]]) -> int:
    """How many of these spans, each from begin to end as text that sorts, overlap with another."""
    times = sorted(times)
    count, latest = 0, ""
    for (began, ended), (following, _) in zip(times, [*times[1:], ("~", "")], strict=True):
        count += began < latest or following < ended
        latest = max(latest, ended)
    return count


def _scatter(table: Table) -> Iterator[str]:
    """Whether speeds of one configuration differ more than those of rows."""
    means, within = [], 1.0
    for row in table.rows:
        groups: dict[Hashable, list[float]] = {}
        for key, run in row.runs.items():
            if speed := run.images_per_second:
                groups.setdefault(other_values_of(key), []).append(speed)
        if not groups:
            return
        means.append(fmean(speed for speeds in groups.values() for speed in speeds))
        within = max(within, *(max(speeds) / min(speeds) for speeds in groups.values()))
    between = max(means) / min(means)
    if within > between > EQUAL_COST:
        yield (
            f"images/s of one configuration differ by a factor of up to {within:.4g} between its runs, more than means "
            f"of rows do ({between:.4g})"
        )
