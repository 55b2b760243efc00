"""The run folder always has everything; Weights & Biases and TensorBoard have it, too, when asked for."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
import wandb
from helpers.running import ROOT
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import Logger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from vitrine import compose
from vitrine.config.serialize import to_plain
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import ConfigError, Interrupted, NotWaitedFor, Pruned, RunError
from vitrine.runs import RunRecord
from vitrine.tracking.loggers import LoggerTracker, RunLogger, TensorBoardTracker, start_trackers
from vitrine.tracking.wandb import WandbTracker
from vitrine.tracking.wandb_client import ClientProcess
from vitrine.training.lifecycle import recorded

ENDS = {"finished": None, "failed": ValueError("no"), "interrupted": Interrupted()}
OFFLINE = ["model=vit_nano", "logger=wandb", "logger.wandb.mode=offline", "tags=[ours]", "logger.wandb.tags=[theirs]"]

LONELY = """
import json, os, sys
from pathlib import Path

from vitrine import compose
from vitrine.runs import RunRecord
from vitrine.tracking.loggers import RunLogger, start_trackers

def variables():
    return {name: value for name, value in os.environ.items() if name.startswith("WANDB")}

before = variables()
folder = Path(sys.argv[1])

def run(overrides):
    record = RunRecord.create(folder, "word")
    record.update(id=record.name)
    guests = start_trackers(compose(["model=vit_nano", *overrides]), record, 0, None, "")
    with RunLogger(record, 0, guests) as logger:
        logger.log_metrics({"epoch": 1, "lr": 0.1}, 1)
    return record

record = run([])
said = {
    "imported": [name for name in ("wandb", "tensorboard", "torch.utils.tensorboard") if name in sys.modules],
    "files": sorted(path.name for path in record.path.iterdir()),
}
disabled = run(["logger=wandb", "logger.wandb.mode=disabled"])
said["disabled"] = sorted(path.name for path in disabled.path.iterdir())
lonely = run(["logger=wandb"])
said["sessions"] = len(lonely.facts["wandb_kept"])
said["pushed"] = lonely.facts["wandb_pushed"]
import wandb
wandb.teardown()
said["same variables"] = variables() == before
print(json.dumps(said))
"""


class Guest:
    """Somebody who listens, and fails at a call of one's choice."""

    def __init__(self, name: str, fails_at: int = -1, error: Exception | None = None) -> None:
        self.name = name
        self.fails_at = fails_at
        self.error = error or ConnectionError("gone")
        self.calls: list[Any] = []

    def log(self, metrics, step):
        assert metrics["seconds"] >= 0
        self._take((step, {name: value for name, value in metrics.items() if name != "seconds"}))

    def finish(self, status, metrics, pictures):
        self._take((status, dict(metrics), dict(pictures)))

    def _take(self, call):
        self.calls.append(call)
        if len(self.calls) - 1 == self.fails_at:
            raise self.error


@pytest.fixture
def record(tmp_path) -> RunRecord:
    return new_record(tmp_path)


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "curves.png"
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def end(
    logger: RunLogger,
    metrics: dict[str, float] | None = None,
    pictures: dict[str, Path] | None = None,
    error: Exception | None = None,
) -> None:
    """End a run, with its metrics or by an error."""
    with nullcontext() if error is None else suppress(type(error)), logger:
        logger.conclude(metrics or {}, pictures or {})
        if error is not None:
            raise error


def new_record(folder: Path) -> RunRecord:
    record = RunRecord.create(folder, "word")
    record.update(id=record.name, classes=["zero", "one"], code={"commit": "abc"})
    return record


# --- Weights & Biases, offline -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """What the client has written for the server, read back from its transaction log."""

    record: RunRecord
    run: Any
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    exit_code: int
    artifacts: list[Any]


