"""The report: everything there is to see in a comparison, as one page that opens without a network."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.compare.comparison import Compared
from vitrine.compare.predictions import Judged, calibration
from vitrine.compare.report import image_panels as pictures
from vitrine.compare.report import plots as figures
from vitrine.compare.report import prediction_plots as image_figures
from vitrine.compare.report.image_panels import Gallery
from vitrine.compare.report.parallel import parallel
from vitrine.compare.report.style import SYMBOLS, Looks, Plot
from vitrine.compare.tables import cells, headings
from vitrine.errors import RunError
from vitrine.files import write_text
from vitrine.text import plural

TEMPLATES = Path(__file__).parent / "templates"
MOST_CLASSES = 100  # of a confusion matrix
VERDICTS = {"better": "▲", "worse": "▼", "open": "○"}


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: its anchor.
        title: heading.
        words: what is to be seen.
        plots: one, or several of which the reader chooses one by a menu, or, ``side_by_side``, several together.
        gallery: pictures.
    """

    key: str
    title: str
    words: str = ""
    plots: list[Plot] = field(default_factory=list)
    gallery: Gallery | None = None
    side_by_side: bool = False


def write_report(compared: Compared, path: Path, sources: Sequence[str]) -> None:
    """Write the page to ``path``, whole or not at all. ``sources`` are the paths as they were given.

    Raises:
        RunError: it cannot be written there.
    """
    if not path.absolute().parent.is_dir():
        raise RunError(f"cannot write {path}: there is not a folder {path.absolute().parent}")
    try:
        write_text(path, render(compared, sources))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def render(compared: Compared, sources: Sequence[str]) -> str:
    """The page as HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    looks, now = Looks(compared), datetime.now()
    parts = sections(compared, looks)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        title=f"{compared.metric.title.capitalize()}, {plural(len(compared.table.rows), 'configuration')}",
        sources=sources,
        made=f"{now.day} {now:%B %Y, %H:%M}",
        compared=compared,
        verdicts=VERDICTS,
        legend=[(*looks.of(row), looks.name(row)) for row in looks.coloured],
        glyphs=dict(zip(SYMBOLS, "●■◆▲✚★▼⬟", strict=True)),
        others=len(looks.others),
        headings=headings(compared),
        table=[(cells(compared, one), one.row is compared.findings.baseline) for one in compared.summaries],
        sections=parts,
        commands=_commands(compared),
        plots=_embedded(_by_key(parts)),
        css=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
        script=(TEMPLATES / "report.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )


def sections(compared: Compared, looks: Looks) -> list[Section]:
    """What the page shows after its table; a part that there is nothing for is left out."""
    found = [Section("means", "Every configuration", plots=[figures.means(compared, looks)])]
    if plots := figures.curves(compared, looks):
        found.append(Section("curves", "Learning curves", plots=plots))
    if plots := figures.against_cost(compared, looks):
        found.append(Section("cost", "What it costs", plots=plots))
    if plots := figures.effects(compared):
        words = "The mean of each choice over all that the others chose, with its 95 % interval over seeds."
        found.append(Section("effects", "What each choice does", words, plots, side_by_side=True))
    if plot := parallel(compared, looks):
        found.append(Section("parallel", plot.title, plots=[plot]))
    judged = _comparable(compared)
    if judged:
        found += on_test_images(compared, looks, judged)
    if any(run.folder for run in compared.runs):
        gallery = pictures.positions(compared)
        found.append(Section("positions", "How alike positions are", gallery.words, gallery=gallery))
    return found


def on_test_images(compared: Compared, looks: Looks, judged: dict[str, Judged]) -> list[Section]:
    """What stored predictions show, and the models themselves."""
    by_row = [
        (row, [judged[run.name] for run in row.runs.values()])
        for row in looks.coloured
        if all(run.name in judged for run in row.runs.values())
    ]
    found = []
    if by_row:
        plot = image_figures.reliability([(row, calibration(some)) for row, some in by_row], looks)
        found.append(Section("reliability", plot.title, plots=[plot]))
        names = pictures.class_names(compared.runs[0])
        if len(names) <= MOST_CLASSES:
            found.append(Section("classes", "Class by class", plots=[image_figures.classes(by_row, names, looks)]))
            plots = [image_figures.confusions(row, some, names, looks) for row, some in by_row]
            found.append(Section("confusion", "What is taken for what", plots=plots))
    for key, title, gallery in (
        ("hard", "The hardest images", pictures.hard_images(compared, judged)),
        ("attention", "Where models look", pictures.attention(compared, judged)),
    ):
        found.append(Section(key, title, gallery.words, gallery=gallery))
    return found


def _comparable(compared: Compared) -> dict[str, Judged]:
    """Predictions of the same test images; none where runs have different ones."""
    labels = {run.labels for run in compared.runs if run.labels}
    counted = {run.name for run in compared.runs}
    return {name: one for name, one in compared.judged.items() if name in counted} if len(labels) == 1 else {}


def _commands(compared: Compared) -> dict[str, list[tuple[str, str]]]:
    """Each command with the runs it made: the row's label, and the run with what it reached."""
    made: dict[str, list[tuple[str, str]]] = {}
    metric = compared.metric
    for row in compared.full.rows:
        for run in row.runs.values():
            told = f"{run.name}, {metric.title} {metric.value(run.metrics[metric.name])}"
            made.setdefault(str(run.facts.get("command") or "not recorded"), []).append((row.label, told))
    return made


def _by_key(parts: Sequence[Section]) -> dict[str, dict[str, Any]]:
    """Each plot's traces and layout by its name in the page."""
    return {
        f"{part.key}-{place}": {"traces": plot.traces, "layout": plot.layout}
        for part in parts
        for place, plot in enumerate(part.plots)
    }


def _embedded(plots: dict[str, Any]) -> str:
    """As JSON that can stand inside a script element."""
    text = json.dumps(_plain(plots), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain(value: Any) -> Any:
    """Without numpy's types, and with null for what is no number: JSON has neither."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
