"""A finished run of an earlier version, pictures of its test images, and the command that classifies them."""

import shutil

import pytest
from helpers.pictures import write_test_images
from helpers.running import ROOT

from vitrine import load_run
from vitrine.cli.main import main

OLD = ROOT / "tests" / "old_runs"


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder with the 360 test images of digits in class folders."""
    folder = tmp_path_factory.mktemp("digits") / "test"
    write_test_images(load_run(next(OLD.glob("runs/*single*"))), folder)
    return folder


@pytest.fixture
def run(tmp_path):
    """A copy of a finished run on digits, loaded."""
    return load_run(shutil.copytree(next(OLD.glob("runs/*single*")), tmp_path / "run"))


@pytest.fixture
def predict(tmp_path, monkeypatch, capfd):
    """Runs ``vitrine predict`` on the CPU, decoding in this process: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*overrides: str) -> tuple[int, str, str]:
        try:
            main(["predict", "accelerator=cpu", "workers=0", *overrides])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    return call
