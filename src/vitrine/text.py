"""Text for people: plurals, lists, numbers, sizes, "did you mean", and foreign text made safe to print."""

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

# Control characters (C0, DEL, C1), line and paragraph separators, bidirectional marks, surrogates.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    r"""Return a text in which what a terminal would obey is shown instead: ESC as ``\x1b``, a stray byte as ``\xff``.

    Escaped are control characters except newlines and tabs, marks that reorder text, and what is not valid Unicode. For
    every text that may come from a file or a name that another person wrote.
    """
    return _UNPRINTABLE.sub(_escaped, str(text))


def nfc(text: str) -> str:
    """Return a text in Unicode's composed form: a name from macOS or a zip file may hold ``ü`` as ``u`` and dots."""
    return unicodedata.normalize("NFC", text)


def one_line(text: object) -> str:
    """Return a text as one printable line; each run of white space with a newline or a tab becomes a space."""
    parts = re.split(r"[\t\r\n]+", str(text))  # a pattern with \s* around takes quadratic time on many spaces
    return printable(" ".join(filter(None, map(str.strip, parts))))


def without_formula(text: str) -> str:
    """Return the text of a .csv file's cell with ``'`` before what a spreadsheet would compute; numbers stay."""
    if text.lstrip()[:1] not in ("=", "+", "-", "@"):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def report(message: object) -> None:
    """Print a message to stderr, ``vitrine: ...``, made printable."""
    print(f"vitrine: {printable(message)}", file=sys.stderr, flush=True)


def plural(count: int, noun: str, several: str = "") -> str:
    """A count with its noun: ``1 run``, ``1,000 runs``; ``several`` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def listed(items: Sequence[Any], most: int | None = None, separator: str = "", word: str = "and") -> str:
    """Items as a sentence lists them: ``a and b``, ``a, b and c``; beyond ``most``, ``a, b and 7 more``.

    A ``separator`` such as ``"; "``, for items that hold commas, stands between all of them; ``word`` can be ``or``.
    """
    texts = [str(item) for item in items[:most]]
    if len(texts) < len(items):
        texts.append(f"{len(items) - len(texts):,} more")
    if separator or len(texts) < 2:
        return separator.join(texts)
    return f"{', '.join(texts[:-1])} {word} {texts[-1]}"


def file_size(count: float) -> str:
    """Bytes to three digits, in decimal units: ``1.23 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:  # 1000 to three digits
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def short_number(value: float) -> str:
    """A number to three digits: ``1.23 M``."""
    for size, letter in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:  # 999,500 is 1 M to three digits
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def as_override(value: object) -> str:
    """A value as an override has it: ``null``, ``true``, ``0.1``."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def shape_and_dtype(array: Any) -> str:
    """Return shape and dtype of a tensor or array, as ``(64, 1, 8, 8) uint8``."""
    return f"{tuple(array.shape)} {str(array.dtype).removeprefix('torch.')}"


def class_name(names: Sequence[str], label: int | Sequence[int]) -> str:
    """Return the name of a class; ``no. 10`` for an output beyond the classes of the data.

    Of several labels, given as 0 or 1 for each class, the names: ``cat, dog``, or ``none``.
    """
    if isinstance(label, int):
        return names[label] if label < len(names) else f"no. {label}"
    return ", ".join(name for name, has in zip(names, label, strict=True) if has) or "none"


def isolated(name: str) -> str:
    """Return a name for a sentence of a page, so that one from right to left does not reorder what stands beside it."""
    right_to_left = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in name)
    return f"\u2068{name}\u2069" if right_to_left else name


def nearest(given: str, allowed: Iterable[str]) -> str:
    """The allowed name most similar to ``given``, whatever its case, or an empty string if none is similar.

    If exactly one name begins with ``given``, it is returned: 32 gives 32-true, although tf32 is more similar.
    """
    names = {name.lower(): name for name in allowed}
    given = given.lower()
    beginning = [name for name in names if len(given) > 1 and name.startswith(given)]
    matches = beginning if len(beginning) == 1 else get_close_matches(given, names, n=1, cutoff=0.6)
    return names[matches[0]] if matches else ""


def did_you_mean(match: object) -> str:
    """The hint that ends an error message: ``; did you mean rope?``. Empty if ``match`` is empty or ``None``."""
    return f"; did you mean {match}?" if match else ""


def similar_path_hint(path: Path, among: Callable[[Path], bool] = lambda _: True) -> str:
    """The hint at the path beside ``path`` with the most similar name, of those for which ``among`` is true."""
    try:
        match = nearest(path.name, [entry.name for entry in path.absolute().parent.iterdir() if among(entry)])
    except OSError:
        return ""
    return did_you_mean(path.parent / match if match else "")


def print_table(table: "Table") -> None:
    """Print a rich table at its full width. A terminal wraps longer lines itself, so that paths can be copied whole."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, width=10_000)  # a table is as wide as its cells
    with console.capture() as captured:
        console.print(table, crop=False)
    # without the spaces that fill the last column, which would wrap into blank lines
    print(re.sub(r" +((\x1b\[0m)?)$", r"\1", captured.get(), flags=re.MULTILINE), end="")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # Python's stand-in for a byte of a file's name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
