"""What makes a sweep the same sweep and a trial the same trial, when a command is given again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import to_plain
from vitrine.config.sweep import has_no_effect
from vitrine.runs.flatten import flat

LONGEST = 100  # bytes of a folder's name that tell people what is in it


def trial_name(config: TrainConfig, varies: Mapping[str, str]) -> str:
    """A trial's folder: what varies, for people, and a hash of everything that can change what it comes to."""
    told = ",".join(f"{key}={value}" for key, value in sorted(varies.items())) or "trial"
    return f"{_letters(told)}_{fingerprint(config)}"


def sweep_name(words: Sequence[str], keys: Sequence[str], data: str, asked: Any = None) -> str:
    """A sweep's folder: the fixed words and the keys that vary, whatever values they take, in any order.

    So a command with more values, or fewer, is the same sweep.

    Args:
        words: what all trials have in common, as overrides.
        keys: the keys or groups that vary.
        data: the data source.
        asked: of a search, what it is the answer to.
    """
    parts = [word.partition("=") for word in words]
    fixed = sorted(f"{key}={value}" for key, _, value in parts if key == "like" or not has_no_effect(key, data))
    chosen = {key: value for key, _, value in parts}
    choices = [chosen[key] for key in ("experiment", "model", "data", "sweep") if key in chosen]
    identity = [fixed, sorted(keys)] if asked is None else [fixed, sorted(keys), asked]
    told = "_".join([*choices, "-".join(sorted(key.rpartition(".")[2] for key in keys))])
    return f"{_letters(told.strip('_')) or 'sweep'}_{_hash(identity)}"


def fingerprint(config: TrainConfig) -> str:
    """A hash of all values but those that cannot change what a run comes to."""
    values = {key: value for key, value in flat(to_plain(config)).items() if not has_no_effect(key, config.data.name)}
    for key in ("data.root", "model.pretrained"):
        if values.get(key) and Path(str(values[key])).exists():  # from whichever folder it was typed
            values[key] = str(Path(str(values[key])).absolute())
    return _hash(values)


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def _letters(text: str) -> str:
    fit = "".join(letter if letter.isalnum() or letter in "-_.,=" else "-" for letter in text)
    return fit.encode()[:LONGEST].decode(errors="ignore")
