"""Make an export: load the run, write the format, check it in its own runtime, and only then put it in its place."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from vitrine.durations import short_duration
from vitrine.errors import DataError, RunError, VitrineError, first_line
from vitrine.files import staging
from vitrine.inference.calibrate import calibrate_export
from vitrine.inference.export.checks import (
    AccuracyCost,
    Computation,
    Latency,
    Runtime,
    accuracy_cost,
    each_output,
    largest_differences,
    latencies,
)
from vitrine.inference.export.formats import ExportError, ExportRequest
from vitrine.inference.export.source import ExportSource
from vitrine.text import file_size, listed, plural
from vitrine.training.console import quiet_libraries

# Each format's module has write(source, path) and load(path).
MODULES = {
    "onnx": "to_onnx",
    "torch_export": "to_torch_export",
    "aoti": "to_aoti",
    "safetensors": "to_timm",
    "hf": "to_hub",
}
MAX_DIFFERENCE = 1e-4  # of float32 exports, in probabilities, features or logits
LEFT_ON_FULL_DISK = 2**16  # bytes; some libraries report no more than that a write failed


@dataclass(frozen=True)
class ExportReport:
    """An export and what its checks found.

    Attributes:
        path: the file or folder.
        size: its bytes.
        runtime: the program that it was checked in.
        differences: largest difference from PyTorch, as a share of values above 1, by batch size.
        latencies: beside PyTorch's.
        cost: in accuracy; ``None`` for float32.
        page: its address in the hub, if it was pushed.
        calibration: the temperature and its effect, in lines; empty of an export without one.
    """

    path: Path
    size: int
    runtime: str
    differences: dict[int, float]
    latencies: list[Latency]
    cost: AccuracyCost | None
    page: str | None = None
    calibration: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The report for people, in lines."""
        batches = listed(list(self.differences))
        largest = max(self.differences.values())
        difference = f"at most {largest:.1e} from" if largest else "equal to"
        lines = [
            f"written    {self.path}, {file_size(self.size)}",
            f"checked    in {self.runtime}, batches of {batches}: {difference} PyTorch in float32",
        ]
        for number, line in enumerate(self.calibration):
            lines.append(f"{'           ' if number else 'calibrated temperature '}{line}")
        for latency in self.latencies:
            times = f"{short_duration(latency.exported)}, PyTorch {short_duration(latency.pytorch)}"
            lines.append(f"latency    batch of {latency.batch}: {times}; medians, in turn")
        if (cost := self.cost) is not None:
            difference = f"{cost.exported - cost.pytorch:+.4f} ± {cost.half_width:.4f}"
            used = ", on which the model was trained" if cost.trained_on else ""
            lines.append(
                f"accuracy   {cost.exported:.4f} on {plural(cost.images, 'validation image')}{used}, "
                f"PyTorch in float32 {cost.pytorch:.4f}: {difference}; {plural(cost.changed, 'other prediction')}"
            )
        if self.page is not None:
            lines.append(f"pushed     {self.page}")
        return "\n".join(lines)


def export_run(request: ExportRequest) -> ExportReport:
    """Export a run; the target appears whole and checked, or not at all.

    Raises:
        ExportError: the model can't be exported, or the export differs from PyTorch; nothing has been written.
        RunError: the checkpoint is missing, damaged or refused, or the target can't be written.
        DataError: the validation images, on which float16 and int8 are measured and temperatures fitted, are missing,
            damaged or changed.
    """
    try:
        return _export(request)
    except OSError as error:
        raise RunError(f"cannot write {request.path}: {error.strerror}") from error


def _export(request: ExportRequest) -> ExportReport:
    source = ExportSource.load(request)
    module = import_module(f"vitrine.inference.export.{MODULES[request.format]}")
    with quiet_libraries(), torch.no_grad(), staging(request.path) as staged, _failures_of(request):
        if request.calibrate:
            source = _calibrated(source, module, staged.with_name(f"uncalibrated{request.kind.suffix}"))
        module.write(source, staged)
        report = check(source, module.load(staged), staged)
    page = None if request.hub is None else module.push(request.path, request.hub)
    return replace(report, path=request.path, page=page)


def _calibrated(source: ExportSource, module: ModuleType, path: Path) -> ExportSource:
    """Fit the temperature of what is exported; rounded weights have one of their own, and go to ``path`` for it."""
    request, exact = source.request, source.request.dtype == "float32"
    run: Computation = source.reference.logits
    if not exact:
        module.write(source, path)
        run = module.load(path).run

    def logits_of(pictures: Tensor) -> Tensor:
        given = each_output(run(pictures))[0].float()
        # Of probabilities the logarithm: it differs from the logits by a constant, which no softmax shows.
        is_logits = exact or request.kind.gives == "logits"
        return given if is_logits else given.clamp_min(torch.finfo(torch.float32).tiny).log()

    return replace(source, calibration=calibrate_export(source.run, logits_of, request.data_root, exact=exact))


def check(source: ExportSource, runtime: Runtime, path: Path) -> ExportReport:
    """Compare an export with PyTorch.

    Raises:
        ExportError: it fails, or is a float32 export that differs by more than ``MAX_DIFFERENCE``.
    """
    request, shape = source.request, source.picture_shape
    pytorch = source.reference if request.kind.gives == "probabilities" else source.reference.logits
    differences = largest_differences(runtime.run, pytorch, shape)
    batch, worst = max(differences.items(), key=lambda item: item[1])
    if request.dtype == "float32" and worst > MAX_DIFFERENCE:
        problem = f"its {listed(request.outputs)} differ from PyTorch's by {worst:.1e} on a batch of {batch}"
        raise ExportError(f"the export is not exact: {problem}; at most {MAX_DIFFERENCE:.0e} is accepted")
    cost = None
    if request.dtype != "float32":
        try:
            cost = accuracy_cost(runtime.run, pytorch, source.run, request.data_root, request.kind.gives)
        except VitrineError as error:
            problem = f"{request.dtype} is compared with float32 on the validation images: {error}"
            raise DataError(f"{problem}; if they have moved, --data-root DIR") from None
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    calibration = [] if source.calibration is None else source.calibration.lines
    measured = differences, latencies(runtime.run, pytorch, shape), cost
    return ExportReport(path, size, runtime.name, *measured, calibration=calibration)


@contextmanager
def _failures_of(request: ExportRequest) -> Iterator[None]:
    """Report in one line why a format's library failed, and a full disk as such."""
    try:
        yield
    except VitrineError:
        raise
    except Exception as error:  # each format's library has errors of its own
        if isinstance(error, OSError) and error.errno is not None:
            raise
        full = os.strerror(errno.ENOSPC)
        if full in str(error) or shutil.disk_usage(request.path.parent).free < LEFT_ON_FULL_DISK:
            raise OSError(errno.ENOSPC, full, str(request.path)) from error
        problem = f"{request.run} cannot be exported as {request.format}"
        raise ExportError(f"{problem}: {type(error).__name__}: {first_line(error)}") from error
