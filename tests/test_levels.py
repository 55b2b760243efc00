"""The levels of the suite: what ``pytest``, ``--all``, ``--slow`` and a name on the command line run."""

import pytest
from helpers.levels import slow
from helpers.running import ROOT, run_script

FILE = """
import pytest

def test_plain(): pass

@pytest.mark.whole
@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.quick)])
def test_sampled(case): pass

@pytest.mark.slow
def test_slow(): pass
"""
PYTEST = "import sys, pytest; sys.path[1:1] = sys.argv.pop(1).split(':'); sys.exit(pytest.main())"
QUICK = ["test_plain", "test_sampled[2]"]
WHOLE = ["test_plain", "test_sampled[1]", "test_sampled[2]"]


@pytest.fixture
def collect(tmp_path):
    """Collect tests as the arguments choose; return their names and the report."""
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "test_x.py").write_text(FILE)

    def run(*arguments, code=0):
        plugin = ["-c", str(ROOT / "pyproject.toml"), "-p", "conftest", "--rootdir", str(tmp_path)]
        (tmp_path / "run_pytest.py").write_text(PYTEST)
        paths = f"{ROOT / 'src'}:{ROOT / 'tests'}"
        done = run_script(
            str(tmp_path / "run_pytest.py"),
            *(paths, "--collect-only", "-q", "-n0", *plugin, *arguments),
            cwd=tmp_path,
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line], output

    return run


@pytest.mark.whole
@pytest.mark.parametrize(
    ("arguments", "tests", "report"),
    [
        (["given"], QUICK, "2 tests left out; `uv run pytest --all` runs them too"),
        (["given", "--all"], WHOLE, "1 test left out; `uv run pytest --slow` runs it too"),
        slow(["given", "--slow"], [*WHOLE, "test_slow"], None),
        (["given/test_x.py"], WHOLE, "1 test left out; `uv run pytest --slow` runs it too"),
        slow(["given/test_x.py::test_sampled"], WHOLE[1:], None),
        (["given/test_x.py::test_slow"], ["test_slow"], None),
        slow(["given", "-k", "sampled"], ["test_sampled[2]"], "2 tests left out; `uv run pytest --all` runs them too"),
        (["given", "--all", "-m", "whole and not quick"], ["test_sampled[1]"], "1 test left out"),
    ],
)
def test_a_level_runs_its_tests_and_counts_the_others(collect, arguments, tests, report):
    found, output = collect(*arguments)
    assert found == tests
    assert report in output if report else "left out" not in output


@pytest.mark.whole
def test_a_parameter_marked_quick_of_a_test_that_is_quick_anyway_is_refused(collect, tmp_path):
    (tmp_path / "given" / "test_x.py").write_text(FILE.replace("@pytest.mark.whole\n", ""))
    _, output = collect("given", code=pytest.ExitCode.USAGE_ERROR)
    assert "marked quick without whole, which changes nothing: given/test_x.py::test_sampled" in output
