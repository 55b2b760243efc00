"""A sweep over data sets is compared on each of them: one row per configuration, one column per data set."""

import csv
import io
import json
import math
from pathlib import Path

import pytest

from vitrine.cli.compare import main
from vitrine.compare.across import compare_across
from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.metric import MISSING
from vitrine.compare.table_csv import csv_text
from vitrine.compare.table_formats import across_cells, latex, markdown
from vitrine.errors import RunError

REACHED = {
    ("digits", "learned"): (0.90, 0.91, 0.92),
    ("digits", "rope"): (0.95, 0.962, 0.97),
    ("digits", "none"): (0.80, 0.815, 0.82),
    ("mnist", "learned"): (0.95, 0.96, 0.97),
    ("mnist", "rope"): (0.951, 0.958, 0.972),
    ("mnist", "none"): (0.85, 0.865, 0.87),
}
COMMAND = "model=vit_nano data=digits,mnist position=learned,rope,none seed=0,1,2"


@pytest.fixture
def write_grid(tmp_path, write_run):
    """Writes a sweep over two data sets and three positional schemes; some of its runs with other facts."""

    def write(*, left_out=(), failed=(), facts=None, order=None) -> Path:
        for data, scheme in order or REACHED:
            for seed, acc in enumerate(REACHED[data, scheme]):
                if (data, scheme) not in left_out:
                    about = {"images": {"train": 1293, "val": 144, "test": 360}, "validation": data}
                    write_run(
                        tmp_path / "grid",
                        f"data={data}",
                        f"position={scheme}",
                        seed=seed,
                        acc=acc,
                        sweep=COMMAND,
                        status="failed" if (data, scheme) in failed else "finished",
                        facts=about | (facts or {}),
                        predictions=False,
                    )
        return tmp_path / "grid"

    return write


def texts(across):
    return [[cell.text for cell in across_cells(across, row)] for row in across.rows]


def test_each_column_is_the_comparison_of_its_own_runs(write_grid):
    grid = write_grid()
    across = compare_across(load_results([grid]), "data")
    assert (across.key, across.columns, list(across.comparisons)) == ("data", ["position"], ["digits", "mnist"])
    for value, found in across.comparisons.items():
        alone = compare(load_results([grid], [f"data={value}"]))
        assert found.findings.method == alone.findings.method
        for row in across.rows:
            (own,) = (summary for summary in alone.summaries if summary.row.label == row.label)
            assert row.summaries[value].interval == own.interval
            kinds = {tested.row.label: tested.kind for tested in alone.findings.comparisons}
            assert across.verdict(row, value) == kinds.get(row.label, "")
    assert texts(across) == [
        ["learned", "91.00 ± 2.48", "96.00 ± 2.48"],
        ["rope", "▲ 96.07 ± 2.50", "96.03 ± 2.66"],
        ["none", "▼ 81.17 ± 2.59", "▼ 86.17 ± 2.59"],
    ]


def test_a_row_may_be_the_best_of_one_column_and_not_of_another(write_grid):
    across = compare_across(load_results([write_grid()]), "data")
    bold = {(row.label, value) for row in across.rows for value in across.comparisons if across.may_be_best(row, value)}
    assert bold == {("rope", "digits"), ("learned", "mnist"), ("rope", "mnist")}
    assert "| rope | **▲ 96.07 ± 2.50** | **96.03 ± 2.66** |" in markdown(across)
    assert r"rope & \textbf{$\uparrow$ 96.07 $\pm$ 2.50} & \textbf{96.03 $\pm$ 2.66} \\" in latex(across)
    assert across.sentences == [
        "rope against learned: better with data=digits; not significantly different with data=mnist",
        "none against learned: worse with data=digits and mnist",
    ]
    assert across.notes[0] == (
        "test accuracy (%), mean over 3 seeds; ▲ better and ▼ worse than learned; bold, and * in a terminal: may be "
        "the best, with 95 % confidence (Hsu, 1984); each column on its own, without correction for their number"
    )


def test_of_two_rows_both_may_be_the_best_unless_one_is_better(write_grid):
    left_out = [(data, "none") for data in ("digits", "mnist")]
    across = compare_across(load_results([write_grid(left_out=left_out)]), "data")
    bold = {(row.label, value) for row in across.rows for value in across.comparisons if across.may_be_best(row, value)}
    assert bold == {("rope", "digits"), ("learned", "mnist"), ("rope", "mnist")}


