"""What a run leaves on disk: writing, finding and reading it back. Imports no torch."""

from vitrine.runs.metrics import MetricsFile
from vitrine.runs.record import RunRecord

__all__ = ["MetricsFile", "RunRecord"]
