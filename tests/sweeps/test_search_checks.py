"""What a search finds in its folder: it takes nothing for its own that is not."""

import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.searching import TWO, run, search

from vitrine.command.compose import points
from vitrine.command.sources import Sources, composing
from vitrine.errors import ConfigError, RunError
from vitrine.runs import RunRecord
from vitrine.sweeps.fingerprint import record_facts
from vitrine.sweeps.search import plan_search
from vitrine.sweeps.search_checks import check_owner
from vitrine.sweeps.study import MAX_JOURNAL, open_study, report_epoch, set_user_attrs, user_attrs

RANDOM = [*TWO, "sweep.sampler=random"]


@pytest.mark.whole
def test_a_name_that_belongs_to_another_search_or_sweep_is_refused(tmp_path):
    overrides = ["sweep.name=mine", "sweep.n_trials=1"]
    run(search(tmp_path, *RANDOM, *overrides))
    with pytest.raises(
        ConfigError, match=r"another search: its space is .*high: 0\.01.*, not .*high: 0\.1.*sweep\.name"
    ):
        search(tmp_path, "optimizer.lr=tag(log,interval(1e-4,1e-1))", TWO[1], "sweep.sampler=random", *overrides)
    with pytest.raises(ConfigError, match=r"its metrics is \[val/acc\], not \[val/loss\]"):
        search(tmp_path, *RANDOM, *overrides, "sweep.metrics=[val/loss]")
    grid = tmp_path / "sweeps" / "theirs"
    grid.mkdir()
    (grid / "sweep.json").write_text('{"format": 1}')
    with pytest.raises(ConfigError, match="a sweep that is not a search"):
        search(tmp_path, *RANDOM, "sweep.name=theirs", "sweep.n_trials=1")


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"varies": {"optimizer.lr": "0.001", "position": "my_lab.fourier.Fourier"}}, "not in the search's space"),
        ({"varies": {"optimizer.lr": "0.001", "optimizer.weight_decay": "my_lab.Decay"}}, "not in the search's space"),
        ({"varies": {"optimizer.lr": "7", "optimizer.weight_decay": "0.1"}}, "not in the search's space"),
        ({"varies": ["optimizer.lr"]}, "not in the search's space"),
        ({"folders": ["../elsewhere"]}, "not names of one folder per seed"),
        ({"folders": []}, "not names of one folder per seed"),
    ],
)
def test_a_stored_trial_that_is_not_of_the_search_is_refused(tmp_path, facts, problem):
    """Its values become overrides, and a typed override may name any code."""
    overrides = [*RANDOM, "sweep.n_trials=2"]
    stored = search(tmp_path, *overrides)
    valid = {"varies": {"optimizer.lr": "0.001", "optimizer.weight_decay": "0.1"}, "folders": ["trial_1"]}
    set_user_attrs(stored.study, stored.study.ask().number, **valid | facts)
    with pytest.raises(RunError, match=f"study.journal: trial 0: .*{problem}.*rerun=true"):
        search(tmp_path, *overrides)


def test_a_journal_that_would_fill_the_memory_or_is_a_pipe_is_refused(tmp_path):
    journal = tmp_path / "study.journal"
    journal.touch()
    os.truncate(journal, MAX_JOURNAL + 1)
    with pytest.raises(RunError, match=f"cannot read {journal}: it is larger than 256 MiB; rerun=true"):
        open_study(tmp_path)
    journal.unlink()
    os.mkfifo(journal)
    with pytest.raises(RunError, match=f"cannot read {journal}: it is not a file; rerun=true"):
        open_study(tmp_path)


def test_planning_a_search_that_is_there_writes_nothing(tmp_path):
    overrides = [*RANDOM, "sweep.n_trials=1"]
    folder = search(tmp_path, *overrides).sweep.folder
    shutil.rmtree(folder / "locks")
    journal, written = folder / "study.journal", (folder / "study.journal").read_bytes() + b'{"op_code": 5, "wor'
    journal.write_bytes(written)
    os.utime(journal, (0, 0))
    before = sorted(folder.rglob("*"))
    (point,) = points("train", [f"paths.output_dir={tmp_path}", *overrides], multirun=True)
    plan_search(point)
    assert sorted(folder.rglob("*")) == before
    assert (journal.read_bytes(), journal.stat().st_mtime) == (written, 0)


