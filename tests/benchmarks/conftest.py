"""Import the scripts under benchmarks/, which find each other by their folder, as when they are run."""

import importlib

import pytest
from helpers.running import ROOT


@pytest.fixture
def study(monkeypatch):
    """Imports a module of benchmarks/studies by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "studies"))
    return importlib.import_module


@pytest.fixture
def timing(monkeypatch):
    """Imports a module of benchmarks/timing by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "timing"))
    return importlib.import_module
