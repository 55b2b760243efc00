"""Weights & Biases: a run's tracker there, and what it sends.

The W&B client runs in its own thread. Training hands over its metrics and continues; only at the end it waits, for
at most ``logger.wandb.timeout`` seconds. The client writes everything to the run folder's ``wandb/`` before it sends
it. In run.json:

    wandb_id       the W&B run's id, known before training starts; a resumed run keeps it
    wandb_project  [entity, project]; null is the account's default, until its server has named that
    wandb_labels   name, group, tags and notes, as the configuration or W&B's variables set them
    wandb_private  whether the run was private when it was last logged
    wandb_open     whether a session did not end, or had no W&B, so that the client may lack a part of it
    wandb_gaps     whether the server may lack rows before its last: a session came after an open one, or a kept one
    wandb_kept     folders in ``wandb/``, each a whole session that the server does not have
    wandb_pushed   when the server had the whole run; null before that

scripts/wandb_sync.py replays a run that is not pushed from its record, by :func:`push`.
"""

import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from PIL import Image

from vitrine.config.loggers import WANDB_LABELS, WandbConfig
from vitrine.config.schema import TrainConfig
from vitrine.errors import Interrupted, NotWaitedFor, RunError, first_line
from vitrine.runs import RunRecord
from vitrine.runs.predictions import is_correct, predicted_classes, read_predictions
from vitrine.runs.provenance import program
from vitrine.runs.record import now
from vitrine.text import class_name, report
from vitrine.tracking.wandb_client import ClientProcess, client_problem, client_settings
from vitrine.tracking.wandb_values import config_values, run_facts, run_title, shortened
from vitrine.untrusted import refuse_pipe

END_SECONDS = 1.0  # for the client's process to end, once W&B is done
INTERRUPTED_SECONDS = 10.0  # for W&B, after training was interrupted; Ctrl-C ends the wait
REPLAY_SECONDS = 3600.0  # for W&B, to take a whole run with its checkpoints
EXIT_CODES = {
    "finished": 0,
    "pruned": 0,
    "interrupted": 255,
    "failed": 1,
    "diverged": 3,
}  # 255: as the client itself after Ctrl-C
CAPTIONS = {"attention": "images, what the model attends to, and its predictions"}
SPEED = ("images_per_second", "data_share", "mfu_measured", "mfu_datasheet")  # rows of a private run lack them
MAX_CONFUSION_CLASSES = 100  # W&B's pages draw no larger confusion matrix
MAX_TABLE_ROWS = 10_000  # W&B accepts no longer table


