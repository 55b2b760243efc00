"""The table in the terminal's, Markdown's and LaTeX's form says the same."""

import csv
import io
import math
import re

from rich.console import Console

from vitrine.compare.across import compare_across
from vitrine.compare.comparison import compare
from vitrine.compare.costs import FLOPS, PARAMETERS
from vitrine.compare.load import load_results
from vitrine.compare.table_csv import csv_text, write_csv
from vitrine.compare.table_formats import cells, headings, latex, markdown, terminal


def test_a_row_has_its_choice_its_numbers_and_the_difference_from_the_baseline(sweep):
    found = compare(load_results([sweep]), fixed_images=True, target=0.8)
    titles = [heading.title for heading in headings(found)]
    assert titles == [
        "position",
        "n",
        "test accuracy (%)",
        "best",
        "worst",
        "difference (points)",
        "p (corrected)",
        "parameters",
        "FLOPs",
        "images/s",
        "s to 80 %",
    ]
    rope, learned, none = (cells(found, summary) for summary in found.summaries)
    assert rope[:6] == ["rope", "3", "96.07 ± 2.50", "97.00", "95.00", "+5.07 [+4.65, +5.48]"]
    assert float(rope[6].removeprefix("< ")) <= 0.001
    assert rope[7:] == ["202 k", "13 M", "1.01 k", "6.0"]
    assert none[5] == "-0.13 [-2.92, +2.65]"  # t(0.975, 2) = 4.303, times 0.777 / sqrt(3)
    assert learned[5:7] == ["baseline", ""]


def test_a_main_effect_has_the_range_of_the_sizes_that_it_averages_over(tmp_path, write_run):
    for position in ("learned", "rope"):
        for depth, size in ((4, 202_000), (6, 303_000)):
            facts = {"parameters": size, "flops_per_image": 100 * size}
            write_run(tmp_path, f"position={position}", model={"depth": depth}, facts=facts, predictions=False)
    results = load_results([tmp_path])
    by_position = compare(results, by="position")
    titles = [heading.title for heading in headings(by_position)]
    for summary in by_position.summaries:
        row = dict(zip(titles, cells(by_position, summary), strict=True))
        assert (row["parameters"], row["FLOPs"]) == ("202 k to 303 k", "20.2 M to 30.3 M")
        assert PARAMETERS.value_of(summary) is None, "no place on the axis of a plot"
    assert [PARAMETERS.text_of(summary) for summary in compare(results, by="depth").summaries] == ["202 k", "303 k"]


def test_a_single_configuration_has_no_baseline(tmp_path, write_run):
    write_run(tmp_path)
    found = compare(load_results([tmp_path]))
    assert [heading.title for heading in headings(found)][:5] == [
        "configuration",
        "n",
        "test accuracy (%)",
        "best",
        "worst",
    ]
    assert cells(found, found.summaries[0])[2] == "90.00"


def test_markdown_has_a_line_for_each_row_and_keeps_bars_out_of_cells(sweep):
    found = compare(load_results([sweep]))
    lines = markdown(found).partition("\n\n")[0].splitlines()
    assert len(lines) == 2 + 3
    assert {line.count("|") for line in lines} == {11}
    assert lines[1].startswith("| --- | --: |")
    assert "| rope | 3 | 96.07 ± 2.50 |" in lines[2]


def test_latex_is_a_tabular_with_special_letters_escaped(tmp_path, write_run):
    for scheme in ("rope_mixed", "learned"):
        write_run(tmp_path, f"position={scheme}", seed=0, acc=0.9)
        write_run(tmp_path, f"position={scheme}", seed=1, acc=0.91)
    text = latex(compare(load_results([tmp_path])))
    assert text.startswith("\\begin{tabular}{lrrrrrrrrr}\n\\toprule")
    assert "rope\\_mixed & 2 & 90.50 $\\pm$ 6.35 & 91.00 & 90.00 &" in text
    assert "test accuracy (\\%)" in text
    assert not re.search(r"(?<!\\)[%_]", re.sub(r"(?m)^% .*", "", text))


def test_latex_escapes_signs_and_brackets(tmp_path, write_run):
    for value in ("[1,2]", "<3>"):
        for seed in (0, 1):
            write_run(tmp_path, seed=seed, acc=0.9 + 0.01 * seed, model={"drop_path": value}, predictions=False)
    lines = latex(compare(load_results([tmp_path]))).splitlines()
    assert any(line.startswith("{[}1,2] &") for line in lines), "after a line's end, [ begins an option"
    assert any(line.startswith("$<$3$>$ &") for line in lines)


