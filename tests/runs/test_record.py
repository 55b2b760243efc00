"""A run folder says what happened, also after a crash."""

import json
import math
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from vitrine.errors import RunError
from vitrine.runs import MetricsFile, RunRecord
from vitrine.runs.lock_file import Holder
from vitrine.runs.record import check_writable

CREATES_MANY = """
import sys
from pathlib import Path
from vitrine.runs import RunRecord

for _ in range(40):
    print(RunRecord.create(Path(sys.argv[1]), "many").path)
"""

STARTS_AND_WAITS = """
import sys, time
from pathlib import Path
from vitrine.runs import RunRecord

RunRecord(Path(sys.argv[1])).start()
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def record(tmp_path) -> RunRecord:
    record = RunRecord.create(tmp_path, "word")
    record.update(id=record.name)
    return record


@pytest.fixture
def ordinary_user():
    """An empty folder that an ordinary user may enter, seen as that user; to an administrator nothing is forbidden."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if os.geteuid() != 0:
            yield folder
        else:
            os.chown(folder, 65534, 65534)
            os.setresuid(65534, 65534, 0)
            try:
                yield folder
            finally:
                os.setresuid(0, 0, 0)
        folder.chmod(0o755)


def rows_of(record: RunRecord) -> list[list[str]]:
    return [line.split(",") for line in (record.path / "metrics.csv").read_text().splitlines()]


# --- making and opening ------------------------------------------------------------------------------------------


def test_a_new_run_is_named_by_time_and_label_and_has_a_checkpoint_folder(tmp_path):
    record = RunRecord.create(tmp_path / "not" / "there" / "yet", "digits-s0")
    date, time, rest = record.name.split("_", 2)
    assert (len(date), len(time)) == (10, 8)
    assert rest.startswith("digits-s0_")
    assert record.path.parent == tmp_path / "not" / "there" / "yet"
    assert record.last.parent.is_dir()
    assert record.best.parent == record.last.parent


def test_runs_of_the_same_second_have_different_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda _: RunRecord.create(tmp_path, "many"), range(200)))
    assert len({record.path for record in records}) == 200


