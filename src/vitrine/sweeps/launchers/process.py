"""``hydra/launcher=process``: train each trial in a separate process, several at a time.

The processes are forked from a server process that has imported PyTorch and Lightning and done nothing else. So a trial
starts fast and yet shares no device, threads, memory or W&B run with others, and its crash ends no other trial. Its
output goes to ``logs/TRIAL.txt`` in the sweep's folder.
"""

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import FrameType

from vitrine.config.schema import TrainConfig
from vitrine.config.sweep import LauncherConfig
from vitrine.distributed.parent import stop_with_parent
from vitrine.errors import ConfigError, DiskFull, Fault, Interrupted, OutOfTime, RunError, interruption
from vitrine.runs.lock import RunLocked
from vitrine.runs.provenance import available_cores, process_started_at
from vitrine.safe_path import without_working_directory
from vitrine.signals import STOP_SIGNALS, exit_soon, handle_stop_signals, restored_handlers, stop_signals_blocked
from vitrine.sweeps.max_time import time_is_short
from vitrine.sweeps.queue import TrialQueue
from vitrine.sweeps.trial import Trial, TrialResult, read_result, record_crash, run_trial
from vitrine.text import plural, report

LOCKED_EXIT_CODE = 76  # another process is training the trial
FULL_EXIT_CODE = 74  # the disk is full: EX_IOERR of sysexits.h
POLL_SECONDS = 0.5
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # without any of them there is no GPU

# Imports of the server process: slow modules that start no threads. So all trials of a sweep run the code that it
# started with, even if files are edited meanwhile.
PRELOADED = [
    "vitrine.training.fit",
    "vitrine.training.resume",
    "vitrine.sweeps.launchers.process",
]


@dataclass(frozen=True)
class Slot:
    """Resources of one trial at a time: CPU threads, and GPUs by their CUDA ids."""

    threads: int
    gpus: tuple[str, ...] = ()


def train_in_processes(queue: TrialQueue, slots: list[Slot]) -> None:
    """Train the trials of ``queue`` in processes, one at a time in each slot.

    Raises:
        Interrupted: stopped by a signal or by trainer.max_time; the trials have saved checkpoints.
        DiskFull: a trial found the disk full, which stops the sweep once the trials beside it have ended.
    """
    context, time_from = _context(), process_started_at()
    free, ended = list(slots), list[Trial]()
    running: dict[ForkServerProcess, tuple[Trial, Slot]] = {}
    out_of_time, full = False, ""  # a trial ran out of time; a trial found the disk full
    with _forwarding_stop_signals(running) as signals:

        def may_start() -> bool:
            return not (signals or out_of_time or full or queue.done or time_is_short(ended, time_from))

        while running or may_start():
            while free and may_start() and (trial := queue.ask()) is not None:
                queue.started(trial)
                slot = free.pop()
                process = context.Process(target=_run_in_process, args=(trial, slot, time.time(), time_from))
                with _starting_process():
                    process.start()
                    running[process] = (trial, slot)
            sentinels = wait([process.sentinel for process in running], POLL_SECONDS) if running else []
            if not running:
                time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.sentinel in sentinels]:
                process.join()
                trial, slot = running.pop(process)
                free.append(slot)
                ended.append(trial)
                out_of_time |= process.exitcode == OutOfTime.exit_code
                result = _collect(queue, trial, process.exitcode or 0, stopped=bool(signals))
                if process.exitcode == FULL_EXIT_CODE:
                    full = full or result.error
    if full:
        raise DiskFull(full)
    if signals:
        raise Interrupted
    if out_of_time or not queue.done:
        raise OutOfTime


