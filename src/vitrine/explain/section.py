"""What the page of a run is made of: sections with figures, each with its caption, its alternative text and numbers."""

from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

Numbers = list[list[str]]  # headings first


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the page.

    Attributes:
        key: its file's name without the suffix; unique in the page.
        title: its heading; empty if the section's says enough.
        caption: what it shows, and how to read it.
        alt: what can be seen in it, read out in its place.
        figure: the drawing.
        numbers: the same data as a table; may be empty.
    """

    key: str
    title: str
    caption: str
    alt: str
    figure: Figure
    numbers: Numbers = field(default_factory=list)


@dataclass(frozen=True)
class RunSection:
    """A section of the page.

    Attributes:
        key: its anchor.
        title: its heading.
        text: below the heading; where there is nothing to show, why.
        figures: side by side where there is room.
        explorer: data of the interactive maps (templates/explorer.js), if they are in this section.
    """

    key: str
    title: str
    text: str = ""
    figures: list[DrawnFigure] = field(default_factory=list)
    explorer: dict[str, Any] | None = None
