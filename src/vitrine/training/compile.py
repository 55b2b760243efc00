"""Compile the model with ``torch.compile`` if it saves time, compilation included.

The gain can't be known beforehand, so ``trainer.compile=auto`` measures: a few uncompiled steps tell whether training
is long enough, then a few compiled ones whether they are faster. This trial is abandoned when it takes longer than a
share of the training that it might shorten. Measuring changes neither weights nor statistics.
Dropout draws the same masks as without the compiler, so results differ by rounding only, except in PyTorch 2.11, where
a model compiled as a whole, also as CUDA graphs, draws different ones.
"""

import math
import shutil
import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from vitrine.config.image_schedule import image_sides
from vitrine.durations import short_duration
from vitrine.errors import first_line
from vitrine.signals import importing, swallowed
from vitrine.training.finetune import has_constant_features
from vitrine.training.graceful_stop import TimeLimit
from vitrine.training.lit_module import Classifier
from vitrine.training.losses import mean_loss

# What auto compiles on a device. On several GPUs graphs were never tried: it is the model (what_pays).
WHAT = {"cpu": "blocks", "cuda": "graphs"}

# By what is compiled, the length of uncompiled training in seconds from which compilation pays off, and the longest
# trial: a share of that length, and seconds. On CPUs steps become 1.01 to 1.31 times as fast, and compilation takes 5
# to 18 s (benchmarks/timing/rules.py measures both). On a GPU it took 44 s, and the model gained 1.2 to 1.5, as CUDA
# graphs, which replace Python, 1.3 to 2.7 (benchmarks/timing/gpu.py).
EARNED_BACK_AFTER = {"blocks": 600.0, "model": 300.0, "graphs": 180.0}
TRIAL_SHARE = {"blocks": 0.05, "model": 0.2, "graphs": 0.3}
TRIAL_SECONDS = {"blocks": 30.0, "model": 180.0, "graphs": 180.0}
REPEAT_SECONDS = 0.5  # until a trial is abandoned again, should the compiler have caught it, or be importing a module

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


Showing = Callable[[float | None], AbstractContextManager[None]]


class TrialTooLong(BaseException):
    """A trial of the compiler has reached its limit. No Exception, as the compiler would report that as its own."""


