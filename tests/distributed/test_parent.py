import multiprocessing
import os
import signal
import time
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from vitrine.distributed import parent, spawn
from vitrine.errors import Interrupted
from vitrine.signals import restored_handlers


def test_a_rank_stops_once_its_parent_is_gone(monkeypatch, tmp_path):
    """While it starts it ignores SIGINT, which PyTorch sends then."""
    sentinel, held_by_parent = Pipe()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(sentinel=sentinel))
    monkeypatch.setattr(parent, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def stop(number, frame):
        raise Interrupted

    def work():
        held_by_parent.close()
        time.sleep(5)

    with restored_handlers():
        signal.signal(signal.SIGTERM, stop)
        with pytest.raises(SystemExit) as ended:
            spawn._run_rank(0, work, SimpleNamespace(path=tmp_path), 1, "cpu", 0, True)
    assert ended.value.code == Interrupted.exit_code