class WandbTracker:
    """A run at W&B.

    Args:
        settings: ``logger.wandb``: project, mode and so on.
        config: the run's configuration.
        record: the run folder; its run.json has the W&B id from now on.
        group: name shared by the runs of a sweep, unless the settings have one.
        varies: the overrides in which the run differs from others of its group.
        stop_by: when the process must have ended, as ``time.time()`` gives it; infinite for no limit.
        online_only: for a replay: a server that can't be reached is an error, and W&B has all the time that it needs.
            Otherwise the run continues offline.
    """

    name = "wandb"

    def __init__(
        self,
        settings: WandbConfig,
        config: TrainConfig,
        record: RunRecord,
        group: str | None,
        varies: str,
        stop_by: float = math.inf,
        *,
        online_only: bool = False,
    ) -> None:
        has_agent = "WANDB_SWEEP_ID" in os.environ
        if group and has_agent:  # all trials would be the W&B run that its agent has created
            problem = "`wandb agent` has one W&B run for each command, and -m several"
            raise RunError(f"{problem}; make them parameters of the W&B sweep")
        facts = record.facts
        place = _place(settings, facts, has_agent=has_agent)
        self.identity = place["id"]
        self._open = bool(facts.get("wandb_open"))  # an earlier session is incomplete, and so the run stays incomplete
        self._gaps = bool(facts.get("wandb_gaps"))
        self._last_step = math.inf  # of the open session, if the server has all rows before it
        if self._open and not self._gaps and not facts.get("wandb_kept"):
            self._last_step = max((float(row["step"]) for row in record.history()), default=-1)
        self._online_only = online_only
        self._stop_by = stop_by
        record.update(
            wandb_id=self.identity,
            wandb_project=[place["entity"], place["project"]],
            wandb_private=settings.private,
            wandb_labels={name: getattr(settings, name) for name in WANDB_LABELS},
            wandb_open=True,
            wandb_gaps=self._open or self._gaps,
            wandb_pushed=None,
        )
        self.record = record
        self.settings = settings
        self.mode = settings.mode
        self._arguments: dict[str, Any] = {
            **({} if has_agent else place),  # the client refuses values other than the agent's
            "resume": "allow",
            "reinit": "create_new",  # a run that this process never ended is another run
            "dir": str(record.path),
            "group": settings.group or (group and shortened(group)),
            "name": run_title(record, settings, varies),
            "tags": [*config.tags, *settings.tags] or None,
            "notes": settings.notes,
            "job_type": "train",
            "config": config_values(config, settings),
        }
        self._work: queue.SimpleQueue[Callable[[wandb.Run], None] | None] = queue.SimpleQueue()
        self._place_there: list[str] | None = None
        self._error: BaseException | None = None
        self._folder = ""
        self._step = -1  # of the last row, as the client counts it
        self._sent = False
        self._service: ClientProcess | None = None
        self._given_up = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="wandb", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand metrics over. Online, the client drops steps up to the server's last.

        A replay of a run with gaps counts its steps from there, so that none is dropped. The step is also a metric: W&B
        appends offline sessions to each other, and counts their rows from 0.
        """
        self._raise_error()
        self._record_place()
        row = {name: value for name, value in metrics.items() if not (self.settings.private and name in SPEED)}
        row["step"] = step
        self._work.put(lambda run: self._send_row(run, row, step))

    def finish(self, status: str, metrics: Mapping[str, float], plots: Mapping[str, Path]) -> None:
        """Hand over the results and end the run with ``status``, within the time set for it.

        Ctrl-C ends the wait.

        Raises:
            RunError: the client failed or hung; nothing of the run is lost.
            NotWaitedFor: Ctrl-C ended the wait; nothing is lost either.
        """
        self._raise_error()
        self._work.put(lambda run: self._conclude(run, status, dict(metrics), dict(plots)))
        self._work.put(None)
        late: BaseException = TimeoutError("took too long to end")
        try:
            self._thread.join(self._seconds_to_wait(status))
        except (KeyboardInterrupt, Interrupted):
            late = NotWaitedFor("was not waited for")
        if self._thread.is_alive():
            self._given_up = True
            if self._service is not None:
                self._service.kill()
            self._thread.join(END_SECONDS)
            self._error = late
        self._record_place()
        self._raise_error()
        earlier = self.record.facts.get("wandb_kept", [])
        kept = [*earlier, *([] if self._sent else [self._folder])]
        gaps = self._open or self._gaps or bool(self._sent and earlier)
        pushed = None if kept or self._open else now()
        self.record.update(wandb_kept=kept, wandb_open=self._open, wandb_gaps=gaps, wandb_pushed=pushed)

    def _record_place(self) -> None:
        """Keep where the server put the run, so that whoever resumes or replays it does not move it."""
        if self._place_there is not None:
            self.record.update(wandb_project=self._place_there)
            self._place_there = None

    def _seconds_to_wait(self, status: str) -> float:
        """How long :meth:`finish` may wait."""
        if self._online_only:
            return REPLAY_SECONDS
        most = min(self.settings.timeout, INTERRUPTED_SECONDS if status == "interrupted" else math.inf)
        return max(0.0, min(most, self._stop_by - time.time() - END_SECONDS))

    def _serve(self) -> None:
        """Run the thread: start the W&B run, do the work handed over, end."""
        try:
            run = self._start()
            run.define_metric("*", step_metric="step")
            run.summary.update({"status": "running"})  # an earlier session has set that of its end
            self._folder = Path(run.settings.sync_dir).name
            self._started.set()
            while (task := self._work.get()) is not None:
                task(run)
        except BaseException as error:
            self._error = error
            self._started.set()
            if self._service is not None:
                self._service.discard()

    def _start(self) -> wandb.Run:
        """Start the run online if asked for and possible, otherwise offline, to be pushed later."""
        self._service = ClientProcess(self.identity)
        if self.mode == "online":
            try:
                if not wandb.login(prompt=False):
                    raise RunError("W&B authentication failed; run `wandb login`, or set WANDB_API_KEY")
                run = self._init("online")
                self._place_there = [run.entity, run.project]
                self._open &= run.starting_step <= self._last_step
                return run
            except Exception as error:
                if self._online_only or self._given_up or self._service.serves_others():
                    raise
                self._service.discard()  # it would keep trying
                hint = f"later: {program('wandb-sync')} {self.record.path}"
                report(f"wandb continues offline: {client_problem(error)} ({hint})")
                self.mode = "offline"
                self._service = ClientProcess(self.identity)
        return self._init("offline")

    def _init(self, mode: str) -> wandb.Run:
        settings = client_settings(self.settings)
        return wandb.init(**self._arguments, mode=mode, settings=settings)  # type: ignore[arg-type]

    def _send_row(self, run: wandb.Run, row: dict[str, float], step: int) -> None:
        fills_gaps = self._online_only and self._gaps
        self._step = step + (run.starting_step if fills_gaps else 0)
        run.log(row, step=self._step)

    def _conclude(self, run: wandb.Run, status: str, metrics: dict[str, float], plots: Mapping[str, Path]) -> None:
        """End the run. A file that cannot be sent, as without room for the client's copy, keeps back no metric."""
        problem = None
        # That of the last row: a step beyond it may be that of a row after a resume.
        step = max(self._step, run.starting_step)
        try:
            self._send_files(run, step, metrics, plots)
        except Exception as error:
            problem = error
        if step == self._step:  # otherwise the client would set the row's values in the summary later
            run.log({}, step=step, commit=True)
        run.summary.update({**run_facts(self.record, self.settings), **metrics, "status": status})
        run.finish(exit_code=EXIT_CODES[status])
        if problem is not None:  # not raised here: the client, which may still be writing, would be killed
            self._error = RunError(f"pictures, tables or checkpoints were not sent: {first_line(problem)}")
            self._error.__cause__ = problem
            return
        self._sent = self.mode == "online"

    def _send_files(self, run: wandb.Run, step: int, metrics: Mapping[str, float], plots: Mapping[str, Path]) -> None:
        for name, path in plots.items():
            if not (self.settings.private and name == "attention"):  # it shows test images
                refuse_pipe(path)
                with Image.open(path, formats=("PNG",)) as picture:  # the client would have Pillow read any format
                    run.log({name: wandb.Image(picture, caption=CAPTIONS.get(name))}, step=step)
        if "test/acc" in metrics and self.record.contains(self.record.path / "predictions.npz"):
            run.log(prediction_tables(self.record), step=step)
        aliases = {"none": [], "best": ["best"], "all": ["last", "best"]}[self.settings.checkpoints]
        for alias in aliases if not self.settings.private else ():  # they have all paths
            path = self.record.path / "checkpoints" / f"{alias}.ckpt"
            if path.is_file() and self.record.contains(path):
                artifact = wandb.Artifact(f"checkpoint-{self.identity}", type="model")
                artifact.add_file(str(path), policy="immutable")
                run.log_artifact(artifact, aliases=[alias, "latest"])

    def _raise_error(self) -> None:
        if self._error is not None:
            hint = f"everything is in the run folder; later: {program('wandb-sync')} {self.record.path}"
            kind = NotWaitedFor if isinstance(self._error, NotWaitedFor) else RunError
            raise kind(f"{client_problem(self._error)} ({hint})") from self._error


