"""Signals that stop a command."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from vitrine.distributed import spawn
from vitrine.signals import STOP_SIGNALS, interrupting, restored_handlers
from vitrine.sweeps.launchers import process
from vitrine.training.graceful_stop import GracefulStop

# Says how it was ended, if it could; sends itself signals where {where} is.
SCRIPT = """
import os, signal, sys, time
from vitrine.signals import exit_soon, interrupting

def press(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)

with interrupting() as received:
    try:
        {where}
        time.sleep(300)
    except KeyboardInterrupt:
        print("stopped by", *received, flush=True)
        {then}
"""


def run(where, then="pass", **settings):
    code = SCRIPT.format(where=where, then=then)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, **settings)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_each_raises_keyboard_interrupt_and_the_handlers_are_restored(number):
    before = [signal.getsignal(one) for one in STOP_SIGNALS]
    with interrupting() as received, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert received == [number]
    assert [signal.getsignal(one) for one in STOP_SIGNALS] == before


def test_ctrl_c_after_it_ends_the_process_at_once_and_a_second_hangup_does_not():
    done = run("press(signal.SIGHUP)", "press(signal.SIGHUP); print('still here', flush=True); press(signal.SIGINT)")
    assert (done.returncode, done.stdout) == (130, "stopped by 1\nstill here\n")


def test_one_that_a_finalizer_swallows_comes_again():
    finalizer = "type('Slow', (), {'__del__': lambda self: press(signal.SIGINT)})()"
    done = run(finalizer)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped by 2\n", "")


def test_inside_an_import_it_waits_for_the_import(tmp_path):
    (tmp_path / "quick.py").write_text("import os, time; os.kill(os.getpid(), 15); time.sleep(0.2); print('imported')")
    done = run("import quick", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\nstopped by 15\n", "")


def test_inside_a_long_import_it_ends_the_process_in_one_line(tmp_path):
    (tmp_path / "slow.py").write_text("import os, time; os.kill(os.getpid(), 15); time.sleep(60)")
    done = run("import slow", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vitrine: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_under_nohup_a_hangup_is_ignored_and_others_stop(number):
    done = run(
        f"press(signal.SIGHUP); press({number:d})", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    assert done.stdout == f"stopped by {number:d}\n"


def in_training(*_):
    """Begin to train."""
    GracefulStop(None, None).on_train_start(SimpleNamespace(is_global_zero=True), None)


def in_sweep(stack):
    """Begin to train trials in processes."""
    stack.enter_context(process._forwarding_stop_signals({}))


def in_parent(stack):
    """Begin to train in ranks, in the process that starts them."""
    stack.enter_context(spawn._forwarded_signals()).forward_to([])


def in_rank(stack):
    """Begin to train in a rank; it starts with Ctrl-C ignored."""
    signals = stack.enter_context(spawn._forwarded_signals())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawn, "stop_with_parent", lambda: None)
        patch.setattr(os, "environ", dict(os.environ))
        spawn._run_rank(0, in_training, SimpleNamespace(path=None), 1, "gpu", 0, signals.takes_ctrl_c)


@pytest.mark.parametrize("begin", [in_training, in_sweep, in_parent, in_rank])
@pytest.mark.parametrize("ignored", [(), (signal.SIGINT,), (signal.SIGHUP,)])
def test_what_is_ignored_stays_ignored_in_training(begin, ignored):
    with ExitStack() as stack:
        stack.enter_context(restored_handlers())
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        begin(stack)
        kept = [number for number in STOP_SIGNALS if signal.getsignal(number) == before[number]]
    assert kept == list(ignored)


def test_a_thread_that_goes_on_does_not_keep_the_process():
    done = run(
        "press(signal.SIGINT)",
        "import threading; threading.Thread(target=time.sleep, args=[300]).start(); exit_soon(130)",
    )
    assert done.returncode == 130
