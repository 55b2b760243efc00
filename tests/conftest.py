"""The levels of the suite, and fixtures that tests of several folders share.

``pytest`` runs the quick tests, ``pytest --all`` the whole suite, ``pytest --slow`` also what is run by hand only.
"""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
from helpers.forking import PICTURES_LEFT_OUT, ForkingServer, leave_out_pictures, parse_once
from helpers.running import ROOT, run_script

import vitrine
from vitrine.errors import ConfigError
from vitrine.runs.provenance import COMMAND
from vitrine.text import plural

# Each process would compile the libraries anew, and each worker rewrite the assertions of all tests: 10 s of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# One thread for each test process and those that it starts: tests run in parallel, on small models.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's background jobs ignore Ctrl-C, and nohup hang-ups; so would the tests and the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

LEVELS = ["quick", "whole", "slow"]
LEFT_OUT = pytest.StashKey[str]()
FORKING = pytest.StashKey[ForkingServer]()

SHARED_DATA = ROOT.parent / "shared" / "data"

CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def pytest_addoption(parser):
    group = parser.getgroup("levels")
    group.addoption("--all", action="store_true", help="run the whole suite: also tests marked whole")
    group.addoption("--slow", action="store_true", help="run everything: also tests marked slow, which take minutes")


def pytest_configure(config):
    """Start the process that scripts of all workers are forked from: each would import the libraries for seconds.

    Let a worker of pytest-xdist end after all that is registered to run at its end; to clear modules takes 4 s.
    """
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)
    else:
        config.stash[FORKING] = ForkingServer()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while tests are collected, and leave what they import out of later collections.

    Searching the million objects of the imported libraries again and again would take 10 s of each test process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config):
    """Let the interpreter clear everything at its end; extensions would report what is left."""
    if not hasattr(config, "workerinput"):
        gc.unfreeze()


def pytest_collection_modifyitems(config, items):
    """Deselect tests above the chosen level, except in files and tests that the command line names."""
    _refuse_idle_marks(items)
    chosen = "slow" if config.getoption("slow") else "whole" if config.getoption("all") else "quick"
    named = [_Named(config.invocation_params.dir, argument) for argument in config.args]
    left_out = [
        item
        for item in items
        if LEVELS.index(_level(item)) > LEVELS.index(chosen) and not any(name.covers(item) for name in named)
    ]
    excluded = set(left_out)
    items[:] = [item for item in items if item not in excluded]
    config.hook.pytest_deselected(items=left_out)
    if left_out:
        option = "--slow" if all(_level(item) == "slow" for item in left_out) else "--all"
        counted, them = plural(len(left_out), "test"), "it" if len(left_out) == 1 else "them"
        config.stash[LEFT_OUT] = f"{counted} left out; `uv run pytest {option}` runs {them} too"
        if hasattr(config, "workeroutput"):  # a worker of pytest-xdist
            config.workeroutput["left_out"] = config.stash[LEFT_OUT]


def _level(item):
    """The level that runs the test: ``quick`` on a test or a parameter overrides ``whole`` on its file or function."""
    marks = {mark.name for mark in item.iter_markers()}
    return "slow" if "slow" in marks else "quick" if "quick" in marks or "whole" not in marks else "whole"


def _refuse_idle_marks(items):
    """Refuse ``quick`` on some parameters of a test that is quick anyway: it was meant to leave the others out."""
    idle = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "quick" in marks and "whole" not in marks:
            idle[item.nodeid.partition("[")[0]] = None
    if idle:
        raise pytest.UsageError(f"marked quick without whole, which changes nothing: {', '.join(idle)}")


class _Named:
    """A file or test given on the command line: ``tests/test_x.py`` or ``tests/test_x.py::test_y``."""

    def __init__(self, folder, argument):
        path, _, self.test = argument.partition("::")
        self.path = (folder / path).resolve()

    def covers(self, item):
        """Whether the test runs whatever its level: named itself, or, unless it is slow, in the named file."""
        if item.path != self.path:
            return False
        test = item.nodeid.partition("::")[2]
        if not self.test:
            return _level(item) != "slow"
        return test == self.test or test.startswith((f"{self.test}[", f"{self.test}::"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Take the line from a worker: every worker collects the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", "")


def pytest_terminal_summary(terminalreporter, config):
    if line := config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(line)


@pytest.fixture
def train(tmp_path):
    """Run train.py in an empty folder, which is its working directory."""

    def run(*overrides: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_script("train.py", *overrides, cwd=tmp_path, env=env)

    return run


@pytest.fixture
def evaluate(tmp_path):
    """Run eval.py in the same folder."""

    def run(*overrides: str) -> subprocess.CompletedProcess[str]:
        return run_script("eval.py", *overrides, cwd=tmp_path)

    return run


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data sets beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real MNIST and CIFAR-10 are not beside this checkout (../shared/data)")
    return SHARED_DATA


@pytest.fixture(scope="session")
def slurm():
    """Start a real Slurm of one node; return the environment in which its commands find it."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "srun") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed: apt-get install slurmctld slurmd slurm-client munge")
    script = ROOT / "tests" / "sweeps" / "launchers" / "slurm.sh"
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:  # pytest's own paths are too long for a socket
        subprocess.run([script, "start", folder], check=True)
        yield {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
        subprocess.run([script, "stop", folder], check=True)


@pytest.fixture(scope="session")
def browser():
    """Chromium, without a head."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium here; apt-get install chromium brings it")
    with playwright.sync_playwright() as started:
        chromium_browser = started.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture(autouse=True, scope="session")
def unsynced():
    """What tests write in their own process need not outlast a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def undrawn():
    """Leave out the pictures of runs, but of those that a test or fixture trains with ``drawn``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PICTURES_LEFT_OUT, "1")
        leave_out_pictures(patch.setattr)
        yield patch


@pytest.fixture(scope="module")
def drawn(undrawn):
    """Draw the pictures of runs, from the first test that asks for it to the last of its file."""
    undrawn.undo()
    yield
    undrawn.setenv(PICTURES_LEFT_OUT, "1")
    leave_out_pictures(undrawn.setattr)


@pytest.fixture(autouse=True, scope="session")
def files_read_once():
    """Read and parse configuration files once for all compositions of this process, as for those of one command."""
    import_module("vitrine.command.resolvers")  # registers the schemas that they name
    from vitrine.command.sources import composing

    parse_once()
    with composing():
        yield


@pytest.fixture
def compose(tmp_path):
    """Compose a configuration as the command line does, with all outputs in ``tmp_path``."""

    def call(*overrides):
        return vitrine.compose([*overrides, f"paths.output_dir={tmp_path}", f"paths.data_dir={tmp_path}"])

    return call


@pytest.fixture
def refusal(compose):
    """Return the faults of a command line that is refused."""

    def call(*overrides):
        with pytest.raises(ConfigError) as error:
            compose(*overrides)
        return error.value.faults

    return call


@pytest.fixture(autouse=True)
def no_command_of_another_test(monkeypatch):
    """A sweep hands its command to its trials in the environment; tests after it start without."""
    monkeypatch.delenv(COMMAND, raising=False)
