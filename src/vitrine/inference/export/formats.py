"""What can be exported: formats, their files, number types and requirements; and what is refused. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from vitrine.config.targets import named_for
from vitrine.errors import VitrineError, first_line
from vitrine.files import refuse_link_out
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import checkpoint_of
from vitrine.runs.provenance import program
from vitrine.text import did_you_mean, listed, nearest

DTYPES = ("float32", "float16", "int8")
TIMM_FILES = ("config.json", "model.safetensors")


class ExportError(VitrineError):
    """An export that cannot be made, or is not as exact as it must be. Nothing has been written."""


@dataclass(frozen=True)
class ExportFormat:
    """A choice of ``--format``.

    Attributes:
        name: the choice.
        file: name in the run's ``exports/``; a target, an epoch, and a type other than float32, are added to the stem.
        dtypes: choices of ``--dtype`` that it has.
        packages: import names of what it takes, all of the extra ``export``.
        gives: what the exported model returns, ``probabilities`` or ``logits``.
        holds: names of all files in it, if it is a folder.
    """

    name: str
    file: str
    dtypes: tuple[str, ...]
    packages: tuple[str, ...] = ()
    gives: str = "probabilities"
    holds: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """What the name of its file ends in; empty for a folder."""
        return Path(self.file).suffix


FORMATS = {
    each.name: each
    for each in (
        ExportFormat("onnx", "model.onnx", DTYPES, ("onnx", "onnxruntime", "onnxscript")),
        ExportFormat("torch_export", "model.pt2", DTYPES[:2]),
        ExportFormat("aoti", "model_aoti.pt2", DTYPES[:2]),
        ExportFormat("safetensors", "timm", DTYPES[:2], ("timm", "safetensors"), "logits", TIMM_FILES),
        ExportFormat(
            "hf", "hf", DTYPES[:2], ("timm", "safetensors", "huggingface_hub"), "logits", (*TIMM_FILES, "README.md")
        ),
    )
}


@dataclass(frozen=True)
class ExportRequest:
    """What is to be exported, and how; making one checks all that can be checked without torch.

    Args:
        run: the run folder.
        format: a key of ``FORMATS``.
        to: the file or folder to write; ``None`` is the format's own name in the run's ``exports/``.
        dtype: a choice of ``DTYPES``.
        overwrite: whether an existing target is replaced.
        trust: prefixes of the dotted names that the run may import.
        allow_changed_code: export the model even if the code of its parts was edited since training.
        target: of a run with several targets, the one that the exported model answers; empty for the first.
        features: whether the model gives, after the probabilities, the features of each picture.
        checkpoint: the epoch to export, of those that ``callbacks.keep_every`` kept; ``None`` for the best.
        calibrate: divide logits by a temperature that is fitted on the run's validation images.
        data_root: folder of the run's data set, where it has moved; ``None`` is where it was in training.
        license: of the model, as in the Hugging Face hub's list.
        hub: repository in the hub that an ``hf`` export is pushed to; ``None`` pushes nothing.

    Raises:
        ExportError: there is no such format or type, a package or the hub's login is missing, an option has no effect,
            or the target exists or is out of reach.
        RunError: there is no such run, no checkpoint of this epoch, or its ``exports/`` is a link that leads out of it.
    """

    run: str | Path
    format: str
    to: str | Path | None = None
    dtype: str = "float32"
    overwrite: bool = False
    trust: Sequence[str] = ()
    allow_changed_code: bool = False
    target: str = ""
    features: bool = False
    checkpoint: int | None = None
    calibrate: bool = False
    data_root: str | None = None
    license: str = "unknown"
    hub: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            near = did_you_mean(nearest(self.format.lower(), FORMATS))
            raise ExportError(f"there is no format {self.format}; the formats are {listed(list(FORMATS))}{near}")
        if self.dtype not in DTYPES:
            near = did_you_mean(nearest(self.dtype.lower(), DTYPES))
            raise ExportError(f"there is no dtype {self.dtype}; the types are {listed(DTYPES)}{near}")
        if self.dtype not in self.kind.dtypes:
            raise ExportError(
                f"--format {self.format} has --dtype {listed(self.kind.dtypes)}; {self.dtype} takes --format onnx"
            )
        if self.features and self.kind.gives == "logits":
            others = listed([name for name, kind in FORMATS.items() if kind.gives != "logits"])
            problem = f"--features takes --format {others}, not {self.format}"
            raise ExportError(f"{problem}: in timm, model.forward_head(..., pre_logits=True) gives them")
        if self.hub is not None and self.format != "hf":
            raise ExportError(f"--hub takes --format hf, not {self.format}")
        if self.data_root is not None and self.dtype == "float32" and not self.calibrate:
            raise ExportError(
                "--data-root takes --calibrate, or --dtype float16 or int8, which alone read the data set"
            )
        if missing := [package for package in self.kind.packages if find_spec(package) is None]:
            raise ExportError(f"--format {self.format} takes {listed(missing)}: pip install -e '.[export]'")
        if self.hub is not None:
            _check_hub(self.hub)
        if (status := self.record.status) != "finished":
            problem = f"{self.run} has not finished (its status is {status}), so this is not its final model"
            raise ExportError(f"{problem}; resume it first: {program('train')} resume={self.run}")
        checkpoint_of(self.record, self.checkpoint)
        if self.calibrate and (self.record.config.get("data") or {}).get("multi_label"):
            raise ExportError("--calibrate is for one label per picture, and this run's have several")
        try:
            refuse_link_out(self.path.parent, self.record.path)
            _check_target(self.path, self.kind, self.overwrite)
        except OSError as error:
            raise ExportError(f"cannot write {self.path}: {error.strerror}") from None

    @property
    def kind(self) -> ExportFormat:
        """The format's facts."""
        return FORMATS[self.format]

    @property
    def outputs(self) -> list[str]:
        """Names of what the exported model gives, in order."""
        return [self.kind.gives, *["features"] * self.features]

    @cached_property
    def record(self) -> RunRecord:
        """The run."""
        return RunRecord.open(self.run)

    @property
    def path(self) -> Path:
        """The file or folder to write."""
        if self.to is not None:
            return Path(self.to)
        own = Path(named_for(self.target, self.kind.file))
        added = [] if self.checkpoint is None else [f"epoch_{self.checkpoint}"]
        added += [] if self.dtype == "float32" else [self.dtype]
        return self.record.path / "exports" / f"{'_'.join([own.stem, *added])}{own.suffix}"


