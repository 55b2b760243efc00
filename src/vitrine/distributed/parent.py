"""Child processes that stop once the process that started them is gone."""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait

# PyTorch has a rank's parent send SIGINT at its death, which must come first: after SIGTERM it would stop the rank at
# once, without a checkpoint.
DELAY_SECONDS = 1.0


def stop_with_parent() -> None:
    """Stop this process of ``multiprocessing`` as by SIGTERM once its parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        time.sleep(DELAY_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
