"""``python train.py -m``: run, rerun, killed, interrupted, and run twice at the same time."""

import json
import os
import re
import signal
import time
from unittest.mock import Mock

import pytest
from helpers.running import ROOT, descendants, run_script, start_script, wait_until_gone

from vitrine.command.compose import launcher, points
from vitrine.errors import ConfigError, DiskFull, Interrupted, RunError
from vitrine.runs import provenance
from vitrine.sweeps.run import run
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import TrialResult

OVERRIDES = ["model=vit_nano", "depth=1", "data.batch_size=256", "trainer.max_epochs=16", "trainer.deterministic=true"]
PROCESSES = ["hydra/launcher=process", "launcher.workers=2", "launcher.threads=1"]


def arguments(folder, *overrides):
    return ["-m", *OVERRIDES, *PROCESSES, f"paths.output_dir={folder}", *overrides]


def sweep(folder, *overrides):
    return run_script("train.py", *arguments(folder, *overrides), cwd=folder)


def start(folder, *overrides):
    return start_script("train.py", *arguments(folder, *overrides), cwd=ROOT)


def facts(folder):
    """run.json of every trial, by its folder's name."""
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("sweeps/*/*/run.json")}


def metrics(folder):
    """Final metrics of every trial, by its folder's name, but for the time it took."""
    found = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("sweeps/*/*/metrics.json")}
    return {name: {key: value for key, value in one.items() if key != "train_seconds"} for name, one in found.items()}


