"""The real W&B client against a server on this machine: what it takes, and what happens when it or the client fails."""

import os
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import wandb
from helpers.running import run_script
from helpers.wandb_server import serving
from wandb.sdk import wandb_setup

from vitrine import compose
from vitrine.config.serialize import to_plain
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.tracking.loggers import RunLogger
from vitrine.tracking.wandb import WandbTracker
from vitrine.tracking.wandb_client import ClientProcess

pytestmark = pytest.mark.whole

ROWS = 6
PATIENCE = 60  # seconds for the client to start; on a quiet machine it takes one


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory):
    """The server, known to the client in this process and in those that tests start."""
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        wandb.teardown()  # it read its environment when it was first used
        for name, value in {**server.environment, "HOME": str(tmp_path_factory.mktemp("home"))}.items():
            patch.setenv(name, value)
        yield server
        wandb.teardown()


def carry_out(folder, *overrides, before=None, status="finished"):
    """A run of six steps; what is to happen to the client happens after the third."""
    config = compose(["model=vit_nano", "logger=wandb", *overrides])
    record = RunRecord.create(folder, "word")
    record.start()
    record.update(id=record.name, group="a-sweep", varies="seed=7")
    record.write_config(to_plain(config))
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    assert tracker._started.wait(PATIENCE)
    with RunLogger(record, 0, [tracker]) as logger:
        for step in range(1, ROWS + 1):
            logger.log_metrics({"epoch": 1, "train/loss": 1 / step}, step)
            if step == ROWS // 2 and before is not None:
                before()
        record.write_metrics({"val/acc": 0.5})
        logger.conclude({"val/acc": 0.5}, {})
    record.end(status)
    return record


def losses(run):
    return [row["train/loss"] for row in run.rows]


def sync(*overrides):
    return run_script("scripts/wandb_sync.py", *map(str, overrides), cwd=Path.cwd())


def service():
    return wandb_setup.singleton()._connection._proc._process


@pytest.mark.quick
def test_a_run_is_sent_and_recorded_as_pushed(server, tmp_path, capfd):
    record = carry_out(tmp_path)
    run = server.runs[record.facts["wandb_id"]]
    assert losses(run) == [1 / step for step in range(1, ROWS + 1)]
    assert (run.exit_code, run.summary["val/acc"], run.summary["status"]) == (0, 0.5, "finished")
    assert (run.value("groupName"), run.value("displayName"), run.value("project")) == ("a-sweep", "seed=7", "vitrine")
    assert record.facts["wandb_pushed"] is not None
    assert record.facts["wandb_project"] == ["me", "vitrine"], "not that of whoever resumes it"
    assert capfd.readouterr() == ("", "")


def test_a_resumed_run_continues_on_wandb_and_repeats_no_step(server, tmp_path):
    record = carry_out(tmp_path)
    record.update(wandb_open=True)  # the client was killed, but it had sent all rows
    run = server.runs[record.facts["wandb_id"]]
    config = compose(["model=vit_nano", "logger=wandb"])
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    for step in range(ROWS - 1, ROWS + 3):  # from a checkpoint two steps before the last row
        tracker.log({"epoch": 1, "train/loss": 1 / step}, step)
    tracker.finish("finished", {"val/acc": 0.75}, {})
    assert losses(run) == [1 / step for step in range(1, ROWS + 3)]
    assert run.summary["val/acc"] == 0.75
    facts = record.facts
    assert (facts["wandb_open"], facts["wandb_gaps"], facts["wandb_pushed"] is not None) == (False, False, True)


def test_an_offline_session_after_an_online_one_is_pushed_and_repeats_no_step(server, tmp_path):
    record = carry_out(tmp_path)
    config = compose(["model=vit_nano", "logger=wandb", "logger.wandb.mode=offline"])
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    RunLogger(record, ROWS, [tracker]).log_metrics({"epoch": 2, "train/loss": 0.1}, ROWS + 1)
    tracker.finish("finished", {"val/acc": 0.75}, {})
    assert sync(record.path).returncode == 0
    assert losses(server.runs[record.facts["wandb_id"]]) == [*(1 / step for step in range(1, ROWS + 1)), 0.1]