def _check_hub(repository: str) -> None:
    """Refuse a name that the hub would, and an upload without a login, before an export is made for it."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ExportError(f"--hub {repository}: {first_line(error)}") from None
    if get_token() is None:
        raise ExportError("--hub: not logged in; run `hf auth login`, or set HF_TOKEN")


def _check_target(path: Path, kind: ExportFormat, overwrite: bool) -> None:
    """Refuse a target of another kind than the format's, and an existing one that is not to be replaced."""
    if kind.suffix:
        if path.is_dir():
            raise ExportError(f"{path} is a folder; name a file: --to {path / kind.file}")
        if path.suffix != kind.suffix:
            raise ExportError(f"{path}: the name of this format's file ends in {kind.suffix}: --to {path}{kind.suffix}")
    elif path.is_file():
        raise ExportError(f"{path} is a file, but this format is a folder; give --to another name")
    elif path.is_dir() and (found := {entry.name for entry in path.iterdir()}) not in (set(), {*kind.holds}):
        problem = f"{path} holds {listed(sorted(found), 3)}; only a folder of {listed(kind.holds)} alone is replaced"
        raise ExportError(f"{problem}; give --to another name")
    if path.exists() and not overwrite:
        raise ExportError(f"{path} exists; --overwrite replaces it, --to PATH writes another one")
