"""What every HTML page needs: a path that may be written, templates, and JSON for its scripts."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.files import check_target, naming_failed_write, write_text

if TYPE_CHECKING:
    from jinja2 import Environment

THEME = Path(__file__).parent / "theme"  # colours of pages, light and dark, and the button that switches them
# In the head of every page since the first: only a file that has it is replaced by another page.
MARK = b"""<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'"""


def check_page(path: Path) -> None:
    """Raise RunError for a file that cannot be written, is not named as a page, or exists and holds no page."""
    check_target(path, (".html", ".htm"), "page", MARK)


def write_page_file(path: Path, page: str) -> None:
    """Write a page, atomically; a name in it need not be valid text.

    Raises:
        RunError: the file cannot be written.
    """
    with naming_failed_write(path):
        write_text(path, page.encode(errors="backslashreplace").decode())


def templates_in(*folders: Path) -> "Environment":
    """The templates in ``folders``, and the theme: what they show is escaped, and an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([*folders, THEME])
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
