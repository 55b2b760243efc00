"""Speeds that say little about configurations: of machines that ran several at once, and of runs that scatter."""

import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.report.plots import against_cost
from vitrine.compare.report.style import RowStyles
from vitrine.compare.speeds import speed_caveats

TIMES = {"at once": ((0, 9), (5, 15), (20, 29), (29, 40)), "one by one": ((0, 9), (9, 15), (20, 29), (29, 40))}


@pytest.fixture
def speeds_of(tmp_path, write_run):
    def write(speeds, times, **facts):
        """Two rows of two runs; returns their comparison, and the sentence about the Pareto front of throughput."""
        pairs = [(position, seed) for position in ("learned", "rope") for seed in (0, 1)]
        for (position, seed), speed, (began, ended) in zip(pairs, speeds, times, strict=True):
            span = {"started": f"2026-01-31T12:00:{began:02d}", "ended": f"2026-01-31T12:00:{ended:02d}", "host": "a"}
            known = span | {"speed": {"images_per_second": speed}} | facts
            write_run(tmp_path, f"position={position}", seed=seed, facts=known, predictions=False)
        compared = compare(load_results([tmp_path]))
        plots = against_cost(compared, RowStyles(compared))
        (caption,) = [plot.caption for plot in plots if plot.choice == "training throughput (images/s)"]
        return compared, caption

    return write


def test_speeds_of_runs_that_shared_a_machine_have_a_caveat_and_no_pareto_front(speeds_of):
    compared, caption = speeds_of((100.0, 101.0, 200.0, 201.0), TIMES["at once"])
    (caveat,) = speed_caveats(compared.table)
    assert caveat.startswith("2 of 4 runs shared a machine with another of them while they ran, which affects ")
    assert caveat in compared.caveats
    assert caption == "There is no Pareto front: see the caveats about images/s and times."


@pytest.mark.parametrize("facts", [{}, {"resumed": [{"at": "2026-01-31T12:00:10"}]}])
def test_speeds_of_runs_one_by_one_are_compared(speeds_of, facts):
    """Of a run that was resumed, it is not known when it trained."""
    compared, caption = speeds_of((100.0, 101.0, 200.0, 201.0), TIMES["at once" if facts else "one by one"], **facts)
    assert speed_caveats(compared.table) == []
    assert caption.startswith("On the Pareto front")


def test_times_of_different_devices_have_a_caveat_and_no_pareto_front_without_speeds_too(tmp_path, write_run):
    for position, device, seconds in (("learned", "CPU", 9.0), ("rope", "NVIDIA H100", 3.0)):
        reached = {"val/acc": 0.9, "test/acc": 0.9, "train_seconds": seconds}
        facts = {"speed": None, "device": device}
        write_run(tmp_path, f"position={position}", facts=facts, metrics=reached, predictions=False)
    compared = compare(load_results([tmp_path]))
    assert "times were measured on different devices: CPU (1 run) and NVIDIA H100 (1 run)" in compared.caveats
    (caption,) = [plot.caption for plot in against_cost(compared, RowStyles(compared)) if "time" in plot.choice]
    assert caption == "There is no Pareto front: see the caveats about images/s and times."


def test_speeds_that_scatter_more_than_rows_differ_have_a_caveat(speeds_of):
    compared, caption = speeds_of((100.0, 200.0, 150.0, 230.0), TIMES["one by one"])
    assert speed_caveats(compared.table) == [
        "images/s of one configuration differ by a factor of up to 2 between its runs, more than means of rows "
        "do (1.267)"
    ]
    assert caption.startswith("There is no Pareto front")
