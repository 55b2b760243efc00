"""What five ViT tutorials publish, from tutorials.yaml: for reproductions.py, its page, and the tests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FACTS = Path(__file__).with_suffix(".yaml")


class Setting(NamedTuple):
    """A published setting.

    Attributes:
        published: as the tutorial writes it.
        overrides: the same as overrides of ``train.py``, separated by spaces.
        place: where it stands in the source.
    """

    published: str
    overrides: str
    place: str


class Change(NamedTuple):
    """A change that the corrected or the described experiment makes to the faithful one.

    Attributes:
        change: what it does, in words.
        overrides: the same as overrides of the faithful experiment, separated by spaces.
    """

    change: str
    overrides: str


class Quirk(NamedTuple):
    """A quirk of a tutorial, and the change that removes it.

    Attributes:
        change: name of the change.
        overrides: of the faithful experiment, separated by spaces.
        explained: what the tutorial does, in a sentence.
    """

    change: str
    overrides: str
    explained: str


ROWS: dict[str, type[NamedTuple]] = {"settings": Setting, "corrected": Change, "described": Change, "quirks": Quirk}


@dataclass(frozen=True)
class Tutorial:
    """A tutorial's settings and published results, and what the experiments that reproduce it change.

    Attributes:
        title: heading on the page.
        source: title, author, date and address, as far as they are known; Markdown.
        places: what the places of its settings are in.
        reported: the published result as text; empty if there is none.
        parameters: number of parameters of the published network.
        settings: of the faithful experiment.
        known: what is inferred, differs, or has to be known; Markdown.
        corrected: all that the corrected experiment changes.
        corrected_parameters: number of parameters of the corrected network.
        described: all that the described experiment changes, where there is one.
        quirks: one change each that removes a quirk from the faithful experiment.
        accuracy: lowest and highest test accuracy that the published number can stand for, in [0, 1].
        losses: published training loss after each epoch, in nats.
        loss: published test loss, in nats.
        epochs: epochs behind the published result; shorter runs do not measure it.
        classes: number of classes that parameters are counted with; ``None`` is the data set's.
    """

    title: str
    source: str
    places: str
    reported: str
    parameters: int
    settings: tuple[Setting, ...]
    known: str
    corrected: tuple[Change, ...]
    corrected_parameters: int
    described: tuple[Change, ...] = ()
    quirks: tuple[Quirk, ...] = ()
    accuracy: tuple[float, float] | None = None
    losses: tuple[float, ...] = ()
    loss: float | None = None
    epochs: int = 0
    classes: int | None = None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "Tutorial":
        """Return the tutorial of its entry in tutorials.yaml."""
        cells = {key: [row.split(" | ") for row in facts.get(key, ())] for key in ROWS}
        return cls(**facts | {key: tuple(ROWS[key](*row) for row in rows) for key, rows in cells.items()})


TUTORIALS = {name: Tutorial.of(facts) for name, facts in yaml.safe_load(FACTS.read_text()).items()}
