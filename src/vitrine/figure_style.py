"""How all figures look, on screen and on paper, and how they are written: PNG, PDF, SVG, or SVG inside a page."""

import io
import re
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.image import AxesImage

from vitrine.files import replacing
from vitrine.text import one_line, plural, report

WIDTH = 4.2  # inches: a phone's screen; between the column (3.25) and the text (5.5) of most papers
PRINT_DPI = 300

# Distinguishable with any colour vision; contrast of at least 3:1 on white and on the dark page.
COLOURS = ("#2b7bba", "#d4651c", "#12937a", "#c2408f", "#8a7a12", "#8060c8", "#c93c3c", "#5f7f95")
INK, QUIET, LINE, WRONG = "#1c2127", "#59626d", "#dfe3e8", "#b3401a"
PAGE_COLOURS = {INK: "var(--ink)", QUIET: "var(--quiet)", LINE: "var(--line)", WRONG: "var(--worse)"}
ATTENTION, LIKENESS, SIGNED = "inferno", "viridis", "PuOr_r"  # of shares from 0, of similarities, of values around 0

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "image.interpolation": "none",
    "text.parse_math": False,  # a class may be called $x$
    "svg.hashsalt": "vitrine",
    "pdf.fonttype": 42,  # text that can be selected and edited
    "svg.fonttype": "none",  # the same
}
# Scalable fonts of Linux, macOS and Windows for scripts that Matplotlib's own font, DejaVu Sans, lacks.
OTHER_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala UI",
    "Leelawadee UI",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Thai",
    "Noto Sans",
    "Noto Emoji",
    "Segoe UI Emoji",
)


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style: as a context, or as the decorator of a function that draws."""
    with rc_context(STYLE | {"font.family": [*fonts(), "sans-serif"], "font.sans-serif": ["DejaVu Sans"]}):
        yield


@cache
def fonts() -> list[str]:
    """Return the fonts that exist here; a character is drawn in the first one that has it."""
    installed = fontManager.get_font_names()
    return ["DejaVu Sans", *(name for name in OTHER_FONTS if name in installed)]


def undrawable(names: Sequence[str]) -> str:
    """Return the characters of ``names`` that no font here has, each once."""
    if all(map(str.isascii, names)):
        return ""
    known = set[int]().union(*(get_font(findfont(name)).get_charmap() for name in fonts()))
    return "".join(letter for letter in dict.fromkeys("".join(map(one_line, names))) if ord(letter) not in known)


def report_boxes(names: Sequence[str], folder: Path, formats: Sequence[str]) -> None:
    """Report on stderr if figures in ``folder`` have boxes in place of letters of ``names``; SVG has the letters."""
    if {"png", "pdf"} & set(formats) and (missing := undrawable(names)):
        letters = shorten([missing], 40)[0]
        report(f"PDF and PNG files in {folder} have boxes: Matplotlib finds no font with {letters}")


def drawable(classes: Sequence[str]) -> list[str]:
    """Return names of classes for a figure, ``no. 3`` for one that no font here can draw; a line on stderr says so."""
    missing = undrawable(classes)
    numbered = {index for index, name in enumerate(classes) if set(missing) & set(name)}
    if numbered:
        count = plural(len(numbered), "class", "classes")
        report(f"figures give {count} by number: Matplotlib finds no font with {shorten([missing], 40)[0]}")
    return [f"no. {index}" if index in numbered else name for index, name in enumerate(classes)]


def blues() -> Colormap:
    """Return transparent to blue, on which text in the page's colour can be read in light and dark."""
    blue = to_rgb("#1f6aa5")
    return LinearSegmentedColormap.from_list("blues", [(*blue, 0.0), (*blue, 0.75)])


def hex_colours(scale: str, count: int) -> list[str]:
    """Return ``count`` colours of one of matplotlib's scales, in equal steps from its first to its last."""
    return [to_hex(colormaps[scale](step / (count - 1))) for step in range(count)]


def text_width(text: str) -> int:
    """Return how many characters wide a text is; those of Chinese, Japanese and Korean, and emoji, are two wide."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def shorten(names: Sequence[str], length: int = 14) -> list[str]:
    """Return names as printable lines of at most ``length`` characters, wide ones counted as two, cut in the middle.

    Those that would be the same begin with their index in ``names``.
    """
    lines = [one_line(name) for name in names]
    cut = [_cut(line, length) for line in lines]
    counts = Counter(cut)
    for index, line in enumerate(lines):
        if counts[cut[index]] > 1:
            number = f"{index} "
            cut[index] = number + _cut(line, length - len(number))
    return cut


def short_class_names(names: Sequence[str], classes: Sequence[str], length: int) -> list[str]:
    """Return ``names``, made by :func:`vitrine.text.class_name`, in at most ``length`` characters, unique by class."""
    short = dict(zip(classes, shorten(classes, length), strict=True))
    return [short.get(name) or _cut(one_line(name), length) for name in names]


def bare(axes: Axes) -> None:
    """Remove ticks and frame from around an image."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def colour_bar(image: AxesImage, axes: list[Axes], label: str) -> Colorbar:
    """Add a colour bar to the right of ``axes``."""
    figure = axes[0].figure
    assert isinstance(figure, Figure)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7)
    return bar


def evenly(count: int, most: int) -> list[int]:
    """Return up to ``most`` evenly spaced indices below ``count``."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def save(figure: Figure, path: Path, *, dpi: int = 120) -> Path:
    """Write a figure, atomically, in the format of the path's suffix, on white."""
    with replacing(path) as temporary:
        _write(figure, temporary, path.suffix[1:], facecolor="white", dpi=dpi)
    return path


def inline_svg(figure: Figure, key: str, alt: str) -> str:
    """Return a figure as an ``<svg>`` element, in the font and the colours of the page around it.

    Args:
        figure: the figure.
        key: unique in the page; begins the ids inside.
        alt: what the figure shows, read out in its place.
    """
    stream = io.StringIO()
    _write(figure, stream, "svg", facecolor="none", dpi=72)
    head, body = stream.getvalue().partition("<svg")[2].split(">", 1)
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'(?<=\bid=")|(?<=url\(#)|(?<=href="#)', f"{key}-", body)
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(colour, variable)
    body = re.sub(r"font-family: [^;\"]+", "font-family: inherit", body)
    body = re.sub(r"\n\s*", "\n", body)
    size = re.search(r'viewBox="[^"]*"', head)
    assert size is not None
    width = round(figure.get_figwidth() * 96)  # CSS pixels in an inch
    return f'<svg role="img" aria-label="{escape(alt)}" {size[0]} style="max-width: {width}px">{body}'


def _cut(line: str, length: int) -> str:
    if text_width(line) <= length:
        return line
    head, tail = _fitting(line, length // 2), _fitting(line[::-1], (length - 1) // 2)
    return f"{line[:head]}…{line[len(line) - tail :]}"


def _fitting(letters: str, width: int) -> int:
    """How many of the first letters fit into a width."""
    return bisect_right(list(accumulate(map(text_width, letters))), width)


def _write(figure: Figure, target: Path | io.StringIO, kind: str, *, facecolor: str, dpi: int) -> None:
    canvas = FigureCanvasAgg(figure)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a class's name in a script that the font lacks
        if kind == "png":
            figure.set(dpi=dpi, facecolor=facecolor)
            canvas.print_png(target)  # type: ignore[no-untyped-call]  # Figure.savefig would draw twice
        else:
            figure.savefig(target, format=kind, facecolor=facecolor, dpi=dpi, metadata=undated)
