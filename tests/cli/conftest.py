"""Fixtures for tests of the commands."""

import pytest

from vitrine.cli.main import main


@pytest.fixture
def vitrine(tmp_path, monkeypatch, capsys):
    """Runs ``vitrine ...`` in this process, in an empty folder: exit code, what it printed, and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            main(arguments)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run
