"""Scripts of the checkout, each in a process forked from one that has done what takes long in every first training.

Which is to import PyTorch and Lightning, compose a configuration, measure a matrix product, and draw.

As a program, it is that process: at a socket, it takes requests and reports the id of each process.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
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
FOLDER = "FORKING_SERVER"  # the environment variable that names the folder of the process to fork from
PICTURES_LEFT_OUT = "PICTURES_LEFT_OUT"  # the variable with which scripts train without drawing
COMPOSING = ExitStack()  # never left
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # PyArrow's allocator would start one


class Forked:
    """A script under way, or ended: what :class:`subprocess.Popen` is for a new process.

    Attributes:
        args: the command that starts it as a new process.
        pid: the id of its process.
        returncode: its exit code, or minus the signal that ended it; ``None`` until :meth:`wait` or :meth:`poll` knows.
    """

    def __init__(self, args: Sequence[str], pid: int, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.args, self.pid = args, pid
        self.returncode: int | None = None
        self._folder = folder
        self._end = os.open(Path(folder.name, "end"), os.O_RDONLY | os.O_NONBLOCK)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: it takes longer than ``timeout`` seconds.
        """
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0, *self.printed())
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        """Return its exit code, or ``None`` while it runs."""
        self._has_ended(0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it has ended, and return what it has printed, to its output and to its errors."""
        self.wait(timeout)
        return self.printed()

    def printed(self) -> tuple[str, str]:
        """Return what it has printed so far, to its output and to its errors."""
        if self.returncode is not None:
            return self._printed
        out, err = (Path(self._folder.name, name).read_text(errors="replace") for name in ("out", "err"))
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self._printed = self.printed()
            self.returncode = int(os.read(self._end, 16))
            os.close(self._end)
            self._folder.cleanup()
        return self.returncode is not None


class ForkingServer:
    """The process to fork from, for scripts of this process and of those that it starts; it ends with this one.

    It imports the libraries when it is first asked for a script.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        os.environ[FOLDER] = self._folder.name
        with socket.socket(socket.AF_UNIX) as listener, Path(self._folder.name, "err").open("w") as errors:
            listener.bind(f"{self._folder.name}/socket")
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                env={**os.environ, **WITHOUT_THREADS},
                stdin=subprocess.PIPE,  # nothing is written; its end is that of this process
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[listener.fileno()],
            )


def start(script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], new_session: bool = True) -> Forked:
    """Start ``script`` as ``python SCRIPT ARGUMENTS`` does in ``cwd`` with this environment."""
    command = [sys.executable, str(script), *arguments]
    folder = tempfile.TemporaryDirectory()
    os.mkfifo(Path(folder.name, "end"))
    for name in ("out", "err"):
        Path(folder.name, name).touch()
    request = {"command": command, "cwd": str(cwd), "env": dict(env), "folder": folder.name, "alone": new_session}
    server = Path(os.environ[FOLDER])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server / "socket"))
        connection.sendall(json.dumps(request).encode() + b"\n")
        pid = connection.makefile().readline()
    assert pid, f"the process that scripts are forked from has ended: {(server / 'err').read_text()}"
    return Forked(command, int(pid), folder)


def run(
    script: Path, *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` to its end.

    Raises:
        subprocess.TimeoutExpired: it took too long, and was killed.
    """
    started = start(script, *arguments, cwd=cwd, env=env, new_session=False)
    try:
        out, err = started.communicate(timeout)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
        raise
    return subprocess.CompletedProcess(started.args, started.wait(), out, err)


def leave_out_pictures(setattr: Callable[[object, str, object], None]) -> None:
    """Let trainings write one pixel in place of each picture: they take over a third of the smallest training.

    Args:
        setattr: Python's own, or the one that a monkey patch undoes.
    """
    from PIL import Image

    from vitrine.runs import RunRecord
    from vitrine.training import plots

    def pixel(record: RunRecord, name: str) -> Path:
        path = record.path / f"{name}.png"
        Image.new("L", (1, 1)).save(path)
        return path

    for name in ("curves", "confusion", "attention"):
        setattr(plots, f"draw_{name}", lambda record, *_, name=name: pixel(record, name))


def parse_once() -> None:
    """Let OmegaConf parse each interpolation once: to parse them again takes half the time of a later composition."""
    from omegaconf import _utils, base

    base.parse = _utils.parse = cache(base.parse)


def _serve(listener: socket.socket) -> None:
    if _is_asked(listener):
        _load()
    while _is_asked(listener):
        with listener.accept()[0] as connection:
            if os.fork() == 0:
                listener.close()
                _wait_for_script(connection)
    os._exit(0)


def _is_asked(listener: socket.socket) -> bool:
    """Wait for a request; return false once the process that started this one has ended."""
    return sys.stdin not in select.select([listener, sys.stdin], [], [])[0]


def _load() -> None:
    gc.disable()  # imports make no garbage, and searching for some takes a second
    for name in PRELOADED:
        import_module(name)
    _warm_up()
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, threads
    gc.freeze()  # so that collecting garbage copies none of this memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes that wait for a script


def _warm_up() -> None:
    """Fill the libraries' caches, and leave their random numbers as they are."""
    import numpy as np
    import torch

    from vitrine import compose
    from vitrine.command.sources import composing
    from vitrine.training.peak_flops import matmul_peak
    from vitrine.training.plots import confusion

    parse_once()
    COMPOSING.enter_context(composing())  # scripts compose from the files that are read here
    compose(["model=vit_nano"])
    with torch.random.fork_rng():
        matmul_peak("cpu", "32-true", torch.get_num_threads())
    torch.zeros(1, 1, requires_grad=True).matmul(torch.zeros(1, 1)).sum().backward()
    confusion(np.eye(2), np.ones(2), ["a", "b"], width=4.0).savefig(os.devnull, format="png")


def _wait_for_script(connection: socket.socket) -> NoReturn:
    """Start the script that is asked for in a new process, and report its exit code at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.makefile().readline())
    if (pid := os.fork()) == 0:
        connection.sendall(f"{os.getpid()}\n".encode())
        connection.close()
        _run(request)
    _, status = os.waitpid(pid, 0)
    with suppress(FileNotFoundError):  # the test waits no longer
        Path(request["folder"], "end").write_text(str(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _run(request: dict[str, Any]) -> NoReturn:
    """Run a script in this process, made to look like the one that ``python SCRIPT`` starts, and end it."""
    if request["alone"]:
        os.setsid()
        sys.stdout.reconfigure(line_buffering=True)  # for printed()
    gc.enable()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if PICTURES_LEFT_OUT in os.environ:
        leave_out_pictures(setattr)
    for number, path in enumerate((os.devnull, f"{request['folder']}/out", f"{request['folder']}/err")):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # the old one may have read ahead
    sys.orig_argv, sys.argv = request["command"], request["command"][1:]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [str(Path(request["command"][1]).parent), *others]
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
    _serve(socket.socket(fileno=int(sys.argv[1])))
