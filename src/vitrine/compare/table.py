"""Group runs into a table: a row per configuration, a column per key that differs; seeds and folds are repetitions."""

import json
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vitrine.command.user_parts import options_keys, part_keys
from vitrine.compare.folds import Fold, overlap_of
from vitrine.compare.load import RunResult, as_typed
from vitrine.config.keys import defaults
from vitrine.config.parts import is_dotted
from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import omitted_value
from vitrine.config.sweep import facts_of
from vitrine.errors import RunError
from vitrine.text import did_you_mean, listed, nearest

SEED = "seed"
SOURCE = "source of "  # begins the column of a user's part whose source differs between runs


@dataclass(frozen=True, eq=False)
class ConfigurationRow:
    """A configuration with its runs; in a main effect, a value of one column with all runs that have it.

    Rows are compared by identity, and can be keys.

    Attributes:
        label: its name in a sentence.
        values: its value in each column.
        runs: by seed, or by fold and seed; in a main effect, by ``(values of the other columns..., seed or fold)``.
    """

    label: str
    values: Mapping[str, str]
    runs: Mapping[Hashable, RunResult]

    @property
    def is_main_effect(self) -> bool:
        """Whether the row averages over the values of other columns."""
        return any(isinstance(key, tuple) for key in self.runs)

    @property
    def short_label(self) -> str:
        """The values without the names of their columns: ``rope · 2``."""
        return " · ".join(_applicable(self.values).values()) if len(self.values) > 1 else self.label

    @property
    def seeds(self) -> int:
        """The number of seeds; in cross-validation, of folds."""
        return len({seed_of(key) for key in self.runs})

    @property
    def overlap(self) -> float:
        """Added to 1/n in the variance of a mean over n folds, which share training images (folds.py); 0 for seeds."""
        return overlap_of(self.runs)

    @property
    def repetitions(self) -> str:
        """What is repeated, for sentences: ``seed`` or ``fold``."""
        return "fold" if self.overlap else "seed"

    def typed(self, column: str) -> str:
        """Return its value in a column with all digits; empty for what is about a part that it does not have."""
        value, shown = _value(next(iter(self.runs.values())), column), self.values[column]
        return "" if shown == ABSENT else value if shortened([value]) == [shown] else shown

    def values_by_seed(self, metric: str) -> dict[Hashable, float]:
        """Return the metric by seed; in a main effect, averaged over the other columns within each seed."""
        return mean_by_seed({key: float(run.metrics[metric]) for key, run in self.runs.items()})


