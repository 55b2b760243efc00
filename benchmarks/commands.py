"""Run the project's commands as a user would, and measure their time and memory."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class CommandCost:
    """Cost of a finished command.

    Attributes:
        seconds: wall-clock time from start to exit.
        memory: peak resident memory of the process, in bytes.
        code: exit code.
    """

    seconds: float
    memory: int
    code: int


def run_command(*arguments: str, folder: Path = ROOT) -> CommandCost:
    """Run ``python ARGUMENTS`` in a folder, by default the project's root, and discard what it prints."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    return CommandCost(time.perf_counter() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status))
