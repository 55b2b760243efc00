"""What a run leaves on disk: writing, finding and reading it back. Imports no torch."""

from vitrine.runs.record import MetricsFile, RunRecord

__all__ = ["MetricsFile", "RunRecord"]
