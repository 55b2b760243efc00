"""The progress line at every width of a terminal."""

import io
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from rich.console import Console

from vitrine.training import progress_bar
from vitrine.training.lit_module import Classifier
from vitrine.training.progress_bar import ProgressBar, ProgressLine

PARTS = {
    "epoch": "epoch 3/12",
    "step": "step 1,234/40,000",
    "percent": " 42%",
    "loss": "loss 1.234",
    "acc": "val acc 0.9123",
    "speed": "12,345 images/s",
    "mfu": "MFU 32%",
    "left": "left 0:12:34",
}


@pytest.mark.parametrize("width", range(12, 201))
def test_the_line_fits_and_shows_whole_parts_and_the_time_left_last(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    console.print(ProgressLine(PARTS, 0.42))
    (line,) = console.file.getvalue().splitlines()
    assert len(line) <= width
    assert line.rstrip().endswith(PARTS["left"])
    shown = {name for name, text in PARTS.items() if text.strip() in line}
    assert len(line.replace("━", "").replace("╸", "").split()) == sum(len(PARTS[name].split()) for name in shown)
    if width >= 130:
        assert shown == set(PARTS)
        assert "━" in line


def test_the_time_left_is_that_of_steps_without_what_came_before_the_first(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    bar = ProgressBar(Console(file=io.StringIO()), epochs=1, steps=1000)
    trainer = SimpleNamespace(global_step=0, current_epoch=0)
    module = Mock(spec=Classifier, latest={}, unlogged=[])
    bar.on_train_start(trainer, module)
    assert bar._parts(trainer, module)["left"] == "left -"
    now[0] = 20.0  # the compiler
    for step in range(1, 11):
        bar.on_train_batch_start(trainer, module, None, 0)
        now[0] += 0.1
        trainer.global_step = step
    assert bar._parts(trainer, module)["left"] == "left 0:01:39"
    trainer.global_step = 1010
    assert bar._parts(trainer, module)["left"] == "left 0:00:00"
