"""Signals that stop a command: Ctrl-C (SIGINT), SIGTERM, SIGHUP, which a terminal sends when it is closed, and SIGUSR1.

Slurm sends SIGUSR1 before the end of a job whose script asks for that, as is usual: ``#SBATCH --signal=USR1@90``.

They raise KeyboardInterrupt in the main thread, so that files, locks and child processes are left in order; but not
inside an import, which would leave a broken module, and an error elsewhere. While steps are trained,
:mod:`vitrine.training.graceful_stop` handles them, as a step has to be finished first.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
IMPORT_SECONDS = 0.01  # between two looks at whether an import has ended; a run may begin 0.05 s after the last
LONGEST_IMPORT = 1.0
CLEAN_UP_SECONDS = 1.5  # for exit handlers and threads, which may wait for a compiler or a connection


@contextmanager
def interrupting() -> Iterator[list[int]]:
    """Let the first stop signal raise KeyboardInterrupt in the main thread; Ctrl-C after it ends the process at once.

    Inside an import the first one waits for its end, for ``LONGEST_IMPORT`` seconds; then it ends the process, too: the
    libraries that take longer are imported before there is anything to leave in order. A program started by ``nohup``
    or in the background ignores some of them, and continues to.

    Yields:
        The signals received so far.
    """
    received: list[int] = []
    postponed: list[float] = []  # when the first one came inside an import

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not postponed:
            received.append(number)
        if importing(frame):
            postponed.append(time.monotonic())
            if postponed[-1] - postponed[0] > LONGEST_IMPORT:
                os.write(2, b"vitrine: interrupted\n")
                end_process(128 + signal.SIGINT)
            send_again(number)
            return
        postponed.clear()
        if len(received) == 1:
            raise KeyboardInterrupt
        if number == signal.SIGINT:  # a closing terminal sends SIGHUP twice
            end_process(128 + signal.SIGINT)

    def again() -> None:
        if received:
            send_again(received.pop())

    with restored_handlers(), swallowed(KeyboardInterrupt, again):
        if threading.current_thread() is threading.main_thread():
            handle_stop_signals(interrupt)
        yield received


def handle_stop_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Let ``handler`` handle the stop signals, apart from those that are ignored, as under ``nohup``."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def swallowed(kind: type[BaseException], handle: Callable[[], None]) -> Iterator[None]:
    """Call ``handle`` where Python swallows an exception of ``kind``: in a finalizer or a weak reference's callback."""

    def report(unraisable: Any) -> None:
        if unraisable.exc_type is kind:
            handle()
        else:
            before(unraisable)

    before = sys.unraisablehook
    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of the stop signals at the end."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def end_with_reader() -> None:
    """From now on, end the process quietly when the reader of its output ends: ``... | head``. For text only."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Delay the stop signals of this thread to the end; a process started meanwhile inherits that they are blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def importing(frame: FrameType | None) -> bool:
    """Whether ``frame`` runs inside an import."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def send_again(number: int) -> None:
    """Send a signal to the main thread once more in ``IMPORT_SECONDS``."""
    timer = threading.Timer(IMPORT_SECONDS, signal.pthread_kill, [threading.main_thread().ident, number])
    timer.daemon = True
    timer.start()


def exit_soon(code: int) -> None:
    """End the process in ``CLEAN_UP_SECONDS``, should it not have ended by then."""
    timer = threading.Timer(CLEAN_UP_SECONDS, end_process, [code])
    timer.daemon = True
    timer.start()


def end_process(code: int) -> None:
    """End the process and its child processes at once, without exit handlers."""
    if "multiprocessing" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():
            child.kill()
    os._exit(code)
