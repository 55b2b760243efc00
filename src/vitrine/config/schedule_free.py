"""Schedule-free optimisers (arXiv:2405.15682), and what they exclude: as they average weights. Imports no torch."""

from collections.abc import Iterator

from vitrine.config.parts import is_dotted, load
from vitrine.config.schema import OptimizerConfig, TrainConfig
from vitrine.errors import Fault


def is_schedule_free(optimizer: OptimizerConfig) -> bool:
    """Whether an optimiser switches between the weights to train and to evaluate: a class with ``train`` and ``eval``.

    Raises PartError as :func:`~vitrine.config.parts.load`.
    """
    if not is_dotted(optimizer.name):
        return optimizer.name == "schedule_free"
    return all(callable(getattr(load(optimizer.name), method, None)) for method in ("train", "eval"))


def schedule_free_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield what cannot be combined with a schedule-free optimiser."""
    model, schedule, chosen = config.model, config.schedule, f"optimizer={config.optimizer.name}"
    if not is_schedule_free(config.optimizer):
        return
    if schedule.name != "constant":
        problem = f"lowers the learning rate, which {chosen} does without; must be constant"
        yield Fault("schedule", schedule.name, problem, "schedule=constant_with_warmup")
    if config.optimizer.betas is not None and config.optimizer.betas[:1] == [0]:
        problem = f"must begin above 0 with {chosen}, which divides by it"
        yield Fault("optimizer.betas", str(config.optimizer.betas), problem, "optimizer.betas=[0.9,0.999]")
    if config.callbacks.ema is not None:
        yield Fault("callbacks.ema", "", f"averages weights, which {chosen} does itself", "callbacks=default")
    for key, value in (("norm", "batchnorm"), ("patch_embed", "conv_stem")):
        if getattr(model, key) == value:
            problem = f"keeps statistics of the weights in training, and {chosen} evaluates others"
            yield Fault(f"model.{key}", value, problem)
