"""Real commands in a folder of their own, to be broken there; and the list of what is done to them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMALL = ["model=vit_nano", "depth=1", "data.batch_size=256", "trainer.compile=nothing", "trainer.accelerator=cpu"]


class Skipped(Exception):
    """The fault cannot be made here; the message says why."""


@dataclass(frozen=True)
class Fault:
    """A fault: its name on the command line, what is done, the test that guards it, and the function that makes it."""

    name: str
    done: str
    test: str
    quick: bool
    make: Callable[["Lab"], str]


FAULTS: dict[str, Fault] = {}


def fault(name: str, test: str, *, quick: bool = False) -> Callable[[Callable[["Lab"], str]], None]:
    """Register a function that makes a fault in a ``Lab``; its docstring says what is done."""

    def register(make: Callable[["Lab"], str]) -> None:
        FAULTS[name] = Fault(name, (make.__doc__ or "").rstrip("."), test, quick, make)

    return register


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def line(self) -> str:
        """Its error, which must be one line."""
        assert "Traceback" not in self.err, self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("vitrine: ") and "warning" not in line]
        return line

    def line_about(self, word: str) -> str:
        """The one line of its errors and notices that has a word."""
        assert "Traceback" not in self.err, self.err
        (line,) = [line for line in self.err.splitlines() if word in line]
        return line


class Lab:
    """A folder to break things in, and the project's commands there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str, script: str = "train.py", under: tuple[str, ...] = (), **env: str) -> Any:
        """Start a command in a session of its own."""
        return subprocess.Popen(
            [*under, sys.executable, str(ROOT / script), *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **settings: Any) -> Ended:
        """Run a command to its end."""
        began = time.monotonic()
        process = self.start(*arguments, **settings)
        out, err = process.communicate(timeout=900)
        return Ended(process.returncode, out, err, time.monotonic() - began)

    def train(self, *words: str, epochs: int = 4, **settings: Any) -> Ended:
        """Train a small model on digits."""
        return self.run(*SMALL, f"trainer.max_epochs={epochs}", *words, **settings)

    def trained(self, name: str, *words: str, epochs: int = 4) -> Path:
        """Return the folder of a new finished run."""
        ended = self.train(f"paths.output_dir={name}", *words, epochs=epochs)
        assert ended.code == 0, ended.err
        return self.runs(name)[0]

    def runs(self, name: str) -> list[Path]:
        """Return the run folders below a folder."""
        return sorted(path.parent for path in (self.folder / name).rglob("run.json"))

    def started(self, name: str, *words: str, epochs: int = 200) -> tuple[Any, Path]:
        """Start a long training; return its process and run folder once there is a checkpoint."""
        process = self.start(*SMALL, f"paths.output_dir={name}", f"trainer.max_epochs={epochs}", *words)
        wait_for(lambda: [run for run in self.runs(name) if (run / "checkpoints" / "previous.ckpt").exists()], process)
        return process, self.runs(name)[0]


def wait_for(condition: Callable[[], object], process: Any = None, seconds: float = 120) -> None:
    """Wait until ``condition`` holds, while ``process`` runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def kill(process: Any, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process and its children."""
    os.killpg(process.pid, number)


def facts(run: Path) -> dict[str, Any]:
    """Return the content of run.json."""
    return json.loads((run / "run.json").read_text())


def result(run: Path) -> dict[str, float]:
    """Return what a run found, without its times."""
    metrics = json.loads((run / "metrics.json").read_text())
    return {name: value for name, value in metrics.items() if not name.endswith("seconds")}


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def needs(*commands: str) -> None:
    """Skip the fault unless this is root with these commands."""
    missing = [command for command in commands if shutil.which(command) is None]
    if os.geteuid() != 0 or missing:
        raise Skipped(f"needs root and {', '.join(missing or commands)}")
