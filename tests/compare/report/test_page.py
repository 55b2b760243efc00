"""The report in a real browser: it opens without a request or an error, and its controls work."""

import json
import re
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import plotly.graph_objects as go
import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.predictions import confusion
from vitrine.compare.report.page import render, sections, write_report
from vitrine.compare.report.parallel import parallel_coordinates
from vitrine.compare.report.plot_data import pareto_front
from vitrine.compare.report.plots import against_cost, curves, whole_ticks
from vitrine.compare.report.style import OTHER, SYMBOLS, RowStyles
from vitrine.figure_style import COLOURS, INK
from vitrine.runs import RunRecord

LARGEST = 6_000_000
PAPERS = {"light": "#ffffff", "dark": "#14181d"}


@pytest.fixture(scope="module")
def large_page(tmp_path_factory, write_run):
    """The report of 200 runs: 40 configurations of five seeds."""
    folder = tmp_path_factory.mktemp("large")
    write_many(folder, write_run)
    page = folder / "report.html"
    write_report(compare(load_results([folder / "runs"])), page, ["outputs/sweeps/large"])
    return page


def write_many(folder, write_run):
    command = "position=learned,rope,sincos2d,none,conv depth=1,2 model.drop_path=0.003,1e-05,0.0001,0.01 seed=range(5)"
    for number, position in enumerate(("learned", "rope", "sincos2d", "none", "conv")):
        for depth in (1, 2):
            for drop in (0.003, 1e-05, 0.0001, 0.01):
                for seed in range(5):
                    acc = round(0.8 + 0.01 * number + 0.03 * depth + 0.003 * ((seed * 7 + number) % 5), 4)
                    facts = {
                        "varies": f"position={position},depth={depth},model.drop_path={drop},seed={seed}",
                        "parameters": 50_000 * depth,
                    }
                    settings = {"sweep": command, "epochs": 40, "facts": facts}
                    values = {"depth": depth, "drop_path": drop}
                    write_run(folder / "runs", f"position={position}", seed=seed, acc=acc, model=values, **settings)


@pytest.fixture(scope="module")
def small(tmp_path_factory, write_sweep):
    """The comparison of nine runs."""
    return compare(load_results([write_sweep(tmp_path_factory.mktemp("small"))]))


@pytest.fixture(scope="module")
def small_page(tmp_path_factory, small):
    page = tmp_path_factory.mktemp("page") / "report.html"
    write_report(small, page, ["sweep"])
    return page


@pytest.fixture(scope="module")
def opened(browser):
    """Opens a page, once for all tests: gives it, and a list of the errors and requests it has made beside its own."""
    context = browser.new_context()

    @cache
    def visit(path):
        page, troubles = context.new_page(), []
        page.on("console", lambda message: troubles.append(message.text) if is_trouble(message) else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: None if request.url == path.as_uri() else troubles.append(request.url))
        page.goto(path.as_uri())
        return page, troubles

    yield visit
    context.close()


def is_trouble(message) -> bool:
    """Whether a console message is an error or a warning, other than the slowness of WebGL without a GPU."""
    return message.type in ("error", "warning") and "GL Driver Message (OpenGL, Performance" not in message.text


def draw_all(page) -> int:
    """Bring every plot into view; how many there are."""
    plots = page.locator(".plot:visible")
    for number in range(plots.count()):
        plots.nth(number).scroll_into_view_if_needed()
        plots.nth(number).locator(".main-svg").first.wait_for()
    return plots.count()


@pytest.mark.whole
def test_two_hundred_runs_open_without_an_error_or_a_request_and_stay_small(large_page, opened):
    assert large_page.stat().st_size < LARGEST
    page, troubles = opened(large_page)
    assert page.title() == "Test accuracy, 40 configurations"
    assert draw_all(page) >= 10
    assert 40 <= page.locator("#curves .plot:visible .point").count() <= 56, "about six marks on each of eight curves"
    assert page.locator("#table tbody tr").count() == 40
    assert "200 finished runs, differing in position, depth, model.drop_path" in page.locator("header").inner_text()
    assert "31 more comparisons with" in page.locator("#findings").inner_text()
    assert page.locator("#effects .plot").count() == 3
    for key in ("reliability", "classes", "confusion"):
        assert "Of 40 configurations, 8 are shown: the best and the baseline." in page.locator(f"#{key}").inner_text()
    page.get_by_role("button", name="model.drop_path").click()
    drops = [text.split("\t")[2] for text in page.locator("#table tbody tr").all_inner_texts()]
    assert list(dict.fromkeys(drops)) == ["1e-05", "0.0001", "0.003", "0.01"]
    assert troubles == []


