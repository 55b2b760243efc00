"""Checks of what a search's folder holds already: anyone may have written it, or another configuration trained it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from vitrine.command.space import Space, includes
from vitrine.config import TrainConfig
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.runs import RunRecord
from vitrine.sweeps.fingerprint import fingerprint, recorded_fingerprint
from vitrine.sweeps.study import unreadable, user_attrs


def check_owner(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise ConfigError if ``folder`` holds a sweep, or another search than that of ``identity``."""
    hint = "set another sweep.name, or hydra.sweep.dir"
    if not (folder / "study.journal").exists():
        if (folder / "sweep.json").exists():
            problem = f"is the name of a sweep that is not a search; {hint}"
            raise ConfigError([Fault("sweep.name", folder.name, problem)])
        return
    known = asked_in(folder) or identity
    differences = [
        f"its {name} is {_plain_text(known.get(name))}, not {_plain_text(value)}"
        for name, value in identity.items()
        if known.get(name) != value
    ]
    if differences:
        problem = f"is the name of another search: {'; '.join(differences)}; {hint}"
        raise ConfigError([Fault("sweep.name", folder.name, problem)])


def asked_in(folder: Path) -> dict[str, Any]:
    """What the search in a folder was begun with; nothing if none was.

    Raises:
        RunError: the study is missing or damaged.
    """
    asked = user_attrs(folder).get("asked") or {}
    if not isinstance(asked, dict):
        raise unreadable(folder / "study.journal", TypeError("it does not say what was searched"))
    return asked


def check_trial(trial: FrozenTrial, space: Space, runs: int, folder: Path) -> None:
    """Raise RunError unless a stored trial is one of a search over ``space``, with as many ``runs`` per trial.

    Its values become overrides as if they were typed, which would allow them to name any code.
    """
    varies, names = trial.user_attrs.get("varies"), trial.user_attrs["folders"]
    if (
        not isinstance(varies, dict)
        or varies.keys() != space.keys()
        or not all(includes(space[key], value) for key, value in varies.items())
    ):
        raise _refusal(trial, folder, f"its values, {_plain_text(varies)}, are not in the search's space")
    if (
        not isinstance(names, list)
        or len(names) != runs
        or not all(isinstance(name, str) and re.fullmatch(r"[^./\0][^/\0]*", name) for name in names)
    ):
        raise _refusal(trial, folder, f"its folders, {_plain_text(names)}, are not names of one folder per seed")


def check_configurations(trial: FrozenTrial, configs: Sequence[TrainConfig], folder: Path) -> None:
    """Raise RunError if a run of a trial was trained with another configuration than the one in ``configs``.

    A configuration file may have been edited since, or the code of the user's parts. A trial that failed is trained
    with what they say now; so one that is tried again was checked as the trial that it repeats.
    """
    if "again" in trial.user_attrs:
        return
    for config, name in zip(configs, trial.user_attrs["folders"], strict=True):
        if _was_trained_otherwise(folder / name, config):
            problem = "was trained with another configuration, or with other code of your parts"
            raise _refusal(trial, folder, f"{folder / name} {problem}")


def _was_trained_otherwise(folder: Path, config: TrainConfig) -> bool:
    record = RunRecord(folder)
    try:
        return record.facts.get("status") != "failed" and recorded_fingerprint(record) != fingerprint(config)
    except RunError:
        return False  # there is no run yet, or a damaged one: the trial starts over


def _refusal(trial: FrozenTrial, folder: Path, problem: str) -> RunError:
    journal = folder / "study.journal"
    return RunError(f"{journal}: trial {trial.number}: {problem}; rerun=true starts over in a new folder")


def _plain_text(value: Any) -> str:
    return str(value).replace("'", "")
