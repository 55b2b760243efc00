"""Failed and diverged runs as an outcome of a configuration: means over the others are means over survivors."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scipy import stats

from vitrine.compare.load import RunResult, as_typed
from vitrine.compare.table import SEED, ConfigurationRow, Table, configuration_key, shortened
from vitrine.runs.status import FAILED


@dataclass(frozen=True)
class FailureRate:
    """How many of a configuration's runs failed or diverged."""

    failed: int
    total: int

    @property
    def share(self) -> float:
        """The share of runs that failed, in [0, 1]."""
        return self.failed / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the rate (Clopper and Pearson, 1934), within [0, 1]."""
        found = stats.binomtest(self.failed, self.total).proportion_ci(0.95, "exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.failed} of {self.total} runs failed or diverged (95 % interval {low:.0%} to {high:.0%})"


def failure_rates(table: Table, unfinished: Sequence[RunResult]) -> dict[str, FailureRate]:
    """Count the runs among ``unfinished`` that failed with a row's configuration and a seed that never finished.

    In a main effect, these are all that have the row's value, also where no run of their configuration finished.

    Returns:
        The rate of each row, by its label.
    """
    failed = [(_configuration(run), run) for run in unfinished if run.status in FAILED]
    rates = {}
    for row in table.rows:
        finished = {(_configuration(run), run.repetition) for run in row.runs.values()}
        configurations = {configuration for configuration, _ in finished}
        if row.is_main_effect:
            configurations |= {configuration for configuration, run in failed if _has_value_of(row, run)}
        lost = {(configuration, run.repetition) for configuration, run in failed if configuration in configurations}
        count = len(lost - finished)
        rates[row.label] = FailureRate(count, count + len(row.runs))
    return rates


def failed_configurations(table: Table, unfinished: Sequence[RunResult]) -> list[str]:
    """Return a sentence for each configuration that has no row since all of its runs failed or diverged."""
    known = [run for row in table.rows for run in row.runs.values()]
    finished = {_configuration(run) for run in known}
    shared = set.intersection(*(set(run.overrides.items()) for run in known))
    lost: dict[str, dict[Hashable, RunResult]] = {}
    for run in unfinished:
        if run.status in FAILED and (configuration := _configuration(run)) not in finished:
            lost.setdefault(configuration, {})[run.repetition] = run
    sentences = []
    for runs in lost.values():
        typed = [pair for pair in next(iter(runs.values())).overrides.items() if pair not in shared and pair[0] != SEED]
        label = ", ".join(f"{name}={value}" for name, value in typed) or "a configuration"
        sentences.append(f"{label} has no row: {FailureRate(len(runs), len(runs))}")
    return sentences


def _has_value_of(row: ConfigurationRow, run: RunResult) -> bool:
    """Whether a run has the one value of a main effect's row."""
    ((column, value),) = row.values.items()
    own = as_typed(run.config[column]) if column in run.config else run.overrides.get(column, "")
    return value in (own, *shortened([own]))


def _configuration(run: RunResult) -> str:
    return configuration_key(run.config, run.data)
