"""The configuration of loggers in addition to the run folder."""

from dataclasses import dataclass
from typing import Any

from vitrine.config.fields import choice, number, part_list, part_options, setting
from vitrine.config.parts import Interface

WANDB_MODES = ("online", "offline", "disabled")
WANDB_CHECKPOINTS = ("none", "best", "all")
WANDB_LABELS = {"name": "WANDB_NAME", "group": "WANDB_RUN_GROUP", "tags": "WANDB_TAGS", "notes": "WANDB_NOTES"}
WANDB_VARIABLES = {name: f"WANDB_{name.upper()}" for name in ("entity", "project", "mode")} | WANDB_LABELS
LONGEST_WANDB_NAME = 128  # of a project, run or group, in characters


@dataclass
class WandbConfig:
    """Weights & Biases. The API key is never here: log in with ``wandb login`` or set WANDB_API_KEY.

    Where ``project``, ``entity`` or ``mode`` has its default, WANDB_PROJECT, WANDB_ENTITY or WANDB_MODE counts; for
    ``name``, ``group``, ``tags`` and ``notes`` WANDB_NAME, WANDB_RUN_GROUP, WANDB_TAGS and WANDB_NOTES.

    Attributes:
        project, entity: where runs are logged; ``entity`` is a user or a team, null is the default of the account.
        mode: ``offline`` keeps everything in the run folder, for scripts/wandb_sync.py.
        group: group of runs; null is the sweep.
        name: of the run; null is the values that vary in a sweep, else the name of the run folder.
        tags: added to the tags of the run.
        notes: description of the run.
        checkpoints: which to upload as artifacts, with their names as aliases; ``none`` of a private run.
        private: do not send code version, command, host name, requirements, paths, speed, or images of the data.
        timeout: seconds to wait for W&B after training.
    """

    project: str = "vitrine"
    entity: str | None = None
    mode: str = choice(WANDB_MODES, "online")
    group: str | None = None
    name: str | None = None
    tags: list[str] = setting([])
    notes: str | None = None
    checkpoints: str = choice(WANDB_CHECKPOINTS, "none")
    private: bool = False
    timeout: float = number(60.0, gt=0, le=86_400)


@dataclass
class TensorBoardConfig:
    """TensorBoard event files, in the run folder's ``tensorboard/``.

    Attributes:
        flush_secs: seconds between writes.
    """

    flush_secs: int = number(30, ge=1)


@dataclass
class LoggerConfig:
    """Loggers in addition to the run folder, which always has everything.

    Attributes:
        parts: loggers of your own, by dotted name.
        parts_options: their arguments, by class name.
    """

    wandb: WandbConfig | None = None
    tensorboard: TensorBoardConfig | None = None
    parts: list[str] = part_list(Interface())
    parts_options: dict[str, Any] = part_options()
