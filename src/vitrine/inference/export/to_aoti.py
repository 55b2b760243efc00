"""``--format aoti``: the model compiled to machine code by AOTInductor, in a .pt2 file for this kind of processor."""

import io
from pathlib import Path

import torch

from vitrine.inference.export.checks import Runtime
from vitrine.inference.export.formats import ExportError
from vitrine.inference.export.source import ExportSource
from vitrine.training.compile import missing_for


def write(source: ExportSource, path: Path) -> None:
    """Compile the model; its metadata has what a program has to know.

    Raises:
        ExportError: this machine can't compile.
    """
    if missing := missing_for("cpu"):
        raise ExportError(f"--format aoti compiles, but {missing}; --format torch_export needs none")
    settings = {"aot_inductor.metadata": source.facts}
    content = io.BytesIO()  # PyTorch's own writer ends the process when the disk is full
    torch._inductor.aoti_compile_and_package(source.program, package_path=content, inductor_configs=settings)
    path.write_bytes(content.getbuffer())


def load(path: Path) -> Runtime:
    """Load the compiled model."""
    return Runtime(f"AOTInductor of torch {torch.__version__}", torch._inductor.aoti_load_package(str(path)))
