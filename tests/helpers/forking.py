"""The project's scripts in processes forked from one that has imported what training needs, which takes seconds."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers.running import ROOT

# As hydra/launcher=process imports them before it forks: they start no threads.
PRELOADED = ["sklearn.datasets", "torch._dynamo", "vitrine.training.fit", "vitrine.training.resume"]


class ForkingServer:
    """Runs scripts of the checkout one at a time, each in a new process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._requests, self._exit_codes = process.stdin, process.stdout

    def run(self, script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run ``script`` with arguments in ``cwd``, as ``python script ...`` does; return its exit code and output."""
        command = [sys.executable, str(ROOT / script), *arguments]
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {"command": command, "cwd": str(cwd), "out": str(out), "err": str(err)}
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            code = int(self._exit_codes.readline())
            return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


@contextmanager
def forking_server() -> Iterator[ForkingServer]:
    """Start the process to fork from, and end it."""
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield ForkingServer(process)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


def _serve() -> None:
    for name in PRELOADED:
        import_module(name)
    while line := sys.stdin.readline():
        request = json.loads(line)
        if (pid := os.fork()) == 0:
            _become(request)
            return
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Turn this process into the one that ``python script ...`` starts, and run the script."""
    os.chdir(request["cwd"])
    for number, path in enumerate((os.devnull, request["out"], request["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # the old one may have read ahead
    sys.orig_argv, sys.argv = request["command"], request["command"][1:]
    sys.path[0] = str(ROOT)
    runpy.run_path(request["command"][1], run_name="__main__")


if __name__ == "__main__":
    _serve()