def test_what_the_client_stored_in_a_run_folder_is_not_sent(server, tmp_path):
    """In a folder from someone else, it can name any file, and another project than the one that is printed."""
    record = carry_out(tmp_path / "runs", "logger.wandb.mode=offline", "logger.wandb.project=theirs")
    for file in record.path.glob("wandb/offline-run-*/files/*"):
        file.write_text("swordfish")
    record.update(wandb_project=[None, "ours"])
    done = sync(record.path)
    assert (done.returncode, "to ours\n" in done.stdout) == (0, True), done.stderr
    run = server.runs[record.facts["wandb_id"]]
    assert {upsert["project"] for upsert in run.upserts} == {"ours"}
    assert losses(run) == [1 / step for step in range(1, ROWS + 1)]
    assert not any(b"swordfish" in content for content in server.received)


def test_an_offline_session_stays_to_be_pushed_after_an_online_one(server, tmp_path):
    record = carry_out(tmp_path, "logger.wandb.mode=offline")
    config = compose(["model=vit_nano", "logger=wandb"])
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    tracker.log({"epoch": 2, "train/loss": 0.1}, ROWS + 1)
    tracker.finish("finished", {}, {})
    assert losses(server.runs[record.facts["wandb_id"]]) == [0.1]
    assert (record.facts["wandb_pushed"], len(record.facts["wandb_kept"])) == (None, 1)


def test_two_offline_sessions_become_one_run(server, tmp_path):
    record = carry_out(tmp_path, "logger.wandb.mode=offline")
    config = compose(["model=vit_nano", "logger=wandb", "logger.wandb.mode=offline"])
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    logger = RunLogger(record, ROWS - 2, [tracker])
    for step in range(ROWS - 1, ROWS + 3):
        logger.log_metrics({"epoch": 1, "train/loss": 1 / step}, step)
    tracker.finish("finished", {"val/acc": 0.75}, {})
    record.write_metrics({"val/acc": 0.75})
    assert len(record.facts["wandb_kept"]) == 2
    done = sync(record.path)
    assert done.returncode == 0, done.stderr
    run = server.runs[record.facts["wandb_id"]]
    assert losses(run) == [1 / step for step in range(1, ROWS + 3)], "each step once"
    assert run.summary["val/acc"] == 0.75


def test_an_offline_run_is_pushed_once_with_its_group_and_name(server, tmp_path):
    records = [carry_out(tmp_path, "logger.wandb.mode=offline") for _ in range(2)]
    carry_out(tmp_path)  # arrived by itself
    ids = [record.facts["wandb_id"] for record in records]
    planned = sync(tmp_path, "--dry-run")
    assert "2 to push, 1 pushed before, 0 without Weights & Biases" in planned.stdout
    assert not set(ids) & set(server.runs)

    done = sync(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for record in records:
        run = server.runs[record.facts["wandb_id"]]
        assert losses(run) == [1 / step for step in range(1, ROWS + 1)]
        assert (run.value("groupName"), run.value("displayName"), run.exit_code) == ("a-sweep", "seed=7", 0)
    server.runs.clear()
    again = sync(tmp_path)
    assert "0 to push, 3 pushed before" in again.stdout
    assert server.runs == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_client_fails_no_training_and_the_run_can_be_pushed(server, tmp_path, capfd, number):
    record = carry_out(tmp_path, "logger.wandb.timeout=5", before=lambda: os.kill(service().pid, number))
    assert [row["train/loss"] for row in record.history()] == [1 / step for step in range(1, ROWS + 1)]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("vitrine:")]
    assert len(lines) == 1
    assert f"later: python scripts/wandb_sync.py {record.path}" in lines[0]
    assert (record.facts["wandb_open"], record.facts["wandb_pushed"]) == (True, None)

    following = carry_out(tmp_path)
    assert following.facts["wandb_pushed"] is not None, "the next trial of the same process has a client that works"

    done = sync(record.path)
    assert done.returncode == 0, done.stderr
    run = server.runs[record.facts["wandb_id"]]
    assert losses(run) == [1 / step for step in range(1, ROWS + 1)]
    assert (run.exit_code, run.summary["val/acc"], run.value("groupName")) == (0, 0.5, "a-sweep")
    assert (record.facts["wandb_open"], record.facts["wandb_pushed"] is not None) == (False, True)


def test_a_silent_server_is_waited_for_until_the_timeout(server, tmp_path, capfd):
    server.answers.clear()
    try:
        record = carry_out(tmp_path, "logger.wandb.timeout=5")
    finally:
        server.answers.set()
    assert "vitrine: wandb failed and gets no more metrics" in capfd.readouterr().err
    assert record.facts["wandb_pushed"] is None
    assert len(record.history()) == ROWS
    done = sync(record.path)
    assert done.returncode == 0, done.stderr
    assert losses(server.runs[record.facts["wandb_id"]]) == [1 / step for step in range(1, ROWS + 1)]


