"""``predict.py``: classify pictures, batch by batch, into a file or a table."""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vitrine.config.predict import PredictConfig
from vitrine.config.trust import prefixes
from vitrine.data.image_csv import LABEL, split_labels
from vitrine.data.image_folder import unread_files
from vitrine.errors import ConfigError, DataError, Fault, RunError
from vitrine.inference.brightness import Brightness
from vitrine.inference.ensemble import Ensemble, same_classes
from vitrine.inference.features_file import FeaturesFile
from vitrine.inference.inputs import Listed, Pictures
from vitrine.inference.load import LoadedRun
from vitrine.inference.predictor import Predictor
from vitrine.inference.reading import read_batches
from vitrine.inference.report import Report
from vitrine.inference.results import Journal, Layout, Row, may_replace
from vitrine.runs import RunRecord
from vitrine.runs.provenance import available_cores
from vitrine.text import did_you_mean, listed, nearest, one_line, plural
from vitrine.training.console import quiet_libraries

if TYPE_CHECKING:
    from vitrine.inference.attention_images import AttentionImages

# Pictures in a batch, and bytes of their pixels. A larger batch takes more memory, and is no faster.
MAX_PICTURES, MAX_BYTES = {"cpu": 256, "mps": 512, "cuda": 1024}, 128 * 2**20
THRESHOLD = 0.5  # least probability of the labels that are given, where pictures have several
FEW = 64  # pictures that are decoded sooner than worker processes start


def predict(options: PredictConfig, pictures: Pictures) -> int:
    """Classify pictures; print a table or write a file, and print metrics where true classes are given.

    Args:
        options: of the command.
        pictures: what ``options.input`` names.

    Returns:
        How many pictures could not be read.

    Raises:
        RunError: a run is missing or damaged, runs have different classes, or results cannot be written.
        DataError: pictures cannot be listed, or a worker was killed.
        ConfigError: ``options`` do not suit the runs, the pictures or this machine.
    """
    given = prefixes(options.trust), options.target or "", options.allow_changed_code, options.checkpoint
    runs = [LoadedRun(RunRecord.open(folder), *given) for folder in options.runs]
    classes = same_classes(runs)
    multi_label = runs[0].config.data.multi_label
    pictures = pictures.labelled_by(next(iter(runs[0].config.data.targets), LABEL))
    _check(options, classes, multi_label)
    _keep_files(options, pictures)
    features = None if options.features is None else FeaturesFile(Path(options.features), runs[0].feature_size)
    notes = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    with_features = features is not None
    named, labelled, measured = _with_labels(pictures, classes, notes, multi_label=multi_label, features=with_features)
    layout = Layout(options.top_k, options.confidence, multi_label, labelled)
    _note_unfinished(runs if options.checkpoint is None else [], notes)
    with quiet_libraries(), ExitStack() as stack:
        predictors = [Predictor(run.model, run.config, options.accelerator, run.transform) for run in runs]
        # Options of the hardware are process-wide: those of a model that rounds nothing, if there is one.
        exact_first = sorted((one.hardware for one in predictors), key=lambda hardware: hardware.rounds)
        stack.enter_context(exact_first[0].set_up())
        images_of = None if options.attention is None else _attention_images(options.attention, pictures, predictors[0])
        report = Report(options, classes, layout, notes, pictures.label if measured else None)
        if options.calibrate:
            _calibrate(runs, predictors, options, report)
        threshold = THRESHOLD if options.confidence is None else options.confidence
        ensemble = Ensemble(
            predictors, classes, options.top_k, threshold, multi_label=multi_label, features=with_features
        )
        journal = None
        if options.output is not None:
            journal = stack.enter_context(Journal.open(Path(options.output), _made_by(options, runs, ensemble)))
            for row in _resumed(journal, named):
                report.count(row)
                report.name_unreadable(row, " (before the command was interrupted)")
        brightness = Brightness(predictors[0].preparation)
        with report.progress(pictures):
            _classify(named, ensemble, options, journal, images_of, report, brightness)
        if journal is not None:
            if features is not None:
                features.write(journal.rows, labelled=labelled)
            journal.finish(layout)
        report.conclude()
        if brightness.note:
            notes.print(f"vitrine: {brightness.note}")
        if others := pictures.others():
            notes.print(f"vitrine: left out: {one_line(unread_files(others))}")
    return report.unreadable


