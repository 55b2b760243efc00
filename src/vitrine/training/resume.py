"""Resume a run from its last checkpoint."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from vitrine.config import TrainConfig, train_faults
from vitrine.config.keys import copy_values, key_facts, keys_where, value_at
from vitrine.config.lightning_callbacks import callback_faults
from vitrine.config.parts import is_dotted
from vitrine.config.schema import AUTO
from vitrine.config.serialize import from_plain, refuse_cut_short
from vitrine.config.trust import TRUST_ALL, prefixes
from vitrine.config.validate import resume_faults
from vitrine.distributed.hardware import choose_hardware
from vitrine.distributed.rendezvous import Ranks, together
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.runs import RunRecord
from vitrine.runs.lock import Claim
from vitrine.runs.user_code import edited_parts, refuse_edited
from vitrine.text import as_override, listed, plural, printable, report
from vitrine.training.callbacks import PruningRule, stopped_early
from vitrine.training.changed_data import check_data, record_data
from vitrine.training.console import quiet_libraries, show_result, text_console
from vitrine.training.distill import Distillation, refuse_other_teacher, teacher_of
from vitrine.training.lifecycle import owned, record_resumption, recorded
from vitrine.training.load_data import load_data
from vitrine.training.losses import build_loss, check_state
from vitrine.training.lr_range import with_lr
from vitrine.training.pretrained import Pretrained
from vitrine.training.recovery import recover
from vitrine.training.run import Result, TrainingRun, deadline
from vitrine.training.schedules import learning_rate_factor, total_steps
from vitrine.training.session import carry_out
from vitrine.training.weights import model_weights, read_checkpoint


def resume(
    folder: str | Path,
    given: TrainConfig | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    time_from: float | None = None,
    pruning_rule: PruningRule | None = None,
    trust: Collection[str] = (),
    allow_changed_code: bool = False,
    accept_changed_data: bool = False,
    force: bool = False,
    claim: Claim | None = None,
) -> Result:
    """Resume the run in ``folder`` from its last checkpoint, with the configuration it has.

    Several ranks resume together, as they train together in :func:`vitrine.training.fit.fit`.

    Args:
        folder: the run folder.
        given: the run's configuration with changes, as ``compose(["resume=RUN", ...])`` returns it; ``None``
            changes nothing.
        callbacks: those that ``fit`` was called with. Without them the run continues without what they did.
        began: as in ``fit``.
        time_from: as in ``fit``.
        pruning_rule: as in ``fit``.
        trust: prefixes of the dotted names that the run and its teacher may import, for runs with parts of your own:
            ``["my_lab"]``.
        allow_changed_code: resume even if the code of these parts was edited.
        accept_changed_data: resume even if the images or classes are not those that the run began with.
        force: take the run over from a process on another machine without waiting to see whether it is alive.
        claim: the run's lock, if the caller holds it.

    Raises:
        RunLocked: another process writes to the run.
        RunError: there is no such run, no checkpoint of it reads whole, or the checkpoint doesn't fit it; or it names
            code that is not trusted, or was edited; or its data has changed.
        ConfigError: ``given`` would make it another run, or a callback cannot work.
        Interrupted: as in ``fit``.
        Pruned: as in ``fit``.
    """
    began, trust = time.time() if began is None else began, prefixes(trust)
    if not isinstance(given, TrainConfig | None):
        raise ConfigError(
            [Fault("given", "", f"must be what compose(['resume=RUN', ...]) returns, not {type(given).__name__}")]
        )
    with quiet_libraries(), together() as ranks, owned(RunRecord.open(folder), ranks, claim, force=force) as record:
        status = ranks.share(lambda: record.facts.get("status"))
        refuse_cut_short(record.config, record.path / "config.yaml")
        config = from_plain(TrainConfig, record.config, trust=trust, source=record.path)
        planned = config.trainer.max_epochs
        if given is not None:
            _apply(config, given)
        _check(config, record, callbacks)
        if not allow_changed_code:
            refuse_edited(record, edited_parts(record, config))
        if status == "finished" and (finished := _nothing_left(config, record, planned, ranks)) is not None:
            return finished
        config.distill.teacher = teacher_of(record, config.distill)
        state = recover(record) if ranks.rank == 0 else None
        if state is not None:
            _check_checkpoint(config, record, state.checkpoint)
        resumes = ranks.share(lambda: state is not None)
        hardware = choose_hardware(config)
        with hardware.set_up(), hardware.caller_rng_kept():
            pretrained = None if resumes else Pretrained.prepare(config.model)
            data = load_data(config, hardware, ranks)
            if pretrained is not None:
                pretrained = pretrained.for_classes_of(data.dataset)
            distillation = Distillation.prepare(config, data.dataset, trust, allow_changed_code=allow_changed_code)
            refuse_other_teacher(record, distillation)
            is_unknown = record.facts.get("data_fingerprint") is None
            if is_unknown and not accept_changed_data:
                why = "was begun by an earlier version, which recorded no fingerprint of its data to check it by"
                raise RunError(f"{record.path} {why}; resume it on the data that is here: accept_changed_data=true")
            changed = ranks.share(lambda: check_data(record, data, accept=accept_changed_data))
            changed += ["what it was before is not known"] * is_unknown
            steps = data.steps_per_epoch
            if state is not None and (note := _stretched_schedule(config, record, state.checkpoint, planned, steps)):
                report(note)
            ranks.wait_for_all()  # nothing is written before every rank has read the run folder
            run = TrainingRun(
                config=config,
                record=record,
                hardware=hardware,
                began=began,
                placement=data.placement,
                stop_by=deadline(config, began if time_from is None else time_from),
                group=record.facts.get("group"),
                varies=record.facts.get("varies") or "",
                pretrained=pretrained,
                distillation=distillation,
                pruning_rule=pruning_rule,
                callbacks=callbacks,
            )
            with recorded(record, ranks):
                if ranks.rank == 0:
                    record_data(record, data, changed)
                    record_resumption(run)
                return carry_out(run, data, ranks)


def _check(config: TrainConfig, record: RunRecord, callbacks: Sequence[Callback]) -> None:
    """Raise ConfigError where what a run is to resume with is invalid, or has fewer epochs than are done."""
    if found := train_faults(replace(config, resume=str(record.path))) or list(callback_faults(config, callbacks)):
        raise ConfigError(found)
    done = max((int(row["epoch"]) for row in record.history() if "val/acc" in row), default=0)
    if config.trainer.max_epochs < done:
        problem = f"must be >= {done}, the number of epochs done"
        raise ConfigError([Fault("trainer.max_epochs", str(config.trainer.max_epochs), problem)])


def _nothing_left(config: TrainConfig, record: RunRecord, planned: int, ranks: Ranks) -> Result | None:
    """Show the result of a finished run that stopped early, or has no epochs to come; ``None`` of another."""
    stopped = ranks.share(lambda: _stopped_early(config, record))
    if not stopped and config.trainer.max_epochs != planned:
        return None
    if ranks.rank == 0:
        longer = f"trainer.max_epochs=N with N > {planned} trains it longer"
        why = f"it {stopped}; it stays stopped" if stopped else longer
        print(printable(f"{record.path} is finished; {why}"))
        of_sweep, console = record.facts.get("group") is not None, text_console()
        show_result(console, record, record.metrics, record.facts.get("speed"), without_test=of_sweep)
    return Result(record.metrics, record.path.absolute())


def _stopped_early(config: TrainConfig, record: RunRecord) -> str:
    """Return how early stopping ended a finished run; empty if it did not, or no checkpoint of it can be read."""
    if config.callbacks.early_stopping is None:
        return ""
    try:
        return stopped_early(config.callbacks.early_stopping, read_checkpoint(record.last))
    except RunError:
        return ""


def _stretched_schedule(
    config: TrainConfig, record: RunRecord, checkpoint: Mapping[str, Any], planned: int, steps: int
) -> str:
    """Return what other steps than planned do to the learning rate; empty if they do nothing.

    Args:
        config: of the resumed run.
        record: the run.
        checkpoint: that it resumes from.
        planned: epochs of the run before.
        steps: steps of an epoch now.
    """
    epochs, schedule, finetune = config.trainer.max_epochs, config.schedule, config.finetune
    steps_before = record.facts.get("steps_per_epoch", steps)
    if (epochs, steps) == (planned, steps_before):
        return ""
    done, total = checkpoint["global_step"], total_steps(checkpoint, epochs, steps)
    if done >= total or stopped_early(config.callbacks.early_stopping, checkpoint):
        return ""
    note = f"trainer.max_epochs={epochs}, not {planned}: schedule={schedule.name} is now that of {epochs} epochs"
    if epochs == planned:
        of = f"schedule={schedule.name} is now that of {plural(total, 'step')}"
        note = f"epochs have {plural(steps, 'step')}, not {steps_before}: {of}"
    if is_dotted(schedule.name):
        return note
    head_lr = finetune.head_lr  # the rate in the log is that of the head
    warmup = max(schedule.warmup, finetune.warmup or 0.0) if head_lr is None else schedule.warmup  # the longest
    before = learning_rate_factor(done - 1, schedule, total_steps(checkpoint, planned, steps_before), warmup)
    after = learning_rate_factor(done, schedule, total, warmup)
    if schedule.name == "constant" and before == after:  # both behind the warm-up
        return ""
    lr = head_lr or (record.facts["lr_range"]["found"] if config.optimizer.lr == AUTO else config.optimizer.lr)
    rates = [f"{lr * factor:.3g}" for factor in (before, after)]
    whose = "the learning rate" if head_lr is None else "the head's learning rate"
    return f"{note}: {whose} goes from {rates[0]} at step {done} to {rates[1]} at the next"


def _check_checkpoint(config: TrainConfig, record: RunRecord, checkpoint: Mapping[str, Any]) -> None:
    """Raise RunError where the checkpoint to resume from is of another version, or of values with another result."""
    try:
        trained = from_plain(TrainConfig, checkpoint["config"], trust=TRUST_ALL, source=record.last)  # not built
    except ConfigError as error:
        unfit = listed([f"{fault.key}: {fault.problem}" for fault in error.faults], separator="; ")
        raise RunError(f"{record.last} is of another version of vitrine: {unfit}; resume with that version") from None
    if config.optimizer.lr == AUTO and (tested := record.facts.get("lr_range")):
        config = replace(config, optimizer=with_lr(config.optimizer, tested["found"]))
    if found := _affecting(trained, config):
        edited = [f"{fault.key}={fault.given}, not {as_override(value_at(trained, fault.key))}" for fault in found]
        what = f"{record.path / 'config.yaml'} is not what {record.last} was trained with"
        raise RunError(f"{what}: {'; '.join(edited)}; set it back, and resume")
    if is_dotted(config.loss.name):
        _, loss = build_loss(config.loss, classes_per_target=config.data.classes_per_target)
        check_state(loss, config.loss.name, model_weights(checkpoint, "criterion."))


def _apply(config: TrainConfig, given: TrainConfig) -> None:
    """Copy into ``config`` the values of ``given`` that may change on resume.

    Raises:
        ConfigError: another key differs and affects the result.
    """
    if affecting := _affecting(config, given):
        raise ConfigError(affecting)
    copy_values(keys_where(TrainConfig, may_change_on_resume=True), given, config)


def _affecting(recorded: TrainConfig, given: TrainConfig) -> list[Fault]:
    """Return the faults of ``resume_faults`` whose keys affect the result."""
    found = resume_faults(recorded, given)
    return [fault for fault in found if key_facts(TrainConfig, fault.key).affects(recorded.data.name)]