LOGITS = np.array([[2, 0, 0], [0, 1, 0], [0, 0, 3]], dtype=np.float32)  # a class more than the data has
LABELS = np.array([0, 0, 1])
TABLES = ("predictions", "confusion_matrix_table")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, picture) -> dict[str, Sent]:
    """Runs one after the other in one process, by how each of them ends."""
    sent = {}
    for number, (status, error) in enumerate(ENDS.items()):
        config = compose([*OFFLINE, "logger.wandb.checkpoints=all", f"seed={number}"])
        record = new_record(tmp_path_factory.mktemp("run"))
        np.savez(record.path / "predictions.npz", logits=LOGITS, labels=LABELS)
        record.best.write_bytes(b"the best weights")
        record.last.write_bytes(b"the last weights")
        tracker = WandbTracker(config.logger.wandb, config, record, group="a-sweep", varies=f"seed={number}")
        assert record.facts["wandb_id"], "before anything is logged"
        logger = RunLogger(record, 0, [tracker])
        for step in (10, 20):
            logger.log_metrics({"epoch": 1, "train/loss": 2.5 / step + number}, step)
        logger.log_metrics({"epoch": 1, "val/acc": 0.25}, 20)
        end(logger, {"test/acc": 0.5 + number / 8, "val/acc": 0.75}, {"curves": picture}, error)
        assert logger.trackers == [tracker]
        sent[status] = read_back(record)
    return sent


def read_back(record: RunRecord) -> Sent:
    (log,) = record.path.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 60
    while True:  # the client's own process writes the log, on a busy machine later than finish() returns
        records = transactions(log)
        exits = [one.exit.exit_code for one in records if one.WhichOneof("record_type") == "exit"]
        if exits or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    (run, *_) = [one.run for one in records if one.WhichOneof("record_type") == "run"]
    summary: dict[str, Any] = {}
    history = []
    for one in records:
        if one.WhichOneof("record_type") == "summary":
            summary |= values(one.summary.update)
        if one.WhichOneof("record_type") == "history":
            history.append(values(one.history.item) | {"_step": one.history.step.num})
    artifacts = [one.artifact for one in records if one.WhichOneof("record_type") == "artifact"]
    artifacts += [one.request.log_artifact.artifact for one in records if one.request.HasField("log_artifact")]
    return Sent(record, run, values(run.config.update), history, summary, exits[0], artifacts)