def wait_until(condition, running):
    end = time.monotonic() + 300
    while not condition():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def being_trained(folder, since=0.0):
    """Process numbers of trials that have written a checkpoint since then and are not at their end."""
    found, paths = facts(folder), folder.glob("sweeps/*/*/checkpoints/last.ckpt")
    saved = {path.parents[1].name for path in paths if path.stat().st_mtime > since}
    return [one["pid"] for name, one in found.items() if name in saved and one["status"] == "running"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep of three seeds that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done = sweep(folder, "seed=0,1,2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder, done.stdout


@pytest.mark.whole
def test_each_trial_is_trained_in_a_separate_process(whole):
    folder, out = whole
    found = facts(folder)
    assert len({one["pid"] for one in found.values()}) == 3
    assert {one["status"] for one in found.values()} == {"finished"}
    assert {one["varies"] for one in found.values()} == {"seed=0", "seed=1", "seed=2"}
    assert all(re.match(r"python \S*train.py -m model=vit_nano ", one["command"]) for one in found.values())
    assert len({one["test/acc"] for one in metrics(folder).values()}) > 1, "seeds differ"
    assert len(re.findall(r"^trial \d of 3 finished", out, re.MULTILINE)) == 3
    assert "epoch 16/16" not in out, "what a trial prints is in its log"
    logs = list(folder.glob("sweeps/*/logs/*.txt"))
    assert len(logs) == 3
    assert all("epoch 16/16" in path.read_text() for path in logs)


@pytest.mark.whole
def test_the_best_configuration_is_printed_as_a_command(whole):
    folder, out = whole
    (path,) = folder.glob("sweeps/*/sweep.json")
    written = json.loads(path.read_text())
    mean = sum(one["val/acc"] for one in metrics(folder).values()) / 3
    assert written["best"]["mean"] == pytest.approx(mean)
    assert written["best"]["command"] in out
    assert "seed" not in written["best"]["command"], "it is a replicate"
    assert written["best"]["command"].startswith("python train.py model=vit_nano depth=1 ")
    assert [one["status"] for one in written["trials"]] == ["finished"] * 3


@pytest.mark.whole
def test_a_rerun_trains_only_new_trials(whole):
    folder, _ = whole
    before = facts(folder)

    done = sweep(folder, "seed=1,2,3")

    assert done.returncode == 0, done.stderr
    assert re.findall(r"^trial (\d) of 3:? ", done.stdout, re.MULTILINE) == ["3", "3"], "begun, finished"
    after = facts(folder)
    assert {name: after[name] for name in before} == before
    assert len(after) == 4
    shown = run_script("scripts/sweeps.py", "--root", str(folder), cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"vit_nano_seed_\w+ +4 +4 +0 +0 +0 +0 +0 +val/acc 0", shown.stdout)


@pytest.mark.whole
def test_rerun_true_starts_over_in_a_new_folder(whole):
    folder, _ = whole
    before = facts(folder)

    overrides = [*OVERRIDES, f"paths.output_dir={folder}", "seed=0,1"]
    known, anew = (Sweep.plan(points("train", [*overrides, *more], multirun=True)) for more in ([], ["rerun=true"]))

    assert anew.folder == known.folder.with_name(f"{known.folder.name}@2")
    assert {trial.folder.name for trial in anew.trials} <= set(before)
    assert {result.status for result in known.results()} == {"finished"}
    assert {result.status for result in anew.results()} == {"new"}
    anew.folder.mkdir()
    assert Sweep.plan(points("train", overrides, multirun=True)).folder == anew.folder, (
        "the newest is meant from then on"
    )
    anew.folder.rmdir()


@pytest.mark.slow
def test_a_killed_trial_fails_with_its_reason_and_is_retried(whole, tmp_path):
    running = start(tmp_path, "seed=0,1")
    wait_until(lambda: being_trained(tmp_path), running)
    os.kill(being_trained(tmp_path)[0], signal.SIGKILL)
    _, err = running.communicate(timeout=300)
    assert running.returncode == 1
    assert "1 of 2 trials failed" in err
    assert "killed by SIGKILL; out of memory?" in err
    assert "Traceback" not in err
    assert sorted(one["status"] for one in facts(tmp_path).values()) == ["failed", "finished"]

    assert sweep(tmp_path, "seed=0,1").returncode == 0
    assert metrics(tmp_path).items() <= metrics(whole[0]).items()


@pytest.mark.whole
def test_a_sweep_stopped_by_ctrl_c_and_killed_in_its_rerun_has_the_same_results_in_the_end(whole, tmp_path):
    running = start(tmp_path, "seed=0,1,2")
    wait_until(lambda: being_trained(tmp_path), running)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert err == "vitrine: interrupted; rerun the same command to continue\n"
    states = [one["status"] for one in facts(tmp_path).values()]
    assert "interrupted" in states
    assert set(states) <= {"interrupted", "finished"}

    stopped = time.time()
    running = start(tmp_path, "seed=0,1,2")
    wait_until(lambda: being_trained(tmp_path, since=stopped), running)
    trials = descendants(running.pid)
    running.kill()
    wait_until_gone(trials)

    done = sweep(tmp_path, "seed=0,1,2")
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path).items() <= metrics(whole[0]).items()
    assert len(metrics(tmp_path)) == 3
    assert max(len(one.get("resumed", [])) for one in facts(tmp_path).values()) == 2, "after either"


@pytest.mark.whole
def test_ctrl_c_before_training_prints_one_line(tmp_path):
    running = start(tmp_path, "seed=0,1,2")
    wait_until(lambda: list(tmp_path.glob("sweeps/*/sweep.json")), running)
    time.sleep(1)  # what trials are forked from is being started
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert err == "vitrine: interrupted; rerun the same command to continue\n"


@pytest.mark.slow
def test_a_sweep_that_is_out_of_time_stops_and_a_rerun_continues(whole, tmp_path):
    overrides = ["seed=0,1,2", "launcher.workers=1"]
    stopped = sweep(tmp_path, *overrides, "trainer.max_time=1s")
    assert stopped.returncode == 75
    assert stopped.stderr == "vitrine: trainer.max_time is over; rerun the same command to continue\n"
    (one,) = facts(tmp_path).values()  # no other trial was begun
    assert (one["status"], one["reason"]) == ("interrupted", "trainer.max_time is over")

    again = sweep(tmp_path, *overrides, "trainer.max_time=10m")
    assert again.returncode == 0, again.stderr
    assert metrics(tmp_path).items() <= metrics(whole[0]).items()


@pytest.mark.whole
def test_two_commands_share_the_work(tmp_path):
    both = [start(tmp_path, "seed=range(4)", "trainer.max_epochs=3", "launcher.workers=1") for _ in range(2)]
    outs = [one.communicate(timeout=300) for one in both]
    assert [one.returncode for one in both] == [0, 0], outs
    logs = [path.read_text() for path in tmp_path.glob("sweeps/*/logs/*.txt")]
    assert [log.count("chosen checkpoint") for log in logs] == [1] * 4, "each was trained once"
    assert all(" 4 trials" in out and "best on validation" in out for out, _ in outs)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["seed=0,1", "hydra/launcher=process", "launcher.workers=900"],
            ["launcher.workers=900", "cores", "there are"],
        ),
        (["seed=0,1", "hydra/launcher=joblib"], ["joblib", "basic"]),
        (
            ["seed=0,1", "launcher.workers=2"],
            ["launcher.workers=2", "no effect with hydra/launcher=basic", "did you mean hydra/launcher=process?"],
        ),
        (
            ["seed=0,1", "launcher={workers:2}"],
            ["launcher.workers=2", "no effect with hydra/launcher=basic", "did you mean hydra/launcher=process?"],
        ),
        (["seed=0,1", "launcher={worker:2}"], ["launcher.worker", "did you mean launcher.workers?"]),
        (["launcher.workers=1,2"], ["invalid configuration:\n  launcher.workers=1,2"]),
        (
            ["seed=0,1", "hydra/launcher=process", "launcher.threads=1", "launcher.mem_gb=3"],
            ["launcher.mem_gb=3", "no effect with hydra/launcher=process", "did you mean hydra/launcher=slurm?"],
        ),
        (["resume=outputs/runs/x"], ["resume", "run its command again"]),
        (["seed=0,1", "paths.output_dir=a,b"], ["paths.output_dir=a,b", "is shared by all trials"]),
        (["optimizer.lr=interval(0,1)"], ["optimizer.lr", "is continuous"]),
        (["seed=range(0)"], ["seed=range(0)", "has no values"]),
        (["optimizer.lr=range(0,1,0.0)"], ["optimizer.lr=range(0,1,0.0)", "has a step of 0"]),
        (["seed=0,1", "sweep.name=a/b"], ["sweep.name=a/b", "a folder name"]),
        (["seed=0,1", "launcher.worker=2"], ["launcher.worker", "did you mean launcher.workers?"]),
        (["seed=0,1", "sweep=sedes"], ["sweep=sedes", "did you mean sweep=seeds?"]),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_before_it_starts(tmp_path, monkeypatch, overrides, message):
    monkeypatch.chdir(tmp_path)
    overrides = ["model=vit_nano", "accelerator=cpu", *overrides]
    with pytest.raises(ConfigError) as error:
        run(points("train", overrides, multirun=True), launcher(overrides))
    for part in message:
        assert part in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_another_version_is_left_alone(tmp_path):
    place = tmp_path / "sweeps" / "old"
    place.mkdir(parents=True)
    (place / "sweep.json").write_text('{"format": 0}')
    made = points(
        "train", ["model=vit_nano", "seed=0,1", "sweep.name=old", f"paths.output_dir={tmp_path}"], multirun=True
    )
    with pytest.raises(RunError, match=r"another version .* rerun=true"):
        Sweep.plan(made)
    assert [path.name for path in place.iterdir()] == ["sweep.json"]


