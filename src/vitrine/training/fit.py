"""Begin a run: from a configuration to a trained, tested and recorded model."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from vitrine.config import TrainConfig, train_faults
from vitrine.config.keys import plain_faults
from vitrine.config.lightning_callbacks import callback_faults
from vitrine.config.parts import names_of
from vitrine.config.trust import prefixes
from vitrine.distributed.hardware import choose_hardware
from vitrine.distributed.rendezvous import together
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.runs import RunRecord
from vitrine.runs.lock import Claim
from vitrine.text import report
from vitrine.training.attempt import attempt_key, begin_attempt, earlier_attempt
from vitrine.training.callbacks import PruningRule
from vitrine.training.console import quiet_libraries
from vitrine.training.distill import Distillation
from vitrine.training.lifecycle import owned, record_origin, recorded
from vitrine.training.load_data import check_split_keys, load_data
from vitrine.training.new_parts import check_trained
from vitrine.training.pretrained import Pretrained
from vitrine.training.resume import resume
from vitrine.training.run import Result, TrainingRun, deadline
from vitrine.training.session import carry_out


def fit(
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    group: str | None = None,
    varies: str = "",
    facts: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    time_from: float | None = None,
    pruning_rule: PruningRule | None = None,
    trust: Collection[str] = (),
    claim: Claim | None = None,
) -> Result:
    """Train, select the best epoch on validation, test it once, and leave a run folder.

    Under torchrun or srun, or in a program that has initialised ``torch.distributed``, every rank calls ``fit`` with
    the same arguments and gets the same result; rank 0 alone writes. A rank that ``torchrun --max-restarts`` has
    restarted resumes the run of the attempt before.

    Args:
        config: what to train; see :func:`vitrine.compose`.
        folder: the run folder to create; ``None`` creates one with a new name in ``runs/`` under ``paths.output_dir``.
        group: name shared by the runs of a sweep.
        varies: the overrides in which the run differs from others of its group.
        facts: further entries of run.json, of plain values.
        callbacks: Lightning callbacks in addition to the configured ones. If vitrine starts the ranks itself
            (``trainer.devices`` above 1), they are pickled.
        began: when the command began, as ``time.time()`` gives it; now if ``None``. Start-up time counts from here.
        time_from: when ``trainer.max_time`` began; ``began`` if ``None``. All trials of a sweep share it.
        pruning_rule: asked after each epoch whether to stop early; must be picklable.
        trust: prefixes of the dotted names that a teacher may import, beside those of ``config``: ``["my_lab"]``.
        claim: the lock of ``folder``, if the caller holds it.

    Raises:
        ConfigError: ``config`` is invalid, or a callback cannot work; nothing has been written.
        DataError: the data is missing or damaged; nothing has been written.
        RunError: the run folder can't be written, the initial weights or the teacher can't be read, or another rank
            failed.
        DiskFull: the disk is full; the run can be resumed.
        Diverged: the loss became NaN or infinite.
        Interrupted: stopped by a signal or, as ``OutOfTime``, by ``trainer.max_time``; the run can be resumed.
        Pruned: ``pruning_rule`` stopped the run; nothing has been tested.
    """
    began, trust = time.time() if began is None else began, prefixes(trust)
    _check(config, facts or {}, callbacks)
    inherited, config = config.like, replace(config, like=None)
    time_from, key = time_from or began, attempt_key(config, folder, varies)
    with together(process_group=False) as ranks:
        earlier = ranks.share(lambda: earlier_attempt(key))
    if earlier is not None:
        return resume(
            **earlier,
            began=began,
            callbacks=callbacks,
            pruning_rule=pruning_rule,
            trust=[*names_of(config), *trust],
            force=True,  # the attempt before has ended, on whichever machine
            claim=claim,
        )
    with quiet_libraries(), together() as ranks:
        hardware = choose_hardware(config)
        with hardware.set_up(), hardware.caller_rng_kept():
            pretrained = Pretrained.prepare(config.model)
            data = load_data(config, hardware, ranks)
            check_split_keys(config, data)
            distillation = Distillation.prepare(config, data.dataset, trust)
            notes = [] if distillation is None else distillation.notes(data)
            if pretrained is not None:
                check_trained(pretrained.fresh, config.model, config.finetune)
                pretrained = pretrained.for_classes_of(data.dataset)
                notes += [pretrained.other_statistics(config.data), pretrained.leakage(data)]
            for note in filter(None, notes if ranks.rank == 0 else ()):
                report(note)
            ranks.wait_for_all()  # nothing is written before every rank has its data
            path = ranks.share(lambda: begin_attempt(key, config, folder, varies, time_from))
            with owned(RunRecord(Path(path)), ranks, claim) as record:
                if ranks.rank == 0 and (record.path / "run.json").exists():
                    raise RunError(f"{record.path} already holds a run")
                run = TrainingRun(
                    config=config,
                    record=record,
                    hardware=hardware,
                    began=began,
                    placement=data.placement,
                    stop_by=deadline(config, time_from),
                    group=group,
                    varies=varies,
                    pretrained=pretrained,
                    distillation=distillation,
                    pruning_rule=pruning_rule,
                    callbacks=callbacks,
                )
                with recorded(record, ranks, new=True):
                    if ranks.rank == 0:
                        record_origin(run, data, inherited, facts or {})
                    return carry_out(run, data, ranks)


def _check(config: TrainConfig, facts: Mapping[str, Any], callbacks: Sequence[Callback]) -> None:
    """Raise ConfigError where what a run is to begin with is invalid."""
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            [Fault("config", "", f"must be what compose returns, fit(compose([...])), not {type(config).__name__}")]
        )
    if config.resume is not None:
        instead = f"resume({config.resume!r}, config)"
        raise ConfigError([Fault("resume", config.resume, "is not for fit, which begins a new run", instead)])
    if not isinstance(facts, Mapping) or not all(isinstance(name, str) and name != "status" for name in facts):
        raise ConfigError([Fault("facts", str(facts), "must be a dict of entries of run.json by name, but for status")])
    named = chain.from_iterable(plain_faults(f"facts.{name}", value) for name, value in facts.items())
    found = [*named, *train_faults(config)]
    if found := found or list(callback_faults(config, callbacks)):
        raise ConfigError(found)
