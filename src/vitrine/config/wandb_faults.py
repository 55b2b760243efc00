"""Checks of what Weights & Biases refuses, so that a run would not be tracked, or not as it was meant."""

import os
from collections.abc import Iterator, Sequence

from vitrine.config.loggers import LONGEST_WANDB_NAME, WANDB_MODES, WANDB_VARIABLES, WandbConfig
from vitrine.config.parts import load, parts_of
from vitrine.config.schema import TrainConfig
from vitrine.errors import Fault
from vitrine.text import as_override, nearest

LIGHTNINGS_LOGGER = "lightning.pytorch.loggers.wandb.WandbLogger"
OTHER_MODES = ("dryrun", "run", "shared")  # of the client
TAGS = "a tag must have 1 to 64 characters for Weights & Biases"


def wandb_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield each of W&B's variables and of the configuration's values that cannot work.

    Of a run that is resumed, only what is unsafe or stops the client.
    """
    wandb, is_new = config.logger.wandb, config.resume is None
    for part in parts_of(config.logger) if is_new else ():
        kinds = getattr(load(part.name), "__mro__", ())
        if any(f"{kind.__module__}.{kind.__qualname__}" == LIGHTNINGS_LOGGER for kind in kinds):
            problem = "logs all trials of a process as one run of Weights & Biases; use logger=wandb"
            yield Fault("logger.parts", part.name, problem)
    if wandb is None:
        return
    # The client reads and checks these variables, also where the configuration has the values.
    own_mode, own_tags = os.environ.get("WANDB_MODE"), os.environ.get("WANDB_TAGS")
    counts = own_mode is not None and wandb.mode == WandbConfig.mode
    if own_mode is not None and own_mode not in (*WANDB_MODES, *(() if counts else OTHER_MODES)):
        problem = f"is not one of {', '.join(WANDB_MODES)}, and W&B's client reads it in any case"
        yield Fault("WANDB_MODE", own_mode, problem, nearest(own_mode, WANDB_MODES))
    if own_tags is not None and (own_mode if counts else wandb.mode) != "disabled" and _refused(own_tags.split(",")):
        yield Fault("WANDB_TAGS", own_tags, TAGS)
    if wandb.private and wandb.checkpoints != "none":
        problem = "uploads the whole configuration, of which logger.wandb.private=true keeps back the paths"
        yield Fault("logger.wandb.checkpoints", wandb.checkpoints, problem, "logger.wandb.checkpoints=none")
    if not is_new:
        return
    for key, tags in (("tags", config.tags), ("logger.wandb.tags", wandb.tags)):
        if _refused(tags):
            yield Fault(key, as_override(tags), TAGS)
    for name, letters in (("project", "/\\#?%:"), ("name", ""), ("group", "")):
        key, value = f"logger.wandb.{name}", getattr(wandb, name)
        if value == getattr(WandbConfig, name) and (variable := os.environ.get(WANDB_VARIABLES[name])):
            key, value = WANDB_VARIABLES[name], variable
        if value and (len(value) > LONGEST_WANDB_NAME or set(value) & set(letters)):
            none_of = f", and none of {' '.join(letters)}" if letters else ""
            yield Fault(key, value, f"must have at most {LONGEST_WANDB_NAME} characters{none_of}")


def _refused(tags: Sequence[str]) -> bool:
    return any(not 1 <= len(tag) <= 64 for tag in tags)