def test_the_table_sorts_by_mouse_and_keyboard_and_announces_it(small_page, opened):
    page, troubles = opened(small_page)
    first = lambda: page.locator("#table tbody th").all_inner_texts()  # noqa: E731
    assert first() == ["rope", "learned", "none"]
    page.get_by_role("button", name="worst").click()
    assert first() == ["learned", "none", "rope"], "what is equal stays as it was"
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("worst")
    assert page.locator("#sorted").inner_text() == "Sorted by worst, ascending."
    page.get_by_role("button", name="position").focus()
    page.keyboard.press("Enter")
    assert first() == ["learned", "none", "rope"]
    page.keyboard.press("Space")
    assert first() == ["rope", "none", "learned"]
    assert page.locator("th[aria-sort]").count() == 1
    page.get_by_role("button", name="difference").click()
    assert first() == ["none", "rope", "learned"], "the baseline, which has none, comes last"
    page.get_by_role("button", name="difference").click()
    assert first() == ["rope", "none", "learned"]
    assert troubles == []


def test_a_row_is_hidden_and_shown_in_all_plots_by_the_keyboard(small_page, opened):
    page, troubles = opened(small_page)
    draw_all(page)
    lines = lambda: page.locator("#curves .plot:visible .scatterlayer .trace").count()  # noqa: E731
    marks = lambda: page.locator("#means .plot .scatterlayer .trace").count()  # noqa: E731
    parallel = lambda: page.locator("#parallel .plot .scatterlayer .trace").count()  # noqa: E731
    assert (lines(), marks()) == (6, 6), "a band and a line, runs and a mean, for each of three rows"
    assert parallel() == 3
    page.get_by_role("checkbox", name="rope").focus()
    page.keyboard.press("Space")
    assert (lines(), marks()) == (4, 4)
    assert parallel() == 2
    page.keyboard.press("Space")
    assert (lines(), marks()) == (6, 6)
    assert troubles == []


def test_a_menu_chooses_which_plot_is_shown(small_page, opened):
    page, troubles = opened(small_page)
    draw_all(page)
    menu = page.get_by_label("Show").first
    assert "validation accuracy" in page.locator("#curves .plot:visible .ytitle").text_content()
    menu.select_option("validation loss")
    page.locator("#curves .plot:visible .main-svg").first.wait_for()
    assert "validation loss (nats)" in page.locator("#curves .plot:visible .ytitle").text_content()
    assert "lowest validation loss" in page.locator("#curves figcaption:visible").inner_text()
    assert troubles == []


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_system_and_its_own_button(small_page, opened, scheme):
    page, troubles = opened(small_page)
    page.emulate_media(color_scheme=scheme)
    page.evaluate("delete document.documentElement.dataset.theme; showTheme()")
    paper = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    text = lambda: page.evaluate("getComputedStyle(document.querySelector('#means .xtick text')).fill")  # noqa: E731
    draw_all(page)
    other = "light" if scheme == "dark" else "dark"
    before = (paper(), text())
    assert before[0] == rgb(PAPERS[scheme])
    assert page.get_by_role("button", name="Dark").get_attribute("aria-pressed") == str(scheme == "dark").lower()
    page.get_by_role("button", name="Dark").press("Enter")
    assert paper() == rgb(PAPERS[other])
    assert text() != before[1]
    assert troubles == []


