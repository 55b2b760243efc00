"""Figures of a comparison for a paper: what they show is what the table has, and files are whole."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex

from vitrine.cli.compare import main
from vitrine.compare.comparison import compare
from vitrine.compare.costs import PARAMETERS
from vitrine.compare.load import load_results
from vitrine.compare.report import figures
from vitrine.compare.report.figures import draw_means
from vitrine.compare.report.style import OTHER, RowStyles, lines
from vitrine.figure_style import COLOURS


@pytest.fixture(scope="module")
def small(tmp_path_factory, write_sweep):
    """The comparison of nine runs: learned, the baseline, rope and none."""
    return compare(load_results([write_sweep(tmp_path_factory.mktemp("small"))]))


@pytest.fixture(scope="module")
def drawn(small):
    """Its figures by name."""
    return figures.figures(small, RowStyles(small), 3.25)


def bars(axes):
    """Means, ends and colours of the intervals, in the order in which they were drawn."""
    found = []
    for container in axes.containers:
        mark, _, (line,) = container.lines
        (start, end) = line.get_segments()[0]
        along = 0 if start[1] == end[1] else 1
        found.append((mark.get_xydata()[0], start[along], end[along], to_hex(mark.get_color())))
    return found


def is_line_seen(axes):
    """Whether the dotted line lies above the grid and below the marks."""
    (dotted,) = (line for line in axes.lines if line.get_linestyle() == ":")
    marks = [container.lines[0].get_zorder() for container in axes.containers]
    return axes.xaxis.get_zorder() < dotted.get_zorder() < min(marks)


def names(axes):
    return [text.get_text() for text in axes.get_yticklabels()]


def test_means_and_intervals_are_those_of_the_table_in_its_order(small, drawn):
    (axes,) = drawn["means"].axes
    assert names(axes) == ["rope", "learned (baseline)", "none"]
    assert axes.yaxis_inverted()
    styles = RowStyles(small)
    for place, (summary, (mark, low, high, colour)) in enumerate(zip(small.summaries, bars(axes), strict=True)):
        assert mark == pytest.approx([100 * summary.interval.mean, place])
        assert (low, high) == pytest.approx((100 * summary.interval.low, 100 * summary.interval.high))
        assert colour == styles.style(summary.row)[0]
    strokes = [line.get_xdata() for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata()) == 3]
    assert [sorted(stroke) for stroke in strokes] == [
        pytest.approx(sorted(100 * np.array(summary.values))) for summary in small.summaries
    ]
    assert is_line_seen(axes)
    assert axes.get_xlabel() == "test accuracy (%)"
    assert drawn["means"].get_figwidth() == 3.25


def test_differences_are_those_of_the_table(small, drawn):
    (axes,) = drawn["differences"].axes
    assert names(axes) == ["rope", "none"]
    for tested, (mark, low, high, _) in zip(small.findings.comparisons, bars(axes), strict=True):
        found = tested.difference
        assert (mark[0], low, high) == pytest.approx((100 * found.mean, 100 * found.low, 100 * found.high))
    assert is_line_seen(axes)
    assert axes.get_xlabel().split() == ["test", "accuracy,", "difference", "(points)", "to", "learned"]


def test_long_labels_of_ticks_do_not_overlap(tmp_path, write_run):
    for name, acc in {"learned": 0.9, "rope": 0.94, "none": 0.92}.items():
        write_run(tmp_path, acc=acc, model={"drop_path": name}, predictions=False)
    found = compare(load_results([tmp_path]), metric="val/loss")
    figure = figures.draw_differences(found, RowStyles(found), 3.25)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    boxes = [
        label.get_window_extent()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= place <= high
    ]
    assert len(boxes) > 2
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_curves_are_means_in_a_band_of_all_seeds(small, drawn):
    assert {"curves_val_acc", "curves_val_loss", "curves_train_loss"} <= set(drawn)
    assert "curves_train_acc" not in drawn, "it was not logged"
    (axes,) = drawn["curves_val_acc"].axes
    rows = [summary.row for summary in small.summaries]
    for row, line, band in zip(rows, axes.lines, axes.collections, strict=True):
        per_seed = 100 * np.array(
            [[step["val/acc"] for step in run.history if "val/acc" in step] for run in row.runs.values()]
        )
        assert line.get_xdata() == pytest.approx([1, 2, 3, 4])
        assert line.get_ydata() == pytest.approx(per_seed.mean(axis=0))
        ends = band.get_paths()[0].get_extents()
        assert (ends.ymin, ends.ymax) == pytest.approx((per_seed.min(), per_seed.max()))
    (legend,) = drawn["curves_val_acc"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["rope", "learned\n(baseline)", "none"]


def test_costs_have_the_intervals_and_a_row_without_a_colour_is_among_others(tmp_path, write_run):
    for number in range(10):
        drop, facts = {"drop_path": 0.01 * number}, {"parameters": 10_000 * 2**number}
        for seed in (0, 1):
            acc = 0.9 - 0.004 * number + 0.001 * seed
            write_run(tmp_path, seed=seed, acc=acc, model=drop, facts=facts, predictions=False)
    found = compare(load_results([tmp_path]))
    drawn = figures.figures(found, RowStyles(found), 5.5)
    assert "cost_flops" not in drawn, "all rows have the same"
    (axes,) = drawn["cost_parameters"].axes
    assert axes.get_xscale() == "log"
    assert is_line_seen(axes)
    shown = bars(axes)
    for summary, (mark, low, high, _) in zip(found.summaries, shown, strict=True):
        assert mark == pytest.approx([PARAMETERS.value_of(summary), 100 * summary.interval.mean])
        assert (low, high) == pytest.approx((100 * summary.interval.low, 100 * summary.interval.high))
    assert sorted({colour for *_, colour in shown}) == sorted({*COLOURS, OTHER})
    label = axes.xaxis.get_major_formatter()
    assert (label(20_000), label(1_125_000)) == ("20 k", "1.125 M")
    (legend,) = drawn["cost_parameters"].legends
    named = [text.get_text() for text in legend.get_texts()]
    assert (named[0], named[-1]) == ("model.drop_path=0\n(baseline)", "2 others")
    assert [line.get_marker() for line in legend.get_lines()] == [*"osD^P*vp", "o"]


def test_a_name_is_broken_into_lines_of_equal_length_between_words():
    assert lines("TalkingHeads · GaussPos", 40) == ["TalkingHeads · GaussPos"]
    assert lines("abcdefghij kl", 12) == ["abcdefghij", "kl"]
    assert lines("a path/that_has/no_spaces/in_it", 16) == ["a path/that_has/", "no_spaces/in_it"]


@pytest.fixture
def means_alone(monkeypatch):
    """One figure, for tests of the files."""
    monkeypatch.setattr(figures, "figures", lambda found, styles, width: {"means": draw_means(found, styles, width)})


def test_files_have_text_in_their_fonts_and_the_width_of_a_column(sweep, tmp_path, means_alone, capsys, monkeypatch):
    main([str(sweep), "--figures", "pdf,svg"])
    assert capsys.readouterr().err == f"2 files in {sweep / 'figures'}\n"
    assert sorted(path.name for path in (sweep / "figures").iterdir()) == ["means.pdf", "means.svg"]
    texts = [text.text for text in ElementTree.parse(sweep / "figures" / "means.svg").findall(".//{*}text")]
    assert {"rope", "learned (baseline)", "test accuracy (%)"} <= set(texts)
    pdf = (sweep / "figures" / "means.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert re.search(rb"/MediaBox \[ *0 0 234 ", pdf), "3.25 inches"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitrine.compare.report.page.write_report", lambda *given: None)
    runs = [str(file.parent) for file in sweep.glob("*/run.json")]
    main([*runs, "--figures", "png", "--width", "5.5"])
    main([*runs, "--figures", "png", "--html", str(tmp_path / "report.html")])
    printed = capsys.readouterr().err
    assert printed == f"1 file in figures\nwritten to {tmp_path}/report.html\n1 file in {tmp_path}/figures\n"


def test_a_request_that_cannot_be_met_is_refused_in_one_line(sweep, tmp_path, means_alone, capsys):
    (tmp_path / "outside").mkdir()
    (sweep / "figures").symlink_to(tmp_path / "outside")
    (sweep / "sweep.json").write_text('{"trials": []}')
    for arguments, message in (
        (["--figures", "pdf,sgv"], "'sgv' is not one of png, pdf, svg; did you mean svg?"),
        (["--width", "5.5"], "--width is that of --figures, such as --figures pdf"),
        (["--figures", "pdf", "--width", "82"], "--width 82 is not between 2 and 20 inches"),
        (["--figures", "pdf"], f"cannot write {sweep / 'figures'}: it is a link that leads out of {sweep}"),
        (["--figures", "pdf"], f"cannot write {sweep / 'figures'}: it is not a folder"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(sweep), *arguments])
        assert stop.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert message in printed.err.splitlines()[-1]
        if "link" in message:
            (sweep / "figures").unlink()
            (sweep / "figures").write_text("a file")
    assert not (sweep / "looks.json").exists(), "nothing was seen"