def test_the_terminal_shows_every_cell(sweep):
    found = compare(load_results([sweep]))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(found))
    shown = console.export_text()
    for summary in found.summaries:
        assert all(cell in shown for cell in cells(found, summary))


def test_the_terminal_shows_headings_with_brackets_as_they_are(tmp_path, write_run):
    for value in ("[red]", "[/b]"):
        for position in ("learned", "rope"):
            write_run(tmp_path, f"position={position}", model={"drop_path": value}, predictions=False)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(compare_across(load_results([tmp_path]), "model.drop_path")))
    assert console.export_text().splitlines()[0].split() == ["position", "[red]", "[/b]"]


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_the_numbers_of_the_table(sweep, tmp_path):
    peaks = ({"peak_memory": 10**9 + seed, "peak_gpu_memory": 10**8} for seed in range(9))
    results = load_results([sweep])
    for run, peak in zip(results.runs, peaks, strict=True):
        run.facts.update(peak)
    found = compare(results, target=0.8)
    write_csv(found, tmp_path / "table.csv")
    lines = read_csv((tmp_path / "table.csv").read_text())
    assert [line["position"] for line in lines] == ["rope", "learned", "none"]
    tested = {each.row: each for each in found.findings.comparisons}
    for line, summary in zip(lines, found.summaries, strict=True):
        shown = cells(found, summary)
        interval = summary.interval
        assert [float(line[name]) for name in ("low", "mean", "high")] == [interval.low, interval.mean, interval.high]
        assert (line["metric"], line["seeds"], line["runs"]) == ("test/acc", "3", "3")
        assert found.metric.interval(interval) == shown[2]
        assert [found.metric.number(float(line[name])) for name in ("best", "worst")] == shown[3:5]
        assert int(line["parameters"]) == PARAMETERS.value_of(summary)
        assert int(line["flops_per_image"]) == FLOPS.value_of(summary)
        assert float(line["images_per_second"]) == summary.images_per_second
        assert float(line["seconds_to_target"]) == summary.seconds_to_target.mean
        assert int(line["peak_gpu_memory"]) == 10**8
        if summary.row is found.findings.baseline:
            assert (line["is_baseline"], line["difference"], line["p_corrected"]) == ("true", "", "")
            continue
        one = tested[summary.row]
        assert float(line["difference"]) == one.difference.mean
        assert float(line["difference_low"]) == one.difference.low
        assert float(line["difference_high"]) == one.difference.high
        assert (float(line["p_corrected"]), line["verdict"]) == (one.difference.corrected, one.kind)
    assert [line["peak_memory"] for line in lines] == ["1000000005", "1000000002", "1000000008"]


def test_csv_has_values_with_all_digits_and_no_sign_for_those_of_absent_parts(tmp_path, write_run):
    own, parts = {"position": "my_lab.Fourier"}, {"parts": {"my_lab.Fourier": "0"}}
    for rate, bands in ((0.0123456789, None), (0.0234567891, 4), (0.0234567891, 8)):
        model = {"drop_path": rate} | ({} if bands is None else own | {"position_options": {"bands": bands}})
        write_run(tmp_path, model=model, facts={} if bands is None else parts, predictions=False)
    found = compare(load_results([tmp_path]))
    assert {summary.row.values["model.drop_path"] for summary in found.summaries} == {"0.0123457", "0.0234568"}
    lines = read_csv(csv_text(found))
    names = ("model.drop_path", "model.position_options.bands")
    assert [tuple(line[name] for name in names) for line in lines] == [
        ("0.0123456789", ""),
        ("0.0234567891", "4"),
        ("0.0234567891", "8"),
    ]


def test_csv_has_empty_cells_for_what_is_unknown_and_no_formulas(tmp_path, write_run):
    for value in ("=1+1", "b"):
        write_run(tmp_path, model={"drop_path": value}, predictions=False)
    lines = read_csv(csv_text(compare(load_results([tmp_path]))))
    assert [line["model.drop_path"] for line in lines] == ["'=1+1", "b"]
    assert {line[name] for line in lines for name in ("low", "difference_low", "p_corrected", "peak_memory")} == {""}
    alone = read_csv(csv_text(compare(load_results([write_run(tmp_path / "one")]))))[0]
    assert alone["configuration"] == "the configuration"
    assert math.isclose(float(alone["mean"]), 0.9)
    assert not {"difference", "is_baseline"} & set(alone)
