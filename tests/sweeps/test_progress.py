"""What a sweep records and prints of its trials."""

import io
import json

import pytest
from rich.console import Console

from vitrine.runs.live import read_progress
from vitrine.sweeps.progress import SweepProgress
from vitrine.sweeps.summary import print_location
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import TrialResult


@pytest.fixture
def started(make_trial, tmp_path):
    """The progress of a sweep of two trials, both started."""
    trials = [make_trial(number) for number in range(2)]
    sweep = Sweep(tmp_path / "sweep", trials, [], ["seed"])
    with SweepProgress(sweep, sweep.results(), live=False) as progress:
        for trial in trials:
            progress.trial_started(trial)
        yield progress


def test_a_failure_that_its_folder_could_not_record_is_kept(started, left):
    first, second = started.sweep.trials
    started.trial_ended(first, TrialResult("failed", error="no space left on device"))
    left(second, "interrupted")
    started.record_results()
    assert [result.status for result in started.results] == ["failed", "interrupted"]
    written = json.loads((started.sweep.folder / "sweep.json").read_text())["trials"]
    assert [(trial["status"], trial["error"]) for trial in written] == [
        ("failed", "no space left on device"),
        ("interrupted", ""),
    ]


def test_sweep_json_is_written_again_only_if_a_result_changed(make_trial, left, tmp_path):
    sweep = Sweep(tmp_path / "sweep", [make_trial(0), make_trial(1)], [], ["seed"])
    with SweepProgress(sweep, sweep.results(), live=False) as progress:
        written = (sweep.folder / "sweep.json").read_text()
        progress.record_results()
        assert (sweep.folder / "sweep.json").read_text() == written, "the time of writing included"
        left(sweep.trials[1], "interrupted")  # by another process
        progress.record_results()
    trials = json.loads((sweep.folder / "sweep.json").read_text())["trials"]
    assert [trial["status"] for trial in trials] == ["new", "interrupted"]


def test_a_sweep_json_that_cannot_be_written_is_reported_and_stops_nothing(started, left, capsys):
    (started.sweep.folder / "sweep.json").unlink()
    (started.sweep.folder / "locks" / "sweep.lock").unlink()
    (started.sweep.folder / "locks" / "sweep.lock").mkdir()
    left(started.sweep.trials[0], "finished")
    started.trial_ended(started.sweep.trials[0], TrialResult("finished", {"val/acc": 0.5}))
    started.record_results()
    assert [result.status for result in started.results] == ["finished", "new"]
    path = started.sweep.folder / "locks" / "sweep.lock"
    assert capsys.readouterr().err.count(f"vitrine: cannot write {path}: ") == 2


def test_a_trial_of_a_search_is_listed_when_it_starts(make_trial, tmp_path):
    sweep = Sweep(tmp_path / "sweep", [], [], ["seed"], planned=2)
    with SweepProgress(sweep, [], live=False, describe=lambda: {"complete": False}) as progress:
        sweep.trials.append(make_trial())
        progress.trial_started(sweep.trials[0])
        written = json.loads((sweep.folder / "sweep.json").read_text())
    assert [trial["folder"] for trial in written["trials"]] == ["seed=0"]


def test_the_end_of_a_trial_is_printed_in_one_line(started, capsys):
    started.trial_ended(started.sweep.trials[0], TrialResult("interrupted"))
    started.trial_ended(started.sweep.trials[1], TrialResult("failed", error="no space left on device"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["trial 1 of 2 interrupted", "trial 2 of 2 failed: no space left on device"]


def test_the_folder_s_name_does_nothing_to_the_terminal(tmp_path, capsys):
    sweep = Sweep(tmp_path / "a\x1b]0;owned\x07", [], [], ["seed"])
    with SweepProgress(sweep, [], live=False):
        pass
    print_location(sweep)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count(r"a\x1b]0;owned\x07") == 3


def test_combinations_that_are_one_trial_are_counted(make_trial, tmp_path, capsys):
    """As data.root=a,b of a data set whose place does not count."""
    sweep = Sweep(tmp_path / "sweep", [make_trial(0)], [], ["data.root"], combinations=3)
    with SweepProgress(sweep, sweep.results(), live=False):
        pass
    assert "sweep    1 trial; 2 of 3 combinations train the same as others\n" in capsys.readouterr().out


def test_the_table_is_drawn_while_trials_are_added_and_end(make_trial, tmp_path, monkeypatch):
    """As in a search, whose table another thread draws."""
    sweep = Sweep(tmp_path / "sweep", [make_trial(0), make_trial(1)], [], ["seed"], planned=3)
    with SweepProgress(sweep, sweep.results(), live=False) as progress:
        for trial in sweep.trials:
            progress.trial_started(trial)

        def meanwhile(folder, metric):
            if len(sweep.trials) == 2:
                sweep.trials.append(make_trial(2))
                for trial in sweep.trials[:2]:
                    progress.trial_ended(trial, TrialResult("finished", {"val/acc": 0.5}))
            return read_progress(folder, metric)

        monkeypatch.setattr("vitrine.sweeps.progress.read_progress", meanwhile)
        shown = io.StringIO()
        Console(file=shown, width=120).print(progress._draw())
        assert shown.getvalue().count("running") == 2
        assert "0 of 3" in shown.getvalue()
        assert progress._draw()
    assert [result.status for result in progress.results] == ["finished", "finished", "new"]