def allocate_slots(launcher: LauncherConfig, configs: Sequence[TrainConfig]) -> list[Slot]:
    """Share this machine's cores or GPUs out among as many trials at a time as ``launcher`` asks for.

    Raises:
        ConfigError: there are fewer cores or GPUs than ``launcher`` asks for.
    """
    available = available_cores()
    trainers = [config.trainer for config in configs if config.trainer.accelerator != "cpu"]
    gpus = _gpus() if trainers and any(map(os.path.exists, GPU_DRIVERS)) else []
    if gpus:
        each = max(trainer.devices or len(gpus) for trainer in trainers)
        if each > len(gpus):
            raise ConfigError(
                [Fault("trainer.devices", str(each), f"is more than the {plural(len(gpus), 'GPU')} here")]
            )
        groups = [tuple(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each)]
        workers = launcher.workers or len(groups) * (launcher.per_gpu or 1)
        sharing = math.ceil(workers / len(groups))
        if sharing > (most := launcher.per_gpu or sharing):
            problem = f"is too many for {plural(len(gpus), 'GPU')}, as each trial needs {each}"
            hint = f"launcher.workers={len(groups) * most}, or launcher.per_gpu={sharing}"
            raise ConfigError([Fault("launcher.workers", str(workers), problem, hint)])
        threads = launcher.threads or max(1, available // workers)
        return [Slot(threads, group) for group in (groups * sharing)[:workers]]
    workers = launcher.workers or max(1, available // (launcher.threads or 2))
    threads = launcher.threads or max(1, available // workers)
    if workers * threads > available:
        problem = f"needs {workers * threads} cores, {threads} for each trial; there are {available}"
        hint = f"launcher.workers={available // threads}" if threads <= available else f"launcher.threads={available}"
        raise ConfigError([Fault("launcher.workers", str(workers), problem, hint)])
    return [Slot(threads)] * workers


def _collect(queue: TrialQueue, trial: Trial, code: int, *, stopped: bool) -> TrialResult:
    """Give the queue the result of a process that ended with exit code ``code``, and return it."""
    if code == LOCKED_EXIT_CODE:
        queue.put_back(trial)
        return TrialResult("running")
    result = _result(trial, code, stopped=stopped)
    queue.tell(trial, result)
    return result


def _result(trial: Trial, code: int, *, stopped: bool) -> TrialResult:
    if code == FULL_EXIT_CODE:
        problem = read_result(trial.folder).error or f"the disk is full: cannot write to {trial.folder}"
        return TrialResult("interrupted", error=problem)
    if code < 0 and not stopped:
        name = signal.Signals(-code).name
        hint = "; out of memory?" if name == "SIGKILL" else ""
        return record_crash(trial, f"its process was killed by {name}{hint}")
    if code == Interrupted.exit_code and not stopped:
        return record_crash(trial, "its process was stopped by a signal that only it received")
    if code in (0, OutOfTime.exit_code) or stopped:
        return read_result(trial.folder)
    return record_crash(trial, f"its process ended with exit code {code}; see {trial.log}")


def _run_in_process(trial: Trial, slot: Slot, began: float, time_from: float) -> None:
    """Train a trial: the body of its process."""
    os.setsid()  # a terminal's Ctrl-C reaches the parent only, which forwards it
    redirect_output(trial)
    stop_with_parent()
    os.environ["OMP_NUM_THREADS"] = str(slot.threads)
    if slot.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    import torch

    torch.set_num_threads(slot.threads)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked by the parent while it was started
        run_trial(trial, began, time_from)
    except RunLocked:
        sys.exit(LOCKED_EXIT_CODE)
    except DiskFull as full:
        with suppress(OSError):  # the log is on that disk, too
            report(f"{trial.label}: {full}")
        sys.exit(FULL_EXIT_CODE)
    except RunError as error:
        report(f"{trial.label}: {error}")
        sys.exit(1)
    except (Interrupted, KeyboardInterrupt) as stop:
        code = interruption(stop).exit_code
        exit_soon(code)
        sys.exit(code)


def redirect_output(trial: Trial) -> None:
    """Append this process's output to the trial's log, also that of libraries written in C."""
    trial.log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed process loses no line
    with trial.log.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


@contextmanager
def _forwarding_stop_signals(running: dict[ForkServerProcess, tuple[Trial, Slot]]) -> Iterator[list[int]]:
    """Collect stop signals and forward them as SIGINT: a trial ends after its step, on the second one at once.

    An error stops the trials, too: this process waits for them before it ends.
    """
    received: list[int] = []

    def stop() -> None:
        for process in running:
            assert process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop()

    with restored_handlers():
        handle_stop_signals(forward)
        try:
            yield received
        except BaseException:
            stop()
            raise


@contextmanager
def _starting_process() -> Iterator[None]:
    """Block stop signals while a process starts. It inherits the mask, and unblocks them once its handlers are set."""
    with without_working_directory():
        resource_tracker.ensure_running()  # it would unblock them when it starts, and starting a process needs it
        with stop_signals_blocked():
            yield


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _gpus() -> list[str]:
    """CUDA ids of the GPUs that PyTorch can use, found in another process: this one need not import PyTorch."""
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_gpus, args=(sender,))
    with _starting_process():
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
