"""A package with parts of a user's own, in a folder of its own."""

import sys
import textwrap
from pathlib import Path

import pytest

from vitrine.config.parts import load

LAYERS = """
import torch


def places(grid):
    return torch.cartesian_prod(*(torch.linspace(0, 1, side) for side in grid))
"""

FOURIER = """
from torch import nn

from .layers import places


class Fourier(nn.Module):
    def __init__(self, config, bands=2, scale=1.0):
        super().__init__()
        self.prefix = config.prefix
        self.register_buffer("places", scale * places(config.grid), persistent=False)
        self.proj = nn.Linear(2, config.dim)

    def forward(self, tokens):
        return tokens + nn.functional.pad(self.proj(self.places), (0, 0, self.prefix, 0))


class Halved(Fourier):
    def forward(self, tokens):
        return super().forward(tokens)[:, ::2]


BANDS = 3
"""


def write_package(folder: Path, name: str, **modules: str) -> None:
    """Write the package ``name`` with ``fourier.py``, ``layers.py`` and further modules into ``folder``."""
    package = folder / name
    package.mkdir()
    for module, text in ({"__init__": "", "layers": LAYERS, "fourier": FOURIER} | modules).items():
        (package / f"{module}.py").write_text(textwrap.dedent(text))


def enter_lab(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, **modules: str) -> Path:
    """Make ``folder`` the working directory for a test, with the package ``name``, not imported yet, in it."""
    enter(folder, monkeypatch, name)
    write_package(folder, name, **modules)
    return folder


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make ``folder`` the working directory for a test, and forget what was imported of the package ``name``."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    load.cache_clear()


def imported(name: str) -> bool:
    """Whether the package ``name`` has been imported in this process."""
    return any(module == name or module.startswith(f"{name}.") for module in sys.modules)
