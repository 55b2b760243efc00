"""The processes that decode images."""

import time

from helpers.running import ROOT, python

from vitrine.data.workers import WorkerContext

LEFT_BEHIND = """
import time
from vitrine.data.workers import WorkerContext
WorkerContext().Process(target=time.sleep, args=[300], daemon=True).start()
"""


def test_a_worker_can_be_terminated_although_signals_do_not_reach_it():
    worker = WorkerContext().Process(target=time.sleep, args=[300], daemon=True)
    worker.start()
    worker.terminate()
    worker.join(60)
    assert not worker.is_alive()


def test_a_worker_that_is_left_behind_does_not_keep_the_command():
    began = time.monotonic()
    assert python("-c", LEFT_BEHIND, cwd=ROOT).returncode == 0
    assert time.monotonic() - began < 100
