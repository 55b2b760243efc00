"""A run's guest at Weights & Biases. The only module that knows the client.

All that the client does is done in a thread of its own: training hands over what it has and goes on, and waits for at
most ``logger.wandb.timeout`` seconds at its end. The client writes what it is told into the run folder's ``wandb/``
before it sends it. In run.json:

    wandb_id       the run's id there, from before training on; a run that goes on has the same one
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import wandb
from wandb.sdk import wandb_setup

from vitrine.config.plain import to_plain
from vitrine.config.schema import TrainConfig, WandbConfig
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.record import now

START_SECONDS = 20.0  # for the server to answer
GRACE_SECONDS = 5.0  # for the client to notice by itself that its time is up
EXIT_CODES = {
    "finished": 0,
    "pruned": 0,
    "interrupted": 255,
    "failed": 1,
}  # 255 is what the client itself says of Ctrl-C
CAPTIONS = {"attention": "images, where the model looks, and its predictions"}
MOST_CLASSES = 100  # that a confusion matrix is drawn of in W&B's pages
MOST_ROWS = 10_000  # of a table that W&B takes


class WandbTracker:
    """One W&B run.

    Args:
        settings: project, mode and so on.
        config: everything the run is made with.
        record: the run; its run.json has the id from here on.
        group: runs that belong together, unless the settings name one.
        varies: what distinguishes this run in its group.
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
        *,
        online_only: bool = False,
    ) -> None:
        facts = record.facts
        self.identity = facts.get("wandb_id") or secrets.token_hex(4)
        self._open = bool(facts.get("wandb_open"))  # an earlier session is not whole: nor is the run after this one
        self._online_only = online_only
        record.update(wandb_id=self.identity, wandb_open=True, wandb_pushed=None)
        self.record = record
        self.settings = settings
        self.mode = settings.mode
        self._arguments: dict[str, Any] = {
            "id": self.identity,
            "resume": "allow",
            "reinit": "create_new",  # a run of the same process that was never ended is another one
            "dir": str(record.path),
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group or group,
            "name": settings.name or varies or record.name,
            "tags": [*config.tags, *settings.tags] or None,
            "notes": settings.notes,
            "job_type": "train",
            "config": _told(config, settings),
        }
        self._work: queue.SimpleQueue[Callable[[wandb.Run], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._folder = ""
        self._sent = False
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

        Raises:
            RunError: the client failed or hung; nothing of the run is lost.
        """
        self._raise()
        self._work.put(lambda run: self._conclude(run, status, dict(metrics), dict(pictures)))
        self._work.put(None)
        try:
            if self._started.wait(START_SECONDS + GRACE_SECONDS):
                self._thread.join(self.settings.timeout + GRACE_SECONDS)
        except BaseException:  # Ctrl-C, once more
            _kill_service()
            raise
        if self._thread.is_alive():
            _kill_service()
            self._thread.join(GRACE_SECONDS)
            self._error = TimeoutError("took too long to end")
        self._raise()
        kept = [*self.record.facts.get("wandb_kept", []), *([] if self._sent else [self._folder])]
        pushed = None if kept or self._open else now()
        self.record.update(wandb_kept=kept, wandb_open=self._open, wandb_pushed=pushed)

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
            _forget_service()

    def _start(self) -> wandb.Run:
        """Start online where that is asked for and possible, else offline: it can be pushed later."""
        if self.mode == "online":
            try:
                wandb.setup(wandb.Settings(silent=True))  # what it has to say of credentials, otherwise
                if not wandb.login(prompt=False):
                    raise RunError("nobody is logged in; `wandb login`, or set WANDB_API_KEY")
                return self._init("online")
            except Exception as error:
                if self._online_only:
                    raise
                _forget_service()  # it would go on trying
                hint = f"later: python scripts/wandb_sync.py {self.record.path}"
                print(f"vitrine: wandb goes on offline: {in_one_line(error)} ({hint})", file=sys.stderr)
                self.mode = "offline"
        return self._init("offline")

    def _init(self, mode: str) -> wandb.Run:
        return wandb.init(**self._arguments, mode=mode, settings=_client_settings(self.settings))  # type: ignore[arg-type]

    def _conclude(self, run: wandb.Run, status: str, metrics: dict[str, float], pictures: Mapping[str, Path]) -> None:
        for name, path in pictures.items():
            run.log({name: wandb.Image(str(path), caption=CAPTIONS.get(name))})
        if "test/acc" in metrics:
            run.log(_predictions(self.record))
        self._send_checkpoints(run)
        commit = None if self.settings.private else (self.record.facts.get("code") or {}).get("commit")
        # After the last row, whose values the client would set here.
        run.summary.update({**metrics, "status": status, "commit": commit})
        run.finish(exit_code=EXIT_CODES[status])
        self._sent = self.mode == "online"

    def _send_checkpoints(self, run: wandb.Run) -> None:
        asked = {"none": [], "best": ["best"], "all": ["last", "best"]}[self.settings.checkpoints]
        for alias in asked:
            path = self.record.path / "checkpoints" / f"{alias}.ckpt"
            if path.exists():
                artifact = wandb.Artifact(
                    f"checkpoint-{self.identity}", type="model", metadata={"run": self.record.name}
                )
                artifact.add_file(str(path), policy="immutable")
                run.log_artifact(artifact, aliases=[alias, "latest"])

    def _raise(self) -> None:
        if self._error is not None:
            hint = f"all of it is in the run folder; later: python scripts/wandb_sync.py {self.record.path}"
            raise RunError(f"{in_one_line(self._error)} ({hint})") from self._error


def push(record: RunRecord, config: TrainConfig) -> None:
    """Tell W&B of a run from its record alone, as if it were made now; steps that the server has it takes no more.

    Raises:
        RunError: nobody is logged in, the server can't be reached, or it didn't take all of it in time.
    """
    settings = config.logger.wandb or WandbConfig()
    settings.mode = "online"
    facts, metrics = record.facts, record.metrics
    record.update(wandb_open=False, wandb_kept=[])  # nothing is lacking once this session has ended
    group, varies = facts.get("group"), facts.get("varies") or ""
    tracker = WandbTracker(settings, config, record, group, varies, online_only=True)
    for row in record.history():
        tracker.log({name: value for name, value in row.items() if name not in ("step", "seconds")}, int(row["step"]))
    pictures = {name: record.path / f"{name}.png" for name in ("curves", "confusion", "attention")}
    tracker.finish(record.status, metrics, {name: path for name, path in pictures.items() if metrics and path.exists()})


def in_one_line(error: BaseException) -> str:
    """What an error says, its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _told(config: TrainConfig, settings: WandbConfig) -> dict[str, Any]:
    """The configuration for W&B; a private one has no paths in it."""
    values = to_plain(config)
    if settings.private:
        del values["paths"]
        values["data"].pop("root")
    return values


def _client_settings(settings: WandbConfig) -> wandb.Settings:
    told: dict[str, Any] = {}
    if settings.private:
        told = {
            "x_disable_machine_info": True,
            "x_disable_meta": True,
            "x_save_requirements": False,
        }
        told |= {"host": "private", "program": "train.py", "program_relpath": "train.py", "program_abspath": "train.py"}
    return wandb.Settings(
        console="off",
        silent=True,
        quiet=True,
        save_code=False,
        disable_code=True,
        disable_git=True,  # an address of a repository may have a token in it; the commit is in the summary
        init_timeout=START_SECONDS,
        finish_timeout=settings.timeout,
        finish_timeout_raises=True,
        **told,
    )


def _predictions(record: RunRecord) -> dict[str, Any]:
    """The confusion matrix, and the test predictions as a table."""
    with np.load(record.path / "predictions.npz") as stored:
        logits, labels = stored["logits"].astype(np.float64), stored["labels"]
    classes = [*record.facts["classes"]]
    classes += [f"no. {number}" for number in range(len(classes), logits.shape[1])]  # a model may have more
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    guesses = chances.argmax(axis=1)
    rows = [
        [index, classes[label], classes[guess], bool(label == guess), float(chances[index, guess])]
        for index, (label, guess) in enumerate(zip(labels[:MOST_ROWS], guesses, strict=False))
    ]
    columns: list[str | int] = ["test image", "true", "predicted", "right", "confidence"]
    told: dict[str, Any] = {"predictions": wandb.Table(columns=columns, data=rows)}
    if len(classes) <= MOST_CLASSES:
        told["confusion_matrix"] = wandb.plot.confusion_matrix(
            y_true=labels.tolist(), preds=guesses.tolist(), class_names=classes
        )
    return told


def _kill_service() -> None:
    """End the client's process. It has no public call that doesn't wait for it."""
    with suppress(AttributeError):
        wandb_setup.singleton()._connection._proc._process.kill()  # type: ignore[union-attr]


def _forget_service() -> None:
    """Leave nothing behind that Python would wait for when it ends: the next run starts a new service."""
    _kill_service()
    with suppress(BaseException):  # it is dead, and says so
        wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)
