"""A run's guest at Weights & Biases.

All that the client does is done in a thread of its own: training hands over what it has and goes on, and waits for at
most ``logger.wandb.timeout`` seconds at its end. The client writes what it is told into the run folder's ``wandb/``
before it sends it. In run.json:

    wandb_id       the run's id there, from before training on; a run that goes on has the same one
    wandb_project  [entity, project]; null is the account's default
    wandb_open     whether a session has begun that did not end, so that the client may not have kept all of it
    wandb_kept     folders in ``wandb/`` that hold a whole session each, which the server has not got
    wandb_pushed   when the server had all of the run; null while it has not

scripts/wandb_sync.py sends later what is kept; what is open it has told again from the record, by :func:`push`.
"""

import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb

from vitrine.config.schema import TrainConfig, WandbConfig
from vitrine.errors import Interrupted, RunError, first_line
from vitrine.runs import RunRecord
from vitrine.runs.record import now
from vitrine.tracking import wandb_keys as told
from vitrine.tracking.wandb_service import Service

START_SECONDS = 20.0  # for the server to answer
END_SECONDS = 1.0  # for the process to end, once W&B is done
EXIT_CODES = {"finished": 0, "pruned": 0, "interrupted": 255, "failed": 1}  # 255: as the client itself after Ctrl-C
CAPTIONS = {"attention": "images, where the model looks, and its predictions"}


