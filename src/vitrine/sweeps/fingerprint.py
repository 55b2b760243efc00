"""Identity of trials and sweeps: how the same command finds what it trained before.

A trial's fingerprint is a hash of its configuration. Keys that cannot change the result are left out
(``affects_result`` of its field), and so are keys at their default in the schema: a key that is added later,
with a default that keeps today's behaviour, changes no fingerprint. The folder's name ends with the fingerprint, and
run.json holds it together with ``VERSION``. For folders of another version it is computed again from their config.yaml.

Increase ``VERSION`` when a default in the schema changes, when the same configuration trains another model, or when
fingerprints are computed in another way: means over trials of several versions are marked. Tests compare the defaults
with those of the current version.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from vitrine.command.user_parts import part_keys
from vitrine.config.keys import defaults, keys, optional_section
from vitrine.config.parts import parts_of
from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import to_plain
from vitrine.config.source_code import code_hash
from vitrine.config.sweep import facts_of
from vitrine.errors import RunError
from vitrine.files import refuse_link_out
from vitrine.runs import RunRecord
from vitrine.runs.flatten import flatten
from vitrine.runs.lock_file import NAME as LOCK_NAME
from vitrine.runs.record import INNER
from vitrine.text import listed

# 1 hashed every key, defaults included, and was not written to run.json. Since 3, initial weights follow from the seed
# and the parameter's name.
VERSION = 3
NAME_LENGTH = 100  # of a folder's name, without the hash


def fingerprint(config: TrainConfig) -> str:
    """Hash of everything that affects a trial's result, as 16 hexadecimal digits.

    The source of a user's parts is hashed too, so that edited code makes another trial.
    """
    return _fingerprint(to_plain(config), _sources(config))


def recorded_fingerprint(record: RunRecord) -> str:
    """Fingerprint of the trial in a folder, as this version computes it.

    Raises:
        RunError: the folder is damaged.
    """
    facts = record.facts
    known: str | None = facts.get("fingerprint") if facts.get("fingerprint_version") == VERSION else None
    return known or _fingerprint(record.config, _stored_sources(record))


def trained_with_other_source(sweep: Path, configs: Iterable[TrainConfig]) -> dict[str, int]:
    """Return the number of finished trials of ``configs`` that other source of a user's part trained, by its name."""
    wanted = {_fingerprint(to_plain(config), {}): code for config in configs if (code := _sources(config))}
    found = set()
    for path in sorted(sweep.glob("[!.]*/run.json")) if wanted else ():
        record = RunRecord(path.parent)
        with suppress(RunError):  # a damaged folder
            if record.facts.get("status") == "finished":
                identity, stored = _fingerprint(record.config, {}), _stored_sources(record)
                code = wanted.get(identity, {})
                found |= {(name, identity) for name in code if code[name] != stored.get(name)}
    return Counter(name for name, _ in sorted(found))