def test_a_configuration_without_finished_runs_leaves_its_cell_empty(write_grid):
    grid = write_grid(failed=[("mnist", "none")])
    across = compare_across(load_results([grid]), "data")
    assert texts(across)[2] == ["none", "▼ 81.17 ± 2.59", MISSING]
    (caveat,) = (text for text in across.caveats if "has no row" in text)
    assert caveat.startswith("data=mnist: ")
    assert "3 of 3 runs failed" in caveat


def test_failed_runs_are_counted_and_leave_no_row_that_may_be_the_best(write_grid, write_run):
    grid = write_grid()
    given = ["data=mnist", "position=rope"]
    write_run(grid, *given, seed=3, sweep=COMMAND, status="failed", facts={"validation": "mnist"}, predictions=False)
    across = compare_across(load_results([grid]), "data")
    assert {value for row in across.rows for value in across.comparisons if across.may_be_best(row, value)} == {
        "digits"
    }
    assert (
        "may be the best, with 95 % confidence (Hsu, 1984), which cannot be determined with data=mnist"
        in across.notes[0]
    )
    assert "data=mnist: of rope, 1 of 4 runs failed or diverged (95 % interval 1% to 81%)" in across.caveats


def test_the_baseline_is_the_same_row_in_each_column(write_grid):
    order = [("digits", "learned"), ("digits", "rope"), ("digits", "none")]
    order += [("mnist", "none"), ("mnist", "learned"), ("mnist", "rope")]  # as when workers start trials in parallel
    results = load_results([write_grid(order=order)])
    across = compare_across(results, "data")
    assert across.baseline.label == "learned"
    assert [found.findings.baseline.label for found in across.comparisons.values()] == ["learned"] * 2
    named = compare_across(results, "data", baseline="none")
    assert [found.findings.baseline.label for found in named.comparisons.values()] == ["none"] * 2
    assert texts(named)[2][1:] == ["81.17 ± 2.59", "86.17 ± 2.59"]


def test_a_baseline_has_runs_in_every_column(write_grid):
    results = load_results([write_grid(left_out=[("digits", "learned"), ("mnist", "none")])])
    assert compare_across(results, "data").baseline.label == "rope"
    with pytest.raises(RunError, match=r"^baseline learned has no finished run with data=digits$"):
        compare_across(results, "data", baseline="learned")
    with pytest.raises(RunError, match=r"no row is called ropes; rows: rope; none; learned; did you mean rope\?"):
        compare_across(results, "data", baseline="ropes")


def test_no_row_in_every_column_leaves_nothing_to_compare_with(write_grid):
    left_out = [("digits", "learned"), ("mnist", "none"), ("mnist", "rope")]
    results = load_results([write_grid(left_out=left_out)])
    with pytest.raises(RunError, match=r"no configuration ran with every data \(digits and mnist\)"):
        compare_across(results, "data")


def test_what_differs_only_between_columns_makes_no_rows(tmp_path, write_run):
    """Epochs that each data set needs, given by hand in two commands, are no choice that is compared."""
    for data, epochs in (("digits", 10), ("mnist", 3)):
        for scheme in ("learned", "rope"):
            for seed, acc in enumerate(REACHED[data, scheme]):
                overrides = [f"data={data}", f"position={scheme}", f"trainer.max_epochs={epochs}"]
                write_run(tmp_path, *overrides, seed=seed, acc=acc, predictions=False)
    across = compare_across(load_results([tmp_path]), "data")
    assert across.columns == ["position"]
    assert [len(row.summaries) for row in across.rows] == [2, 2]


def test_a_main_effect_within_each_column(tmp_path, write_run):
    for data in ("digits", "mnist"):
        for scheme in ("learned", "rope"):
            for patch in (2, 4):
                for seed, acc in enumerate(REACHED[data, scheme]):
                    overrides = [f"data={data}", f"position={scheme}", f"patch={patch}"]
                    sweep = "data=digits,mnist position=learned,rope patch=2,4 seed=0,1,2"
                    write_run(tmp_path / "grid", *overrides, seed=seed, acc=acc, sweep=sweep, predictions=False)
    across = compare_across(load_results([tmp_path]), "data", by="position")
    assert texts(across) == [["learned", "91.00 ± 2.48", "96.00 ± 2.48"], ["rope", "▲ 96.07 ± 2.50", "96.03 ± 2.66"]]