class WandbTracker:
    """One W&B run.

    Args:
        settings: project, mode and so on.
        config: everything the run is made with.
        record: the run; its run.json has the id from here on.
        group: runs that belong together, unless the settings name one.
        varies: what distinguishes this run in its group.
        stop_by: when the process must have ended, as ``time.time()`` gives it.
        online_only: whether a server that can't be reached is an error, and no reason to go on offline.
    """

    name = "wandb"

    def __init__(
        self,
        settings: WandbConfig,
        config: TrainConfig,
        record: RunRecord,
        group: str | None,
        varies: str,
        stop_by: float | None = None,
        *,
        online_only: bool = False,
    ) -> None:
        facts = record.facts
        place = {"id": facts.get("wandb_id"), "entity": settings.entity, "project": settings.project}
        given: dict[str, Any] = {}
        if "WANDB_SWEEP_ID" in os.environ:  # W&B's agent has made the run, and the client lets nobody say otherwise
            given = {name: os.environ.get(f"WANDB_{name.upper()}") for name in ("entity", "project")}
            given["id"] = place["id"] or os.environ.get("WANDB_RUN_ID")
        place |= {name: value for name, value in given.items() if value}
        self.identity = place["id"] = place["id"] or secrets.token_hex(4)
        self._open = bool(facts.get("wandb_open"))  # an earlier session is not whole: nor is the run after this one
        self._online_only = online_only
        self._stop_by = stop_by
        record.update(
            wandb_id=self.identity,
            wandb_project=[place["entity"], place["project"]],
            wandb_open=True,
            wandb_pushed=None,
        )
        self.record = record
        self.settings = settings
        self.mode = settings.mode
        self._arguments: dict[str, Any] = {
            **({} if given else place),
            "resume": "allow",
            "reinit": "create_new",  # a run of the same process that was never ended is another one
            "dir": str(record.path),
            "group": settings.group or group,
            "name": told.title(record, settings, varies),
            "tags": [*config.tags, *settings.tags] or None,
            "notes": settings.notes,
            "job_type": "train",
            "config": told.configuration(config, settings),
        }
        self._work: queue.SimpleQueue[Callable[[wandb.Run], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._folder = ""
        self._sent = False
        self._service: Service | None = None
        self._given_up = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._live, name="wandb", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand metrics over. Online, the client drops steps that the server has, for they are the same again.

        The step is a metric, too: sessions that ran offline are put one after the other, and counted anew.
        """
        self._raise()
        row = {**metrics, "step": step}
        self._work.put(lambda run: run.log(row, step=step))

    def finish(self, status: str, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Hand over what came out, and end the run as what ``status`` says, within the time that is set for it.

        Whoever presses Ctrl-C meanwhile doesn't want to wait.

        Raises:
            RunError: the client failed or hung, or was not waited for; nothing of the run is lost.
        """
        self._raise()
        self._work.put(lambda run: self._conclude(run, status, dict(metrics), dict(pictures)))
        self._work.put(None)
        late: BaseException = TimeoutError("took too long to end")
        try:
            self._thread.join(self._patience())
        except (KeyboardInterrupt, Interrupted):
            late = InterruptedError("was not waited for")
        if self._thread.is_alive():
            self._given_up = True
            if self._service is not None:
                self._service.kill()
            self._thread.join(END_SECONDS)
            self._error = late
        self._raise()
        kept = [*self.record.facts.get("wandb_kept", []), *([] if self._sent else [self._folder])]
        pushed = None if kept or self._open else now()
        self.record.update(wandb_kept=kept, wandb_open=self._open, wandb_pushed=pushed)

    def _patience(self) -> float:
        """Seconds to wait at the end."""
        if self._stop_by is None:
            return self.settings.timeout
        return max(0.0, min(self.settings.timeout, self._stop_by - time.time() - END_SECONDS))

    def _live(self) -> None:
        """The thread: start, do what is handed over, end."""
        try:
            run = self._start()
            run.define_metric("*", step_metric="step")
            self._folder = Path(run.settings.sync_dir).name
            self._started.set()
            while (task := self._work.get()) is not None:
                task(run)
        except BaseException as error:
            self._error = error
            self._started.set()
            if self._service is not None:
                self._service.forget()

    def _start(self) -> wandb.Run:
        """Start online where that is asked for and possible, else offline: it can be pushed later."""
        self._service = Service()
        if self.mode == "online":
            try:
                if not wandb.login(prompt=False):
                    raise RunError("nobody is logged in; `wandb login`, or set WANDB_API_KEY")
                return self._init("online")
            except Exception as error:
                if self._online_only or self._given_up:
                    raise
                self._service.forget()  # it would go on trying
                hint = f"later: python scripts/wandb_sync.py {self.record.path}"
                print(f"vitrine: wandb goes on offline: {first_line(error)} ({hint})", file=sys.stderr)
                self.mode = "offline"
                self._service = Service()
        return self._init("offline")

    def _init(self, mode: str) -> wandb.Run:
        settings = told.client_settings(self.settings, START_SECONDS)
        return wandb.init(**self._arguments, mode=mode, settings=settings)  # type: ignore[arg-type]

    def _conclude(self, run: wandb.Run, status: str, metrics: dict[str, float], pictures: Mapping[str, Path]) -> None:
        for name, path in pictures.items():
            run.log({name: wandb.Image(str(path), caption=CAPTIONS.get(name))})
        if "test/acc" in metrics:
            run.log(told.predictions(self.record))
        self._send_checkpoints(run)
        # After the last row, whose values the client would set here.
        run.summary.update({**told.facts(self.record, self.settings), **metrics, "status": status})
        run.finish(exit_code=EXIT_CODES[status])
        self._sent = self.mode == "online"

    def _send_checkpoints(self, run: wandb.Run) -> None:
        asked = {"none": [], "best": ["best"], "all": ["last", "best"]}[self.settings.checkpoints]
        for alias in asked:
            path = self.record.path / "checkpoints" / f"{alias}.ckpt"
            if path.exists():
                artifact = wandb.Artifact(f"checkpoint-{self.identity}", type="model")
                artifact.add_file(str(path), policy="immutable")
                run.log_artifact(artifact, aliases=[alias, "latest"])

    def _raise(self) -> None:
        if self._error is not None:
            hint = f"all of it is in the run folder; later: python scripts/wandb_sync.py {self.record.path}"
            raise RunError(f"{first_line(self._error)} ({hint})") from self._error


def push(record: RunRecord, config: TrainConfig) -> None:
    """Tell W&B of a run from its record alone, as if it were made now; steps that the server has it takes no more.

    Raises:
        RunError: nobody is logged in, the server can't be reached, it didn't take all of it in time, or the record is
            damaged.
    """
    settings = config.logger.wandb or WandbConfig()
    settings.mode = "online"
    facts, metrics, rows = record.facts, record.metrics, record.history()
    settings.entity, settings.project = facts.get("wandb_project") or (settings.entity, settings.project)
    record.update(wandb_open=False, wandb_kept=[])  # nothing is lacking once this session has ended
    group, varies = facts.get("group"), facts.get("varies") or ""
    tracker = WandbTracker(settings, config, record, group, varies, online_only=True)
    for row in rows:
        tracker.log({name: value for name, value in row.items() if name != "step"}, int(row["step"]))
    pictures = {name: record.path / f"{name}.png" for name in ("curves", "confusion", "attention")}
    tracker.finish(record.status, metrics, {name: path for name, path in pictures.items() if metrics and path.exists()})
