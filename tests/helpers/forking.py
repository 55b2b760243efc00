"""Scripts of the checkout, each in a process forked from one that has imported PyTorch and Lightning, which takes long.

As a program, it is that process: it reads requests and reports the number and the exit code of each process.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

# What training, evaluation and comparison import. A fork copies one thread only, so it must start none.
PRELOADED = [
    "matplotlib.pyplot",
    "sklearn.datasets",
    "sklearn.metrics",
    "sklearn.model_selection",
    "torch._dynamo",
    "vitrine.command.composer",
    "vitrine.compare.comparison",
    "vitrine.inference.predict",
    "vitrine.training.fit",
    "vitrine.training.resume",
]
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # PyArrow's allocator would start one


class ForkingServer:
    """Runs scripts one at a time, each in a new process, until this process ends."""

    def __init__(self) -> None:
        process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **WITHOUT_THREADS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._requests, self._reports = process, process.stdin, process.stdout

    def run(
        self, script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``script`` as ``python SCRIPT ARGUMENTS`` does in ``cwd`` with this environment.

        Raises:
            subprocess.TimeoutExpired: it took too long, and was killed.
        """
        command = [sys.executable, str(script), *arguments]
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {"command": command, "cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err)}
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            pid = self._report()
            ended, _, _ = select.select([self._reports], [], [], timeout)
            if not ended:
                os.kill(pid, signal.SIGKILL)
            code = self._report()
            if not ended:
                raise subprocess.TimeoutExpired(command, timeout, out.read_text(), err.read_text())
            return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())

    def _report(self) -> int:
        line = self._reports.readline()
        assert line, f"the process that scripts are forked from has ended with {self._process.wait()}"
        return int(line)


def _serve() -> None:
    gc.disable()  # imports make no garbage, and searching for some takes a second
    for name in PRELOADED:
        import_module(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, threads
    gc.freeze()  # so that collecting garbage copies none of this memory
    while line := sys.stdin.readline():
        request = json.loads(line)
        if (pid := os.fork()) == 0:
            _run(request)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    os._exit(0)


def _run(request: dict[str, Any]) -> NoReturn:
    """Run a script in this process, made to look like the one that ``python SCRIPT`` starts, and end it."""
    gc.enable()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, path in enumerate((os.devnull, request["out"], request["err"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # the old one may have read ahead
    sys.orig_argv, sys.argv = request["command"], request["command"][1:]
    sys.path[0] = str(Path(request["command"][1]).parent)
    code = 0
    try:
        runpy.run_path(request["command"][1], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # an end that clears all modules takes seconds


if __name__ == "__main__":
    _serve()
