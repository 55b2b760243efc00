"""Going on with a run where it stopped."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from vitrine.config import TrainConfig, train_faults
from vitrine.config.keys import copy_values, facts, sections_where
from vitrine.config.serialize import from_plain, to_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.distributed.hardware import choose
from vitrine.distributed.rendezvous import enter
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.files import link
from vitrine.runs import RunRecord, provenance
from vitrine.runs.record import now
from vitrine.training.callbacks import Judge
from vitrine.training.checkpoints import Checkpoints, differences, read_checkpoint
from vitrine.training.console import quiet_libraries, show_result
from vitrine.training.fit import Result, Run, carry_out, recorded, stop_by
from vitrine.training.pretrained import Pretrained

CHANGEABLE = sections_where(TrainConfig, may_change_on_resume=True)
GROUPS = {"accelerator": ("trainer.accelerator", "trainer.devices")}  # named otherwise than the keys they set


def resume(
    folder: str | Path,
    given: TrainConfig | None = None,
    overrides: Sequence[str] = (),
    *,
    began: float | None = None,
    time_from: float | None = None,
    judge: Judge | None = None,
) -> Result:
    """Go on with the run in ``folder`` as it was configured, from its last checkpoint.

    Args:
        folder: the run folder.
        given: a configuration to take changed values from.
        overrides: which values those are: keys or groups, as typed; their keys must be ones that may change on resume.
        began: as in :func:`fit`.
        time_from: as in :func:`fit`.
        judge: as in :func:`fit`.

    Raises:
        RunError: there is no such run, it is running, or its checkpoint doesn't fit it.
        ConfigError: an override would make it another run.
        Pruned: as in :func:`fit`.
    """
    enter()
    began = time.time() if began is None else began
    record = RunRecord.open(folder)
    if record.status == "running":
        raise RunError(f"{record.path} is still running, as process {record.facts.get('pid')}")
    config = from_plain(TrainConfig, record.config)
    planned = config.trainer.max_epochs
    _take(config, given, overrides)
    if found := train_faults(config):
        raise ConfigError(found)
    checkpoint = read_checkpoint(record.last) if record.last.exists() else None
    if checkpoint is not None and (other := differences(checkpoint["config"]["model"], config.model)):
        raise RunError(f"{record.last} is of another model than {record.path / 'config.yaml'}: {', '.join(other)}")
    epochs = max((int(row["epoch"]) for row in record.history() if "val/acc" in row), default=0)
    if config.trainer.max_epochs < epochs:
        problem = f"must be >= {epochs}, the epochs that are done"
        raise ConfigError([Fault("trainer.max_epochs", str(config.trainer.max_epochs), problem)])
    if record.status == "finished" and config.trainer.max_epochs == planned:
        print(f"{record.path} is finished; trainer.max_epochs=N, above {planned}, trains it longer")
        show_result(Console(), record, record.metrics, speed=record.facts.get("speed"))
        return Result(record.metrics, record.path)
    if checkpoint is not None and _is_best(checkpoint):
        link(record.last, record.best)  # it may have been killed just before it did that
    with quiet_libraries():
        hardware = choose(config)
        with hardware.set_up():
            group, varies = record.facts.get("group"), record.facts.get("varies") or ""
            pretrained = Pretrained.prepare(config.model) if checkpoint is None else None
            data = ImageDataModule(config, hardware.accelerator, hardware.per_node)
            end = stop_by(config, began if time_from is None else time_from)
            run = Run(config, record, hardware, began, data.placement, end, group, varies, pretrained, judge)
            if data.validation_hash != (known := record.facts.get("validation", data.validation_hash)):
                raise RunError(
                    f"the validation images are {data.validation_hash}, but {record.path} was chosen on {known}"
                )
            times = [*record.facts.get("resumed", []), {"at": now(), "command": provenance.command()}]
            with recorded(record):
                record.update(resumed=times, storage=asdict(data.placement))
                record.write_config(to_plain(config))
                return carry_out(run, data)


def _is_best(checkpoint: dict[str, Any]) -> bool:
    """Whether a last.ckpt was written at the end of the epoch that is the best so far."""
    best = checkpoint["callbacks"][Checkpoints.__name__]["best"]
    return bool(best) and best["best_epoch"] == checkpoint["epoch"] + 1


def _take(config: TrainConfig, given: TrainConfig | None, overrides: Sequence[str]) -> None:
    """Copy into ``config`` the values of ``given`` that ``overrides`` set: keys or groups, with or without values.

    Raises:
        ConfigError: a key may not change on resume.
    """
    faults = []
    for override in overrides:
        name, _, value = override.lstrip("+~").partition("=")
        if name == "resume" or name.startswith("hydra"):
            continue
        keys = GROUPS.get(name) or (name,)
        if not all(facts(TrainConfig, key).may_change_on_resume for key in keys):
            problem = f"cannot change when a run is resumed; what can: {', '.join(CHANGEABLE)}"
            faults.append(Fault(name, value, problem))
        elif given is not None:
            copy_values(keys, given, config)
    if faults:
        raise ConfigError(faults)
