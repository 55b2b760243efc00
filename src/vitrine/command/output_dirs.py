"""Run and sweep folders that ``hydra.run.dir``, ``hydra.sweep.dir`` and ``hydra.sweep.subdir`` ask for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.compose import Point, composing, hydra_settings
from vitrine.command.composer import Composer
from vitrine.errors import ConfigError, Fault, RunError, first_line
from vitrine.runs.record import check_writable

SUBFOLDER = "hydra.sweep.subdir"  # the key of a trial's folder within that of the sweep
UNSET = "."  # in conf/train.yaml: vitrine names the folder


def place(points: Sequence[Point], *, multirun: bool) -> list[Point]:
    """Return ``points`` with the folders that the user chose for them.

    Raises:
        ConfigError: a folder cannot be used or written to, or the setting does not apply.
    """
    kind, other = ("sweep", "run") if multirun else ("run", "sweep")
    first = points[0]
    typed = {override.partition("=")[0] for override in first.overrides}
    if ignored := sorted(key for key in typed if key.startswith(f"hydra.{other}.")):
        hint = "hydra.sweep.dir=DIR is the folder of a sweep" if multirun else "it is for -m; use hydra.run.dir=DIR"
        raise ConfigError([Fault(key, "", f"has no effect here: {hint}") for key in ignored])
    with composing() as loader:
        settings = Composer("train", loader).settings(first.overrides)

    def is_set(key: str) -> bool:
        return key in typed or _unresolved(settings, key) != UNSET

    key = f"hydra.{kind}.dir"
    folder = _resolved(first, key, 0) if is_set(key) else None
    if folder is not None:
        _refuse_unusable(key, folder, first)
        points = [replace(point, folder=Path(folder)) for point in points]
    if first.config.resume is None:
        default = "paths.output_dir", first.config.paths.output_dir
        _refuse_closed(*(default if folder is None else (key, folder)))
    return _place_trials(points) if multirun and is_set(SUBFOLDER) else list(points)


def _place_trials(points: Sequence[Point]) -> list[Point]:
    """Return ``points`` with the folder of each trial within that of the sweep."""
    if points[0].space:
        raise ConfigError([Fault(SUBFOLDER, "", "has no effect here: a search names the folders of its trials")])
    names = [_resolved(point, SUBFOLDER, number) for number, point in enumerate(points)]
    problem = "must name one folder for each trial, without / or a dot before it, such as ${hydra.job.num} or s-${seed}"
    if unusable := [name for name in names if "/" in name or not name or name.startswith(".")]:
        raise ConfigError([Fault(SUBFOLDER, unusable[0], problem)])
    if shared := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError([Fault(SUBFOLDER, shared[0], f"{problem}; several trials share this one")])
    return [replace(point, subfolder=name) for point, name in zip(points, names, strict=True)]


def _refuse_unusable(key: str, folder: str, point: Point) -> None:
    """Refuse a folder for what already has one, or that has no name."""
    if point.config.resume is not None:
        raise ConfigError([Fault("hydra.run.dir", folder, "has no effect here: a run is resumed in its own folder")])
    if folder == "":
        raise ConfigError([Fault(key, "", "is empty; it takes the folder to write to")])
    if (name := point.config.sweep.name) is not None:
        raise ConfigError([Fault("sweep.name", name, f"has no effect with hydra.sweep.dir={folder}: give one of them")])


def _refuse_closed(key: str, folder: str) -> None:
    try:
        check_writable(Path(folder))
    except RunError as error:
        raise ConfigError([Fault(key, folder, str(error))]) from None


def _resolved(point: Point, key: str, number: int) -> str:
    """Return the value of a setting for the trial of this number."""
    composed = hydra_settings("train", point.overrides)
    with read_write(composed.hydra), open_dict(composed.hydra):
        composed.hydra.job.num, composed.hydra.job.id = number, str(number)
    HydraConfig.instance().set_config(composed)
    try:
        return str(OmegaConf.select(composed, key, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise ConfigError([Fault(key, _unresolved(composed.hydra, key), first_line(error))]) from None


def _unresolved(settings: DictConfig, key: str) -> str:
    """Return the value of a key of the node ``hydra`` as it was written."""
    _, section, name = key.split(".")
    values = OmegaConf.to_container(settings[section], resolve=False)
    assert isinstance(values, dict)
    return str(values[name])
