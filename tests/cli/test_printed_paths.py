"""Paths that commands print can be pasted: whole in a narrow terminal and in a pipe."""

import os
import pty
import subprocess
import sys

import pytest
from helpers.running import ROOT

from vitrine.runs import RunRecord

LONG = "a-folder-with-a-long-name/" * 4


def in_a_terminal(*command: str, cwd, columns: int) -> str:
    """What a command prints to a terminal of this width."""
    reading, writing = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, *command], cwd=cwd, env=env, stdin=writing, stdout=writing, stderr=subprocess.STDOUT
    ) as process:
        os.close(writing)
        printed = b""
        while True:
            try:
                part = os.read(reading, 4096)
            except OSError:  # Linux reports the end of a terminal as an error
                break
            if not part:
                break
            printed += part
        os.close(reading)
    assert process.returncode == 0, printed
    return printed.decode()


@pytest.fixture
def run(tmp_path):
    """A finished run in a folder with a long path, as printed in ``tmp_path``."""
    record = RunRecord.create(tmp_path / "outputs" / LONG, "word")
    record.update(id=record.name, status="finished", started="2026-01-31T12:00:00+00:00")
    record.write_config({"data": {"name": "digits"}})
    record.write_metrics({"val/acc": 0.5})
    return record.path.relative_to(tmp_path)


@pytest.mark.parametrize("columns", [60, 200])
def test_the_list_of_runs_has_whole_paths(run, tmp_path, columns):
    assert str(run) in in_a_terminal(str(ROOT / "scripts" / "runs.py"), "list", cwd=tmp_path, columns=columns)
    piped = subprocess.run(
        [sys.executable, ROOT / "scripts" / "runs.py", "list"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
    )
    assert piped.stdout.splitlines()[1].split("\t")[0] == str(run)