@pytest.mark.parametrize(
    ("place", "content", "problem"),
    [
        (Path.write_text, "a line\nand no end", "it is not a journal of Optuna"),
        (Path.hardlink_to, '{"op_code":0', "it is a hard link to another file; put a copy in its place"),
        (Path.symlink_to, '{"op_code":0', "it is a link"),
    ],
)
def test_a_file_that_is_no_journal_of_a_search_is_left_as_it_is(tmp_path, place, content, problem):
    other = tmp_path / "mine"
    other.write_text(content)
    journal = tmp_path / "study.journal"
    place(journal, content if place is Path.write_text else other)
    with pytest.raises(RunError, match=f"cannot read {journal}: {problem}; rerun=true"):
        open_study(tmp_path, ["val/acc"])
    assert journal.read_text() == other.read_text() == content


def test_a_search_that_does_not_say_what_it_searched_is_refused(tmp_path):
    open_study(tmp_path, ["val/acc"]).set_user_attr("asked", 3)
    with pytest.raises(RunError, match=f"cannot read {tmp_path}/study.journal"):
        check_owner(tmp_path, {})


@pytest.mark.parametrize("cause", ["full-disk", "kill"])
def test_a_search_goes_on_after_a_part_of_a_line_in_its_journal(tmp_path, cause):
    search, trial = open_study(tmp_path, ["val/acc"]), open_study(tmp_path, ["val/acc"])
    number = search.ask().number
    journal = tmp_path / "study.journal"
    whole = journal.read_bytes()
    if cause == "kill":
        journal.write_bytes(whole + b'{"op_code": 5, "wor')
        assert open_study(tmp_path, ["val/acc"]).trials[0].number == number
    else:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, limit[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                report_epoch(trial, number, 1, 0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert journal.read_bytes() == whole
    search.tell(number, 0.7)
    assert open_study(tmp_path).best_value == trial.best_value == 0.7


@pytest.mark.parametrize("line", ["[" * 100_000, '{"op_code":2,"study_id":0,"user_attr":3}'])
def test_a_damaged_line_of_a_journal_is_reported(tmp_path, line):
    open_study(tmp_path, ["val/acc"])
    with (tmp_path / "study.journal").open("a") as file:
        file.write(f"{line}\n")
    for read in (open_study, user_attrs):
        with pytest.raises(RunError, match=r"study\.journal: .*; rerun=true"):
            read(tmp_path)


@contextmanager
def experiment(folder, seed):
    """A search of ``experiment=mine``, a file of the user's own, which sets ``seed``."""
    path = folder / "mine" / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# @package _global_\nseed: {seed}\n")
    with composing(Sources.choose(str(folder / "mine"))):
        yield [*RANDOM, "experiment=mine", "sweep.n_trials=3"]


@pytest.mark.whole
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "computed-as-of-another-version"])
def test_a_trial_of_another_configuration_is_refused(tmp_path, recorded):
    """The configuration file was edited between two calls of the command."""
    with experiment(tmp_path, seed=1) as overrides:
        begun = run(search(tmp_path, *overrides), most=2)
    (first,) = begun.runs(0)
    if recorded:
        RunRecord(first.folder).update(**record_facts(first.config))
    problem = (
        f"study.journal: trial 0: {first.folder} was trained with another configuration, .*; rerun=true starts over"
    )
    with experiment(tmp_path, seed=2) as overrides, pytest.raises(RunError, match=problem):
        search(tmp_path, *overrides)
    with experiment(tmp_path, seed=1) as overrides:
        again = run(search(tmp_path, *overrides))
    assert [trial.value for trial in again.trials()[:2]] == [trial.value for trial in begun.trials()]


def test_a_trial_without_a_result_is_trained_with_the_configuration_of_now(tmp_path):
    """Trials that failed, a folder that someone has deleted, and a damaged one."""
    with experiment(tmp_path, seed=1) as overrides:
        failed = run(search(tmp_path, *overrides), lambda config: "out of memory")
    folders = [failed.runs(number)[0].folder for number in range(3)]
    shutil.rmtree(folders[1])
    RunRecord(folders[2]).end("interrupted")
    (folders[2] / "config.yaml").write_text("[")
    with experiment(tmp_path, seed=2) as overrides:
        assert run(search(tmp_path, *overrides)).done
    assert [(RunRecord(folder).status, RunRecord(folder).config["seed"]) for folder in folders] == [("finished", 2)] * 3