@dataclass(frozen=True)
class Table:
    """Configurations, in the order of their runs.

    Attributes:
        columns: names of the keys in which configurations differ.
        rows: one per configuration.
        confounded: keys that differ, too, but only together with columns, with the values they take; in a main effect,
            those that differ between runs with equal values of the other columns.
        superseded: runs left out, because the same configuration and seed ran again later.
    """

    columns: list[str]
    rows: list[ConfigurationRow]
    confounded: dict[str, list[str]]
    superseded: list[RunResult]

    @property
    def is_complete(self) -> bool:
        """Whether all rows ran with the same seeds, and with the same combinations of the other columns."""
        return all(row.runs.keys() == self.rows[0].runs.keys() for row in self.rows)

    @property
    def is_balanced(self) -> bool:
        """Whether every row of a main effect ran with every combination of the other columns, and every seed of it."""
        combinations = {other_values_of(key) for row in self.rows for key in row.runs}
        return all(len(row.runs) == len(combinations) * len(set(map(repetition_in, row.runs))) for row in self.rows)

    def row(self, name: str) -> ConfigurationRow:
        """Find a row by its label, by a value that only it has, or by ``column=value,...`` that holds only for it.

        Raises:
            RunError: no row matches, or several do.
        """
        found = [row for row in self.rows if row.label == name]
        found = found or [row for row in self.rows if name in row.values.values()]
        found = found or [row for row in self.rows if _matches(name, row)]
        if len(found) == 1:
            return found[0]
        labels = [row.label for row in self.rows]
        if found:
            matches = _join_labels([row.label for row in found])
            raise RunError(f"baseline {name} is ambiguous: it matches {len(found)} rows: {matches}")
        values = [value for row in self.rows for value in row.values.values()]
        hint = did_you_mean(nearest(name, [*labels, *values]))
        raise RunError(f"no row is called {name}; rows: {_join_labels(labels)}{hint}")

    def column(self, name: str) -> str:
        """Find a column by its name, or by the last part of its name.

        Raises:
            RunError: there is no such column.
        """
        found = [column for column in self.columns if name in (column, column.rpartition(".")[2])]
        found = found or [column for column in self.columns if f".{name}".endswith(f".{column}")]
        if found:
            return found[0]
        if name == SEED:
            raise RunError("cannot compare by seed: runs with different seeds are repetitions of one configuration")
        differ = f"in {', '.join(self.columns)}" if self.columns else "in nothing but the seed"
        hint = did_you_mean(nearest(name, self.columns))
        raise RunError(f"these runs do not differ in {name}; they differ {differ}{hint}")

    def main_effect(self, name: str) -> "Table":
        """Return the main effect of a column: a row for each of its values, over all values of the other columns."""
        column = self.column(name)
        others = [other for other in self.columns if other != column]
        runs: dict[str, dict[Hashable, RunResult]] = {}
        for row in self.rows:
            rest = tuple(row.values[other] for other in others)
            runs.setdefault(row.values[column], {}).update(
                {(*rest, seed) if rest else seed: run for seed, run in row.runs.items()}
            )
        rows = [ConfigurationRow(label_of({column: value}), {column: value}, some) for value, some in runs.items()]
        confounded = {key: values for key, values in self.confounded.items() if not self._follows(key, others)}
        return Table([column], rows, confounded, self.superseded)

    def columns_behind(self, key: str) -> list[str]:
        """Return the fewest columns that a confounded key follows from; of several such sets, that with its group."""
        kept, section = list(self.columns), key.partition(".")[0]
        for column in sorted(self.columns, key=lambda column: (column == section, is_group(column))):
            others = [other for other in kept if other != column]
            if others and self._follows(key, others):
                kept = others
        return kept

    def _follows(self, key: str, columns: Sequence[str]) -> bool:
        """Whether rows with equal values in these columns have equal values of the key."""
        values = [_value(next(iter(row.runs.values())), key) for row in self.rows]
        return _is_determined_by(values, [tuple(row.values[column] for column in columns) for row in self.rows])


def is_group(column: str) -> bool:
    """Whether a column is named by a config group, such as ``model``, whose choices set several keys."""
    return "." not in column


def repetitions_of(rows: Sequence[ConfigurationRow]) -> str:
    """Return what rows repeat, for sentences: ``seeds``, ``folds`` or ``seeds or folds``."""
    return " or ".join(sorted({f"{row.repetitions}s" for row in rows}, reverse=True))


def counted(counts: Collection[int], rows: Sequence[ConfigurationRow]) -> str:
    """Return how often rows repeat, for sentences: ``3 to 5 seeds``."""
    least, most = min(counts), max(counts)
    return f"{least}{'' if least == most else f' to {most}'} {repetitions_of(rows)}"


def seed_of(key: Hashable) -> Hashable:
    """Return the seed in a key of :attr:`ConfigurationRow.runs`; in cross-validation, the fold without the seed."""
    last = repetition_in(key)
    return last.of_all_seeds if isinstance(last, Fold) else last


def repetition_in(key: Hashable) -> Hashable:
    """Return the seed, or the fold with its seed, in a key of :attr:`ConfigurationRow.runs`."""
    return key[-1] if isinstance(key, tuple) else key


def other_values_of(key: Hashable) -> tuple[Hashable, ...]:
    """Return the values of the other columns in a key of :attr:`ConfigurationRow.runs`; empty outside a main effect."""
    return key[:-1] if isinstance(key, tuple) else ()


