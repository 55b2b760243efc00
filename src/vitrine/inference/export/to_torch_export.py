"""``--format torch_export``: PyTorch's exported graph in a .pt2 file, for ``torch.export.load``."""

import io
from pathlib import Path

import torch

from vitrine.inference.export.checks import Runtime
from vitrine.inference.export.source import ExportSource


def write(source: ExportSource, path: Path) -> None:
    """Write the graph and its weights; ``extra_files`` have what a program has to know."""
    content = io.BytesIO()  # PyTorch's own writer ends the process when the disk is full
    torch.export.save(source.program, content, extra_files=source.facts)
    path.write_bytes(content.getbuffer())


def load(path: Path) -> Runtime:
    """Load the graph, which PyTorch's own operators run."""
    return Runtime(f"torch.export of torch {torch.__version__}", torch.export.load(path).module())
