"""The progress line at every width of a terminal."""

import io

import pytest
from rich.console import Console

from vitrine.training.progress_bar import ProgressLine

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