def taught_by_other_weights(finished: Iterable[RunRecord], configs: Iterable[TrainConfig]) -> dict[str, int]:
    """Return the number of runs that the teachers of ``configs`` taught with other weights, by their folders."""
    taught_by, found = [record.facts.get("teacher") or {} for record in finished], {}
    for teacher in sorted({str(config.distill.teacher) for config in configs if config.distill.is_on}):
        with suppress(OSError), RunRecord(Path(teacher)).best.open("rb") as file:  # the trial reports a missing one
            now = {"run": str(Path(teacher).absolute()), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
            found[teacher] = sum(
                one.get("run") == now["run"] and one.get("sha256") != now["sha256"] for one in taught_by
            )
    return {teacher: count for teacher, count in found.items() if count}


def record_facts(config: TrainConfig) -> dict[str, Any]:
    """Entries of run.json by which :class:`TrialFolders` recognises the trial."""
    return {"fingerprint": fingerprint(config), "fingerprint_version": VERSION}


def trial_name(varies: Mapping[str, str], identity: str) -> str:
    """Folder name of a trial: its varying values for people, then 8 digits of its fingerprint.

    It has ASCII letters, digits and ``-_.`` only, so that it needs no quotes in a shell or in an override.
    """
    values = "_".join(f"{key}-{value}" for key, value in sorted(varies.items())) or "trial"
    return f"{_shorten(values, '-_.')}_{identity[:8]}"


UNNAMED = (("sweep", "ablation"),)  # trains a part of the grid, in the grid's folder


def sweep_name(overrides: Sequence[str], keys: Sequence[str], data: str, searched: Any = None) -> str:
    """Folder name of a sweep: a hash of its fixed overrides and of the keys that vary, in any order.

    The values of these keys do not count: a command with more values, or fewer, is the same sweep. A search is
    identified by ``searched`` too.
    """
    parts = [override.partition("=") for override in overrides]
    fixed = sorted(f"{key}={value}" for key, _, value in parts if key == "like" or facts_of(key).affects(data))
    chosen = {key: value for key, _, value in parts}
    named = [key for key in ("experiment", "model", "data", "sweep") if (key, chosen.get(key, "")) not in UNNAMED]
    choices = [chosen[key] for key in named if key in chosen]
    identity = [fixed, sorted(keys)] if searched is None else [fixed, sorted(keys), searched]
    readable = "_".join([*choices, "-".join(sorted(key.rpartition(".")[2] for key in keys))]).strip("_")
    return f"{_shorten(readable, '-_.,=') or 'sweep'}_{_hash(identity)[:8]}"


class TrialFolders:
    """Finds the folder of each trial in a sweep, whatever its name.

    The name of a trial's folder depends on how its values were typed, and earlier versions named folders differently.
    So a trial that has no folder of its expected name is looked for by the fingerprints of the other folders.
    """

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self._known: dict[str, Path] | None = None
        self._owners: dict[Path, str] = {}

    def find(self, config: TrainConfig, varies: Mapping[str, str], name: str | None = None) -> Path:
        """Return the folder that holds the trial, or the path to create it at, called ``name`` if the user chose one.

        Raises:
            RunError: the folder that the user chose belongs to another trial, or holds files that are not of a run; or
                the trial's folder is a link.
        """
        identity = fingerprint(config)
        expected = self.sweep / (name or trial_name(varies, identity))
        if expected.exists() and name is None:
            refuse_link(expected)
            return expected
        if self._known is None:
            self._known = dict(self._fingerprints())
            self._owners = {folder: known for known, folder in self._known.items()}
        folder = self._known.setdefault(identity, expected)
        refuse_link(folder)
        if self._owners.setdefault(folder, identity) != identity:
            raise RunError(f"{folder} belongs to another trial; hydra.sweep.subdir must differ between trials")
        if name is not None and not (folder / "run.json").exists() and (other := _files_of_no_run(folder)):
            hint = "a trial starts in an empty folder; choose another hydra.sweep.dir or hydra.sweep.subdir"
            raise RunError(f"{folder} is not a run, and holds {listed(other, 3)}: {hint}")
        return folder

    def _fingerprints(self) -> Iterator[tuple[str, Path]]:
        """Fingerprint and folder of each readable trial; finished ones last, so that they win."""
        found = []
        for path in sorted(self.sweep.glob("[!.]*/run.json")):
            record = RunRecord(path.parent)
            try:
                finished = record.facts.get("status") == "finished"
                found.append((finished, recorded_fingerprint(record), record.path))
            except RunError:
                continue  # a damaged folder: the trial starts over
        for _, identity, folder in sorted(found):
            yield identity, folder


def refuse_link(folder: Path) -> None:
    """Raise RunError if a trial's folder is a link: a trial that starts over deletes all that its folder holds.

    The sweep may have been made by someone else. Its own folder may be a link, which the user gave.
    """
    if folder.is_symlink() or folder.resolve().parent != folder.parent.resolve():
        problem = "a trial's folder must be in its sweep's; delete the link, and the trial starts over"
        raise RunError(f"{folder} is a link, to {os.path.realpath(folder)}: {problem}")


def refuse_links_in(folder: Path) -> None:
    """Raise RunError if a folder that a trial writes into is a link that leads out of the trial's."""
    for name in INNER:
        refuse_link_out(folder / name, folder)


def _files_of_no_run(folder: Path) -> list[str]:
    """Names in a folder without run.json that a run does not write before run.json."""
    names = [
        path.name
        for path in (folder.iterdir() if folder.is_dir() else [])
        if path.name not in ("checkpoints", "code.diff", "config.yaml", "parts", LOCK_NAME)
        and not (path.name.startswith(".") and path.name.endswith(".tmp"))
    ]
    return sorted([*names, *(f"checkpoints/{path.name}" for path in folder.glob("checkpoints/*"))])


def _fingerprint(values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Fingerprint of a configuration as plain values; a missing key counts as its default."""
    source = values.get("data", {}).get("name", "")
    standard, found = _defaults(), {}
    for key, value in (flatten(values) | _sections_on(values)).items():
        if _affects_result(key, source) and (key not in standard or standard[key] != value):
            found[key] = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    for key in ("data.root", "model.pretrained", "distill.teacher"):
        if found.get(key) and Path(str(found[key])).exists():  # the same folder, from whichever directory it was typed
            found[key] = str(Path(str(found[key])).absolute())
    return _hash([VERSION, found, dict(sources)] if sources else [VERSION, found])[:16]


def _sources(config: TrainConfig) -> dict[str, str]:
    """Return the hashes of the source of the parts that affect the result, by their names."""
    parts = [part for part in parts_of(config) if _affects_result(part.key, config.data.name)]
    return {part.name: code_hash(part.name) for part in parts}


def _stored_sources(record: RunRecord) -> dict[str, str]:
    """Return the hashes in run.json of the parts that affect the result, by the names that the configuration has."""
    values, stored = flatten(record.config), record.facts.get("parts") or {}
    named: list[object] = []
    for key in part_keys().values():
        if _affects_result(key, values.get("data.name", "")):
            value = values.get(key)
            named += value if isinstance(value, list) else [value]
    return {name: code for name, code in stored.items() if name in named}


def _sections_on(values: Mapping[str, Any]) -> dict[str, Any]:
    """Optional sections that are on: without them, a section with all its defaults would look as if it were off."""
    return {
        f"{section}.{name}": "on"
        for section in values
        if isinstance(values[section], Mapping)
        for name, value in values[section].items()
        if value and isinstance(value, Mapping)
    }


@cache
def _defaults() -> dict[str, Any]:
    """Default value of each key of the schema, and null for sections that can be off; required keys are left out."""
    sections = {optional_section(TrainConfig, key) for key in keys(TrainConfig)} - {""}
    return defaults(TrainConfig) | dict.fromkeys(sections)


@cache
def _affects_result(key: str, source: str) -> bool:
    return facts_of(key).affects(source)


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _shorten(text: str, allowed: str) -> str:
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in allowed) else "-" for letter in text)
    return kept[:NAME_LENGTH]
