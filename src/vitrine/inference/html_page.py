"""What every HTML page needs: a path that can be written, templates, and JSON for its scripts."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.errors import RunError

if TYPE_CHECKING:
    from jinja2 import Environment

# In the head of every page since the first: only a file that has it is replaced by another page.
MARK = b"""<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'"""
HEAD = 1 << 16  # bytes


def check_page(path: Path) -> None:
    """Raise RunError for a file that cannot be written, is not named as a page, or exists and holds no page."""
    check_target(path, (".html", ".htm"), "page", MARK)


def check_target(path: Path, suffixes: Sequence[str] = (), kind: str = "", mark: bytes = b"") -> None:
    """Raise RunError for a file that cannot be written, or that vitrine has not written.

    Args:
        path: the file to write.
        suffixes: of names that it may have; none allow any.
        kind: what it will hold.
        mark: what the first 64 KiB of a file must hold to be replaced, unless it is empty or an empty list.
    """
    try:
        if not path.absolute().parent.is_dir():
            raise RunError(f"cannot write {path}: {path.absolute().parent} is not a folder")
        if path.is_dir():
            raise RunError(f"cannot write {path}: it is a folder; name a file in it")
        if suffixes and path.suffix.lower() not in suffixes:
            raise RunError(f"cannot write {path}: its name must end in {suffixes[0]}")
        if path.is_file() and not _holds(path, mark):
            raise RunError(f"cannot write {path}: it exists and is not a {kind} of vitrine's; choose another file")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def _holds(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return head in (b"", b"[]") or mark in head


def templates_in(*folders: Path) -> "Environment":
    """The templates in ``folders``: what they show is escaped, and an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(folders)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element; NaN and infinity, which JSON does not have, are null."""
    text = json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
