"""Read JSON and YAML that another person may have written: only plain values, of limited size and depth.

A run folder can come from anywhere. A file of a few kilobytes can otherwise fill the memory (YAML aliases of aliases)
or exhaust the stack (brackets in brackets), and one such folder would end a command that reads thousands.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MAX_JSON = 32 * 1024**2  # bytes: a run.json with a million class names, a sweep.json of twenty thousand trials
MAX_YAML = 1024**2  # bytes: a configuration has a few kilobytes
MAX_DEPTH = 20  # collections inside each other: a configuration has four
MAX_VALUES = 3_000_000
MAX_DIGITS = 1000  # of a number in YAML: the time to read one of base 60, as 1:30:00, is quadratic in them
MAX_BITS = 64  # of a whole number: Python takes quadratic time to print longer ones, or refuses to

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
ANY = "*"  # in a shape: every key of an object
NUMBER = (int, float)
SCALAR = (str, int, float, bool)
_NAMES = {str: "text", int: "a whole number", bool: "true or false", NUMBER: "a number", SCALAR: "a single value"}
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's loader is ten times as fast
_RESOLVER = yaml.resolver.Resolver()


def read_bytes(path: Path, most: int) -> bytes:
    """Read a file of at most ``most`` bytes, whole mebibytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is larger, or a pipe or device.
    """
    refuse_pipe(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most // 1024**2} MiB")
    return content


def refuse_pipe(path: Path) -> None:
    """Raise ValueError if there is something at ``path`` that is no file: reading a pipe or device may never end."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a file")


def refuse_inflating(archive: zipfile.ZipFile) -> None:
    """Raise BadZipFile if the archive unpacks to more than its own size: kilobytes could become gigabytes.

    PyTorch and NumPy compress no entry, and none of theirs shares bytes with another.
    """
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise zipfile.BadZipFile("it is compressed, and could be of any size")
    if sum(entry.file_size for entry in entries) > archive.start_dir:  # where the entries end
        raise zipfile.BadZipFile("its entries overlap, and could be of any size")


def is_file_name(text: str) -> bool:
    """Whether a text names a file in a folder itself: printable, and neither a path nor empty."""
    return text.isprintable() and Path(text).name == text != ""


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8 or not JSON, or is larger or deeper than the limits.
    """
    try:
        values = json.loads(read_bytes(path, MAX_JSON).decode())
    except json.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    check_nesting(values)
    return values


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Aliases are refused: vitrine writes none, and they can stand for any number of values.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8 or not YAML, names a type that is not plain, has an alias, or is larger or deeper
            than the limits.
    """
    text = read_bytes(path, MAX_YAML).decode()
    try:
        _check_events(text)
        values = yaml.load(text, LOADER)
    except yaml.YAMLError as error:
        raise ValueError(_one_line(error)) from None
    except (LookupError, AttributeError, TypeError, ArithmeticError) as error:  # a tag on a value of another type
        raise ValueError(f"a value does not have the type of its tag: {error}") from None
    check_nesting(values)
    return values


def check_nesting(values: Any) -> None:
    """Raise ValueError if nested values exceed the limits; a value that occurs twice counts twice."""
    collections, count = [([values], 0)], 0
    while collections:
        items, depth = collections.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        count += len(items)
        if count > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES:,} values")
        for item in items:
            if item is None or isinstance(item, (str, float, bool)):  # most are, and to ask for a Mapping takes long
                continue
            if isinstance(item, Mapping):
                collections.append((list(item.values()), depth + 1))
            elif isinstance(item, list | tuple):
                collections.append((list(item), depth + 1))
            elif isinstance(item, int) and item.bit_length() > MAX_BITS:
                raise ValueError(f"it holds a whole number of more than {MAX_BITS} bits")


def misshapen(values: Mapping[str, Any], shapes: Mapping[str, Any]) -> str:
    """Return the first entry of ``values`` that has another shape, as ``code must be an object, not text``; else "".

    Args:
        values: plain values.
        shapes: by entry: a type, a range of whole numbers, a list of one shape, or a dict of the shapes of an object's
            entries. A missing entry and ``None`` have every shape; entries that ``shapes`` lacks have any.
    """
    found = (_problem(str(key), value, shapes.get(key, shapes.get(ANY))) for key, value in values.items())
    return next(filter(None, found), "")


def _problem(name: str, value: Any, shape: Any) -> str:
    if value is None or shape is None:
        return ""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{name} must be an object, not {_KINDS[type(value)]}"
        return (problem := misshapen(value, shape)) and f"{name}.{problem}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} must be a list, not {_KINDS[type(value)]}"
        return next(filter(None, (_problem(f"an item of {name}", item, shape[0]) for item in value)), "")
    if isinstance(shape, range):
        fits = type(value) is int and value in shape
        return "" if fits else f"{name} must be a whole number from {shape.start} to {shape.stop - 1}"
    allowed = shape if isinstance(shape, tuple) else (shape,)
    if type(value) not in allowed:
        return f"{name} must be {_NAMES[shape]}, not {_KINDS[type(value)]}"
    return f"{name} is too large" if isinstance(value, int) and abs(value) >= 2**63 else ""


def _check_events(text: str) -> None:
    """Raise ValueError before anything is built from the text: libyaml needs memory quadratic in the depth."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias (*), which the files of a run never have")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_DIGITS and _is_number(event):
            raise ValueError(f"it holds a number of more than {MAX_DIGITS:,} digits")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _is_number(scalar: yaml.ScalarEvent) -> bool:
    """Whether a number would be built from a scalar."""
    if scalar.tag in (None, "!"):
        return _RESOLVER.resolve(yaml.ScalarNode, scalar.value, scalar.implicit) in _NUMBERS
    return scalar.tag in _NUMBERS


def _one_line(error: yaml.YAMLError) -> str:
    """Return what is wrong and where: ``line 3: did not find expected node content``."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)