def _classify(
    pictures: Iterator[Listed],
    ensemble: Ensemble,
    options: PredictConfig,
    journal: Journal | None,
    images_of: "AttentionImages | None",
    report: Report,
    brightness: Brightness,
) -> None:
    """Classify ``pictures``, and write and report their rows as they come."""
    first = list(islice(pictures, FEW))
    if not first:
        return
    workers = available_cores() if options.workers is None else options.workers
    kind = ensemble.device.type
    most = max(1, min(MAX_PICTURES[kind], MAX_BYTES // ensemble.bytes_per_picture))
    batches = read_batches(
        chain(first, pictures),
        ensemble.preparations,
        options.batch_size or most,
        workers if len(first) == FEW else 0,
        pin=kind == "cuda",
    )
    with closing(batches):  # which ends the workers, also after an error
        for batch, (images, errors, paged) in batches:
            rows = ensemble.rows(batch, images, errors, paged)
            if images:
                brightness.add(images[0])
            if images_of is not None and images:
                images_of.write([row.path for row in rows if not row.error], images[0])
            if journal is not None:
                journal.append(rows)
            report.add(rows)


def _check(options: PredictConfig, classes: list[str], multi_label: bool) -> None:
    """Raise ConfigError where ``options`` do not suit the runs."""
    if multi_label and options.top_k > 1:
        problem = (
            f"is for one label per picture; of several, all are given that have the probability confidence={THRESHOLD}"
        )
        raise ConfigError([Fault("top_k", str(options.top_k), problem)])
    if multi_label and options.calibrate:
        problem = "is for one label per picture, and this run's have several"
        raise ConfigError([Fault("calibrate", "true", problem, "calibrate=false")])
    if options.top_k > len(classes):
        raise ConfigError([Fault("top_k", str(options.top_k), f"must be <= {len(classes)}, the number of classes")])


def _keep_files(options: PredictConfig, pictures: Pictures) -> None:
    """Raise ConfigError where the results would replace the input, or another file that holds no results."""
    if options.output is None:
        return
    output, source = Path(options.output), Path(pictures.source)
    if not pictures.is_stream and os.path.exists(output) and os.path.exists(source) and output.samefile(source):  # noqa: PTH110 - never raises
        problem = f"would replace the input, input={source}; choose another output"
        raise ConfigError([Fault("output", str(output), problem)])
    if not may_replace(output):
        problem = "exists and does not hold results of predict.py; choose another output"
        raise ConfigError([Fault("output", str(output), problem)])


def _note_unfinished(runs: Iterable[LoadedRun], notes: Console) -> None:
    for run in runs:
        if (status := run.record.status) != "finished":
            note = f"{run.record.path} is {status}, not finished: its best epoch so far predicts"
            notes.print(f"vitrine: {one_line(note)}")


def _made_by(options: PredictConfig, runs: list[LoadedRun], ensemble: Ensemble) -> dict[str, Any]:
    """What the rows of a journal depend on, so that another command doesn't continue them."""
    made_by = {"runs": [run.record.name for run in runs], **ensemble.identity(runs)}
    if options.attention is not None:  # so that all pictures of the results get their maps
        made_by["attention"] = str(Path(options.attention).absolute())
    return made_by


def _attention_images(target: str, pictures: Pictures, predictor: Predictor) -> "AttentionImages":
    """Return what writes the attention maps; raise ConfigError where one would replace a picture, or any other file."""
    from vitrine.inference.attention_images import AttentionImages

    folder, source = Path(target), Path(pictures.source)
    of_folder = source.is_dir() and not pictures.is_stream
    if of_folder and folder.resolve().is_relative_to(source.resolve()):
        problem = f"must not be inside the pictures, input={source}"
        raise ConfigError([Fault("attention", str(folder), problem)])
    images_of = AttentionImages(folder, pictures.source if of_folder else "", predictor)
    for picture in () if pictures.is_stream else pictures:  # those of a stream are checked as they come
        images_of.path_of(picture.path)
    return images_of


def _calibrate(runs: list[LoadedRun], predictors: list[Predictor], options: PredictConfig, report: Report) -> None:
    from vitrine.inference.calibrate import calibrate

    for run, predictor in zip(runs, predictors, strict=True):
        if options.workers is not None:
            predictor.workers = options.workers
        accept = options.accept_changed_data
        calibration = calibrate(run, predictor, options.data_root, accept_changed_data=accept)
        predictor.temperature = calibration.temperature
        report.show("temperature", calibration.lines, run.record.path if len(runs) > 1 else None)
    if len(runs) > 1:
        report.show("calibration", ["of each run; their mean can be less confident than it is accurate"])


def _with_labels(
    pictures: Pictures, classes: list[str], notes: Console, *, multi_label: bool, features: bool
) -> tuple[Iterator[Listed], bool, bool]:
    """Return the pictures, whether they have labels, and whether these are classes of the runs and give metrics.

    Names of folders need not be classes; with ``features``, for which they serve too, nor need a CSV file's labels.
    """
    names: Collection[str] = pictures.folders
    if pictures.has_labels:
        if not features:
            return _checked_labels(pictures, frozenset(classes), multi_label), True, True
        names = {name: None for picture in pictures for name in _names(picture, multi_label)}
    elif multi_label and not features:
        names = ()
    unknown = [name for name in names if name not in classes]
    if 0 < len(unknown) < len(names):
        of = plural(len(unknown), "label" if pictures.has_labels else "folder")
        hint = did_you_mean(nearest(unknown[0], classes))
        note = f"no metrics: {listed(unknown, 3)}, {of} in {pictures.source}, are not classes of the run{hint}"
        notes.print(f"vitrine: {one_line(note)}")
    measured = not unknown and (pictures.has_labels or (bool(names) and not multi_label))
    if measured or (features and names):
        return iter(pictures), True, measured
    return (Listed(picture.path) for picture in pictures), False, False


def _names(picture: Listed, multi_label: bool) -> list[str]:
    return list(filter(None, split_labels(picture.label) if multi_label else [picture.label]))


def _checked_labels(pictures: Iterable[Listed], known: frozenset[str], multi_label: bool) -> Iterator[Listed]:
    for picture in pictures:
        for name in _names(picture, multi_label):
            if name not in known:
                hint = did_you_mean(nearest(name, known))
                raise DataError(f"{picture.path} has the label {name}, which is not a class of the run{hint}")
        yield picture


def _resumed(journal: Journal, pictures: Iterator[Listed]) -> Iterator[Row]:
    """Yield the rows of an interrupted command, and leave ``pictures`` after them.

    Raises:
        RunError: they are of other pictures.
    """
    for number, row in enumerate(journal.resumed(), start=1):
        picture = next(pictures, Listed("nothing"))
        if picture != (row.path, row.label, row.split):
            problem = f"row {number} is {row.path}, the input's is {picture.path}; delete it, or choose another output"
            raise RunError(f"{journal.path} holds results of other pictures: {problem}")
        yield row
