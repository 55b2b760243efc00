"""Runs as Weights & Biases' servers have them, by wandb.Api."""

from typing import Any

from vitrine.compare.load import Gathered, Run, typed
from vitrine.errors import RunError, first_line
from vitrine.runs.flatten import flatten

STATES = {"finished": "finished", "running": "running", "failed": "failed"}  # all others ended before their time
SPEED = "images_per_second"
LOGIN = "W&B asks for a login: `wandb login`, or set WANDB_API_KEY; run folders are compared without one"


def fetch(project: str, group: str | None) -> Gathered:
    """The training runs of ``ENTITY/PROJECT``, or of one group in it.

    Raises:
        RunError: there is no login, no such project, no run in it, or W&B can't be reached.
    """
    if project.count("/") != 1 or not all(project.split("/")):
        raise RunError(f"wandb:{project} must be wandb:ENTITY/PROJECT")
    filters = {"jobType": "train"} | ({"group": group} if group else {})
    try:
        runs = [read(run) for run in _api().runs(project, filters=filters, lazy=False)]
    except RunError:
        raise
    except Exception as error:  # the client raises whatever the network and the server lead to
        raise RunError(f"cannot read {project} from W&B: {first_line(error)}") from None
    if not runs:
        raise RunError(f"W&B has no training run in {project}{f' of the group {group}' if group else ''}")
    return Gathered(sorted(runs, key=lambda run: (run.started, run.name)), [])


def read(run: Any) -> Run:
    """A ``wandb.apis.public.Run`` as a run to be compared; its predictions stay where they are.

    Its summary has of run.json what the tracker told (tracking/wandb.py); that of a private run, or of one that an
    older version made, has none of it.
    """
    from vitrine.tracking.wandb import FACTS  # with it comes wandb

    config = flatten({key: value for key, value in run.config.items() if not key.startswith("_")})
    summary = {key: value for key, value in run.summary_metrics.items() if not key.startswith("_")}
    facts = {key: summary[key] for key in FACTS if key in summary}
    if facts:  # else it is a value of the last epoch
        facts["speed"] = {SPEED: summary.get(SPEED)}
    facts |= {"started": run.created_at, "code": {"commit": summary.get("commit") or run.commit}}
    metrics = {key: float(value) for key, value in summary.items() if _is_number(value) and key not in (*FACTS, SPEED)}
    history = [_numbers(row) for row in run.scan_history()]
    name = f"{run.entity}/{run.project}/{run.id}"
    status = summary.get("status") or STATES.get(run.state, "interrupted")
    title = "" if config.get("logger.wandb.name") else str(run.name)
    words = _words(str(facts.get("command", "")), title)
    return Run(name, status, config, words, facts, metrics if status == "finished" else {}, history)


def _words(command: str, title: str) -> dict[str, str]:
    """What was typed for a run; what a sweep's trial was given of it is what the trial is called by (``title``).

    Nothing is known where there is no command, or where a trial is called otherwise: its command has the words of all.
    """
    varies = title if "=" in title else ""
    of_a_sweep = {"-m", "--multirun"} & set(command.split())
    return typed(command, varies) if command and (varies or not of_a_sweep) else {}


def _api() -> Any:
    import wandb
    from wandb.errors import AuthenticationError, UsageError

    try:
        return wandb.Api(timeout=30)
    except AuthenticationError as error:  # also where W&B can't be reached
        raise RunError(f"W&B lets nobody in: {first_line(error)}") from None
    except UsageError:
        raise RunError(LOGIN) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """A row of metrics.csv from one of W&B's; its time is ours, or theirs where a run has none of ours."""
    kept = {key: float(value) for key, value in row.items() if _is_number(value) and not key.startswith("_")}
    return ({"seconds": float(row["_runtime"])} if _is_number(row.get("_runtime")) else {}) | kept
