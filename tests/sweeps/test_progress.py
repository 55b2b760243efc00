"""What a sweep remembers of its trials, whatever their folders could be given."""

import json

import pytest

from vitrine.sweeps.progress import Board
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Outcome


@pytest.fixture
def begun(make_trial, tmp_path):
    """The board of a sweep of two trials, both handed out."""
    trials = [make_trial(number) for number in range(2)]
    sweep = Sweep(tmp_path / "sweep", trials, [], ["seed"])
    with Board(sweep, sweep.outcomes(), live=False) as board:
        for trial in trials:
            board.begins(trial)
        yield board


def test_a_failure_that_could_not_be_noted_in_its_folder_is_still_one_at_the_end(begun, left):
    first, second = begun.sweep.trials
    begun.ended(first, Outcome("failed", error="no space left on device"))
    left(second, "interrupted")
    begun.conclude()
    assert [one.status for one in begun.outcomes] == ["failed", "interrupted"]
    written = json.loads((begun.sweep.folder / "sweep.json").read_text())["trials"]
    assert [(one["status"], one["error"]) for one in written] == [
        ("failed", "no space left on device"),
        ("interrupted", ""),
    ]


def test_a_sweep_json_that_cannot_be_written_is_said_and_stops_nothing(begun, left, capsys):
    (begun.sweep.folder / "sweep.json").unlink()
    (begun.sweep.folder / "locks" / "sweep.lock").unlink()
    (begun.sweep.folder / "locks" / "sweep.lock").mkdir()
    left(begun.sweep.trials[0], "finished")
    begun.ended(begun.sweep.trials[0], Outcome("finished", {"val/acc": 0.5}))
    begun.conclude()
    assert [one.status for one in begun.outcomes] == ["finished", "new"]
    assert capsys.readouterr().err.count(f"vitrine: cannot write {begun.sweep.folder / 'sweep.json'}: ") == 2


def test_what_a_trial_came_to_is_told_in_a_line(begun, capsys):
    begun.ended(begun.sweep.trials[0], Outcome("interrupted"))
    begun.ended(begun.sweep.trials[1], Outcome("failed", error="no space left on device"))
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == ["trial 1 of 2 interrupted", "trial 2 of 2 failed: no space left on device"]