def _place(settings: WandbConfig, facts: Mapping[str, Any], *, has_agent: bool) -> dict[str, Any]:
    """Return the run's ``id``, ``entity`` and ``project`` at W&B; an agent of W&B's dictates those that it sets."""
    place = {"id": facts.get("wandb_id"), "entity": settings.entity, "project": settings.project}
    if has_agent:
        place["id"] = place["id"] or os.environ.get("WANDB_RUN_ID")
        for name in ("entity", "project"):
            place[name] = os.environ.get(f"WANDB_{name.upper()}") or place[name]
    place["id"] = place["id"] or secrets.token_hex(4)
    return place


def push(record: RunRecord, config: TrainConfig, place: Sequence[Any]) -> None:
    """Send a run to W&B from its record alone, as if it were trained now, to ``place``: (entity or None, project).

    Steps up to the server's last are not sent again, unless the server may lack some of them: those of a kept session,
    or of one that did not end, that came before another. Then all rows are appended.

    Raises:
        RunError: not logged in, the server can't be reached or took too long, or the record is damaged.
        KeyboardInterrupt: Ctrl-C ended the wait.
    """
    facts, metrics, rows = record.facts, record.metrics, record.history()
    # Without settings, as after a resume with logger=csv; runs of earlier versions may have been private.
    settings = config.logger.wandb or WandbConfig(private=facts.get("wandb_private", True))
    settings = replace(settings, **(facts.get("wandb_labels") or {}), mode="online")
    settings.entity, settings.project = place
    gaps = bool(facts.get("wandb_gaps") or (facts.get("wandb_kept") and facts.get("wandb_open")))
    record.update(wandb_open=False, wandb_gaps=gaps, wandb_kept=[])  # this session sends everything
    group, varies = facts.get("group"), facts.get("varies") or ""
    tracker = WandbTracker(settings, config, record, group, varies, online_only=True)
    for row in rows:
        tracker.log({name: value for name, value in row.items() if name != "step"}, int(row["step"]))
    status = record.status if record.status != "running" else "interrupted"  # its machine is gone: --force
    try:
        tracker.finish(status, metrics, record.pictures if metrics else {})
    except NotWaitedFor:
        raise KeyboardInterrupt from None  # the other runs are not to be pushed either
    record.update(wandb_gaps=False)