def test_a_log_takes_no_time_however_slow_the_client_is(tmp_path, monkeypatch):
    monkeypatch.setattr(WandbTracker, "_start", lambda self: time.sleep(600))
    config = compose(["model=vit_nano", "logger=wandb"])
    record = RunRecord.create(tmp_path, "word")
    record.update(id=record.name)
    tracker = WandbTracker(config.logger.wandb, config, record, None, "")
    for step in range(1000):
        tracker.log({"epoch": 1}, step)
    assert not tracker._started.is_set()


def test_the_key_is_in_nothing_that_is_sent_or_kept(server, tmp_path):
    from helpers.wandb_server import KEY

    carry_out(tmp_path)
    sent = b"".join(server.received)
    assert KEY.encode() not in sent
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(KEY.encode() in content for content in kept)


@pytest.fixture
def script():
    from vitrine.cli import wandb_sync

    return wandb_sync


def unsent(folder, **facts):
    """A finished run that W&B knows nothing of but its id."""
    record = RunRecord.create(folder, "word")
    record.update(id=record.name, status="finished", wandb_id=record.name[-4:], wandb_pushed=None, **facts)
    record.write_config(to_plain(compose(["model=vit_nano", "logger=wandb"])))
    record.write_metrics({"val/acc": 0.5})
    (record.path / "metrics.csv").write_text("epoch,step,seconds,train/loss\n1,10,2.5,0.25\n")
    return record


@pytest.mark.parametrize("first", ["kept", "lost"])
def test_a_replay_after_an_online_session_sends_the_steps_of_an_offline_one(server, tmp_path, script, first):
    """The client drops steps before the server's last, although the server lacks those of the offline session."""
    record = carry_out(tmp_path, "logger.wandb.mode=offline")
    if first == "lost":  # its process was killed
        record.update(wandb_kept=[], wandb_open=True)
    config = compose(["model=vit_nano", "logger=wandb"])
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    RunLogger(record, ROWS, [tracker]).log_metrics({"epoch": 2, "train/loss": 1 / (ROWS + 1)}, ROWS + 1)
    tracker.finish("finished", {}, {})
    record.update(wandb_open=True)  # as if the client had been killed
    assert script.replay(record) == ""
    run = server.runs[record.facts["wandb_id"]]
    assert {(row["step"], row["train/loss"]) for row in run.rows} == {(step, 1 / step) for step in range(1, ROWS + 2)}
    assert run.summary["val/acc"] == 0.5
    facts = record.facts
    assert (facts["wandb_open"], facts["wandb_gaps"], facts["wandb_kept"]) == (False, False, [])
    assert facts["wandb_pushed"] is not None


def test_an_offline_session_does_not_replace_the_results_of_a_later_one(server, tmp_path, script):
    record = carry_out(tmp_path, "logger.wandb.mode=offline")
    config = compose(["model=vit_nano", "logger=wandb"])
    tracker = WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=7")
    RunLogger(record, ROWS, [tracker]).log_metrics({"epoch": 2, "train/loss": 1 / (ROWS + 1)}, ROWS + 1)
    tracker.finish("finished", {"val/acc": 0.75}, {})
    record.write_metrics({"val/acc": 0.75})
    assert record.facts["wandb_pushed"] is None
    assert script.sync([tmp_path]) == 0
    run = server.runs[record.facts["wandb_id"]]
    assert run.summary["val/acc"] == 0.75
    assert {row["step"] for row in run.rows} == set(range(1, ROWS + 2))
    assert record.facts["wandb_pushed"] is not None
    assert script.sync([tmp_path]) == 0


def test_a_run_that_cannot_be_pushed_keeps_no_other_from_it(server, tmp_path, capsys, script):
    well, no_text, no_number, config = (unsent(tmp_path) for _ in range(4))
    (no_text.path / "metrics.csv").write_bytes(b"epoch,step,seconds\n\xff,1,1\n")
    (no_number.path / "metrics.csv").write_text("epoch,step,seconds\n1,many,1\n")
    config.write_config({"model": 3})
    assert script.sync([tmp_path]) == 3
    captured = capsys.readouterr()
    assert captured.out.endswith("4 to push, 0 pushed before, 0 without Weights & Biases\n1 pushed\n")
    _, counted, rest = captured.err.partition("vitrine: 3 could not be pushed:\n")
    assert counted
    assert sorted(line.split(":")[0].strip() for line in rest.splitlines()) == sorted(
        str(one.path) for one in (no_text, no_number, config)
    )
    run = server.runs[well.facts["wandb_id"]]
    assert run.rows[0] == {"epoch": 1, "step": 10, "seconds": 2.5, "train/loss": 0.25}
    assert well.facts["wandb_pushed"] is not None, "though no session of it was kept"
    assert no_text.facts["wandb_pushed"] is None


