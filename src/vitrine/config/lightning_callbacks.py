"""Lightning's callbacks that cannot work in a run, and what to use in their place. Imports no torch."""

from collections.abc import Iterator, Sequence
from typing import Any

from vitrine.config.parts import load, parts_of
from vitrine.config.schedule_free import is_schedule_free
from vitrine.config.schema import TrainConfig
from vitrine.errors import Fault

# By the name of the class, also for its subclasses: why not, and what to use.
REFUSED = {
    "BackboneFinetuning": "adds weights to the optimiser, which has all of them; use finetune=last_blocks, or set "
    "requires_grad in on_train_batch_start",
    "BatchSizeFinder": "does not know the data; use data.batch_size, or trainer.accumulate_grad_batches to save memory",
    "Checkpoint": "does not write what a run resumes from; use callbacks.monitor, which selects the epoch to keep, "
    "and callbacks.keep_every, which keeps more",
    "GradientAccumulationScheduler": "needs automatic optimisation; use trainer.accumulate_grad_batches",
    "LearningRateFinder": "needs automatic optimisation; use optimizer.lr=auto",
    "ProgressBar": "would be a second progress bar; leave it out",
    "StochasticWeightAveraging": "averages after the last checkpoint is written; use callbacks=[default,ema], or a "
    "subclass of Lightning's WeightAveraging",
}
AVERAGING = "WeightAveraging"


def callback_faults(config: TrainConfig, given: Any = ()) -> Iterator[Fault]:
    """Yield each configured callback, and each of the list ``given`` in Python, that cannot work in the run."""
    if not isinstance(given, Sequence):
        yield Fault("callbacks", type(given).__name__, "must be in a list, callbacks=[...]")
        return
    parts = [part for part in parts_of(config.callbacks) if part.key == "parts"]
    kinds = [("callbacks.parts", part.name, load(part.name)) for part in parts]
    kinds += [("callbacks", type(one).__name__, type(one)) for one in given]
    averaging = "callbacks.ema" if config.callbacks.ema is not None else ""
    if is_schedule_free(config.optimizer):
        averaging = f"optimizer={config.optimizer.name}"
    for key, name, kind in kinds:
        known = [base.__name__ for base in getattr(kind, "__mro__", ()) if _is_lightnings(base)]
        if key == "callbacks" and "Callback" not in known:
            yield Fault(key, name, "is no lightning.pytorch.Callback; a callback is an instance, not a class")
        for base in known:
            if base in REFUSED:
                yield Fault(key, name, REFUSED[base])
        if AVERAGING in known and averaging:
            yield Fault(key, name, f"averages weights, which {averaging} does already; leave one of them out")
        elif AVERAGING in known:
            averaging = name


def _is_lightnings(kind: type) -> bool:
    return kind.__module__.startswith("lightning.pytorch.callbacks.")