def test_paper_and_a_turned_phone_have_plots_of_their_width(small_page, opened):
    page, troubles = opened(small_page)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="dark", media="print")
    page.evaluate("delete root.dataset.theme")
    ink = "getComputedStyle(document.body).color"
    assert page.evaluate(ink) == rgb(INK), "of the dark system"
    page.evaluate("root.dataset.theme = 'dark'")
    assert page.evaluate(ink) == rgb(INK), "of the button"
    page.emulate_media(media="screen")
    draw_all(page)
    hidden = "[...document.querySelectorAll('[hidden] .plot')].map(plot => plot.dataset.drawn)"
    before = page.evaluate(hidden)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    widths = "[...document.querySelectorAll('.plot')].filter(plot => plot.clientWidth).map(plot => [plot.clientWidth, "
    widths += "Number(plot.querySelector('.main-svg')?.getAttribute('width'))])"
    assert all(room == drawn <= 680 for room, drawn in page.evaluate(widths))
    assert page.evaluate(hidden) == before
    assert page.locator("#means .xtick text").first.evaluate("text => getComputedStyle(text).fill") == rgb(INK)
    assert page.locator(".legend label").first.is_visible()
    assert not page.locator(".legend input").first.is_visible()
    assert page.locator("#table .wide").evaluate("table => table.scrollWidth <= table.clientWidth")
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("root.dataset.theme") == "dark"
    menu = page.get_by_label("Show").first
    menu.select_option("validation loss")
    assert all(room == drawn for room, drawn in page.evaluate(widths))
    menu.select_option("validation accuracy")
    numbers = "[...document.querySelectorAll('#classes .heatmap-label text')].filter(e => e.getClientRects().length)"
    assert page.evaluate(f"{numbers}.length") == 30
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator("#classes .crowded").wait_for()
    assert all(room == drawn < 360 for room, drawn in page.evaluate(widths))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(numbers) == [], "of 6 px"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("#classes .plot:not(.crowded)").wait_for()
    assert page.evaluate(f"{numbers}.length") == 30
    assert troubles == []


def test_without_javascript_the_page_reports_what_is_missing(small_page, browser):
    page = browser.new_page(java_script_enabled=False)
    page.goto(small_page.as_uri())
    assert page.locator("noscript p").is_visible()
    assert page.locator("#table").is_visible()
    assert page.locator(".plot:visible, .legend:visible, .menu:visible, #theme:visible").count() == 0
    page.close()


@pytest.mark.whole
def test_a_phone_needs_no_sideways_scrolling(large_page, browser):
    page = browser.new_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.goto(large_page.as_uri())
    draw_all(page)
    assert page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)") <= 360
    page.close()


