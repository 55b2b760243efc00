"""Runs as a table: a row for each configuration, a column for each choice that differs; seeds are repetitions."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from vitrine.compare.load import Run, shown
from vitrine.config.sweep import facts_of
from vitrine.errors import RunError
from vitrine.text import did_you_mean, listed, nearest

SEED = "seed"


@dataclass(frozen=True)
class Row:
    """A configuration with its runs.

    Attributes:
        label: what to call it in a sentence.
        values: what it chose in each column, by the column's name.
        runs: by what tells them apart: the seed, and in a main effect the other choices with it.
    """

    label: str
    values: Mapping[str, str]
    runs: Mapping[Hashable, Run]

    @property
    def marginal(self) -> bool:
        """Whether it stands for all that other columns chose."""
        return any(isinstance(key, tuple) for key in self.runs)

    @property
    def brief(self) -> str:
        """What it chose, without the names of the choices: ``rope · 2``."""
        return " · ".join(self.values.values()) if len(self.values) > 1 else self.label

    def measured(self, metric: str) -> dict[Hashable, float]:
        """The metric by seed; of a main effect the mean over what else was chosen with that seed."""
        return by_seed({key: float(run.metrics[metric]) for key, run in self.runs.items()})

    @property
    def seeds(self) -> int:
        """How many repetitions it stands on."""
        return len({seed_of(key) for key in self.runs})


@dataclass(frozen=True)
class Table:
    """Rows, in the order in which they were started.

    Attributes:
        columns: names of the choices in which rows differ.
        rows: one for each configuration.
        along: keys that also differ, but only together with a column, and the values they take.
        repeated: runs left out, since the same configuration with the same seed ran again later.
    """

    columns: list[str]
    rows: list[Row]
    along: dict[str, list[str]]
    repeated: list[Run]

    def row(self, name: str) -> Row:
        """The row called ``name``: its label, or a value that it alone has.

        Raises:
            RunError: there is none, or there are several.
        """
        found = [row for row in self.rows if row.label == name]
        found = found or [row for row in self.rows if name in row.values.values()]
        found = found or [row for row in self.rows if _is_part(name, row)]
        if len(found) == 1:
            return found[0]
        labels = [row.label for row in self.rows]
        if found:
            raise RunError(f"baseline {name} is not one row but {len(found)}: {_some([row.label for row in found])}")
        values = [value for row in self.rows for value in row.values.values()]
        hint = did_you_mean(nearest(name, [*labels, *values]))
        raise RunError(f"no row is called {name}; rows: {_some(labels)}{hint}")

    def column(self, name: str) -> str:
        """The column called ``name``, or whose last part it is.

        Raises:
            RunError: there is none.
        """
        found = [column for column in self.columns if name in (column, column.rpartition(".")[2])]
        if not found and f".{name}".endswith(tuple(f".{column}" for column in self.columns)):
            found = [column for column in self.columns if f".{name}".endswith(f".{column}")]
        if found:
            return found[0]
        if name == SEED:
            raise RunError("seed is what runs are repeated with, not a choice to compare")
        has = f"they differ in {', '.join(self.columns)}" if self.columns else "they differ in nothing but the seed"
        raise RunError(f"these runs do not differ in {name}; {has}{did_you_mean(nearest(name, self.columns))}")

    def by(self, name: str) -> "Table":
        """Main effect of a column: a row for each of its values, over all that the other columns chose."""
        column = self.column(name)
        others = [other for other in self.columns if other != column]
        rows: dict[str, dict[Hashable, Run]] = {}
        for row in self.rows:
            rest = tuple(row.values[other] for other in others)
            kept = rows.setdefault(row.values[column], {})
            kept |= {(*rest, seed) if rest else seed: run for seed, run in row.runs.items()}
        made = [Row(_label({column: value}), {column: value}, runs) for value, runs in rows.items()]
        return Table([column], made, self.along, self.repeated)


def seed_of(key: Hashable) -> Hashable:
    """The seed in what tells a row's runs apart."""
    return key[-1] if isinstance(key, tuple) else key


def rest_of(key: Hashable) -> tuple[Hashable, ...]:
    """What else was chosen, of a main effect's run."""
    return key[:-1] if isinstance(key, tuple) else ()


