"""What ``predict.py`` prints: the table or a progress bar, unreadable pictures, and the summary with metrics."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitrine.config.predict import PredictConfig
from vitrine.data.image_csv import LABEL, SEPARATOR
from vitrine.inference.inputs import Pictures
from vitrine.inference.results import Layout, Row
from vitrine.text import one_line, plural


@dataclass
class SplitMetrics:
    """Counts of labelled pictures, of those that are not in doubt too, and the sum of negative log-likelihoods."""

    count: int = 0
    right: int = 0
    sure: int = 0
    right_and_sure: int = 0
    nll: float = 0.0


class Report:
    """Prints rows as they come, and counts them.

    Args:
        options: of the command.
        classes: names of the classes, for the width of their column.
        layout: how rows become cells.
        notes: where unreadable pictures are named, and the progress bar is drawn.
        label: the column of a CSV file that has the true classes; ``None`` if no metrics are to be measured.

    Attributes:
        unreadable: how many pictures could not be read.
        paged: how many have further pages or frames, which were not read.
    """

    def __init__(
        self, options: PredictConfig, classes: Sequence[str], layout: Layout, notes: Console, label: str | None
    ) -> None:
        self.options = options
        self.label = label
        self.layout = layout
        self.width = max(len(one_line(name)) for name in [*classes, *layout.answers[::2]])
        self.notes = notes
        self.unreadable = self.paged = 0
        self._read = self._doubtful = 0
        self._labelled: dict[str, SplitMetrics] = defaultdict(SplitMetrics)  # by split
        self._new = 0
        self._seconds = 0.0
        self._bar: tuple[Progress, TaskID] | None = None
        self._shown = options.output is not None  # whether a table has its head, or there is none

    def show(self, name: str, lines: Sequence[str], of: Path | None = None) -> None:
        """Print ``lines`` as one entry; ``of`` is the run that it belongs to, if there are several."""
        entries = [*lines, *([] if of is None else [str(of)])]
        for number, line in enumerate(entries):
            print(f"{name if number == 0 else '':{len(name)}}  {one_line(line)}", flush=True)

    @contextmanager
    def progress(self, pictures: Pictures) -> Iterator[None]:
        """Measure the time, and draw a progress bar if results go to a file and a terminal is there."""
        begin = time.monotonic()
        try:
            if self.options.output is None or not self.notes.is_terminal:
                yield
                return
            columns = (
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]} images/s"),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=self.notes, expand=True) as progress:
                task = progress.add_task("", total=pictures.count(), completed=self._read + self.unreadable, speed="-")
                self._bar = progress, task
                yield
        finally:
            self._seconds = time.monotonic() - begin

    def add(self, rows: Sequence[Row]) -> None:
        """Count and show the rows of a batch."""
        for row in rows:
            self.count(row)
            self.name_unreadable(row)
        self._new += len(rows)
        if self.options.output is None:
            self._print(rows)
        if self._bar is not None:
            progress, task = self._bar
            elapsed = progress.tasks[0].elapsed or 0.0
            speed = f"{self._new / elapsed:,.0f}" if elapsed else "-"
            progress.update(task, advance=len(rows), speed=speed)

    def name_unreadable(self, row: Row, when: str = "") -> None:
        """Print why a picture could not be read, if so."""
        if row.error:
            self.notes.print(f"vitrine: {one_line(row.error)}{when}")

    def count(self, row: Row) -> None:
        """Count a row."""
        if row.error:
            self.unreadable += 1
            return
        self._read += 1
        self.paged += row.paged
        doubtful = self.layout.is_doubtful(row)
        self._doubtful += doubtful
        if row.label and self.label is not None:
            right = self.layout.is_right(row)
            labelled = self._labelled[row.split]
            labelled.count += 1
            labelled.right += right
            labelled.nll -= math.log(max(row.label_probability or 0.0, 1e-45))  # the least float32
            labelled.sure += not doubtful
            labelled.right_and_sure += right and not doubtful

    def conclude(self) -> None:
        """Print the summary."""
        entries = {}
        column = "" if self.label == LABEL else f", column {self.label}"
        for split, labelled in self._labelled.items():
            of = f" of {split}" if split else ""
            count = plural(labelled.count, "labelled picture") + ", all labels right" * self.layout.multi_label
            entries[f"accuracy{of}"] = f"{labelled.right / labelled.count:.4f} of {count}{column}"
            if not self.layout.multi_label:
                entries[f"NLL{of}"] = f"{labelled.nll / labelled.count:.4f}"
        if self.options.confidence is not None and not self.layout.multi_label:
            share = f"{self._doubtful / self._read:.1%} of them" if self._read else "none"
            entries["in doubt"] = f"{plural(self._doubtful, 'picture')}, {share}"
            others = [
                f"{labelled.right_and_sure / labelled.sure:.4f}{f' of {split}' if split else ''}"
                for split, labelled in self._labelled.items()
                if labelled.sure
            ]
            entries["in doubt"] += f"; accuracy of the others {', '.join(others)}" if others else ""
        speed = f"{self._new / self._seconds:,.0f} images/s" if self._new and self._seconds else "all were there"
        entries["pictures"] = f"{self._read + self.unreadable:,} in {self._seconds:.1f} s, {speed}"
        if self.options.output is not None:
            entries["results"] = self.options.output
        if self.options.output is None:
            print()
        width = max(map(len, entries))
        for name, value in entries.items():
            print(f"{one_line(name):<{width}}  {one_line(value)}", flush=True)
        if self.unreadable:
            total = self._read + self.unreadable
            verb = "was" if self.unreadable == 1 else "were"
            self.notes.print(f"vitrine: {self.unreadable:,} of {plural(total, 'picture')} {verb} not readable")
        if self.paged:
            of = f"of {plural(self.paged, 'picture')} with several pages or frames"
            self.notes.print(f"vitrine: {of}, only the first was read")

    def _print(self, rows: Sequence[Row]) -> None:
        """Print rows of the table, below its head."""
        names, labelled = self.layout.answers, self.layout.labelled
        if not self._shown:
            self._shown = True
            heads = [f"{name:<{self.width}}  {value}" for name, value in zip(names[::2], names[1::2], strict=True)]
            heads += [f"{'label':<{self.width}}"] * labelled
            print("  ".join(heads), " path", flush=True)
        for row in rows:
            path, *cells = self.layout.cells(row)
            answers = cells[: len(names)]
            columns = zip(answers[::2], answers[1::2], map(len, names[1::2]), strict=True)
            shown = [
                f"{one_line(name or '-'):<{self.width}}  {_number(value):>{wide}}" for name, value, wide in columns
            ]
            shown += [f"{one_line(row.label or '-'):<{self.width}}"] * labelled
            print("  ".join(shown), f" {one_line(path)}", flush=True)


def _number(value: object) -> str:
    if isinstance(value, str):  # of several classes
        return SEPARATOR.join(f"{float(one):.4f}" for one in value.split(SEPARATOR) if one)
    return f"{value:.4f}" if isinstance(value, float) else "-"
