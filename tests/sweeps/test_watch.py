"""The live view: how far each trial of a sweep is, read from its folder."""

from dataclasses import replace

import pytest

from vitrine.cli.watch import main
from vitrine.runs import MetricsFile, RunRecord
from vitrine.runs.live import Progress, read_progress
from vitrine.sweeps.summary import SweepSummary, print_overview
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.watch import _view, sparkline


@pytest.fixture
def sweep(make_trial, left, tmp_path):
    """A sweep of three trials: one finished, one in its third epoch of four, one not started."""
    trials = [make_trial(number) for number in range(3)]
    left(trials[0], "finished")
    record = left(trials[1], "running", epochs=4, steps_per_epoch=10)
    metrics = MetricsFile(record)
    for epoch, accuracy in ((1, 0.25), (2, 0.75)):
        metrics.append({"epoch": epoch, "step": 10 * epoch, "seconds": 6.0 * epoch, "train/loss": 2.0 / epoch})
        metrics.append({"epoch": epoch, "step": 10 * epoch, "seconds": 6.0 * epoch, "val/acc": accuracy})
    metrics.append({"epoch": 3, "step": 25, "seconds": 15.0, "train/loss": 0.5})
    sweep = Sweep(tmp_path / "sweep", trials, [], ["seed"])
    sweep.write(sweep.results(), {})
    return sweep


def test_progress_is_that_of_the_last_row(sweep):
    expected = Progress(epoch=3, epochs=4, loss=0.5, left=9.0, curve=(0.25, 0.75))
    assert read_progress(sweep.trials[1].folder) == expected
    assert read_progress(sweep.trials[2].folder) == Progress()


def test_damaged_rows_are_no_progress(sweep):
    (sweep.trials[1].folder / "metrics.csv").write_text("not,a,table\n1,2\n")
    assert read_progress(sweep.trials[1].folder) == Progress()


def test_a_sweep_is_shown_with_curve_and_time_left(sweep, capsys):
    main([str(sweep.folder), "--once"])
    printed = capsys.readouterr().out
    (running,) = [line for line in printed.splitlines() if "running" in line]
    assert running.split() == ["1", "3/4", "0.500", "0.7500", "▁█", "0:00:09", "running"]
    assert "1 of 3 trials; best val/acc 0.5000;" in printed


def test_keys_of_a_received_sweep_do_nothing_to_the_terminal(sweep, capsys):
    received = replace(sweep, keys=["\x1b]0;owned\x07seed"])
    received.write(received.results(), {})
    main([str(sweep.folder), "--once"])
    printed = capsys.readouterr().out
    assert r"\x1b]0;owned\x07seed" in printed
    assert "\x1b" not in printed


def test_a_search_has_ended_once_its_last_trial_has(sweep, left, capsys):
    """Not before, although all trials that it has suggested so far have ended; and not after fewer than planned."""
    searched = replace(sweep, planned=5)
    searched.write(searched.results(), {"complete": False})
    main([str(sweep.folder), "--once"])
    assert "1 of at most 5 trials; best" in capsys.readouterr().out
    RunRecord(sweep.trials[1].folder).end("failed", "out of memory")
    left(sweep.trials[2], "finished")
    assert not _view(sweep.folder)[1]
    print_overview([SweepSummary.read(sweep.folder)])
    assert capsys.readouterr().out.splitlines()[1].split()[:7] == ["sweep", "5", "2", "0", "0", "0", "1"]

    searched.write(searched.results(), {"complete": True})
    assert _view(sweep.folder)[1]
    main([str(sweep.folder), "--once"])
    assert "3 of 3 trials; 1 failed; best" in capsys.readouterr().out


def test_seeds_that_never_start_are_not_left_once_a_search_is_complete(sweep, capsys):
    """With a pruner, these are the other seeds of pruned trials."""
    RunRecord(sweep.trials[1].folder).end("pruned", "after epoch 1")
    sweep.write(sweep.results(), {"complete": True})
    summary = SweepSummary.read(sweep.folder)
    assert (summary.total, summary.counts["new"]) == (2, 1)
    print_overview([summary])
    assert capsys.readouterr().out.splitlines()[1].split()[:8] == ["sweep", "2", "1", "1", "0", "0", "0", "0"]
    main([str(sweep.folder), "--once"])
    assert "2 of 2 trials; best" in capsys.readouterr().out


def test_a_search_that_has_suggested_nothing_yet_has_not_ended(tmp_path):
    Sweep(tmp_path, [], [], ["seed"], planned=5).write([], {"complete": False})
    assert not _view(tmp_path)[1]


def test_a_run_is_shown_and_a_name_that_is_none_is_an_error(sweep, capsys, tmp_path):
    main([str(sweep.trials[1].folder), "--once"])
    assert "▁█" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        main(["swep", "--root", str(tmp_path)])
    assert "there is no sweep called swep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], ""), ([0.5], "▄"), ([0.1, 0.1], "▄▄"), ([0, 7, 3], "▁█▄"), (range(30), sparkline(range(6, 30)))],
)
def test_a_curve_reaches_from_its_least_to_its_largest_value(values, shown):
    assert sparkline(values) == shown
