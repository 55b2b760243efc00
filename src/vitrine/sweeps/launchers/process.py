"""``hydra/launcher=process``: each trial in a process of its own, several at a time.

Processes are forked from one that has imported PyTorch and Lightning and done nothing else, so that a trial starts in a
moment and still shares nothing with others: not its devices, its threads, its W&B run, its memory or its death. What a
trial prints goes to ``logs/TRIAL.txt`` in the sweep's folder.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import FrameType

from vitrine.config.sweep import LauncherConfig
from vitrine.errors import ConfigError, Fault, Interrupted, OutOfTime
from vitrine.runs.provenance import available_cores, process_started_at
from vitrine.sweeps.queue import Source
from vitrine.sweeps.trial import Busy, Trial, carry_out, died, no_time_for_another, outcome

BUSY = 76  # exit code of a process that found another at its trial
POLL_SECONDS = 0.5
STOPPING = (signal.SIGINT, signal.SIGTERM)
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # without one of them there is no need to ask PyTorch

# What the process that trials are forked from imports: everything slow that a trial uses and that starts no threads.
# The trials of a sweep thereby run the code that the sweep began with, whatever is edited meanwhile.
PRELOADED = [
    "sklearn.datasets",
    "torch._dynamo",
    "vitrine.training.fit",
    "vitrine.training.resume",
    "vitrine.sweeps.launchers.process",
]


@dataclass(frozen=True)
class Place:
    """Where one trial at a time is carried out: CPU threads, and GPUs by their numbers."""

    threads: int
    gpus: tuple[str, ...] = ()


def carry_out_all(queue: Source, free: list[Place]) -> None:
    """Carry out the trials of ``queue`` in processes, one at a time in each place.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the processes have saved what they were at.
    """
    context = _context()
    time_from = process_started_at()
    late = False
    before: list[Trial] = []
    running: dict[ForkServerProcess, tuple[Trial, Place]] = {}
    with _asked_to_stop(running) as asked:
        while running or not (queue.done or asked or late):
            late |= not queue.done and no_time_for_another(before, time_from)
            while free and not (asked or late) and (trial := queue.ask()) is not None:
                place = free.pop()
                process = context.Process(target=_one, args=(trial, place, time.time(), time_from))
                with _signals_held_back():
                    process.start()
                    running[process] = (trial, place)
            ended = wait([process.sentinel for process in running], POLL_SECONDS) if running else []
            if not running:
                time.sleep(POLL_SECONDS)
            for process in [one for one in running if one.sentinel in ended]:
                process.join()
                trial, place = running.pop(process)
                free.append(place)
                before.append(trial)
                late |= process.exitcode == OutOfTime.exit_code
                _collect(queue, trial, process.exitcode or 0, bool(asked))
    if asked or late:
        raise OutOfTime if late else Interrupted


def places(launcher: LauncherConfig, trials: list[Trial]) -> list[Place]:
    """Where trials are carried out on this machine, as many at a time as ``launcher`` says.

    Raises:
        ConfigError: there is less than ``launcher`` asks for.
    """
    available = available_cores()
    on_cpu = all(trial.config.trainer.accelerator == "cpu" for trial in trials)
    gpus = [] if on_cpu or not any(map(os.path.exists, GPU_DRIVERS)) else _gpus()
    if gpus:
        trainers = [trial.config.trainer for trial in trials if trial.config.trainer.accelerator != "cpu"]
        each = max(one.devices or len(gpus) for one in trainers)
        if each > len(gpus):
            raise ConfigError([Fault("trainer.devices", str(each), f"there are {len(gpus)} GPUs here")])
        groups = [tuple(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each)] * launcher.per_gpu
        workers = launcher.workers or len(groups)
        if workers > len(groups):
            there = f"{len(gpus)} GPUs, {each} for each trial"
            hint = f"launcher.workers={len(groups)}, or launcher.per_gpu={-(-workers // max(1, len(gpus) // each))}"
            raise ConfigError([Fault("launcher.workers", str(workers), f"there are {there}", hint)])
        threads = launcher.threads or max(1, available // workers)
        return [Place(threads, group) for group in groups[:workers]]
    workers = launcher.workers or max(1, available // (launcher.threads or 2))
    threads = launcher.threads or max(1, available // workers)
    if workers * threads > available:
        problem = f"needs {workers * threads} cores, {threads} for each trial; there are {available}"
        hint = f"launcher.workers={available // threads}" if threads <= available else f"launcher.threads={available}"
        raise ConfigError([Fault("launcher.workers", str(workers), problem, hint)])
    return [Place(threads)] * workers


def _collect(queue: Source, trial: Trial, code: int, asked: bool) -> None:
    if code == BUSY:
        queue.put_back(trial)
    elif code < 0 and not asked:
        name = signal.Signals(-code).name
        hint = "; out of memory?" if name == "SIGKILL" else ""
        queue.tell(trial, died(trial, f"its process was killed by {name}{hint}"))
    elif code == Interrupted.exit_code and not asked:
        queue.tell(trial, died(trial, "its process alone was asked to stop by a signal"))
    elif code in (0, OutOfTime.exit_code) or asked:
        queue.tell(trial, outcome(trial.folder))
    else:
        log = trial.log
        queue.tell(trial, died(trial, f"its process ended with code {code}; {log} may say why"))


def _one(trial: Trial, place: Place, began: float, time_from: float) -> None:
    """The life of one process."""
    os.setsid()  # Ctrl-C reaches it by its parent alone
    print_to(trial)
    _end_with_parent()
    os.environ["OMP_NUM_THREADS"] = str(place.threads)
    if place.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
    import torch

    torch.set_num_threads(place.threads)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # held back when it was made
        carry_out(trial, began, time_from)
    except Busy:
        sys.exit(BUSY)
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)


def print_to(trial: Trial) -> None:
    """Send what is printed, by libraries written in C too, to the trial's log."""
    trial.log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed process says what it has said
    with trial.log.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def _end_with_parent() -> None:
    """Stop cleanly, as by a signal, once the sweep's process is gone: nothing goes on behind a user's back."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _asked_to_stop(running: dict[ForkServerProcess, tuple[Trial, Place]]) -> Iterator[list[int]]:
    """The signals that have come, which are passed on as Ctrl-C: a trial finishes its step, a second time it stops."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for process in running:
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)

    before = {number: signal.signal(number, ask) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """While a process is made it can't be told of a signal; it, and what it is forked from, get theirs later."""
    resource_tracker.ensure_running()  # which lets signals through when it starts, and is needed to make a process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _gpus() -> list[str]:
    """GPUs that PyTorch can use here, asked of a process of its own: this one need not import it for that."""
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_gpus, args=(sender,))
    with _signals_held_back():
        process.start()
    sender.close()
    found: list[str] = receiver.recv()
    process.join()
    return found


def _send_gpus(sender: Connection) -> None:
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    sender.send(visible.split(",")[:count] if visible else [str(number) for number in range(count)])
