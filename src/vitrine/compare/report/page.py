"""The report of a comparison: one HTML page with everything, which needs no network."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.compare.comparison import Comparison
from vitrine.compare.predictions import INDEPENDENT, Predictions, calibration
from vitrine.compare.report import image_panels, plots, prediction_plots
from vitrine.compare.report.image_panels import Gallery
from vitrine.compare.report.parallel import parallel_coordinates
from vitrine.compare.report.style import SYMBOLS, Plot, RowStyles
from vitrine.compare.table_formats import cells, headings, split_command
from vitrine.inference.html_page import check_page, script_json, templates_in, write_page_file
from vitrine.text import listed, plural

TEMPLATES = Path(__file__).parent / "templates"
MAX_CLASSES = 100  # of a confusion matrix
VERDICTS = {"better": "▲", "worse": "▼", "inconclusive": "○"}


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        key: its anchor.
        title: its heading.
        caption: what it shows.
        plots: a plot, several plots with a menu, or, with ``side_by_side``, several plots together.
        gallery: images.
    """

    key: str
    title: str
    caption: str = ""
    plots: list[Plot] = field(default_factory=list)
    gallery: Gallery | None = None
    side_by_side: bool = False


def write_report(compared: Comparison, path: Path, sources: Sequence[str]) -> None:
    """Write the page to ``path``, atomically. ``sources`` are the paths that were given.

    Raises:
        RunError: the file cannot be written.
    """
    check_page(path)
    write_page_file(path, render(compared, sources))


def render(compared: Comparison, sources: Sequence[str]) -> str:
    """Return the page as HTML."""
    from plotly.offline import get_plotlyjs

    styles, now = RowStyles(compared), datetime.now()
    try:
        parts = sections(compared, styles)
    finally:
        image_panels.forget()  # before the next report, their files may change
    template = templates_in(TEMPLATES).get_template("report.html.j2")
    return template.render(
        title=f"{compared.metric.title.capitalize()}, {plural(len(compared.table.rows), 'configuration')}",
        sources=sources,
        made=f"{now.day} {now:%B %Y, %H:%M}",
        compared=compared,
        verdicts=VERDICTS,
        split_command=split_command,
        legend=[(*styles.style(row), styles.name(row)) for row in styles.coloured],
        glyphs=dict(zip(SYMBOLS, "●■◆▲✚★▼⬟", strict=True)),
        others=len(styles.others),
        headings=headings(compared),
        table=[(cells(compared, row), row.row is compared.findings.baseline) for row in compared.summaries],
        sections=parts,
        commands=_commands(compared),
        plots=script_json(_by_key(parts)),
        plotly=get_plotlyjs(),
    )


def sections(compared: Comparison, styles: RowStyles) -> list[Section]:
    """Return the sections after the table; a section without content is left out."""
    found = [Section("means", "Every configuration", plots=[plots.means(compared, styles)])]
    if drawn := plots.curves(compared, styles):
        found.append(Section("curves", "Learning curves", plots=drawn))
    if drawn := plots.against_cost(compared, styles):
        found.append(Section("cost", "Cost", plots=drawn))
    if columns := compared.configurations.columns:
        drawn = plots.main_effects(compared, styles)
        caption = "The mean of each value over all values of the other columns"
        if any(np.isfinite(plot.traces[0]["error_y"]["array"]).any() for plot in drawn):
            caption += ", with its 95 % interval over seeds"
        if len(drawn) < len(columns):
            names = [styles.value(column) for column in columns if column not in [plot.title for plot in drawn]]
            caption += f". Not shown: {listed(names)}, since not every value ran with the same other choices and seeds"
        found.append(Section("effects", "Main effects", f"{caption}.", drawn, side_by_side=True))
    if plot := parallel_coordinates(compared, styles):
        found.append(Section("parallel", plot.title, plots=[plot]))
    if predictions := _common_predictions(compared):
        found += prediction_sections(compared, styles, predictions)
    if any(run.folder for run in compared.runs):
        gallery = image_panels.position_gallery(compared)
        found.append(Section("positions", "Position embeddings", gallery.caption, gallery=gallery))
    return found


def prediction_sections(compared: Comparison, styles: RowStyles, predictions: dict[str, Predictions]) -> list[Section]:
    """Return the sections on predictions for the test images, and on attention."""
    by_row = [
        (row, [predictions[run.name] for run in row.runs.values()])
        for row in styles.coloured
        if all(run.name in predictions for run in row.runs.values())
    ]
    found = []
    if by_row:
        plot = prediction_plots.reliability_diagram([(row, calibration(runs)) for row, runs in by_row], styles)
        caption = INDEPENDENT if by_row[0][1][0].multi_label else ""
        found.append(Section("reliability", plot.title, caption, plots=[plot]))
        names = image_panels.class_names(compared.runs[0])
        if len(names) <= MAX_CLASSES:
            plot = prediction_plots.class_accuracies(by_row, names, styles)
            found.append(Section("classes", plot.title, plots=[plot]))
            if by_row[0][1][0].multi_label:
                caption = "There is none: a test image has several labels, or none."
                found.append(Section("confusion", "Confusion matrix", caption))
            else:
                matrices = [prediction_plots.confusion_matrix(row, runs, names, styles) for row, runs in by_row]
                found.append(Section("confusion", "Confusion matrix", styles.shown(len(by_row)), matrices))
    for key, title, gallery in (
        ("hard", "Hardest images", image_panels.hard_images(compared, predictions)),
        ("attention", "Attention", image_panels.attention_maps(compared, predictions)),
    ):
        found.append(Section(key, title, gallery.caption, gallery=gallery))
    return found


def _common_predictions(compared: Comparison) -> dict[str, Predictions]:
    """Predictions of the runs compared; empty if they are for different test images."""
    hashes = {run.labels_hash for run in compared.runs if run.labels_hash}
    names = {run.name for run in compared.runs}
    return {name: found for name, found in compared.predictions.items() if name in names} if len(hashes) == 1 else {}


def _commands(compared: Comparison) -> dict[str, list[tuple[str, str]]]:
    """Each command with its runs: the row's label, the run's name and its result."""
    runs_of: dict[str, list[tuple[str, str]]] = {}
    metric = compared.metric
    for row in compared.configurations.rows:
        for run in row.runs.values():
            result = f"{run.name}, {metric.title} {metric.value(run.metrics[metric.name])}"
            runs_of.setdefault(str(run.facts.get("command") or "not recorded"), []).append((row.label, result))
    return runs_of


def _by_key(parts: Sequence[Section]) -> dict[str, dict[str, Any]]:
    """Traces and layout of each plot, by its id in the page."""
    return {
        f"{part.key}-{index}": {"traces": plot.traces, "layout": plot.layout}
        for part in parts
        for index, plot in enumerate(part.plots)
    }