def by_seed(values: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """The mean of each seed's values, numbers or arrays: what one seed gave under several choices is no repetition."""
    seeds: dict[Hashable, list[Any]] = {}
    for key, value in values.items():
        seeds.setdefault(seed_of(key), []).append(value)
    return {seed: sum(some) / len(some) for seed, some in seeds.items()}


def tabulate(runs: Sequence[Run]) -> Table:
    """Group finished runs by configuration. They come in the order they were started, and so do the rows."""
    known = {key for run in runs for key in run.config if matters(key, run.data)}
    values = {run.name: {key: _value(run, key) for key in known} for run in runs}
    differing = {key for key in known if len({one[key] for one in values.values()} - {UNKNOWN}) > 1}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps([values[run.name][key] for key in sorted(differing)]), []).append(run)
    grouped = list(groups.values())
    columns, along = _columns(grouped, differing)
    rows, repeated = [], []
    for index, members in enumerate(grouped):
        chosen = {name: values[index] for name, values in columns.items()}
        kept: dict[Hashable, Run] = {}
        for run in members:
            if run.seed in kept:
                repeated.append(kept[run.seed])
            kept[run.seed] = run
        rows.append(Row(_label(chosen), chosen, kept))
    return Table(list(columns), rows, along, repeated)


UNKNOWN = "unknown"  # to the version of vitrine that made the run; or no matter to that run


@cache
def matters(key: str, data: str) -> bool:
    """Whether a key's values tell apart configurations of runs on the data source ``data``."""
    facts = facts_of(key)
    return facts.in_comparisons and facts.affects(data)


def _value(run: Run, key: str) -> str:
    """What a run chose, as it is typed; ``null`` for a key of a section that it has turned off."""
    if not matters(key, run.data):  # as where MNIST lies, beside runs on pictures of one's own
        return UNKNOWN
    if key in run.config:
        return shown(run.config[key])
    if any(known.startswith(f"{key}.") for known in run.config):
        return UNKNOWN  # a section that is on: its own keys say how
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return "null" if any(section in run.config for section in above) else UNKNOWN


def _columns(
    groups: Sequence[Sequence[Run]], differing: set[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, list[str]]]:
    """As columns, with each group's value, what was typed differently; beside them, what only follows from that."""
    chosen: dict[str, tuple[str, ...]] = {}
    stands_for: set[str] = set()
    resolved = {key: tuple(_value(members[0], key) for members in groups) for key in differing}
    for word in dict.fromkeys(word for members in groups for run in members for word in run.words):
        given = [{run.words[word] for run in members if word in run.words} for members in groups]
        if word == SEED or any(len(values) > 1 for values in given) or len(set(map(frozenset, given))) == 1:
            continue
        values = [next(iter(one), None) for one in given]
        if key := _key_of(word, values, resolved):
            chosen[word] = resolved[key]
            stands_for.add(key)
        elif None not in values and not _no_choice(word):  # a word that sets several keys
            chosen[word] = tuple(map(str, values))
    along, asked = {}, list(chosen.values())
    for key in sorted(differing - stands_for):
        if asked and _follows(resolved[key], asked):
            along[key] = list(dict.fromkeys(resolved[key]))
        else:
            chosen[key] = resolved[key]
    return chosen, along


def _key_of(word: str, given: Sequence[str | None], resolved: Mapping[str, tuple[str, ...]]) -> str | None:
    """The differing key that a word of the command line sets: itself, or the one that takes the values typed."""
    if word in resolved:
        return word
    if "." in word:
        return None
    fitting = [
        key
        for key, values in resolved.items()
        if all(typed_value in (None, value) for typed_value, value in zip(given, values, strict=True))
    ]
    fitting.sort(key=lambda key: (not key.endswith(f".{word}"), not key.startswith((f"{word}.", "model.")), key))
    return fitting[0] if fitting else None


def _no_choice(word: str) -> bool:
    """Whether a word of the command line is a key's own name, or of something that cannot change a result."""
    return "." in word or not facts_of(word).affects("")


def _follows(values: Sequence[str], chosen: Sequence[Sequence[str]]) -> bool:
    """Whether rows that chose the same have the same value."""
    first: dict[tuple[str, ...], str] = {}
    rows = zip(*chosen, strict=True)
    return all(first.setdefault(row, value) == value for row, value in zip(rows, values, strict=True))


def _label(chosen: Mapping[str, str]) -> str:
    if not chosen:
        return "the configuration"
    if len(chosen) == 1:
        ((name, value),) = chosen.items()
        return value if value[:1].isalpha() and value not in ("null", "true", "false") else f"{name}={value}"
    return ", ".join(f"{name}={value}" for name, value in chosen.items())


def _is_part(name: str, row: Row) -> bool:
    """Whether ``position=rope,patch=2`` says of a row what is true of it."""
    pairs = [part.strip().partition("=") for part in name.split(",")]
    return all(sign and row.values.get(key) == value for key, sign, value in pairs)


def _some(names: Sequence[Any]) -> str:
    return listed(names, 8, "; ")