def prediction_tables(record: RunRecord) -> dict[str, Any]:
    """Return the test predictions as a table, and, with one label per image, their confusion matrix."""
    from scipy.special import softmax

    logits, labels = read_predictions(record.path / "predictions.npz", "logits", "labels")
    predicted = predicted_classes(logits, labels)
    right = is_correct(predicted, labels)
    classes = [*record.facts["classes"]]
    columns: list[str | int] = ["test image", "true", "predicted", "right", "confidence"]
    shown = zip(labels[:MAX_TABLE_ROWS].tolist(), predicted.tolist(), right.tolist(), strict=False)
    if labels.ndim == 2:  # several labels per image, for which there is no confusion matrix
        rows = [
            [index, class_name(classes, label), class_name(classes, guess), correct]
            for index, (label, guess, correct) in enumerate(shown)
        ]
        return {"predictions": wandb.Table(columns=columns[:-1], data=rows)}
    classes += [f"no. {number}" for number in range(len(classes), logits.shape[1])]  # a model may have more classes
    probabilities = softmax(logits[:MAX_TABLE_ROWS].astype(np.float64), axis=1)
    rows = [
        [index, classes[label], classes[guess], correct, float(probabilities[index, guess])]
        for index, (label, guess, correct) in enumerate(shown)
    ]
    tables: dict[str, Any] = {"predictions": wandb.Table(columns=columns, data=rows)}
    if len(classes) <= MAX_CONFUSION_CLASSES:
        tables["confusion_matrix"] = wandb.plot.confusion_matrix(
            y_true=labels.tolist(), preds=predicted.tolist(), class_names=classes
        )
    return tables
