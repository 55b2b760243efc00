"""Modules in the working directory, which may be a folder that somebody sent, replace none of Python's."""

import os
import subprocess
import sys

import pytest
from helpers.running import SMALL, python

from vitrine.safe_path import without_working_directory

PLANTED = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"


def test_a_process_started_within_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    command = [sys.executable, "-c", "import planted"]
    with without_working_directory():
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1
    assert not (tmp_path / "planted.ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    assert (tmp_path / "planted.ran").exists()


@pytest.mark.whole
def test_a_sweep_in_processes_runs_no_module_of_the_working_directory(tmp_path):
    for name in ("threading", "signal", "click"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    workers = ["hydra/launcher=process", "launcher.workers=1"]
    arguments = ["-m", "vitrine", "train", "-m", *SMALL, "debug=quick", "seed=0,1", *workers]
    result = python("-P", *arguments, cwd=tmp_path, env={"PYTHONSAFEPATH": ""})
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.glob("*.ran"))
