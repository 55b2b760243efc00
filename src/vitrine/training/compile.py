"""Compile the model with ``torch.compile`` if it saves time, compilation included.

The gain can't be known beforehand, so ``trainer.compile=auto`` measures: a few uncompiled steps tell whether training
is long enough, then a few compiled ones whether they are faster. Measuring changes neither weights nor statistics.
Dropout draws the same masks as without the compiler, so results differ by rounding only.
"""

import math
import shutil
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from vitrine.errors import first_line
from vitrine.training.lit_module import Classifier

# What auto compiles, and the length of uncompiled training in seconds from which compilation pays off. On CPUs steps
# become a few percent faster (benchmarks/timing/rules.py measures it), and compilation takes 8 to 18 s.
WHAT = {"cpu": "blocks", "cuda": "model"}
EARNED_BACK_AFTER = {"cpu": 600.0, "cuda": 180.0}

COMPILERS = ("c++", "g++", "clang++", "cl")


@dataclass(frozen=True)
class Compiled:
    """Result of compilation.

    Attributes:
        what: ``nothing``, ``blocks``, ``model`` or ``graphs``.
        why: the reason, for people.
        seconds: time taken by compilation and the measured steps.
    """

    what: str
    why: str
    seconds: float = 0.0


class Compilation(Callback):
    """Compiles the model before the first step, or reports why not; evaluation stays uncompiled.

    Args:
        mode: a choice of ``trainer.compile``; for a resumed run, what was compiled before.
        may_measure: whether ``auto`` may decide by measured time; otherwise it compiles nothing.
        on_compiled: called with the result.
    """

    def __init__(self, mode: str, may_measure: bool, on_compiled: Callable[[Compiled], None]) -> None:
        self.mode = mode
        self.may_measure = may_measure
        self.on_compiled = on_compiled
        self.what = "nothing"

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Decide, compile and measure."""
        assert isinstance(module, Classifier)
        begin = time.perf_counter()
        compiled = self._compile(trainer, module)
        self.what = compiled.what
        self.on_compiled(Compiled(compiled.what, compiled.why, time.perf_counter() - begin))

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Release the outputs of the previous step's CUDA graphs."""
        if self.what == "graphs":
            torch.compiler.cudagraph_mark_step_begin()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Evaluate uncompiled: every other batch size would be compiled separately."""
        self._use_compiled("force_eager")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Return to compiled training."""
        self._use_compiled("default")

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Restore the process-wide default."""
        self._use_compiled("default")

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the process-wide default."""
        self._use_compiled("default")

    def _use_compiled(self, stance: Literal["default", "force_eager"]) -> None:
        if self.what != "nothing":  # the compiler takes seconds to import
            torch.compiler.set_stance(stance)

    def _compile(self, trainer: pl.Trainer, module: Classifier) -> Compiled:
        device = module.device.type
        what = WHAT.get(device, "nothing") if self.mode == "auto" else self.mode
        if what == "nothing":
            requested = module.config.trainer.compile == what
            reason = "as configured" if requested else "as when this run began"
            return Compiled(what, reason if self.mode == what else f"auto compiles nothing on {device}")
        if problem := _missing(device):
            return Compiled("nothing", problem)
        before = 0.0
        if self.mode == "auto":
            if not self.may_measure:
                return Compiled("nothing", "deterministic runs do not decide by measured time")
            before = self._of_rank_0(trainer, self._step_seconds(trainer, module))
            parts = module.config.trainer.accumulate_grad_batches
            if (total := before * parts * module.steps) < EARNED_BACK_AFTER[device]:
                return Compiled("nothing", f"training takes about {_time(total)}, too short to pay off")
        torch.compiler.reset()  # the recompilation limit counts earlier trainings in this process
        compiled_parts = compile_parts(module.model, what)
        after, failure = math.inf, ""
        try:
            after = self._step_seconds(trainer, module)
        except Exception as error:  # the compiler can fail in any way
            failure = f"it failed: {first_line(error)}"
        after = self._of_rank_0(trainer, after) if before else after
        if failure or after > 0.98 * (before or math.inf):
            undo(compiled_parts)
            why = failure or f"it was not faster: {_time(after)} a step instead of {_time(before)}"
            return Compiled("nothing", why)
        gain = f"{_time(after)} a step" + (f" instead of {_time(before)}" if before else "")
        return Compiled(what, gain)

    def _step_seconds(self, trainer: pl.Trainer, module: Classifier) -> float:
        """Time a forward and backward pass on a part of a batch: the shortest of three after a warm-up, in seconds."""
        data, parts = module.config.data, module.config.trainer.accumulate_grad_batches * trainer.world_size
        shape = (module.images_per_step // parts, data.in_channels, data.image_size, data.image_size)
        images = torch.zeros(shape, dtype=torch.uint8, device=module.device)
        labels = torch.zeros(len(images), dtype=torch.int64, device=module.device)
        statistics = {name: buffer.clone() for name, buffer in module.model.named_buffers()}
        seconds = []
        try:
            for _ in range(4):
                module.zero_grad()  # outputs of CUDA graphs are overwritten by the next pass
                if self.mode == "graphs":
                    torch.compiler.cudagraph_mark_step_begin()
                _wait(module.device)
                begin = time.perf_counter()
                with trainer.precision_plugin.train_step_context():
                    loss = module.criterion(module(images), labels)
                loss.backward()
                _wait(module.device)
                seconds.append(time.perf_counter() - begin)
        finally:
            module.zero_grad()
            for name, buffer in module.model.named_buffers():
                buffer.copy_(statistics[name])
        return min(seconds[1:])

    @staticmethod
    def _of_rank_0(trainer: pl.Trainer, seconds: float) -> float:
        """Return rank 0's measurement, so that all ranks decide alike."""
        return float(trainer.strategy.broadcast(seconds))


def compile_parts(model: nn.Module, what: str) -> list[nn.Module]:
    """Mark the parts of ``model`` that ``what`` names to be compiled on their first call; return them."""
    blocks = getattr(model, "blocks", None)  # a user's own model may have none
    parts = list(blocks.children()) if what == "blocks" and isinstance(blocks, nn.Module) else [model]
    options: dict[str, Any] = {"fallback_random": True}
    if what == "graphs":
        options["triton.cudagraphs"] = True
    for part in parts:
        part.compile(dynamic=False, options=options)
    return parts


def undo(parts: list[nn.Module]) -> None:
    """Return compiled parts to eager mode."""
    for part in parts:
        part._compiled_call_impl = None  # PyTorch has no public method


def _missing(device: str) -> str:
    """Return what the compiler lacks on this machine; empty if nothing."""
    if not any(map(shutil.which, COMPILERS)):
        return "this machine has no C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "this machine has no Python headers (python3-dev)"
    if device == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    return ""


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