def test_a_key_that_does_not_differ_is_refused(write_grid):
    with pytest.raises(RunError, match="these runs do not differ in patch; they differ in data, position"):
        compare_across(load_results([write_grid()]), "patch")


def test_csv_has_a_line_for_each_row_and_column_with_the_numbers_of_each_comparison(write_grid):
    across = compare_across(load_results([write_grid()]), "data")
    lines = list(csv.DictReader(io.StringIO(csv_text(across))))
    assert [(line["data"], line["position"]) for line in lines] == list(REACHED)
    for line in lines:
        (row,) = (row for row in across.rows if row.label == line["position"])
        assert float(line["mean"]) == row.summaries[line["data"]].interval.mean
        assert line["may_be_best"] == str(across.may_be_best(row, line["data"])).lower()


def test_the_command_prints_the_table_and_notes_the_look(write_grid, capsys):
    grid = write_grid()
    trials = [{"folder": Path(run.name).name, "status": "finished"} for run in load_results([grid]).runs]
    (grid / "sweep.json").write_text(json.dumps({"trials": trials}))
    main([str(grid), "--across", "data"])
    printed = capsys.readouterr().out
    assert "rope      *▲ 96.07 ± 2.50   *96.03 ± 2.66" in printed
    assert "- none against learned: worse with data=digits and mnist" in printed
    assert len(json.loads((grid / "looks.json").read_text())["looks"]) == 1


@pytest.mark.parametrize("option", [["--html", "page.html"], ["--figures", "pdf"], ["--target", "0.9"]])
def test_what_shows_one_comparison_is_refused(option, capsys):
    with pytest.raises(SystemExit):
        main(["outputs", "--across", "data", *option])
    assert f"{option[0]} is of one comparison: give a value of data instead, data=VALUE" in capsys.readouterr().err


def test_a_row_that_is_worse_than_another_is_not_the_best_though_the_best_mean_is_uncertain(tmp_path, write_run):
    reached = {
        "learned": (0.900, 0.902, 0.901, 0.904, 0.903),
        "rope": (0.890, 0.8921, 0.891, 0.8941, 0.893),
        "none": (0.80, 0.99, 0.97, 0.88, 0.99),
    }
    for data in ("digits", "mnist"):
        for scheme, accs in reached.items():
            for seed, acc in enumerate(accs):
                write_run(tmp_path, f"data={data}", f"position={scheme}", seed=seed, acc=acc, predictions=False)
    across = compare_across(load_results([tmp_path]), "data")
    assert across.verdict(across.rows[1], "digits") == "worse"
    assert [across.may_be_best(row, "digits") for row in across.rows] == [True, False, True]


def test_decided_sweeps_are_compared_by_what_they_decided(tmp_path, write_run):
    for data in ("digits", "mnist"):
        command = f"model=vit_nano data={data} position=learned,none sweep=decide"
        folder = tmp_path / data
        for scheme, accs in (("learned", (0.90, 0.91, 0.92)), ("none", (0.80, 0.815, 0.82))):
            for seed, acc in enumerate(accs):
                given = (f"data={data}", f"position={scheme}")
                write_run(folder, *given, seed=seed, acc=acc, sweep=command, predictions=False)
        look = {"mean": -0.1, "low": -0.15, "high": -0.05}
        decision = {
            "metric": "val/acc",
            "baseline": "position=learned",
            "verdicts": {"position=none": "worse"},
            "looks": {"position=none": [look]},
            "findings": {"position=none": "none is worse"},
        }
        (folder / "sweep.json").write_text(json.dumps({"trials": [], "decision": decision}))
    across = compare_across(load_results([tmp_path]), "data")
    assert across.metric.name == "val/acc"
    assert [across.verdict(across.rows[1], value) for value in across.comparisons] == ["worse", "worse"]


def test_values_of_keys_may_follow_the_options(write_grid, capsys):
    main([str(write_grid()), "--across", "data", "position=learned,rope"])
    assert "none" not in capsys.readouterr().out


def test_a_value_under_which_every_run_diverged_is_named_and_left_out(write_grid, write_run, tmp_path):
    grid = write_grid()
    for scheme in ("learned", "rope"):
        given = ["data=fashion_mnist", f"position={scheme}"]
        write_run(grid, *given, metrics={"test/acc": math.nan, "val/acc": math.nan}, predictions=False)
    across = compare_across(load_results([grid]), "data")
    assert list(across.comparisons) == ["digits", "mnist"]
    assert across.left_out == ["data=fashion_mnist: the metric is NaN or infinite in every run"]