@pytest.mark.quick
def test_a_refused_api_key_is_reported(tmp_path, monkeypatch, script):
    unsent(tmp_path)
    monkeypatch.setattr(wandb, "login", Mock(side_effect=wandb.errors.AuthenticationError("API key is too short")))
    with pytest.raises(RunError, match="authentication failed; run `wandb login`: API key is too short"):
        script.sync([tmp_path])


def test_a_run_of_a_lost_machine_is_pushed_on_request(tmp_path, capsys, script):
    unsent(tmp_path).update(status="running", host="a-machine-that-is-gone")
    script.sync([tmp_path], dry_run=True)
    assert "is still running on a-machine-that-is-gone: skipped\n0 to push" in capsys.readouterr().out
    script.sync([tmp_path], dry_run=True, force=True)
    assert "\n1 to push" in capsys.readouterr().out


@pytest.mark.quick
def test_syncing_a_folder_without_runs_is_an_error(tmp_path):
    done = sync(tmp_path / "none")
    assert done.returncode == 2
    assert done.stderr == f"vitrine: {tmp_path / 'none'} is not a folder\n"
    assert "0 to push" in sync(tmp_path).stdout


@pytest.mark.parametrize("why", ["the clock", "Ctrl-C"])
def test_the_end_waits_no_longer_than_the_run_has_or_the_user_wants(tmp_path, monkeypatch, why):
    asleep = threading.Event()
    monkeypatch.setattr(WandbTracker, "_start", lambda self: asleep.wait(600))
    config = compose(["model=vit_nano", "logger=wandb", "logger.wandb.timeout=86400"])
    record = RunRecord.create(tmp_path, "word")
    record.update(id=record.name)
    tracker = WandbTracker(config.logger.wandb, config, record, None, "", stop_by=time.time())
    if why == "Ctrl-C":
        monkeypatch.setattr(tracker, "_seconds_to_wait", Mock(side_effect=KeyboardInterrupt))
    message = "took too long to end" if why == "the clock" else "was not waited for"
    with pytest.raises(RunError, match=message):
        tracker.finish("finished", {}, {})
    assert (record.facts["wandb_open"], record.facts["wandb_pushed"]) == (True, None)
    asleep.set()


def test_a_run_that_gave_up_ends_only_its_own_client(server):
    first = ClientProcess("abc")
    first.kill()
    first._process.wait()
    second = ClientProcess("abc")
    first.discard()  # its thread notices late
    assert second._process.poll() is None
    assert wandb.login(prompt=False)
    second.discard()
    assert second._process.wait(PATIENCE) is not None


def test_after_a_run_of_the_users_own_has_ended_a_tracker_continues_offline(tmp_path, monkeypatch):
    wandb.teardown()
    settings = wandb.Settings(silent=True, console="off")
    wandb.init(mode="offline", dir=tmp_path, reinit="create_new", settings=settings).finish()
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    config, record = compose(["model=vit_nano", "logger=wandb"]), RunRecord.create(tmp_path, "word")
    record.update(id=record.name)
    tracker = WandbTracker(config.logger.wandb, config, record, None, "")
    assert tracker._started.wait(PATIENCE)
    assert tracker.mode == "offline"
    tracker.finish("finished", {}, {})
    wandb.teardown()


@pytest.mark.parametrize("first", ["own", "tracker"])
def test_a_tracker_that_gives_up_ends_no_run_of_the_users_own(tmp_path, monkeypatch, first):
    wandb.teardown()
    settings = wandb.Settings(silent=True, console="off")
    if first == "tracker":
        ClientProcess("abc")
    mine = wandb.init(mode="offline", dir=tmp_path, reinit="create_new", settings=settings)
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    config = compose(["model=vit_nano", "logger=wandb"])
    record = RunRecord.create(tmp_path, "word")
    record.update(id=record.name)
    tracker = WandbTracker(config.logger.wandb, config, record, None, "")
    assert tracker._started.wait(PATIENCE)
    tracker._service.kill()
    with pytest.raises(RunError, match="everything is in the run folder"):
        tracker.finish("finished", {}, {})
    mine.log({"x": 1})
    mine.finish()
    wandb.teardown()