class Compilation(Callback):
    """Compiles the model before the first step, or reports why not; evaluation stays uncompiled.

    Args:
        mode: a choice of ``trainer.compile``; for a resumed run, what was compiled before.
        may_measure: whether ``auto`` may decide by measured time; otherwise it compiles nothing.
        on_compiled: called with the result.
        showing: entered while the compiler works; takes the most seconds of a trial, or ``None`` for no limit.
        stop_by: when the command must have ended, as ``time.time()`` gives it; infinite for no limit. ``auto``
            counts the training until then.
    """

    def __init__(
        self,
        mode: str,
        may_measure: bool,
        on_compiled: Callable[[Compiled], None],
        showing: Showing,
        stop_by: float = math.inf,
    ) -> None:
        self.mode = mode
        self.may_measure = may_measure
        self.on_compiled = on_compiled
        self.showing = showing
        self.stop_by = stop_by
        self.what = "nothing"
        self.partial_batch = False  # the current one

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Decide, compile and measure."""
        assert isinstance(module, Classifier)
        begin = time.perf_counter()
        compiled = self._compile(trainer, module)
        self.what = compiled.what
        self.on_compiled(Compiled(compiled.what, compiled.why, time.perf_counter() - begin))

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """Release the outputs of the previous step's CUDA graphs; leave an epoch's last, smaller batch uncompiled."""
        if self.what == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        assert isinstance(module, Classifier)
        self.partial_batch = len(batch[1]) * trainer.world_size < module.images_per_step
        if self.partial_batch:
            self._use_compiled("force_eager")

    def on_train_batch_end(self, *_: Any) -> None:
        """Return to compiled training after a smaller batch."""
        if self.partial_batch:
            self._use_compiled("default")

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
        what = what_pays(device, trainer.world_size) if self.mode == "auto" else self.mode
        if what == "nothing":
            return Compiled(what, self._why_nothing(module))
        if problem := self._of_any_rank(trainer, missing_for(device)):
            return Compiled("nothing", problem)
        before, limit = math.inf, None
        if self.mode == "auto":
            measured = self._uncompiled(trainer, module, what)
            if isinstance(measured, str):
                return Compiled("nothing", measured)
            before, total = measured
            limit = min(TRIAL_SHARE[what] * total, TRIAL_SECONDS[what])
        torch.compiler.reset()  # the recompilation limit counts earlier trainings in this process
        parts = compile_parts(module.model, what)
        self.what, after = what, math.inf  # while it is measured, too
        try:
            with self.showing(limit), _at_most(limit):
                after = self._step_seconds(trainer, module)
        except TrialTooLong:
            problem = f"abandoned after {short_duration(limit or 0.0)}, the most that trying it may take of this run"
        except Exception as error:  # the compiler can fail in any way
            problem = f"it failed: {first_line(error)}"
        problem, instead = self._of_any_rank(trainer, problem), ""
        if self.mode == "auto":
            after, instead = self._of_rank_0(trainer, after), f" instead of {short_duration(before)}"
        if not problem and after > 0.98 * before:
            problem = f"it was not faster: {short_duration(after)} a step{instead}"
        if problem:
            undo(parts)
            torch.compiler.reset()  # frees the memory of CUDA graphs
            return Compiled("nothing", problem)
        return Compiled(what, f"{short_duration(after)} a step{instead}")

    def _why_nothing(self, module: Classifier) -> str:
        """Return why the mode, or ``auto`` on this device, compiles nothing."""
        if self.mode == "auto":
            return f"auto compiles nothing on {module.device.type}"
        if has_constant_features(module.config):
            return "the blocks are called once for each image"
        return "as configured" if module.config.trainer.compile == "nothing" else "as when this run began"

    def _uncompiled(self, trainer: pl.Trainer, module: Classifier, what: str) -> tuple[float, float] | str:
        """Return seconds of a step and of all, uncompiled, or why ``auto`` does not try to compile."""
        if not self.may_measure:
            return "deterministic runs do not decide by measured time"
        if not _can_be_abandoned():
            return "it is tried in a program's main thread only, where it can be abandoned"
        least = EARNED_BACK_AFTER[what]
        left = self._of_rank_0(trainer, max(0.0, self.stop_by - time.time() - TimeLimit.MARGIN))
        if left < least:
            return f"trainer.max_time leaves {short_duration(left)}, too short to pay off"
        settings = module.config.trainer
        sides = image_sides(settings.image_schedule, settings.max_epochs)
        whole = sides.count(None) / len(sides)  # steps on smaller images are not compiled
        parts = settings.accumulate_grad_batches * module.steps * whole
        step = self._of_rank_0(trainer, self._step_seconds(trainer, module, least / parts))
        total = min(step * parts, left)
        if total < least:
            untimed = "" if module.distillation is None else " beside its teacher"  # which is not compiled
            return f"training takes less than {short_duration(total)}{untimed}, too short to pay off"
        return step, total

    def _step_seconds(self, trainer: pl.Trainer, module: Classifier, short: float = 0.0) -> float:
        """Time a forward and backward pass on a part of a batch: the shortest of three after a warm-up, in seconds.

        Returns the warm-up's time, which is an upper limit, if that is below ``short``.
        """
        data, parts = module.config.data, module.config.trainer.accumulate_grad_batches * trainer.world_size
        shape = (module.images_per_step // parts, data.in_channels, *data.image_hw)
        images = torch.zeros(shape, dtype=torch.uint8, device=module.device)
        targets = len(data.classes_per_target)
        labels = torch.zeros(len(images), targets, dtype=torch.int64, device=module.device).squeeze(1)
        if data.multi_label:
            labels = images.new_zeros(len(images), data.num_classes)
        statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]
        places = [(part._buffers, dict(part._buffers)) for part in module.modules()]  # a loss may replace some
        seconds = []
        try:
            for _ in range(4):
                module.zero_grad()  # outputs of CUDA graphs are overwritten by the next pass
                if self.what == "graphs":
                    torch.compiler.cudagraph_mark_step_begin()
                _wait(module.device)
                begin = time.perf_counter()
                with trainer.precision_plugin.train_step_context():
                    loss = mean_loss(module.criterion, module.config.loss.name, module(images), labels)
                loss.backward()
                _wait(module.device)
                seconds.append(time.perf_counter() - begin)
                if seconds[0] < short:
                    break
        finally:
            module.zero_grad()
            for buffers, before in places:
                buffers.clear()
                buffers.update(before)
            for buffer, value in statistics:
                buffer.copy_(value)
        return min(seconds[1:] or seconds)

    @staticmethod
    def _of_rank_0(trainer: pl.Trainer, seconds: float) -> float:
        """Return rank 0's measurement, so that all ranks decide alike."""
        return float(trainer.strategy.broadcast(seconds))

    @staticmethod
    def _of_any_rank(trainer: pl.Trainer, problem: str) -> str:
        """Return this rank's problem, or that another rank has one, so that all ranks decide alike."""
        found = trainer.strategy.reduce_boolean_decision(bool(problem), all=False)
        return problem or ("it failed on another rank" if found else "")


def what_pays(device: str, ranks: int) -> str:
    """Return what ``auto`` tries to compile on a device type, where ``ranks`` devices train together."""
    what = WHAT.get(device, "nothing")
    return "model" if what == "graphs" and ranks > 1 else what


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


def _can_be_abandoned() -> bool:
    """Whether :func:`_at_most` works here: signals reach the main thread only."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TrialTooLong` in the block once it has taken ``seconds``; ``None`` sets no limit."""
    if seconds is None:
        yield
        return

    def abandon(number: int, frame: FrameType | None) -> None:
        if not importing(frame):
            raise TrialTooLong

    before = signal.signal(signal.SIGALRM, abandon)
    with swallowed(TrialTooLong, lambda: None):  # the next signal raises it again
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


def missing_for(device: str) -> str:
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
