"""The W&B client as a run uses it: its settings, its errors and its process."""

import os
import subprocess
from contextlib import suppress
from typing import Any

import wandb
from pydantic import ValidationError
from wandb.sdk import wandb_setup

from vitrine.config.loggers import WandbConfig
from vitrine.errors import RunError, first_line

START_SECONDS = 20.0  # for the server to answer


def client_settings(settings: WandbConfig) -> wandb.Settings:
    """Return the client's settings: what it sends unasked, and how long it tries to start."""
    private: dict[str, Any] = {}
    if settings.private:
        private = {"x_disable_machine_info": True, "x_save_requirements": False, "host": "private"}
        private |= dict.fromkeys(("program", "program_relpath", "program_abspath"), "train.py")
    return wandb.Settings(
        console="off",
        silent=True,
        quiet=True,
        save_code=False,
        disable_code=True,
        disable_git=True,  # a repository's address may contain a token; the commit is in the summary
        x_disable_meta=True,  # the command's arguments as typed; the summary has them without secrets
        init_timeout=START_SECONDS,
        **private,
    )


def client_problem(error: BaseException) -> str:
    """Return the first line of an error of the client; of a setting that it refuses, as of WANDB_TAGS, the reason."""
    if not isinstance(error, ValidationError):
        return first_line(error)
    first = error.errors()[0]
    return f"W&B's client refuses {'.'.join(map(str, first['loc']))}: {first['msg']}"


class ClientProcess:
    """The W&B client's process, which serves all W&B runs of this process: the existing one, or a new one.

    It is ended only if no run of the user's own is open in it. The client has no public call that ends its process
    without waiting, or that starts another after it was killed.

    Args:
        run_id: of the run that gives up when it ends the process.

    Raises:
        RunError: one of W&B's variables is refused.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._connect()
        if self._process is not None and self._process.poll() is not None:  # an earlier run killed it
            self._forget()
            self._connect()

    def kill(self) -> None:
        """End the process at once, unless it serves others."""
        if self._process is not None and not self.serves_others():
            self._process.kill()

    def discard(self) -> None:
        """End the process, and remove what Python would wait for at exit or the next run would connect to.

        One that serves others, or that a later run has started in the meantime, is left alone.
        """
        if wandb_setup.singleton()._connection is self._connection and not self.serves_others():
            self.kill()
            self._forget()

    def serves_others(self) -> bool:
        """Whether another run is open in the process, or it is that of a program which has started this one."""
        runs = wandb_setup.singleton()._active_runs
        return self._process is None or any(run.id != self._run_id for run in runs)

    def _connect(self) -> None:
        try:
            wandb.setup(wandb.Settings(silent=True))  # otherwise it prints about credentials
        except ValidationError as error:
            raise RunError(client_problem(error)) from None
        self._connection = wandb_setup.singleton().ensure_service()
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(AttributeError):
            self._process = self._connection._proc._process  # type: ignore[union-attr]

    def _forget(self) -> None:
        with suppress(BaseException):  # the process is dead, and the client complains
            wandb.teardown()
        os.environ.pop("WANDB_SERVICE", None)
