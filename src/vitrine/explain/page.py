"""The page of a run: one HTML file, and its figures as files on request."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from vitrine.compare.load import RunResult, load_results
from vitrine.compare.predictions import Predictions, correct_images
from vitrine.compare.report.page import TEMPLATES
from vitrine.config.trust import prefixes
from vitrine.durations import clock
from vitrine.errors import RunError, VitrineError, joined_lines
from vitrine.explain.learned_sections import learned_sections
from vitrine.explain.results import curve_section, prediction_sections
from vitrine.explain.run_images import RunImages
from vitrine.explain.section import RunSection
from vitrine.figure_style import PRINT_DPI, inline_svg, report_boxes, save
from vitrine.files import refuse_link_out
from vitrine.inference.html_page import check_page, script_json, templates_in, write_page_file
from vitrine.inference.load import LoadedRun
from vitrine.runs import RunRecord
from vitrine.runs.facts import images_of
from vitrine.runs.predictions import read_groups
from vitrine.text import plural, short_number
from vitrine.training.metrics import share_interval, wilson_interval

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class RunPage:
    """What was written.

    Attributes:
        path: the HTML file.
        size: of it, in bytes.
        figures: files of the figures.
    """

    path: Path
    size: int
    figures: list[Path]


def write_run_page(
    folder: str | Path,
    to: Path | None = None,
    *,
    formats: Sequence[str] = (),
    data_root: str | None = None,
    trust: Collection[str] = (),
    allow_changed_code: bool = False,
) -> RunPage:
    """Write the page of a run in any state, with what it has.

    Args:
        folder: the run folder.
        to: the HTML file; ``None`` is ``report.html`` in the run folder.
        formats: of figures that are written, too, to ``figures/`` beside the page: ``png``, ``pdf``, ``svg``.
        data_root: folder of the run's data; ``None`` is where it was in training.
        trust: as of :func:`vitrine.load_run`.
        allow_changed_code: as of :func:`vitrine.load_run`.

    Raises:
        RunError: there is no such run, it is damaged, its ``figures/`` is a link that leads out of it, or a file cannot
            be written; with ``data_root``, also if the data there has changed.
        DataError: ``data_root`` is given, and lacks the images.
        ConfigError: ``data_root`` is given, but the data is read from no folder.
    """
    record = RunRecord.open(folder)
    path = to or record.path / "report.html"
    check_page(path)
    figures = path.parent / "figures"
    if formats:
        refuse_link_out(figures, record.path)
    sections = run_sections(record, trust, data_root=data_root, allow_changed_code=allow_changed_code)
    files = []
    try:
        write_page_file(path, render(record, sections))
        report_boxes(_class_names(record, 0), figures, formats)
        for kind in formats:
            figures.mkdir(exist_ok=True)
            drawings = [drawn for section in sections for drawn in section.figures]
            files += [save(drawn.figure, figures / f"{drawn.key}.{kind}", dpi=PRINT_DPI) for drawn in drawings]
    except OSError as error:
        raise RunError(f"cannot write {error.filename or path}: {error.strerror or error}") from None
    return RunPage(path, path.stat().st_size, files)


def run_sections(
    record: RunRecord, trust: Collection[str] = (), *, data_root: str | None = None, allow_changed_code: bool = False
) -> list[RunSection]:
    """Return the sections of a run's page; each one that cannot be made says why.

    Raises:
        RunError: its record is damaged.
        VitrineError: ``data_root`` is given, and its images are not those of the run.
    """
    run = LoadedRun(record, prefixes(trust), allow_changed_code=allow_changed_code)
    images = RunImages(_result(record, trust), run, data_root)
    if data_root is not None:
        images.split  # noqa: B018 - raises here, not in a section, where a folder of the user's is wrong
    predictions, problem = _predictions(images)
    names = _class_names(record, 0 if predictions is None else images.outputs)
    found = [curve_section(record)]
    if predictions is None:
        found.append(RunSection("predictions", "Predictions", problem))
    else:
        found += prediction_sections(images, predictions, names)
    try:
        found += learned_sections(images, predictions, names)
    except VitrineError as error:
        found.append(
            RunSection("learned", "What the model has learned", f"There is no model to show: {joined_lines(error)}.")
        )
    return found


def render(record: RunRecord, sections: Sequence[RunSection]) -> str:
    """Return the page as HTML."""
    now = datetime.now()
    drawn = [one for section in sections for one in section.figures]
    explorer = next((section.explorer for section in sections if section.explorer is not None), None)
    template = templates_in(FOLDER, TEMPLATES).get_template("run.html.j2")
    return template.render(
        title=record.name,
        made=f"{now.day} {now:%B %Y, %H:%M}",
        facts=_facts(record),
        command=str(record.facts.get("command") or ""),
        sections=sections,
        drawings={one.key: inline_svg(one.figure, one.key, one.alt) for one in drawn},
        explorer=explorer,
        data=script_json(explorer),
    )


def _result(record: RunRecord, trust: Collection[str]) -> RunResult:
    found = load_results([record.path], trust=trust)
    here = [run for run in found.runs if run.folder is not None and run.folder.resolve() == record.path.resolve()]
    if not here:
        raise RunError(next((problem for _, problem in found.damaged), f"{record.path} cannot be read"))
    return here[0]


def _predictions(images: RunImages) -> tuple[Predictions | None, str]:
    """The predictions for the images, or ``None`` and why there are none."""
    record = images.run.record
    if images.stage == "test" and not (record.path / "predictions.npz").is_file():
        return None, f"The run is {record.status} and has no predictions for test images."
    try:
        return images.predictions(), ""
    except (VitrineError, OSError, ImportError) as error:
        return None, f"There are no predictions for {images.kind}s: {joined_lines(error)}."


def _class_names(record: RunRecord, outputs: int) -> list[str]:
    """Names of the classes, or the numbers of the model's outputs."""
    names = [str(name) for name in record.facts.get("classes") or []]
    return names or [str(number) for number in range(outputs)]


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    """What the page says of the run before its sections."""
    facts, metrics = record.facts, record.metrics
    found = [("status", record.status)]
    images = images_of(facts, "test")
    if (accuracy := metrics.get("test/acc")) is not None:
        text = f"{100 * accuracy:.2f} %"
        if images:
            text += f", {_test_interval(record, accuracy, images)}"
        found.append(("test accuracy", text))
    if (precision := metrics.get("test/map")) is not None:
        found.append(("test mean average precision", f"{precision:.4f}"))
    if (accuracy := metrics.get("val/acc")) is not None:
        epoch = metrics.get("best_epoch")
        found.append(("validation accuracy", f"{100 * accuracy:.2f} %" + (f", epoch {epoch:.0f}" if epoch else "")))
    if (parameters := facts.get("parameters")) is not None:
        flops = facts.get("flops_per_image")
        found.append(("parameters", f"{parameters:,}" + (f"; {short_number(flops)}FLOPs per image" if flops else "")))
    if (seconds := metrics.get("train_seconds")) is not None and np.isfinite(seconds):
        found.append(("training time", clock(seconds)))
    if facts.get("started"):
        found.append(("started", str(facts["started"])[:16].replace("T", " ")))
    found += [(name, str(facts[name])) for name in ("device", "error", "reason") if facts.get(name)]
    return found


def _test_interval(record: RunRecord, accuracy: float, images: int) -> str:
    """The interval of the test accuracy, over images or, where they come in groups, over these."""
    path, of_groups = record.path / "predictions.npz", ""
    low, high = wilson_interval(round(accuracy * images), images)
    with suppress(RunError):  # its section says so
        if path.is_file() and (groups := read_groups(path)) is not None:
            _, low, high = share_interval(correct_images(path), groups)
            of_groups = f" in {plural(int(groups.max()) + 1, 'group')}"
    return f"95 % interval {100 * low:.2f} to {100 * high:.2f} over {plural(images, 'test image')}{of_groups} (Wilson)"
