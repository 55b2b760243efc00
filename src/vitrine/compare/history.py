"""How the runs of a table came about: whether a fixed number of seeds decided, and all of them finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitrine.compare.decided import SweepDecision
from vitrine.compare.failures import FailureRate, failure_rates
from vitrine.compare.left_out import LeftOut
from vitrine.compare.load import RunResult
from vitrine.compare.looks import ComparedSweep, Growth
from vitrine.compare.table import ConfigurationRow, Table


@dataclass(frozen=True)
class History:
    """What decided which runs a table has.

    Attributes:
        decision: what the sweep decided while it trained; its intervals and verdicts replace those of a fixed number
            of seeds.
        growth: rows to which seeds were added because of results: no interval of a fixed number of seeds holds for
            them.
        left_out: configurations that a filter left out, which count as rows; and rows that lack seeds.
        unfinished: runs that failed, diverged, were interrupted or are still training.
        failed: how many runs of each row failed or diverged, by the row's label.
    """

    decision: SweepDecision | None
    growth: Growth | None
    left_out: LeftOut
    unfinished: Sequence[RunResult]
    failed: Mapping[str, FailureRate]

    @classmethod
    def of(
        cls,
        table: Table,
        sweeps: Sequence[ComparedSweep],
        decision: SweepDecision | None,
        left_out: LeftOut,
        unfinished: Sequence[RunResult],
    ) -> "History":
        """Look for rows that have grown or failed. Raises RunError if looks.json is damaged."""
        growth = Growth.of(table, sweeps) if decision is None else None  # a decision allows for looks
        return cls(decision, growth, left_out, unfinished, failure_rates(table, unfinished))

    @property
    def is_fixed(self) -> bool:
        """Whether each row has all runs of a number of seeds that was set beforehand, or lost as many as the others."""
        shares = {rate.share for rate in self.failed.values()}
        return self.decision is None and self.growth is None and not self.left_out.rows and len(shares) == 1

    def why_no_verdict(self, row: ConfigurationRow, baseline: ConfigurationRow, verdict: str) -> str:
        """Return why a fixed number of seeds cannot show that a row is ``better``, ``worse`` or ``equal``; or empty.

        Means are over the runs that survived, and say nothing of the others: the side that failed more often is not
        called better, and sides that failed differently often are not called equal.
        """
        if self.decision is not None:
            return f"seeds were added until {self.decision.metric} decided between configurations"
        grown = {} if self.growth is None else self.growth.rows
        if added := grown.get(row.label) or grown.get(baseline.label):
            return f"seeds were added {added}"
        if reason := self.left_out.withheld(row, baseline):
            return reason
        more = self.failed[row.label].share - self.failed[baseline.label].share
        survivors = {"better": more > 0, "worse": more < 0, "equal": more != 0}.get(verdict, False)
        return "means are over survivors" if survivors else ""

    def failures(self, *rows: ConfigurationRow) -> str:
        """Return ``; of rope, 1 of 4 runs failed ...`` of those that failed; empty if none did."""
        failed = [f"of {row.label}, {self.failed[row.label]}" for row in rows if self.failed[row.label].failed]
        return f"; {' and '.join(failed)}" if failed else ""