def mean_by_seed(values: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Return the mean of each seed's values, numbers or arrays: runs that share a seed are no repetitions."""
    seeds: dict[Hashable, list[Any]] = {}
    for key, value in values.items():
        seeds.setdefault(seed_of(key), []).append(value)
    return {seed: sum(some) / len(some) for seed, some in seeds.items()}


def label_of(values: Mapping[str, str]) -> str:
    """Return the name in a sentence of a row with these values in its columns."""
    if not values:
        return "the configuration"
    if len(values) == 1:
        ((name, value),) = values.items()
        is_name = value[:1].isalpha() and value not in ("null", "true", "false") and not name.startswith(SOURCE)
        return value if is_name else f"{name}={value}"
    return ", ".join(f"{name}={value}" for name, value in _applicable(values).items())


def tabulate(runs: Sequence[RunResult]) -> Table:
    """Group finished runs by configuration, in their order."""
    known = {key for run in runs for key in run.config if distinguishes(key, run.data)}
    known |= {key for run in runs for key in part_sources(run.config, run.data, run.facts)}
    if all(isinstance(run.repetition, Fold) for run in runs):
        known -= {"data.val_seed"}  # another division into folds repeats the cross-validation
    values = {run.name: {key: _value(run, key) for key in known} for run in runs}
    differing = {key for key in known if len({row[key] for row in values.values()} - {UNKNOWN, ABSENT}) > 1}
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(json.dumps([values[run.name][key] for key in sorted(differing)]), []).append(run)
    grouped = list(groups.values())
    columns, confounded = _columns(grouped, differing)
    shown = {name: shortened(column) for name, column in columns.items()}
    rows, superseded = [], []
    for index, members in enumerate(grouped):
        chosen = {name: column[index] for name, column in shown.items()}
        kept: dict[Hashable, RunResult] = {}
        for run in sorted(members, key=lambda run: run.started):
            if run.repetition in kept:
                superseded.append(kept[run.repetition])
            kept[run.repetition] = run
        rows.append(ConfigurationRow(label_of(chosen), chosen, kept))
    return Table(list(columns), rows, confounded, superseded)


_LONG_NUMBER = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?")
UNKNOWN = "unknown"  # the key has no effect on the run, or W&B lacks it: the run may be another program's

ABSENT = "-"  # the run does not have the user's part that the key is about


@cache
def distinguishes(key: str, data: str) -> bool:
    """Whether different values of a key make different configurations of runs on the data source ``data``."""
    facts = facts_of(key)
    return facts.in_comparisons and facts.affects(data)


_defaults = cache(defaults)


def configuration_key(config: Mapping[str, Any], data: str) -> str:
    """Return the values of a flat configuration that distinguish it on the data source ``data``.

    Those of seeds and folds do not, nor does the division into folds. A key that the run's version of vitrine did not
    have yet counts as its default.
    """
    known = {key: value for key, value in {**_defaults(TrainConfig), **config}.items() if distinguishes(key, data)}
    if Fold.of(config):
        known.pop("data.val_seed", None)
    return json.dumps(known, sort_keys=True, default=str)


def part_sources(config: Mapping[str, Any], data: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return hashes of the source of a run's own parts that affect its result, by ``source of NAME``."""
    if not (sources := facts.get("parts")):
        return {}
    named = _names(config, data)
    return {f"{SOURCE}{name}": str(source)[:8] for name, source in sources.items() if name in named}


def _names(config: Mapping[str, Any], data: str) -> set[str]:
    """Each value that distinguishes a configuration, those in lists included; the user's parts are among them."""
    values = [value for key, value in config.items() if distinguishes(key, data)]
    return {str(name) for value in values for name in (value if isinstance(value, list) else [value])}


def _lacks_part_of(run: RunResult, key: str) -> bool:
    """Whether ``key`` is an option of a user's part that the run does not have."""
    for part, options in zip(part_keys().values(), options_keys(), strict=True):
        if key.startswith(f"{options}."):
            chosen, own = run.config.get(part), key.removeprefix(f"{options}.").partition(".")[0]
            if isinstance(chosen, list):
                return own not in {str(name).rpartition(".")[2] for name in chosen}
            return not is_dotted(chosen)
    return False


def _value(run: RunResult, key: str) -> str:
    """A run's value as users type it; ``null`` for a key of a section that is off, ``-`` for one of an absent part.

    A key that a run folder of an earlier version of vitrine lacks has its default.
    """
    if key.startswith(SOURCE):
        absent = UNKNOWN if key.removeprefix(SOURCE) in _names(run.config, run.data) else ABSENT
        return part_sources(run.config, run.data, run.facts).get(key, absent)
    if not distinguishes(key, run.data):  # such as the folder of MNIST, beside runs on image folders
        return UNKNOWN
    if key in run.config:
        return as_typed(run.config[key])
    if _lacks_part_of(run, key):
        return ABSENT
    if (omitted := omitted_value(key)) is not None:
        return as_typed(omitted)
    if any(known.startswith(f"{key}.") for known in run.config):
        return UNKNOWN  # a section that is on: the keys inside it count
    parts = key.split(".")
    sections = (".".join(parts[:count]) for count in range(1, len(parts)))
    if any(section in run.config for section in sections):
        return "null"
    known = {} if run.folder is None else _defaults(TrainConfig)
    return as_typed(known[key]) if key in known else UNKNOWN


def _columns(
    groups: Sequence[Sequence[RunResult]], differing: set[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, list[str]]]:
    """Columns with the value of each group, and confounded keys.

    The overrides that users varied become columns. Of the other keys that differ, those that follow from these columns
    are confounded; the rest become columns, too.
    """
    columns: dict[str, tuple[str, ...]] = {}
    covered: set[str] = set()
    resolved = {key: tuple(_value(members[0], key) for members in groups) for key in differing}
    for name in dict.fromkeys(name for members in groups for run in members for name in run.overrides):
        typed = [{run.overrides[name] for run in members if name in run.overrides} for members in groups]
        if name == SEED or any(len(values) > 1 for values in typed) or len(set(map(frozenset, typed))) == 1:
            continue
        values = [next(iter(given), None) for given in typed]
        if key := _key_of(name, values, resolved):
            columns[name] = resolved[key]
            covered.add(key)
        elif None not in values and not _is_plain_key(name):  # an override that sets several keys
            columns[name] = tuple(map(str, values))
    confounded, varied = {}, list(zip(*columns.values(), strict=True))
    for key in sorted(differing - covered):
        if varied and _is_determined_by(resolved[key], varied):
            confounded[key] = shortened(list(dict.fromkeys(resolved[key])))
        else:
            columns[key] = resolved[key]
    return columns, confounded


def shortened(values: Sequence[str]) -> list[str]:
    """Return the values of a column, numbers with six digits if these tell all of them apart."""
    short = [f"{float(value):g}" if _LONG_NUMBER.fullmatch(value) else value for value in values]
    return short if len(set(short)) == len(set(values)) else list(values)


def _key_of(name: str, typed: Sequence[str | None], resolved: Mapping[str, tuple[str, ...]]) -> str | None:
    """The differing key that an override sets: the key of that name, or the key that takes the values typed."""
    if name in resolved:
        return name
    if "." in name:
        return None
    fitting = [
        key
        for key, values in resolved.items()
        if all(given in (None, value) for given, value in zip(typed, values, strict=True))
    ]
    fitting.sort(key=lambda key: (not key.endswith(f".{name}"), not key.startswith((f"{name}.", "model.")), key))
    return fitting[0] if fitting else None


def _is_plain_key(name: str) -> bool:
    """Whether an override names a dotted key, or something that does not affect the result."""
    return "." in name or not facts_of(name).affects("")


def _is_determined_by(values: Sequence[str], rows: Sequence[tuple[str, ...]]) -> bool:
    """Whether equal ``rows``, the values of some columns, have equal ``values``."""
    first: dict[tuple[str, ...], str] = {}
    return all(first.setdefault(row, value) == value for row, value in zip(rows, values, strict=True))


def _applicable(values: Mapping[str, str]) -> Mapping[str, str]:
    """The values of a row without those about parts that it does not have, unless there are no others."""
    return {name: value for name, value in values.items() if value != ABSENT} or values


def _matches(name: str, row: ConfigurationRow) -> bool:
    """Whether ``name``, such as ``position=rope,patch=2``, holds for a row."""
    pairs = [part.strip().partition("=") for part in name.split(",")]
    return all(sign and row.values.get(key) == value for key, sign, value in pairs)


def _join_labels(labels: Sequence[str]) -> str:
    return listed(labels, 8, "; ")