def test_runs_of_the_same_second_in_several_processes_have_different_folders(tmp_path):
    command = [sys.executable, "-c", CREATES_MANY, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    names = [name for process in started for name in process.communicate(timeout=300)[0].splitlines()]
    assert len(names) == len(set(names)) == 120


def test_a_name_that_is_taken_is_not_taken_again(tmp_path, monkeypatch):
    numbers = iter(["aaaa", "aaaa", "aaaa", "bbbb", "cccc"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(numbers))
    names = [RunRecord.create(tmp_path, "word").name[-4:] for _ in range(2)]
    assert names == ["aaaa", "bbbb"]


def test_a_file_where_the_folder_should_be_is_a_run_error(tmp_path):
    (tmp_path / "outputs").write_text("a file")
    with pytest.raises(RunError, match=r"cannot make the run folder .*outputs.*: .*paths\.output_dir=DIR"):
        RunRecord.create(tmp_path / "outputs", "word")
    with pytest.raises(RunError, match=r"cannot make the run folder .*outputs.*: .*paths\.output_dir=DIR"):
        RunRecord.create(tmp_path / "outputs" / "runs", "word")


def test_a_broken_link_where_the_folder_should_be_is_a_run_error(tmp_path):
    (tmp_path / "outputs").symlink_to(tmp_path / "gone")
    with pytest.raises(RunError, match="a file of that name exists"):
        RunRecord.create(tmp_path / "outputs", "word")


def test_open_returns_the_run(record):
    assert RunRecord.open(str(record.path)) == record
    assert RunRecord.open(record.path).facts == {"id": record.name}


def test_open_refuses_folders_that_are_not_runs(tmp_path):
    with pytest.raises(RunError, match=r"is not a folder$"):
        RunRecord.open(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.json$"):
        RunRecord.open(tmp_path / "folder")


@pytest.mark.parametrize("path", ["{}x", "{}/checkpoints/last.ckpt", "{}/checkpoints"])
def test_open_suggests_the_nearest_run(record, path):
    (record.path / "checkpoints").mkdir(exist_ok=True)
    with pytest.raises(RunError) as caught:
        RunRecord.open(path.format(record.path))
    assert str(caught.value).endswith(f"; did you mean {record.path}?")


@pytest.mark.parametrize("backwards", [False, True])
def test_open_suggests_the_newest_run_in_a_folder_of_runs(tmp_path, monkeypatch, backwards):
    """By the time of its run.json, up to three levels down; hidden folders are not looked into."""
    folders = ["runs/of-yesterday", "sweeps/NAME/0", "runs/of-today", ".hidden/run", "one/two/three/four"]
    for time, name in enumerate(reversed(folders) if backwards else folders):
        (tmp_path / name).mkdir(parents=True)
        RunRecord(tmp_path / name).update(id=name)
        os.utime(tmp_path / name / "run.json", (time, time))
    newest = tmp_path / ("runs/of-yesterday" if backwards else "runs/of-today")
    with pytest.raises(RunError, match=f"the newest run in it is {newest}$"):
        RunRecord.open(tmp_path)
    monkeypatch.setattr("vitrine.runs.nearest.MOST", 3)
    with pytest.raises(RunError, match=r"it has no run\.json$"):
        RunRecord.open(tmp_path)


@pytest.mark.parametrize("text", ["", '{"id": "x", "sta', "[1, 2]", "\x00\x00\x00"])
def test_a_damaged_record_is_a_run_error(record, text):
    (record.path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json"):
        RunRecord.open(record.path)


def test_a_deleted_run_is_called_that_and_no_error_names_a_path_twice(record):
    (record.path / "checkpoints").rmdir()
    (record.path / "run.json").unlink()
    with pytest.raises(RunError, match=rf"^cannot read {record.path}/run.json: No such file or directory$"):
        _ = record.facts
    record.path.rmdir()
    for read in ("facts", "config"):
        with pytest.raises(RunError, match=rf"^{record.path} has been deleted$"):
            getattr(record, read)


# --- facts, status, config, metrics ------------------------------------------------------------------------------


def test_update_keeps_the_other_facts(record):
    record.update(seed=0, tags=["a"])
    record.update(seed=1)
    assert record.facts == {"id": record.name, "seed": 1, "tags": ["a"]}
    assert json.loads((record.path / "run.json").read_text()) == record.facts


def test_a_run_of_this_process_is_running(record):
    record.start()
    assert record.status == "running"
    assert record.facts["pid"] == os.getpid()


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_a_run_that_has_ended_records_how_and_when(record, status):
    record.start()
    record.end(status, "ValueError: no" if status == "failed" else None)
    assert record.status == status
    assert record.facts["error"] == ("ValueError: no" if status == "failed" else None)
    assert record.facts["ended"].endswith("+00:00")


def test_a_restarted_run_has_no_error(record):
    record.end("failed", "ValueError: no")
    record.start()
    assert (record.status, record.facts["error"]) == ("running", None)


@pytest.mark.parametrize("reaped", [True, False], ids=["and-its-parent-knows", "and-its-parent-does-not-ask"])
def test_a_run_whose_process_was_killed_is_interrupted(record, reaped):
    command = [sys.executable, "-c", STARTS_AND_WAITS, str(record.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "started\n"
            assert record.status == "running"
        finally:
            process.send_signal(signal.SIGKILL)
        if reaped:
            process.wait(timeout=300)
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert record.facts["status"] == "running"
        assert record.status == "interrupted"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell when a process started")
def test_another_process_with_the_same_number_is_not_the_run(record):
    record.start()
    record.update(process=str(int(record.facts["process"]) - 1))
    assert record.status == "interrupted"


def test_processes_of_another_machine_count_as_alive(record):
    record.start()
    record.update(host=socket.gethostname() + "-not", pid=2**22 + 1)
    assert record.status == "running"


@pytest.mark.parametrize(
    ("host", "kernel", "ended"),
    [
        (socket.gethostname(), "of the boot before", True),
        ("another", "another", True),
        ("another", None, True),
        (socket.gethostname(), None, False),
    ],
    ids=["rebooted", "elsewhere", "elsewhere-without-lock", "here-without-lock"],
)
def test_a_run_that_force_takes_over_has_ended(record, host, kernel, ended):
    record.start()
    record.update(host=host)
    if kernel is not None:
        holder = Holder(host, 2**22 + 1, "1", kernel, "2026-01-31T12:00:00+00:00", "token")
        (record.path / ".lock").write_text(json.dumps(asdict(holder)))
    assert not record.has_ended()
    assert record.has_ended(force=True) is ended


def test_a_run_that_a_process_here_writes_to_has_not_ended_whatever_its_host_was_called(record):
    with record.owned() as own:
        own.start()
        own.update(host="a-former-name")
        assert not record.has_ended(force=True)


def test_a_configuration_survives_a_round_trip(record):
    values = {
        "seed": 0,
        "name": None,
        "tags": [],
        "word": "Größe: yes",
        "looks_like_a_number": "1e3",
        "data": {"mean": [0.1, 1e-7], "flip": False, "root": "~/a b"},
    }
    record.write_config(values)
    assert record.config == values
    assert list(record.config) == list(values)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1, 2\n", None])
def test_a_damaged_configuration_is_a_run_error(record, text):
    if text is not None:
        (record.path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=r"config\.yaml"):
        _ = record.config


def test_metrics_survive_a_round_trip(record):
    assert record.metrics == {}
    record.write_metrics({"val/acc": 1 / 3, "best_epoch": 7})
    assert record.metrics == {}, "until the run has come to its end"
    record.end("finished")
    assert record.metrics == {"val/acc": 1 / 3, "best_epoch": 7}


# --- metrics.csv -------------------------------------------------------------------------------------------------


def test_rows_are_appended(record):
    file = MetricsFile(record)
    file.append({"epoch": 1, "step": 10, "seconds": 0.5})
    file.append({"seconds": 1.0, "step": 20, "epoch": 1})
    assert rows_of(record) == [["epoch", "step", "seconds"], ["1", "10", "0.5"], ["1", "20", "1.0"]]


def test_a_row_is_appended_at_once_without_rewriting_earlier_rows(record):
    file = MetricsFile(record)
    file.append({"epoch": 1, "step": 10, "seconds": 0.5, "lr": 0.1})
    inode = (record.path / "metrics.csv").stat().st_ino
    file.append({"epoch": 1, "step": 20, "seconds": 0.6, "lr": 0.2})
    assert record.history()[-1]["lr"] == 0.2
    assert (record.path / "metrics.csv").stat().st_ino == inode


def test_a_later_column_is_added_to_earlier_rows(record):
    file = MetricsFile(record)
    file.append({"epoch": 1, "step": 10, "seconds": 0.5, "train/loss": 2.0})
    file.append({"epoch": 1, "step": 10, "seconds": 0.6, "val/acc": 0.25})
    file.append({"epoch": 2, "step": 20, "seconds": 0.7, "train/loss": 1.0})
    assert rows_of(record) == [
        ["epoch", "step", "seconds", "train/loss", "val/acc"],
        ["1", "10", "0.5", "2.0", ""],
        ["1", "10", "0.6", "", "0.25"],
        ["2", "20", "0.7", "1.0", ""],
    ]
    assert record.history() == [
        {"epoch": 1, "step": 10, "seconds": 0.5, "train/loss": 2.0},
        {"epoch": 1, "step": 10, "seconds": 0.6, "val/acc": 0.25},
        {"epoch": 2, "step": 20, "seconds": 0.7, "train/loss": 1.0},
    ]


def test_a_column_may_have_commas_and_quotes_in_its_name(record):
    row = {"epoch": 1, "step": 10, "seconds": 0.5, 'val/acc_"Age", years': 0.25, "val/acc": 0.75}
    MetricsFile(record).append(row)
    assert record.history() == [row]


def test_history_returns_floats_bit_for_bit(record):
    losses = [1 / 3, 1e-300, math.inf, 0.1 + 0.2]
    file = MetricsFile(record)
    for step, loss in enumerate([*losses, math.nan]):
        file.append({"epoch": 1, "step": step, "seconds": 0.0, "train/loss": loss})
    history = record.history()
    assert [row["train/loss"] for row in history[:-1]] == losses
    assert math.isnan(history[-1]["train/loss"])
    assert {type(value) for row in history for value in row.values()} == {float}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("1,2,3\n" * 5, "it holds more than 10 values"),
        ("1,,\n" * 10, "it has more than 10 lines"),
        ("1,2,3," * 500, "it is larger than"),
    ],
)
def test_a_history_that_would_fill_the_memory_is_refused(record, monkeypatch, rows, problem):
    monkeypatch.setattr("vitrine.runs.record.MAX_VALUES", 10)
    monkeypatch.setattr("vitrine.runs.record.MAX_HISTORY", 1000)
    (record.path / "metrics.csv").write_text(f"epoch,step,seconds\n{rows}")
    with pytest.raises(RunError, match=rf"metrics\.csv: {problem}"):
        record.history()


@pytest.mark.parametrize(("limit", "size"), [("MAX_VALUES", 100), ("MAX_HISTORY", 5000)])
def test_no_more_rows_are_written_than_are_read(record, monkeypatch, capsys, limit, size):
    for module in ("record", "metrics_file"):
        monkeypatch.setattr(f"vitrine.runs.{module}.{limit}", size)
    file = MetricsFile(record)
    for step in range(300):
        row = {"epoch": 1, "step": step, "seconds": step / 3, "train/loss": 0.1}
        file.append(row | ({"val/acc": 1 / 3} if step > 200 else {}))
    steps = [row["step"] for row in record.history()]
    assert steps[0] == 0
    assert steps[-1] > 200, "rows of validation have room beyond those of training"
    assert capsys.readouterr().err.count("is nearly full, and gets no more rows of training") == 1
    MetricsFile(record, step=300)
    assert [row["step"] for row in record.history()] == steps


def test_a_run_without_rows_has_no_history(record):
    assert record.history() == []
    MetricsFile(record)
    assert record.history() == []


def test_reopening_at_a_step_drops_the_rows_after_it(record):
    file = MetricsFile(record)
    for step in (10, 20, 30, 40):
        file.append({"epoch": step // 20 + 1, "step": step, "seconds": step / 10, "train/loss": 1 / step})
    again = MetricsFile(record, step=20)
    assert again.seconds == 2.0
    assert [row["step"] for row in record.history()] == [10, 20]
    again.append({"epoch": 2, "step": 30, "seconds": 9.0, "train/loss": 0.5})
    assert rows_of(record)[1:] == [
        ["1", "10", "1.0", str(1 / 10)],
        ["2", "20", "2.0", str(1 / 20)],
        ["2", "30", "9.0", "0.5"],
    ]


def test_reopening_completes_rows_without_an_epoch(record):
    (record.path / "metrics.csv").write_text("epoch,step,seconds,lr\n,0,1.0,0.1\n2,10,2.0,0.1\n,10,3.0,0.1\n")
    MetricsFile(record, step=10)
    assert rows_of(record)[1:] == [["1", "0", "1.0", "0.1"], ["2", "10", "2.0", "0.1"], ["2", "10", "3.0", "0.1"]]


def test_a_new_run_has_no_training_time(record):
    assert MetricsFile(record).seconds == 0.0


@pytest.mark.parametrize("kept", range(1, len("1,20,3.5,0.125") + 1))
def test_a_row_that_a_crash_cut_short_is_dropped(record, kept):
    file = MetricsFile(record)
    file.append({"epoch": 1, "step": 10, "seconds": 2.5, "lr": 0.5})
    path = record.path / "metrics.csv"
    whole = path.read_bytes()
    file.append({"epoch": 1, "step": 20, "seconds": 3.5, "lr": 0.125})
    assert path.read_bytes() == whole + b"1,20,3.5,0.125\r\n"
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    assert record.history() == [{"epoch": 1, "step": 10, "seconds": 2.5, "lr": 0.5}]
    MetricsFile(record, step=99).append({"epoch": 1, "step": 20, "seconds": 4.0, "lr": 0.25})
    assert [(row["step"], row["lr"]) for row in record.history()] == [(10, 0.5), (20, 0.25)]


# --- can it be written? ------------------------------------------------------------------------------------------


def test_a_folder_that_can_be_made_is_writable_and_is_not_created(tmp_path):
    check_writable(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder_can_be_made_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_writable(Path("outputs"))


def test_a_file_in_the_way_is_not_writable(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(RunError, match="file is a file, not a folder"):
            check_writable(folder)


def test_a_folder_without_permission_is_not_writable(ordinary_user):
    (ordinary_user / "outputs").mkdir()
    check_writable(ordinary_user / "outputs")
    (ordinary_user / "outputs").chmod(stat.S_IRUSR | stat.S_IXUSR)
    for folder in (ordinary_user / "outputs", ordinary_user / "outputs" / "runs"):
        with pytest.raises(RunError, match=r"cannot write to .*outputs"):
            check_writable(folder)
        with pytest.raises(RunError, match=r"cannot make the run folder .*Permission denied"):
            RunRecord.create(folder, "word")


def test_a_folder_below_a_closed_folder_is_not_writable(ordinary_user):
    (ordinary_user / "private").mkdir()
    (ordinary_user / "private").chmod(0)
    with pytest.raises(RunError, match=r"cannot reach .*runs"):
        check_writable(ordinary_user / "private" / "runs")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"epoch,step,seconds\n1,many,1\n", "could not convert"),
        (b"epoch,step,seconds\n\xff,1,1\n", "can't decode"),
        (b"epoch,seconds\n1,1\n", "it has no column step"),
    ],
)
def test_a_damaged_log_is_a_run_error(record, content, problem):
    (record.path / "metrics.csv").write_bytes(content)
    with pytest.raises(RunError, match=rf"cannot read .*metrics\.csv: .*{problem}"):
        record.history()
