"""``--format torch_export``: PyTorch's exported graph in a .pt2 file, for ``torch.export.load``."""

from pathlib import Path

import torch

from vitrine.inference.export.checks import Runtime
from vitrine.inference.export.source import ExportSource


def write(source: ExportSource, path: Path) -> None:
    """Write the graph and its weights; ``extra_files`` have what a program has to know."""
    torch.export.save(source.program, path, extra_files=source.facts)


def load(path: Path) -> Runtime:
    """Load the graph, which PyTorch's own operators run."""
    return Runtime(f"torch.export of torch {torch.__version__}", torch.export.load(path).module())