def test_everything_has_a_name_and_a_heading_of_the_right_level(small_page, opened):
    page, _ = opened(small_page)
    draw_all(page)
    assert page.locator("h1").count() == 1
    levels = [int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(e => e.tagName)")]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unnamed = "[...document.querySelectorAll('.plot')].filter(e => !e.getAttribute('aria-label')).length"
    assert page.evaluate(unnamed) == 0
    assert page.evaluate("[...document.images].filter(e => !e.alt).length") == 0
    assert (
        page.evaluate("[...document.querySelectorAll('table')].filter(t => !t.querySelector('th[scope=col]')).length")
        == 0
    )
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
    assert page.evaluate("links => links.filter(link => !document.querySelector(link))", links) == []


@pytest.mark.whole
def test_neither_a_diverged_run_nor_markup_in_names_breaks_the_page(tmp_path, write_run, opened):
    evil = "</script><script>document.title='predicted'</script><img src=x onerror=alert(1)>"
    for seed in (0, 1):
        facts = {"classes": [evil, *"123456789"], "command": f"python a={evil}"}
        path = write_run(tmp_path / "runs", seed=seed, facts=facts)
    history = (path / "metrics.csv").read_text().replace("0.55,", "nan,").replace("0.45", "inf")
    (path / "metrics.csv").write_text(history)
    stored = dict(np.load(path / "predictions.npz"))
    np.savez(path / "predictions.npz", labels=stored["labels"], logits=np.full((100, 10), np.nan, np.float32))
    write_report(compare(load_results([tmp_path / "runs"])), tmp_path / "report.html", [evil])
    page, troubles = opened(tmp_path / "report.html")
    assert draw_all(page) >= 4
    assert page.title() == "Test accuracy, 1 configuration"
    assert troubles == []
    assert evil in page.locator("#commands").inner_text()


def test_names_that_are_cut_to_the_same_text_stay_distinct(tmp_path, write_run):
    shared = "a/very/long/path/to/some/weights/of"
    for end in ("one", "two"):
        write_run(
            tmp_path, model={"pretrained": f"{shared}/{end}"}, facts={"classes": [f"{shared}/{n}" for n in range(10)]}
        )
    found = compare(load_results([tmp_path]))
    styles = RowStyles(found)
    parts = {part.key: part.plots for part in sections(found, styles)}
    assert len({styles.name(row) for row in styles.coloured}) == 2
    assert len({place for trace in parts["means"][0].traces for place in trace["y"]}) == 2
    assert len(set(parts["effects"][0].traces[0]["x"])) == 2
    (grid,) = parts["classes"][0].traces
    assert (len(set(grid["x"])), len(set(grid["y"]))) == (10, 2)


def test_a_part_of_ones_own_goes_by_its_class_unless_two_are_called_so(tmp_path, write_run):
    def names(*positions):
        folder = tmp_path / "-".join(positions)
        for position in positions:
            own = {"parts": {position: "0123456789abcdef"}} if "." in position else {}
            facts = own | {"varies": f"position={position},depth=2,seed=0"}
            for depth in (2, 3):
                values = {"position": position, "depth": depth, "drop_path": 0.1 * depth}
                write_run(folder, sweep="-", model=values, facts=facts, predictions=False)
        styles = RowStyles(compare(load_results([folder])))
        return {styles.name(row).partition(" ")[0] for row in styles.coloured}

    assert names("rope", "my_lab.ideas.Fourier") == {"rope", "Fourier"}
    assert names("other.Fourier", "my_lab.ideas.Fourier") == {"other.Fourier", "my_lab.ideas.Fourier"}
    assert names("rope", "my_lab.rope") == {"rope", "my_lab.rope"}


def test_effects_of_unequal_combinations_are_left_out_and_of_a_decision_nothing_that_it_lacks(tmp_path, write_run):
    arms = ["position=rope"]
    decision = {"metric": "test/acc", "baseline": "position=learned", "alpha": 0.2, "verdicts": {arms[0]: "better"}}
    decision |= {"looks": {arms[0]: []}, "findings": {arms[0]: "rope was decided"}}
    for scheme, patch in (("learned", 4), ("rope", 4), ("rope", 2)):
        for seed in range(3):
            write_run(tmp_path, f"position={scheme}", f"patch={patch}", seed=seed, acc=0.9 + 0.001 * seed)
    known = tmp_path / "sweep.json"
    known.write_text(json.dumps({"trials": [], "decision": decision}))
    found = compare(load_results([tmp_path]))
    (effects,) = [part for part in sections(found, RowStyles(found)) if part.key == "effects"]
    assert not effects.plots
    assert "Not shown: position and patch, since not every value ran with the same other" in effects.caption
    page = render(found, ["sweep"])
    assert "p-value" not in page, "of a decision, there are none"
    assert "they are simultaneous" not in page, "nor has it intervals before its first look"
    decision["looks"] = {arms[0]: [{"mean": 0.02, "low": 0.01, "high": 0.03}]}
    known.write_text(json.dumps({"trials": [], "decision": decision}))
    page = render(compare(load_results([tmp_path])), ["sweep"])
    assert page.count("they are simultaneous") == page.count("they are simultaneous at 80 %.") == 1


def test_a_second_page_shows_the_model_that_a_run_has_by_then(tmp_path, write_run, monkeypatch):
    RunRecord(write_run(tmp_path, predictions=False)).best.touch()
    load = Mock(return_value=SimpleNamespace(model=None))
    monkeypatch.setattr("vitrine.inference.load.LoadedRun", load)
    found = compare(load_results([tmp_path]))
    for _ in range(2):
        assert "has no position embeddings" in render(found, ["sweep"])
    assert load.call_count == 2


def test_the_confusion_matrix_colours_mistakes_by_their_share_of_the_class(small_page, small, opened):
    page, _ = opened(small_page)
    page.evaluate("draw(document.getElementById('confusion-0-plot'))")
    drawn = page.evaluate("(({z, text}) => ({z, text}))(document.getElementById('confusion-0-plot').data[0])")
    runs = [small.predictions[run.name] for run in small.summaries[0].row.runs.values()]
    counts = confusion(runs, 10)
    assert counts.sum() == 300
    for true in range(10):
        for predicted in range(10):
            count = counts[true, predicted]
            share = 0 if true == predicted else pytest.approx(100 * count / 30)
            assert drawn["z"][true][predicted] == share
            assert drawn["text"][true][predicted] == (str(count) if count else "")


def test_parallel_coordinates_have_a_tick_for_each_choice_and_the_mean_last(small):
    styles = RowStyles(small)
    plot = parallel_coordinates(small, styles)
    assert plot.layout["xaxis"]["ticktext"] == ["position", "test accuracy (%)"]
    ticks = [(note["x"], note["y"], note["text"]) for note in plot.layout["annotations"]]
    assert ticks[:3] == [(0, 0.0, "rope"), (0, 0.5, "learned"), (0, 1.0, "none")]
    assert [text for _, _, text in ticks[3:]] == ["90.87", "92.17", "93.47", "94.77", "96.07"]
    best_first = plot.traces[::-1]
    assert [trace["text"][0] for trace in best_first] == ["position: rope", "position: learned", "position: none"]
    low, high = 90.8667, 96.0667
    expected = [(value - low) / (high - low) for value in (96.0667, 91.0, 90.8667)]
    assert [trace["y"][1] for trace in best_first] == pytest.approx(expected, abs=1e-3)
    assert [trace["line"]["color"] for trace in best_first] == [styles.style(row.row)[0] for row in small.summaries]
    assert all(0 <= place <= 1 for trace in plot.traces for place in trace["y"])


@pytest.mark.parametrize("width", [360, 900, 1400])
def test_titles_of_parallel_axes_are_whole_and_apart(small_page, opened, width):
    page, _ = opened(small_page)
    page.set_viewport_size({"width": width, "height": 800})
    titles = [
        "optimizer.weight_decay",
        "augment.mixup",
        "position",
        "loss.label_smoothing",
        "model.mlp_dropout",
        "images/s",
        "test accuracy (%)",
    ]
    drawn = """async (titles) => {
      const node = document.getElementById("parallel-0-plot"), { traces, layout } = plots["parallel-0"];
      const xaxis = { ...layout.xaxis, ticktext: titles, tickvals: [...titles.keys()], range: [-0.05, 6.05] };
      await Plotly.newPlot(node, traced(traces), themed({ ...layout, xaxis }, node.clientWidth));
      return [node, ...node.querySelectorAll(".xtick text")].map((element) => element.getBoundingClientRect().toJSON());
    }"""
    plot, *shown = page.evaluate(drawn, titles)
    assert len(shown) == len(titles)
    assert min(title["left"] for title in shown) >= plot["left"]
    assert max(title["right"] for title in shown) <= plot["right"]
    assert min(title["top"] for title in shown) >= plot["top"]
    for title, following in pairwise(shown):
        assert title["right"] < following["left"] or title["height"] > title["width"], "apart, or turned"


@pytest.mark.whole
def test_no_code_is_made_from_text(small_page, opened):
    """The page forbids it, so that nothing that comes from a run can become code."""
    page, troubles = opened(small_page)
    draw_all(page)
    attempt = "try { new Function('')(); window.made = true; } catch { window.made = false; }"
    page.add_script_tag(content=f"setTimeout(() => {{ {attempt} }})")  # later: the browser trusts what a test runs
    page.wait_for_timeout(200)
    assert page.evaluate("window.made") is False
    assert troubles == []


def test_cells_of_the_confusion_matrix_show_their_count_and_nothing_else(small_page, small, opened):
    page, _ = opened(small_page)
    page.evaluate("draw(document.getElementById('confusion-0-plot'))")
    shown = page.locator("#confusion-0-plot .heatmap-label").all_text_contents()
    runs = [small.predictions[run.name] for run in small.summaries[0].row.runs.values()]
    expected = [str(count) for count in confusion(runs, 10).ravel() if count]
    assert sorted(text for text in shown if text) == sorted(expected)


@pytest.mark.parametrize("scheme", PAPERS)
def test_numbers_in_heatmaps_are_legible_on_the_whole_scale(small_page, opened, scheme):
    page, _ = opened(small_page)
    page.evaluate(f"root.dataset.theme = '{scheme}'; draw(document.getElementById('confusion-0-plot'))")
    text = page.locator("#confusion-0-plot .heatmap-label text").first
    ink, *ends = (page.evaluate(f"colour('{name}')") for name in ("--ink", "--raised", "--heat"))
    assert text.evaluate("text => getComputedStyle(text).fill") == rgb(ink)
    assert all(contrast(ink, end) >= 4.5 for end in ends)


@pytest.mark.parametrize(("longest", "step"), [(1, 1), (4, 1), (8, 1), (9, 2), (30, 5), (200, 50), (1000, 200)])
def test_axes_of_epochs_have_whole_ticks(longest, step):
    assert whole_ticks(longest) == {"tick0": 0, "dtick": step}


def test_curves_of_one_epoch_are_marks_without_bands(tmp_path, write_run):
    for seed in (0, 1):
        write_run(tmp_path, seed=seed, epochs=1, predictions=False)
        write_run(tmp_path, seed=seed, epochs=2, model={"drop_path": 0.3}, predictions=False)
    found = compare(load_results([tmp_path]))
    for plot in curves(found, RowStyles(found)):
        drawn = [(len(trace["x"]), trace["mode"]) for trace in plot.traces]
        expected = [(1, "lines+markers"), (2, "lines+markers"), (4, "lines")]
        assert sorted(drawn) == expected, "a band and a line of two epochs"
        assert [line.count("—") for line in plot.numbers] == [0, 0, 1], "one configuration has no second epoch"


def test_curves_differ_in_symbols_and_have_their_numbers_in_a_table(tmp_path, write_run):
    for number in range(9):
        write_run(tmp_path, acc=0.9 - 0.01 * number, model={"drop_path": 0.01 * number}, epochs=70, predictions=False)
    found = compare(load_results([tmp_path]))
    styles = RowStyles(found)
    accuracy, *_ = curves(found, styles)
    *coloured, other = accuracy.traces[::-1]
    assert {trace["marker"]["symbol"] for trace in coloured} == set(SYMBOLS)
    assert {trace["mode"] for trace in coloured} == {"lines+markers"}
    assert other["mode"] == "lines"
    heading, *lines = accuracy.numbers
    assert heading == ["epoch", *map(styles.name, styles.coloured)]
    assert len(lines) == len(coloured[0]["x"]) == 60
    assert lines[0][:2] == ["1", "45.00"]


def test_the_table_of_curves_has_each_value_that_there_is(tmp_path, write_run):
    for epochs in (100, 97, 61):
        write_run(tmp_path, epochs=epochs, model={"drop_path": epochs / 1000}, predictions=False)
    found = compare(load_results([tmp_path]))
    (heading, *lines), lengths = curves(found, RowStyles(found))[0].numbers, []
    assert len(lines) == 60
    for column in range(1, len(heading)):
        known = [int(line[0]) for line in lines if line[column] != "—"]
        assert known == [int(line[0]) for line in lines][: len(known)], "a gap"
        lengths.append(known[-1])
    assert max(lengths) == 100
    assert sorted(lengths)[:2] <= [61, 97]


def test_seconds_below_one_have_no_prefix_and_single_runs_no_intervals(tmp_path, write_run, small):
    for number in range(3):
        model, metrics = {"drop_path": 0.1 * number}, {"test/acc": 0.9, "train_seconds": 0.3 * (number + 1)}
        write_run(tmp_path, model=model, metrics=metrics, predictions=False)
    found = compare(load_results([tmp_path]))
    (cost,) = against_cost(found, RowStyles(found))
    assert cost.layout["xaxis"]["tickformat"] == "~g"
    assert "%{x:.4~g}" in cost.traces[-1]["hovertemplate"]
    assert cost.numbers[0] == ["configuration", "training time (s)", "test accuracy (%)"]
    assert sorted(line[1:] for line in cost.numbers[1:]) == [["0.3", "90.00"], ["0.6", "90.00"], ["0.9", "90.00"]]
    for compared, is_named in (found, False), (small, True):
        parts = {part.key: part for part in sections(compared, RowStyles(compared))}
        for caption in parts["means"].plots[0].caption, parts["effects"].caption:
            assert ("interval" in caption) is is_named


def test_the_best_marks_of_a_cost_plot_are_on_top(tmp_path, write_run):
    for number in range(9):
        model, facts = {"drop_path": 0.01 * number}, {"parameters": 1000 + 100 * number}
        write_run(tmp_path, acc=0.9 - 0.01 * number, model=model, facts=facts, predictions=False)
    found = compare(load_results([tmp_path]))
    (plot,) = against_cost(found, RowStyles(found))
    front, *marks = [trace["meta"].get("row") for trace in plot.traces]
    assert (front, marks) == (None, ["others", *"76543210"])


def test_many_numeric_choices_have_a_numeric_axis(tmp_path, write_run):
    for number in range(14):
        write_run(tmp_path, seed=0, model={"drop_path": 0.0001 * 2**number}, predictions=False)
    found = compare(load_results([tmp_path]))
    plot = parallel_coordinates(found, RowStyles(found))
    ticks = [note["text"] for note in plot.layout["annotations"] if note["x"] == 0]
    assert len(ticks) == 5
    assert (ticks[0], ticks[-1]) == ("0.0001", "0.8192")
    places = sorted(trace["y"][0] for trace in plot.traces)
    assert np.diff(places) == pytest.approx(1 / 13, abs=1e-4), "logarithmic"


def test_plotly_accepts_every_plot(small):
    parts = sections(small, RowStyles(small))
    keys = {part.key for part in parts}
    assert keys >= {
        "means",
        "curves",
        "effects",
        "parallel",
        "reliability",
        "classes",
        "confusion",
        "hard",
        "attention",
    }
    for part in parts:
        for plot in part.plots:
            go.Figure(plot.traces, plot.layout)  # raises at a name or value that plotly has not


def test_missing_images_are_reported_with_the_reason(small_page):
    text = re.sub(r"<[^>]+>", " ", small_page.read_text())
    assert "The pixels are not available: the data set has other test images than the runs were tested on." in text
    assert "Not shown: rope:" in text


def test_the_page_of_one_run_shows_its_mistakes_and_compares_nothing(tmp_path, write_run):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    _, test = train_test_split(np.arange(1797), test_size=360, stratify=digits.target, random_state=0)
    labels = digits.target[np.sort(test)]
    write_run(tmp_path / "runs", right=np.arange(360) != 17, labels=labels)
    page = render(compare(load_results([tmp_path / "runs"])), ["runs"])
    hard = page[page.index('id="hard"') : page.index('id="attention"')]
    assert hard.count('<img src="data:image/webp;base64,') == 1
    assert f"{labels[17]}, mistaken for " in hard
    text = re.sub(r"<[^>]+>", " ", page[page.index("<main") : page.index("</main")])
    assert "has a validation accuracy of 84.38 %" in text
    assert "Test images that the run misclassifies, with the class predicted." in text
    for claim in ("differences", "to sort", "highest", "lowest", "on top", "1 run misclassify", "Bands"):
        assert claim not in text


def test_the_pareto_front_has_the_points_that_no_other_dominates():
    assert pareto_front([(1, 1), (2, 2), (3, 1), (2, 1), (0, 3)]) == {1, 2, 4}
    assert pareto_front([(1, 1), (1, 1)]) == {0, 1}


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_colours_stand_out_from_the_page(paper):
    assert all(contrast(colour, paper) >= 3 for colour in (*COLOURS, OTHER))


def test_numbers_in_the_page_are_those_of_the_table(small_page):
    embedded = re.search(r'id="plots">(.*?)</script>', small_page.read_text(), re.DOTALL)[1]
    assert "<" not in embedded, "nothing in it can end the script element"
    plots = json.loads(embedded)
    means = [trace["x"][0] for trace in plots["means-0"]["traces"][1::2]]
    assert means == pytest.approx([96.0667, 91.0, 90.8667], abs=1e-3)
    curve = next(trace for trace in plots["curves-0"]["traces"] if trace.get("name") == "rope")
    assert curve["x"] == [1, 2, 3, 4]
    assert curve["y"][0] == pytest.approx(96.0667 / 2, abs=1e-2)


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
