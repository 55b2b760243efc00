"""Compiling the model where that pays: less time in all, though it takes time itself.

How much a compiled step gains is not to be known beforehand, so ``auto`` tries it: first whether the training is long
enough, by a few steps as they are; then, compiled, whether these are faster. A trial leaves weights and statistics as
they were. Dropout draws what it draws without the compiler, so that results differ by rounding only.
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

# What is compiled by auto, and how long training must take uncompiled, in seconds, for that to be earned back. On CPUs
# steps get faster by some percent (benchmarks/timing/rules.py measures it), and compiling takes 8 to 18 s.
WHAT = {"cpu": "blocks", "cuda": "model"}
EARNED_BACK_AFTER = {"cpu": 600.0, "cuda": 180.0}

COMPILERS = ("c++", "g++", "clang++", "cl")


@dataclass(frozen=True)
class Compiled:
    """What came of it.

    Attributes:
        what: ``nothing``, ``blocks``, ``model`` or ``graphs``.
        why: for people.
        seconds: what compiling took, and the trial steps.
    """

    what: str
    why: str
    seconds: float = 0.0


class Compilation(Callback):
    """Compiles the model before the first step, or says why not; evaluation stays uncompiled.

    Args:
        asked: the word of ``trainer.compile``; or what this run has been trained with before.
        trials: whether ``auto`` may be decided by the clock; it compiles nothing otherwise.
        tell: is given what came of it.
    """

    def __init__(self, asked: str, trials: bool, tell: Callable[[Compiled], None]) -> None:
        self.asked = asked
        self.trials = trials
        self.tell = tell
        self.what = "nothing"

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Decide, compile, and try it."""
        assert isinstance(module, Classifier)
        begin = time.perf_counter()
        compiled = self._decided(trainer, module)
        self.what = compiled.what
        self.tell(Compiled(compiled.what, compiled.why, time.perf_counter() - begin))

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """What CUDA graphs gave in the step before is no longer needed."""
        if self.what == "graphs":
            torch.compiler.cudagraph_mark_step_begin()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Evaluate uncompiled: batches of other sizes would be compiled anew."""
        self._use_compiled("force_eager")

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Train compiled again."""
        self._use_compiled("default")

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Leave the process as it was."""
        self._use_compiled("default")

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the process as it was."""
        self._use_compiled("default")

    def _use_compiled(self, stance: Literal["default", "force_eager"]) -> None:
        if self.what != "nothing":  # the compiler takes seconds to import
            torch.compiler.set_stance(stance)

    def _decided(self, trainer: pl.Trainer, module: Classifier) -> Compiled:
        device = module.device.type
        what = WHAT.get(device, "nothing") if self.asked == "auto" else self.asked
        if what == "nothing":
            asked = module.config.trainer.compile == what
            as_before = "as asked" if asked else "as this run began"
            return Compiled(what, as_before if self.asked == what else f"auto compiles nothing on {device}")
        if problem := _missing(device):
            return Compiled("nothing", problem)
        before = 0.0
        if self.asked == "auto":
            if not self.trials:
                return Compiled("nothing", "deterministic runs decide nothing by the clock")
            before = self._agreed(trainer, self._seconds(trainer, module))
            parts = module.config.trainer.accumulate_grad_batches
            if (total := before * parts * module.steps) < EARNED_BACK_AFTER[device]:
                return Compiled("nothing", f"training takes about {_time(total)}, too short to earn it back")
        torch.compiler.reset()  # the limit on variants counts those of earlier trainings in this process
        compiled_parts = compile_parts(module.model, what)
        after, failure = math.inf, ""
        try:
            after = self._seconds(trainer, module)
        except Exception as error:  # the compiler can fail in any way
            failure = f"it failed: {first_line(error)}"
        after = self._agreed(trainer, after) if before else after
        if failure or after > 0.98 * (before or math.inf):
            undo(compiled_parts)
            why = failure or f"it was tried: {_time(after)} a step instead of {_time(before)}"
            return Compiled("nothing", why)
        gain = f"{_time(after)} a step" + (f" instead of {_time(before)}" if before else "")
        return Compiled(what, gain)

    def _seconds(self, trainer: pl.Trainer, module: Classifier) -> float:
        """Seconds of a forward and backward pass on a part of a batch: the shortest of three, after one to warm up."""
        data, parts = module.config.data, module.config.trainer.accumulate_grad_batches * trainer.world_size
        shape = (module.images_per_step // parts, data.in_channels, data.image_size, data.image_size)
        images = torch.zeros(shape, dtype=torch.uint8, device=module.device)
        labels = torch.zeros(len(images), dtype=torch.int64, device=module.device)
        statistics = {name: buffer.clone() for name, buffer in module.model.named_buffers()}
        seconds = []
        try:
            for _ in range(4):
                module.zero_grad()  # what CUDA graphs gave is no longer there in the next pass
                if self.asked == "graphs":
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
    def _agreed(trainer: pl.Trainer, seconds: float) -> float:
        """What the first process has measured, so that all decide alike."""
        return float(trainer.strategy.broadcast(seconds))


def compile_parts(model: nn.Module, what: str) -> list[nn.Module]:
    """Have the parts of ``model`` that ``what`` names compiled when they are called first; gives those parts."""
    blocks = getattr(model, "blocks", None)  # which a model of the user's may lack
    parts = list(blocks.children()) if what == "blocks" and isinstance(blocks, nn.Module) else [model]
    options: dict[str, Any] = {"fallback_random": True}
    if what == "graphs":
        options["triton.cudagraphs"] = True
    for part in parts:
        part.compile(dynamic=False, options=options)
    return parts


def undo(parts: list[nn.Module]) -> None:
    """Make compiled parts what they were."""
    for part in parts:
        part._compiled_call_impl = None  # there is no public way back


def _missing(device: str) -> str:
    """What the compiler needs and this machine has not; empty if nothing."""
    if not any(map(shutil.which, COMPILERS)):
        return "there is no C++ compiler here"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers are not here (python3-dev)"
    if device == "cuda" and find_spec("triton") is None:
        return "triton is not here"
    return ""


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