@pytest.mark.parametrize(
    ("overrides", "lock"),
    [
        (["seed=0,1"], "sweep"),
        (["optimizer.lr=interval(0.1,1)", "sweep.sampler=random", "sweep.n_trials=1"], "search"),
    ],
)
def test_a_sweep_folder_that_cannot_be_written_is_reported(tmp_path, overrides, lock):
    folder = tmp_path / "sweeps" / "mine"
    folder.mkdir(parents=True)
    (folder / "locks").write_text("a file in its way")
    overrides = ["model=vit_nano", "sweep.name=mine", f"paths.output_dir={tmp_path}", *overrides]
    with pytest.raises(RunError, match=rf"^cannot write {folder}/locks/{lock}.lock: "):
        run(points("train", overrides, multirun=True), "basic")
    assert [path.name for path in folder.iterdir()] == ["locks"]


def test_a_failed_write_of_sweep_json_is_reported(tmp_path, monkeypatch):
    sweep = Sweep(tmp_path, [], [], ["seed"])
    monkeypatch.setattr(
        "pathlib.Path.replace", Mock(side_effect=PermissionError(13, "Permission denied", "a temporary"))
    )
    with pytest.raises(RunError, match=rf"^cannot write {tmp_path}/sweep.json: Permission denied$"):
        sweep.write([], {})


def test_seeds_makes_five_trials_of_one_experiment():
    made = points("train", ["sweep=seeds", "model=vit_nano"], multirun=True)
    assert [point.varies for point in made] == [{"seed": str(seed)} for seed in range(5)]
    assert [point.config.seed for point in made] == list(range(5))


@pytest.mark.parametrize("values", ["range(1,4)", "choice(1,2,3)", "1,2,3"])
def test_a_range_can_choose_from_a_group_of_numbers(values):
    made = points("train", ["model=vit_nano", f"depth={values}"], multirun=True)
    assert [(point.varies, point.config.model.depth) for point in made] == [({"depth": str(n)}, n) for n in (1, 2, 3)]


def test_settings_of_a_multirun_need_one():
    with pytest.raises(ConfigError, match=r"sweep=seeds\n +belongs to a multirun: python train.py -m"):
        points("train", ["sweep=seeds", "model=vit_nano"], multirun=False)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (KeyboardInterrupt(), "interrupted; rerun the same command without rerun=true to continue"),
        (DiskFull("no space"), "no space; make room and rerun the same command without rerun=true"),
        (TrialResult("failed", error="no"), "trials failed; rerun the same command without rerun=true to retry them:"),
    ],
    ids=["interrupted", "disk-full", "failed"],
)
def test_a_command_that_started_over_is_continued_without_rerun_true(tmp_path, monkeypatch, capsys, outcome, said):
    def run_trial(trial, **options):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setenv(provenance.COMMAND, "python train.py -m seed=0,1 rerun=true")
    monkeypatch.setattr("vitrine.sweeps.run.run_trial", run_trial)
    overrides = ["model=vit_nano", "seed=0,1", f"paths.output_dir={tmp_path}", "rerun=true"]
    try:
        run(points("train", overrides, multirun=True), "basic")
        printed = capsys.readouterr().err
    except (Interrupted, DiskFull) as error:
        printed = str(error)
    assert said in printed
