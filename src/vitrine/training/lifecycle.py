"""What run.json keeps of a run's life: how it began, each resumption, its start-up time, and how it ended."""

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vitrine.config.serialize import to_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DiskFull, Interrupted, interruption
from vitrine.files import disk_full
from vitrine.runs import RunRecord, provenance
from vitrine.runs.diff import code_diff
from vitrine.runs.flatten import flatten
from vitrine.runs.lock import Claim
from vitrine.runs.record import now
from vitrine.runs.status import ENDED
from vitrine.runs.user_code import edited_parts, names_to_trust, store_code, trust_overrides
from vitrine.text import report
from vitrine.training.changed_data import data_facts
from vitrine.training.run import TrainingRun


@contextmanager
def owned(record: RunRecord, ranks: Ranks, claim: Claim | None = None, *, force: bool = False) -> Iterator[RunRecord]:
    """Hold the run's lock on rank 0, and yield the record to write with.

    Args:
        record: the run.
        ranks: those that train it together.
        claim: the run's lock, if the caller holds it.
        force: as in :meth:`RunRecord.owned`.

    Raises:
        RunLocked: another process writes to the run.
    """
    if ranks.rank > 0 or claim is not None:
        yield replace(record, claim=claim)
        return
    with record.owned(force=force, notify=report) as own:
        yield own


@contextmanager
def recorded(record: RunRecord, ranks: Ranks, *, new: bool = False) -> Iterator[None]:
    """Mark the run as running, and set its final status at the end; only rank 0 writes.

    A new run is marked by :func:`record_origin`: without its configuration, a killed one could not be resumed.
    """
    if ranks.rank == 0 and not new:
        record.start()
    try:
        with ranks.failing_together():
            yield
    except BaseException as error:
        if ranks.rank == 0:
            record.check_claim()
            status = record.facts.get("status") if (record.path / "run.json").exists() else None
            # Everything had been written before this error.
            if status == "finished" or (status in ENDED and isinstance(error, KeyboardInterrupt)):
                raise
            record.end_with(error)
        how = _resumption(record)
        if isinstance(error, Interrupted | KeyboardInterrupt | SystemExit):  # Lightning turns Ctrl-C into SystemExit
            kind = interruption(error)
            raise kind(f"{kind.reason}; resume with: {how}") from None
        if (full := disk_full(error, record.path)) is not None:
            advice = full.advice
            if (record.path / "config.yaml").exists():
                advice = f"{advice.removesuffix(' and rerun the same command')}, then resume with: {how}"
            raise DiskFull(full.problem, advice) from None
        raise


def _resumption(record: RunRecord) -> str:
    """Return the command that resumes a run or, in a program of the user's own, the call."""
    if provenance.is_command():
        overrides = [f"resume={record.path}", *trust_overrides(record.facts)]
        return f"{provenance.program('train')} {shlex.join(overrides)}"
    names = names_to_trust(record.facts)
    return f"resume({str(record.path.absolute())!r}{f', trust={names}' if names else ''})"


def record_origin(run: TrainingRun, data: ImageDataModule, inherited: str | None, facts: Mapping[str, Any]) -> None:
    """Write what is known before training: configuration, command, code, versions, machine, data; run.json last.

    Args:
        run: the run.
        data: its images.
        inherited: the run whose configuration it started from, ``like=RUN``.
        facts: further entries of run.json.
    """
    code, difference = provenance.code_state()
    if difference:
        run.record.write("code.diff", difference)
    known = {
        **facts,
        "id": run.record.name,
        "started": now(),
        "user": provenance.user(),
        **store_code(run.record, run.config),
        "command": provenance.command(),
        "code": code,
        **_surroundings(run),
        "storage": data.placement.facts,
        **data_facts(data),
        "group": run.group,
        "varies": run.varies,
        "like": inherited,
        "tags": run.config.tags,
        "pretrained": None if run.pretrained is None else [run.pretrained.source, *run.pretrained.changes],
        "teacher": None if run.distillation is None else run.distillation.facts,
    }
    run.record.write_config(to_plain(run.config))
    run.record.start(**known)


def record_resumption(run: TrainingRun) -> None:
    """Add to the run folder that the run is resumed now, by which code, and with which configuration.

    Versions and machine in run.json become those of this session, as its speed will be; ``before`` in the new entry of
    ``resumed`` has what they were.
    """
    record, facts = run.record, run.record.facts
    code, difference = provenance.code_state()
    earlier, surroundings = facts.get("resumed", []), _surroundings(run)
    current = flatten(surroundings)
    known = flatten({name: facts[name] for name in surroundings if name in facts})
    before = {name: value for name, value in known.items() if current.get(name) != value}
    if difference and difference.encode() != code_diff(record):
        record.write(f"code.{len(earlier) + 1}.diff", difference)
    again = {"at": now(), "command": provenance.command(), "code": code, **({"before": before} if before else {})}
    parts = store_code(record, run.config) if edited_parts(record, run.config) else {}
    record.update(resumed=[*earlier, again], storage=run.placement.facts, **surroundings, **parts)
    record.write_config(to_plain(run.config))


def _surroundings(run: TrainingRun) -> dict[str, Any]:
    """Versions, machine, and what of it the run uses."""
    return {
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "device": run.hardware.name,
        "processes": run.hardware.devices,
        "precision": run.hardware.precision,
        "attention_kernel": run.hardware.attention_kernel if run.config.model.uses_kernel else None,
    }


class StartUp:
    """Time from the start of the command to the first training step.

    ``start_ups`` in run.json has, for each session, the ``seconds`` until the clock of metrics.csv starts, and those of
    ``compiling``, which that clock counts.

    Args:
        run: the run.
        steps_done: optimiser steps done in earlier sessions.
    """

    def __init__(self, run: TrainingRun, steps_done: int) -> None:
        self.run = run
        self.steps_done = steps_done
        self.seconds = time.time() - run.began
        self.compile_seconds = 0.0

    def compiled(self, what: str, seconds: float) -> None:
        """Record what was compiled, so that a resumed run is compiled alike, and how long it took."""
        self.compile_seconds += seconds
        entry = {"step": self.steps_done, "seconds": round(self.seconds, 2), "compiling": round(seconds, 2)}
        entries = [*self.run.record.facts.get("start_ups", []), entry]
        self.run.record.update(compiled=what, start_ups=entries)

    def summary(self, first_step: float | None) -> dict[str, float]:
        """Return ``startup_seconds`` and ``compile_seconds``; ``first_step`` is when it began, by ``time.time()``."""
        ready = self.run.began if first_step is None else first_step - self.compile_seconds
        return {
            "startup_seconds": round(ready - self.run.began, 2),
            "compile_seconds": round(self.compile_seconds, 2),
        }
