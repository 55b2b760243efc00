"""The client's process, in which W&B's runs live. There is one at a time, for all runs of this process.

The client has no public call that ends it without waiting, nor one that starts another after it was killed.
"""

import os
import subprocess
from contextlib import suppress

import wandb
from wandb.sdk import wandb_setup


class Service:
    """The client's process as one run knows it: the one that is there, or a new one."""

    def __init__(self) -> None:
        self._connect()
        if self._process is not None and self._process.poll() is not None:  # a run before this one killed it
            self.forget()
            self._connect()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    def forget(self) -> None:
        """End it, and leave nothing behind that Python would wait for when it ends, nor that the next run would take.

        One that a later run has started meanwhile is left alone.
        """
        self.kill()
        if wandb_setup.singleton()._connection is self._connection:
            with suppress(BaseException):  # it is dead, and says so
                wandb.teardown()
            os.environ.pop("WANDB_SERVICE", None)

    def _connect(self) -> None:
        wandb.setup(wandb.Settings(silent=True))  # else it talks of credentials
        self._connection = wandb_setup.singleton().ensure_service()
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(AttributeError):
            self._process = self._connection._proc._process  # type: ignore[union-attr]
