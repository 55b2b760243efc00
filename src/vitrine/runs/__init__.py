"""What a run leaves on disk: write it, find it, read it. Does not import torch."""

from vitrine.runs.metrics_file import MetricsFile
from vitrine.runs.record import RunRecord

__all__ = ["MetricsFile", "RunRecord"]
