"""Ctrl-C, SIGTERM and SIGHUP end a command within five seconds, at any moment."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.running import ROOT, only_run, start_script

SECONDS = 5.0  # on a machine that does nothing else, for the test that is run by hand
MOST_SECONDS = 30.0  # on any machine: a command that ignores the signal trains or compiles for longer
OVERRIDES = ["model=vit_nano", "trainer.max_epochs=2", "trainer.compile=nothing"]


def patience():
    """``SECONDS``, or more where programs share the cores."""
    return SECONDS * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


class Command:
    """A training as a user starts it, with the lines that it prints; what it compiles is compiled anew."""

    def __init__(self, folder, *overrides):
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "train.py"), *OVERRIDES, f"paths.output_dir={folder}", *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        )
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def stop(self, number=signal.SIGINT):
        """Send a signal as a terminal does; return the seconds until the command has ended, and its errors."""
        return stop(self.process, number)


def stop(process, number):
    begin = time.monotonic()
    os.killpg(process.pid, number)
    try:
        _, err = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return time.monotonic() - begin, err


@pytest.mark.parametrize(
    ("after", "number"),
    [(0.7, signal.SIGINT), pytest.param(1.5, signal.SIGHUP, marks=pytest.mark.whole)],
)
def test_while_it_starts(tmp_path, after, number):
    command = Command(tmp_path)
    time.sleep(after)
    seconds, err = command.stop(number)
    assert seconds < MOST_SECONDS
    assert command.process.returncode in (130, -number)  # the latter before vitrine itself is imported
    assert not list(tmp_path.glob("**/run.json"))
    assert err == "vitrine: interrupted\n" or command.process.returncode < 0


@pytest.mark.whole
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    ("line", "overrides", "number"),
    [
        ("run folder", ["trainer.compile=blocks"], signal.SIGTERM),
        ("compiling", ["trainer.compile=blocks"], signal.SIGINT),
        ("epoch 1/", ["trainer.max_epochs=1000"], signal.SIGHUP),
        ("epoch 2/", [], signal.SIGINT),  # testing, drawing
    ],
    ids=["beginning", "compiling", "training", "testing"],
)
def test_while_it_works_and_the_run_can_be_resumed(tmp_path, line, overrides, number):
    overrides = [*OVERRIDES, f"paths.output_dir={tmp_path}", *overrides]
    process = start_script("train.py", *overrides, cwd=ROOT, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})
    while process.poll() is None and not re.search(f"^{line}", process.printed()[0], re.MULTILINE):
        time.sleep(0.02)
    time.sleep(0.1)
    seconds, err = stop(process, number)
    assert seconds < MOST_SECONDS
    assert process.returncode == 130
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "interrupted"
    assert "Traceback" not in err
    *notes, last = err.splitlines()
    assert last.startswith("vitrine: interrupted; resume with: ")
    assert notes == [] or notes[0].startswith("vitrine: stopping after this ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_any_moment(tmp_path, number):
    """Signals further and further from the start, until a command ends before its signal."""
    for tenths in range(2, 600, 4):
        folder = tmp_path / str(tenths)
        folder.mkdir()
        command = Command(folder, "trainer.compile=blocks", "logger=tensorboard")
        time.sleep(tenths / 10)
        seconds, err = command.stop(number)
        assert seconds < patience(), (tenths, command.lines, err)
        if command.process.returncode == 0:
            return
        assert command.process.returncode in (130, -number), (tenths, err)
    pytest.fail("no command has ended by itself")
