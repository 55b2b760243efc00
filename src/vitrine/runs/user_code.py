"""The source of a user's parts in a run folder: ``parts/``, and its hashes in run.json."""

import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import unified_diff
from itertools import count, islice
from pathlib import Path
from shlex import quote
from typing import Any

from vitrine.config import TrainConfig, ViTConfig
from vitrine.config.keys import key_facts
from vitrine.config.parts import is_dotted, names_of, parts_of
from vitrine.config.source_code import code_hash, edited_since_import, sources
from vitrine.errors import RunError, first_line
from vitrine.redact import redact
from vitrine.runs.record import RunRecord
from vitrine.text import one_line, printable
from vitrine.untrusted import read_bytes

FOLDER = "parts"
MAX_BYTES = 1024**2  # of a file that is compared
MAX_LINES = 5000
MAX_SOURCES = 1000  # files of a run that are compared
MAX_WIDTH = 500  # characters of a line that are shown


def store_code(record: RunRecord, config: TrainConfig) -> dict[str, Any]:
    """Write the source of a run's own parts to ``parts/``, and return what run.json is to say of it.

    Source that it replaces is kept as ``parts.1``, ``parts.2`` and so on.

    Raises:
        RunError: a file was edited after this process imported it: what is stored would not be what is trained.
    """
    names = names_of(config)
    if edited := list(dict.fromkeys(path for name in names for path in edited_since_import(name))):
        again = "run the command again; in a notebook, restart the kernel"
        raise RunError(f"{', '.join(edited)} was edited after this process imported it; {again}")
    if (record.path / FOLDER).exists():
        number = next(number for number in count(1) if not (record.path / f"{FOLDER}.{number}").exists())
        (record.path / FOLDER).rename(record.path / f"{FOLDER}.{number}")
    for name in names:
        for path, text in sources(name).items():
            (record.path / FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
            record.write(f"{FOLDER}/{path}", redact(text))
    return {"parts": {name: code_hash(name) for name in names}} if names else {}


def edited_parts(record: RunRecord, config: TrainConfig) -> list[str]:
    """Return the parts of a run whose source differs from what it was trained with.

    A part without a hash in run.json counts as edited. Parts that cannot change the result, such as loggers, are left
    out.
    """
    names = {part.name for part in parts_of(config) if key_facts(TrainConfig, part.key).affects_result is not False}
    return _edited(record, names)


def refuse_edited(
    record: RunRecord, edited: list[str], way: str = "To resume with it: allow_changed_code=true"
) -> None:
    """Raise RunError where parts of a run were edited; ``way`` is how to use them nevertheless."""
    if edited:
        stored = record.path / FOLDER
        where = f"; {stored} has it as it was" if stored.is_dir() else ""
        raise RunError(f"the code of {', '.join(edited)} was edited since the run began{where}. {way}")


def refuse_edited_model(record: RunRecord, model: ViTConfig, metrics: Iterable[str] = (), way: str = "") -> None:
    """Raise RunError where parts of a trained model were edited: its weights would be computed with in another way.

    Likewise for own ``metrics``, by dotted name: values of two definitions would share a name. ``way`` is what to do.
    Other versions of installed packages are not refused, as other versions of PyTorch are not.
    """
    edited = [name for name in _edited(record, {*names_of(model), *metrics}) if sources(name)]
    stored = record.path / FOLDER
    now = "allow_changed_code=true (export, report, compare: --allow-changed-code; load_run: allow_changed_code=True)"
    # With python eval.py, packages beside eval.py come before PYTHONPATH.
    that = f"that: PYTHONPATH={quote(str(stored))} vitrine eval, not python eval.py; to use " if stored.is_dir() else ""
    refuse_edited(record, edited, way or f"To use {that}it as it is now: {now}")


def _edited(record: RunRecord, names: Iterable[str]) -> list[str]:
    """Those of ``names`` whose source is not what run.json has the hash of."""
    known = record.facts.get("parts") or {}
    return [name for name in sorted(names) if code_hash(name) != known.get(name)]


def trust_overrides(facts: Mapping[str, Any]) -> list[str]:
    """Return the override that ``resume=RUN`` and ``like=RUN`` need for :func:`names_to_trust`."""
    names = names_to_trust(facts)
    return [f"trust=[{','.join(names)}]"] if names else []


def names_to_trust(facts: Mapping[str, Any]) -> list[str]:
    """Return the dotted names of a run's own parts and of its teacher's, by run.json."""
    taught = (facts.get("teacher") or {}).get("parts")
    return [*dict.fromkeys(name for name in [*(facts.get("parts") or ()), *(taught or ())] if is_dotted(name))]


def source_diff(run: RunRecord, other: RunRecord) -> Iterator[str]:
    """Yield the printable lines of a unified diff of two runs' own parts, as their folders have them in ``parts/``."""
    paths, others = _sources(run), _sources(other)
    for path in sorted(paths | others):
        if path not in paths or path not in others:
            yield one_line(f"only in {(run if path in paths else other).name}: {path}")
            continue
        try:
            before, after = (_source(record, path) for record in (run, other))
        except (OSError, ValueError) as error:
            yield one_line(f"{path} is not compared: {first_line(error)}")
            continue
        old, new = (one_line(f"{record.name}/{path}") for record in (run, other))
        yield from (printable(line[:MAX_WIDTH]) for line in unified_diff(before, after, old, new, lineterm=""))


def _sources(record: RunRecord) -> set[str]:
    """Return the paths of the files in ``parts/``, relative to the run folder; links are left out."""
    folder = record.path / FOLDER
    walked = () if folder.is_symlink() else os.walk(folder)
    files = (Path(root, name) for root, _, names in walked for name in names)
    own = (path for path in files if not path.is_symlink())
    return {path.relative_to(record.path).as_posix() for path in islice(own, MAX_SOURCES)}


def _source(record: RunRecord, path: str) -> list[str]:
    lines = read_bytes(record.path / path, MAX_BYTES).decode(errors="replace").removesuffix("\n").split("\n")
    if len(lines) > MAX_LINES:
        raise ValueError(f"it has more than {MAX_LINES} lines")
    return lines