def transactions(path: Path) -> list[Any]:
    """The records of a .wandb file: LevelDB's log format with a head of seven bytes and plain CRC32."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, found = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[place : place + 7])
        part = data[place + 7 : place + 7 + length]
        if len(part) < length:
            break
        assert zlib.crc32(part, zlib.crc32(bytes([kind]))) == checksum
        place += 7 + length
        parts += part
        if kind in (1, 4):  # whole, or the last of several
            found.append(Record.FromString(parts))
            parts = b""
    return found


def values(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def test_wandb_has_the_history_by_optimiser_step(runs):
    for number, sent in enumerate(runs.values()):
        rows = [
            {name: row[name] for name in ("_step", "step", "epoch", "train/loss", "val/acc") if name in row}
            for row in sent.history
        ]
        assert rows[:2] == [
            {"_step": 10, "step": 10, "epoch": 1, "train/loss": 0.25 + number},
            {"_step": 20, "step": 20, "epoch": 1, "train/loss": 0.125 + number, "val/acc": 0.25},
        ]


def test_wandb_has_no_row_after_the_last_step(runs):
    """A picture in a row of its own would take the step of a row after a resume, which the client then drops."""
    assert {tuple(row["_step"] for row in sent.history) for sent in runs.values()} == {(10, 20)}


@pytest.mark.parametrize("pictures", [[], ["curves"]])
def test_wandb_has_the_metrics_of_the_selected_epoch_without_a_picture_too(tmp_path, pictures, monkeypatch, capsys):
    killed: list[ClientProcess] = []  # it may still be writing when the run has ended
    monkeypatch.setattr(ClientProcess, "discard", lambda client: killed.append(client))
    record, config = new_record(tmp_path), compose(OFFLINE)
    logger = RunLogger(record, 0, [WandbTracker(config.logger.wandb, config, record, None, "")])
    for epoch, accuracy in ((1, 0.9), (2, 0.25)):
        logger.log_metrics({"epoch": epoch, "val/acc": accuracy}, 10 * epoch)
    unreadable = record.path / "run.json"
    end(logger, {"val/acc": 0.9}, dict.fromkeys(pictures, unreadable))
    summary = read_back(record).summary
    assert (summary["val/acc"], summary["status"]) == (0.9, "finished")
    assert not killed
    assert ("pictures, tables or checkpoints were not sent" in capsys.readouterr().err) == bool(pictures)


def test_wandb_has_the_final_metrics_and_the_plots(runs, picture):
    for number, (status, sent) in enumerate(runs.items()):
        summary = {name: sent.summary.get(name) for name in ("test/acc", "val/acc", "status", "commit")}
        assert summary == {"test/acc": 0.5 + number / 8, "val/acc": 0.75, "status": status, "commit": "abc"}
        (drawn,) = [row for row in sent.history if "curves/path" in row]
        assert (drawn["curves/_type"], drawn["curves/width"], drawn["curves/height"]) == ("image-file", 9, 6)
        (copy,) = sent.record.path.glob(f"wandb/offline-run-*/files/{drawn['curves/path']}")
        assert np.array_equal(Image.open(copy), Image.open(picture))


def test_wandb_has_the_test_predictions_and_their_confusion_matrix(runs):
    for sent in runs.values():
        files = {
            name: list(sent.record.path.glob(f"wandb/offline-run-*/files/media/table/{name}_*")) for name in TABLES
        }
        tables = {name: json.loads(path.read_text()) for name, (path,) in files.items()}
        rows = [dict(zip(tables["predictions"]["columns"], row, strict=True)) for row in tables["predictions"]["data"]]
        assert [(row["true"], row["predicted"], row["right"]) for row in rows] == [
            ("zero", "zero", True),
            ("zero", "one", False),
            ("one", "no. 2", False),
        ]
        assert rows[0]["confidence"] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
        counted = [row for row in tables["confusion_matrix_table"]["data"] if row[2]]
        assert counted == [["zero", "zero", 1], ["zero", "one", 1], ["one", "no. 2", 1]]


def test_wandb_has_the_requested_checkpoints(runs):
    for sent in runs.values():
        models = [one for one in sent.artifacts if one.type == "model"]
        assert [sorted(one.aliases) for one in models] == [["last", "latest"], ["best", "latest"]]
        assert {one.name for one in models} == {f"checkpoint-{sent.run.run_id}"}
        assert [Path(one.manifest.contents[0].local_path).name for one in models] == ["last.ckpt", "best.ckpt"]


def test_wandb_has_the_whole_configuration(runs):
    for number, sent in enumerate(runs.values()):
        overrides = [*OFFLINE, "logger.wandb.checkpoints=all", f"seed={number}"]
        expected = json.loads(json.dumps(to_plain(compose(overrides))))
        assert {name: value for name, value in sent.config.items() if name != "_wandb"} == expected


def test_wandb_has_name_group_and_tags(runs):
    for number, sent in enumerate(runs.values()):
        run = sent.run
        named = (run.project, run.run_group, run.display_name, run.job_type)
        assert named == ("vitrine", "a-sweep", f"seed={number}", "train")
        assert sorted(run.tags) == ["ours", "theirs"]
        assert run.run_id == sent.record.facts["wandb_id"]
    assert len({sent.run.run_id for sent in runs.values()}) == len(runs)


def test_wandb_has_the_status_of_each_run(runs):
    assert {status: sent.exit_code for status, sent in runs.items()} == {"finished": 0, "failed": 1, "interrupted": 255}


def test_an_offline_run_is_complete_and_not_pushed(runs):
    for sent in runs.values():
        facts = sent.record.facts
        assert (facts["wandb_open"], facts["wandb_pushed"], len(facts["wandb_kept"])) == (False, None, 1)


@pytest.mark.whole
def test_a_resumed_run_is_the_same_wandb_run_and_own_names_take_precedence(runs, tmp_path):
    record = RunRecord(Path(shutil.copytree(runs["interrupted"].record.path, tmp_path / "run", symlinks=True)))
    overrides = [
        "logger.wandb.group=mine",
        "logger.wandb.name=own",
        "logger.wandb.project=other",
        "logger.wandb.notes=why",
    ]
    config = compose([*OFFLINE, *overrides])
    tracker = WandbTracker(config.logger.wandb, config, record, group="a-sweep", varies="seed=0")
    tracker.log({"epoch": 2, "train/loss": 0.5}, 30)
    tracker.finish("finished", {}, {})
    first, second = record.facts["wandb_kept"]
    assert first == runs["interrupted"].record.facts["wandb_kept"][0]
    (log,) = (record.path / "wandb" / second).glob("*.wandb")
    (run, *_) = [one.run for one in transactions(log) if one.WhichOneof("record_type") == "run"]
    assert run.run_id == runs["interrupted"].run.run_id
    assert (run.run_group, run.display_name, run.project, run.notes) == ("mine", "own", "other", "why")


@pytest.mark.whole
def test_a_private_run_sends_nothing_of_the_machine_or_the_code(tmp_path):
    weights = tmp_path / "my-secret-place" / "weights.pt"
    weights.parent.mkdir()
    weights.touch()
    overrides = ["logger.wandb.private=true", f"paths.output_dir={weights.parent}", f"model.pretrained={weights}"]
    config = compose([*OFFLINE, *overrides])
    record = new_record(tmp_path)
    record.update(images={"train": 9}, parameters=5, command="python my-secret-place/train.py")
    WandbTracker(config.logger.wandb, config, record, None, f"model.pretrained={weights}").finish(
        "finished", {"val/acc": 0.5}, {}
    )
    sent = read_back(record)
    assert sent.run.host == "private"
    assert "paths" not in sent.config
    assert "root" not in sent.config["data"]
    assert sent.config["model"]["pretrained"] == "weights.pt"
    assert {name for name in sent.summary if name[0] != "_"} == {"val/acc", "status"}
    (session,) = record.path.glob("wandb/offline-run-*")
    assert [path.name for path in (session / "files").rglob("*")] == [], "no requirements, metadata or patch"
    (log,) = session.glob("*.wandb")
    for secret in ("my-secret-place", str(ROOT), sys.executable, "pytest"):
        assert secret.encode() not in log.read_bytes(), secret


@pytest.mark.whole
def test_an_unused_tracker_is_not_imported_and_one_without_login_runs_offline(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", LONELY, str(tmp_path / "runs")],
        env={**kept, "HOME": str(tmp_path), "WANDB_TAGS": "untouched"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "imported": [],
        "files": ["checkpoints", "metrics.csv", "run.json"],
        "disabled": ["checkpoints", "metrics.csv", "run.json"],
        "sessions": 1,
        "pushed": None,
        "same variables": True,
    }
    (line,) = done.stderr.splitlines()
    assert line.startswith("vitrine: wandb continues offline: W&B authentication failed; run `wandb login`")
    assert "scripts/wandb_sync.py" in line


def test_wandbs_variables_count_where_the_configuration_has_defaults(record, monkeypatch):
    def place(*overrides):
        config = compose(["model=vit_nano", "logger=wandb", *overrides])
        found = [tracker.project for tracker in start_trackers(config, record, 0, None, "")]
        return found[0] if found else None

    def tracked(settings, *_):
        return SimpleNamespace(project=(settings.entity, settings.project, settings.mode))

    monkeypatch.setattr("vitrine.tracking.wandb.WandbTracker", tracked)
    for name in ("PROJECT", "ENTITY", "MODE"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    assert place() == (None, "vitrine", "online")
    monkeypatch.setenv("WANDB_PROJECT", "digits")
    monkeypatch.setenv("WANDB_ENTITY", "ann")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert place() == ("ann", "digits", "offline")
    assert place("logger.wandb.project=own", "logger.wandb.entity=bob") == ("bob", "own", "offline")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert place() is None
    record.update(wandb_project=["bob", "before"])  # it is resumed
    monkeypatch.setenv("WANDB_MODE", "online")
    assert place() == ("bob", "before", "online")


@pytest.mark.whole
def test_a_run_of_wandbs_agent_has_the_agents_id(tmp_path, monkeypatch):
    (tmp_path / "parameters.yaml").write_text("wandb_version: 1\nseed: {value: 7}\nposition: {value: rope}\n")
    variables = {"SWEEP_ID": "sweep1", "RUN_ID": "run1", "PROJECT": "theirs", "ENTITY": "them"}
    variables["SWEEP_PARAM_PATH"] = str(tmp_path / "parameters.yaml")
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setattr(sys, "argv", ["train.py", "an-argument-of-ours"])
    record = new_record(tmp_path)
    record.update(images={"train": 9}, parameters=5, speed={"images_per_second": 2.5}, command="python train.py ***")
    config = compose([*OFFLINE, "position=rope", "seed=7"])
    wandb.teardown()  # it read its environment when it was first used
    try:
        tracker = WandbTracker(config.logger.wandb, config, record, None, "")
        tracker.log({"epoch": 1, "seconds": 1.5}, 10)
        tracker.finish("finished", {"val/acc": 0.5}, {})
    finally:
        wandb.teardown()
    sent = read_back(record)
    assert (sent.run.run_id, sent.run.sweep_id, sent.run.project, sent.run.entity) == (
        "run1",
        "sweep1",
        "theirs",
        "them",
    )
    assert (record.facts["wandb_id"], record.facts["wandb_project"]) == ("run1", ["them", "theirs"])
    assert sent.config["model"]["position"] == "rope"
    assert sent.history[0]["seconds"] == 1.5
    summary = {name: sent.summary.get(name) for name in ("parameters", "images_per_second", "command", "commit")}
    assert summary == {"parameters": 5, "images_per_second": 2.5, "command": "python train.py ***", "commit": "abc"}
    assert sent.summary["images"] == {"train": 9}
    kept = b"".join(path.read_bytes() for path in record.path.rglob("*") if path.is_file())
    assert b"an-argument-of-ours" not in kept, "parts of the command may be secret"


# --- TensorBoard -------------------------------------------------------------------------------------------------


def test_tensorboard_has_scalars_plots_and_hyperparameters(record, picture):
    (tracker,) = start_trackers(compose(["model=vit_nano", "logger=tensorboard", "tags=[a,b]"]), record, 0, None, "")
    assert isinstance(tracker, TensorBoardTracker)
    logger = RunLogger(record, 0, [tracker])
    for step in (10, 20):
        logger.log_metrics({"epoch": 1, "train/loss": 2.5 / step}, step)
    end(logger, {"test/acc": 0.75}, {"curves": picture})

    events = EventAccumulator(str(record.path / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [(10, 0.25), (20, 0.125)]
    assert [one.value for one in events.Scalars("epoch")] == [1.0, 1.0]
    assert [one.value for one in events.Scalars("final/test/acc")] == [0.75]
    (image,) = events.Images("curves")
    decoded = record.path / "decoded.png"
    decoded.write_bytes(image.encoded_image_string)
    assert np.array_equal(Image.open(decoded), Image.open(picture))

    found = events.summary_metadata
    started = metadata.parse_session_start_info_plugin_data(found[metadata.SESSION_START_INFO_TAG].plugin_data.content)
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in started.hparams.items()}
    assert (values["model.depth"], values["optimizer.lr"], values["tags"]) == (
        tracker.config.model.depth,
        tracker.config.optimizer.lr,
        "['a', 'b']",
    )
    asked = metadata.parse_experiment_plugin_data(found[metadata.EXPERIMENT_TAG].plugin_data.content)
    assert [one.name.tag for one in asked.metric_infos] == ["final/test/acc"], "a column beside the hyperparameters"


def test_tensorboard_has_each_step_once_after_a_resume(record, picture):
    config = compose(["model=vit_nano", "logger=tensorboard"])
    for done, steps, accuracy in ((0, (10, 20, 30), 0.5), (10, (20, 30, 40), 0.75)):
        (tracker,) = start_trackers(config, record, done, None, "")
        for step in steps:
            tracker.log({"lr": step + done}, step)
        tracker.finish("finished", {"val/acc": accuracy}, {"curves": picture})
    events = EventAccumulator(str(record.path / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("lr")] == [(10, 10), (20, 30), (30, 40), (40, 50)]
    assert [(one.step, one.value) for one in events.Scalars("final/val/acc")] == [(40, 0.75)]
    assert [one.step for one in events.Images("curves")] == [40]


def test_tensorboard_has_all_but_a_picture_that_cannot_be_read(record):
    (tracker,) = start_trackers(compose(["model=vit_nano", "logger=tensorboard"]), record, 0, None, "")
    with pytest.raises(OSError, match="cannot identify image file"):
        tracker.finish("finished", {"val/acc": 0.5}, {"curves": record.path / "run.json"})
    assert tracker.writer.file_writer is None, "closed"
    events = EventAccumulator(str(record.path / "tensorboard"))
    events.Reload()
    assert metadata.SESSION_START_INFO_TAG in events.summary_metadata


def test_tensorboard_that_cannot_write_is_left_out(record, capsys):
    (record.path / "tensorboard").write_text("a file in its way")
    assert start_trackers(compose(["model=vit_nano", "logger=tensorboard"]), record, 0, None, "") == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vitrine: tensorboard could not start: ")


# --- a logger of Lightning's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("finished", "success"),
        ("pruned", "success"),
        ("failed", "failed"),
        ("interrupted", "failed"),
        ("diverged", "failed"),
    ],
)
def test_a_logger_ends_with_lightnings_words(monkeypatch, status, expected):
    """MLFlowLogger refuses others, and its run would be running for ever."""
    logger = create_autospec(Logger, instance=True)
    monkeypatch.setattr("vitrine.tracking.loggers.build", lambda part: logger)
    LoggerTracker(SimpleNamespace(name="Mine"), compose([])).finish(status, {}, {})
    logger.finalize.assert_called_once_with(expected)


class OwnWandbLogger(WandbLogger):
    pass


@pytest.mark.parametrize("name", ["lightning.pytorch.loggers.WandbLogger", f"{__name__}.OwnWandbLogger"])
def test_lightnings_logger_of_weights_and_biases_is_refused(name):
    """All trials of a sweep in one process would be one run there."""
    with pytest.raises(ConfigError, match="use logger=wandb") as refusal:
        compose([f"logger.parts=[{name}]"])
    assert [fault.key for fault in refusal.value.faults] == ["logger.parts"]


# --- the run folder ----------------------------------------------------------------------------------------------


def test_the_run_folder_has_each_row_with_its_step_and_time(record):
    logger = RunLogger(record, 0, [])
    logger.log_metrics({"epoch": 1, "train/loss": 2.0}, 10)
    logger.log_metrics({"epoch": 1, "val/acc": 0.5}, 10)
    history = record.history()
    assert [{name: row[name] for name in row if name != "seconds"} for row in history] == [
        {"epoch": 1, "step": 10, "train/loss": 2.0},
        {"epoch": 1, "step": 10, "val/acc": 0.5},
    ]
    assert 0 <= history[0]["seconds"] <= history[1]["seconds"] < 60


def test_a_row_of_tensors_without_a_step_has_their_values_at_the_step_before(record):
    guest = Guest("guest")
    logger = RunLogger(record, 7, [guest])
    logger.log_metrics({"epoch": torch.tensor(2), "x": torch.tensor(2.5), "best": True})
    logger.log_metrics({"x": np.float32(0.5)}, 8)
    logger.log_metrics({"x": torch.tensor([3])})
    assert [(row["epoch"], row["step"], row["x"]) for row in record.history()] == [(2, 7, 2.5), (2, 8, 0.5), (2, 8, 3)]
    assert repr(guest.calls[0]) == repr((7, {"epoch": 2, "x": 2.5, "best": 1.0}))


@pytest.mark.parametrize("value", [torch.ones(2), None, "high", 10**400], ids=["tensor", "none", "text", "huge"])
def test_a_metric_that_is_not_a_number_is_refused_when_it_is_logged(record, value):
    logger = RunLogger(record, 0, [])
    with pytest.raises(RunError, match=f"cannot log my/x: it must be one number, not a {type(value).__name__}$"):
        logger.log_metrics({"epoch": 1, "my/x": value}, 1)
    assert record.history() == []


def test_training_time_continues_on_resume(record):
    path = record.path / "metrics.csv"
    path.write_text("epoch,step,seconds,lr\r\n1,10,100.0,0.1\r\n1,20,200.0,0.1\r\n")
    RunLogger(record, 10, []).log_metrics({"epoch": 1, "lr": 0.2}, 20)
    first, second = record.history()
    assert first == {"epoch": 1, "step": 10, "seconds": 100.0, "lr": 0.1}
    assert second["lr"] == 0.2
    assert 100.0 <= second["seconds"] < 160.0


def test_a_run_with_rows_of_a_standard_lightning_callback_can_be_resumed(record):
    """LearningRateMonitor logs rows without an epoch."""
    logger = RunLogger(record, 0, [])
    logger.log_metrics({"lr-AdamW": 0.1}, 0)
    logger.log_metrics({"epoch": 2, "train/loss": 2.0}, 10)
    logger.log_metrics({"lr-AdamW": 0.2}, 10)
    RunLogger(record, 10, [])
    assert [(row["step"], row["epoch"]) for row in record.history()] == [(0, 1), (10, 2), (10, 2)]


def test_a_failing_tracker_is_dropped_with_one_line_and_nothing_is_lost(record, capsys):
    well, ill = Guest("well"), Guest("ill", fails_at=1, error=ConnectionError("the server\nis  gone"))
    logger = RunLogger(record, 0, [ill, well])
    for step in (1, 2, 3, 4):
        logger.log_metrics({"epoch": 1, "lr": step / 8}, step)
    end(logger, {"test/acc": 1.0})

    expected = [(step, {"epoch": 1, "lr": step / 8}) for step in (1, 2, 3, 4)]
    assert well.calls == [*expected, ("finished", {"test/acc": 1.0}, {})]
    assert ill.calls == expected[:2]
    assert [(row["step"], row["lr"]) for row in record.history()] == [(step, step / 8) for step in (1, 2, 3, 4)]
    captured = capsys.readouterr()
    assert captured.err == "vitrine: ill failed and gets no more metrics: the server\n"
    assert captured.out == ""


@pytest.mark.parametrize("error", [None, ValueError("no"), Pruned("after epoch 1")], ids=str)
@pytest.mark.parametrize("group", [None, "a-sweep"])
def test_ctrl_c_while_a_tracker_is_waited_for_ends_a_sweep(record, group, error):
    """A single run is complete by then; and the trial keeps its status."""
    status = {ValueError: "failed", Pruned: "pruned"}.get(type(error), "finished")
    stopped, other = Guest("stopped", fails_at=0, error=NotWaitedFor("was not waited for")), Guest("other")
    record.update(group=group)
    with pytest.raises(KeyboardInterrupt) if group else nullcontext(), recorded(record, Ranks()):
        end(RunLogger(record, 0, [stopped, other]), error=error)
    assert len(other.calls) == 1
    assert record.status == status


def test_a_tracker_that_fails_at_the_end_does_not_stop_the_others(record, capsys):
    first, second = Guest("first", fails_at=0, error=TimeoutError()), Guest("second")
    end(RunLogger(record, 0, [first, second]), {"val/acc": 0.5})
    assert second.calls == [("finished", {"val/acc": 0.5}, {})]
    assert capsys.readouterr().err == "vitrine: first failed and gets no more metrics: TimeoutError\n"


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "failed"), (Interrupted(), "interrupted")], ids=["failed", "interrupted"]
)
def test_trackers_get_the_status_of_an_unfinished_run(record, error, status):
    guest = Guest("guest")
    logger = RunLogger(record, 0, [guest])
    with pytest.raises(type(error)), logger:  # the error is not swallowed
        raise error
    assert guest.calls == [(status, {}, {})]


@pytest.mark.parametrize(("status", "error"), [*ENDS.items(), ("pruned", Pruned("after epoch 1"))])
def test_a_run_has_ended_before_trackers_are_waited_for(record, status, error):
    class Reader(Guest):
        def finish(self, status, metrics, pictures):
            self.calls.append((status, record.status, record.facts["error"]))

    reader = Reader("reader")
    record.start()
    end(RunLogger(record, 0, [reader]), error=error)
    summary = {"failed": "ValueError: no", "pruned": "after epoch 1"}.get(status)
    assert reader.calls == [(status, status, summary)]


def test_two_trackers_may_fail_at_once(record, capsys):
    guests = [Guest(name, fails_at=0) for name in ("one", "two", "three")]
    logger = RunLogger(record, 0, list(guests))
    logger.log_metrics({"epoch": 1, "lr": 0.5}, 1)
    assert [len(guest.calls) for guest in guests] == [1, 1, 1]
    assert logger.trackers == []
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_row_is_in_the_run_folder_before_a_tracker_gets_it(record):
    class Reader(Guest):
        def log(self, metrics, step):
            self.calls.append([row["step"] for row in record.history()])

    reader = Reader("reader")
    logger = RunLogger(record, 0, [reader])
    for step in (1, 2):
        logger.log_metrics({"epoch": 1}, step)
    assert reader.calls == [[1], [1, 2]]
