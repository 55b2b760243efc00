"""What every command does before it imports torch."""

import os
import shlex
import subprocess
import sys

import pytest

from vitrine.cli.command import SPINS
from vitrine.cli.train import main

COMPOSING = """
import os, signal, time
from vitrine.cli import command
from vitrine.cli.train import main
from vitrine.errors import ConfigError, Fault

def points(*arguments, **settings):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        raise ConfigError([Fault("seed", "0", "cannot be resolved")])

command.points = points
main([])
"""

PRINTING = """
from vitrine.cli.command import Command, run_command

def predict_one(point):
    for _ in range(100_000):
        print("a row of the table", flush=True)

run_command(Command("predict", predict_one, None), ["run=RUN", "input=a.png"])
"""


@pytest.fixture
def environment(monkeypatch):
    """Forget what is set about waiting threads, here and by the command."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    return monkeypatch


def test_threads_do_not_wait_in_a_loop_for_long(environment, capsys):
    main(["--cfg", "job"])
    assert os.environ["GOMP_SPINCOUNT"] == SPINS


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "active")])
def test_a_users_own_choice_of_how_threads_wait_stays(environment, capsys, name, value):
    environment.setenv(name, value)
    main(["--cfg", "job"])
    found = {key: os.environ.get(key) for key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    assert found == {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None} | {name: value}


def test_an_error_that_a_library_makes_of_ctrl_c_is_none():
    done = subprocess.run([sys.executable, "-c", COMPOSING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "vitrine: interrupted\n")


def test_a_table_ends_quietly_with_its_reader():
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(PRINTING)} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("a row of the table\n", "")
