"""Keys of ``predict.py``: which run predicts, for which pictures, and what becomes of the results."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from vitrine.config.fields import choice, number, setting
from vitrine.config.schema import ACCELERATORS
from vitrine.errors import Fault

FORMATS = (".csv", ".json", ".parquet")


@dataclass
class PredictConfig:
    """The configuration of a prediction.

    Attributes:
        run: run folder, or a list of them, whose probabilities are averaged.
        checkpoint: the epoch that predicts, of those that ``callbacks.keep_every`` kept; null is the best.
        input: image file, folder, glob pattern, CSV file with a column ``path``, or ``-`` for paths on standard input.
        output: file for the results, in one of ``FORMATS``; null prints a table.
        target: of runs with several targets, the one to predict; null is the first.
        top_k: number of classes to give for each picture, the likeliest first.
        confidence: least probability of a class that is given; the classes of less certain pictures stay empty. Of runs
            with several labels per picture, null is 0.5.
        attention: folder for an image of each picture that shows what the model attends to.
        features: ``.npz`` file for the features of each picture, which are what the model's head reads.
        calibrate: whether to divide logits by a temperature that is fitted on the run's validation images.
        data_root: folder of the run's data for ``calibrate``; null is where it was in training.
        batch_size: pictures in a batch; null is as many as the device takes.
        workers: processes that decode image files; null is one per core.
        accelerator: as in training.
        traceback: show Python's traceback in place of a one-line message.
        trust: prefixes of the dotted names of the runs that may be imported: ``[my_lab]``.
        allow_changed_code: predict although the source of the models' own parts was edited.
        accept_changed_data: with ``calibrate``, fit although the validation images or the classes have changed.
    """

    run: Any = setting(MISSING, path=True)
    checkpoint: int | None = number(None, ge=1, le=1_000_000)
    input: str = setting(MISSING, path=True)
    output: str | None = setting(None, path=True)
    target: str | None = None
    top_k: int = number(1, ge=1, le=1000)
    confidence: float | None = number(None, ge=0, le=1)
    attention: str | None = setting(None, path=True)
    features: str | None = setting(None, path=True)
    calibrate: bool = False
    data_root: str | None = setting(None, path=True)
    batch_size: int | None = number(None, ge=1, le=65_536)
    workers: int | None = number(None, ge=0, le=256)
    accelerator: str = choice(ACCELERATORS, "auto")
    traceback: bool = False
    trust: list[str] = setting([])
    allow_changed_code: bool = False
    accept_changed_data: bool = False

    @property
    def runs(self) -> list[str]:
        """The run folders."""
        return [str(run) for run in self.run] if isinstance(self.run, list) else [str(self.run)]


def predict_faults(config: PredictConfig) -> Iterator[Fault]:
    """Yield the faults of values that exclude each other, or that need a package that is not installed."""
    if not config.runs:
        yield Fault("run", "[]", "needs at least one run folder")
    if config.attention is not None and len(config.runs) > 1:
        yield Fault("attention", config.attention, f"needs a single run, not {len(config.runs)}")
    if config.features is not None:
        if len(config.runs) > 1:
            yield Fault("features", config.features, f"needs a single run, not {len(config.runs)}")
        if config.output is None:
            yield Fault("features", config.features, "needs output=FILE, the table whose rows they belong to")
        if Path(config.features).suffix.lower() != ".npz":
            yield Fault("features", config.features, "must end with .npz")
    if not config.calibrate:
        problem = "is for calibrate=true, which alone reads the run's data"
        if config.data_root is not None:
            yield Fault("data_root", config.data_root, problem)
        if config.accept_changed_data:
            yield Fault("accept_changed_data", "true", problem)
    if config.output is None:
        return
    suffix = Path(config.output).suffix.lower()
    if suffix not in FORMATS:
        yield Fault("output", config.output, f"must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        yield Fault("output", config.output, "needs pyarrow: pip install -e '.[parquet]'")
