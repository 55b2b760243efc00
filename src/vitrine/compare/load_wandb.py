"""Load the results of runs from Weights & Biases, by wandb.Api."""

from typing import Any

from vitrine.compare.load import RunResult, RunResults, parse_overrides
from vitrine.config.loggers import LONGEST_WANDB_NAME
from vitrine.errors import RunError, first_line
from vitrine.runs.facts import SHAPES
from vitrine.runs.flatten import flatten
from vitrine.tracking.wandb_values import FACTS
from vitrine.untrusted import misshapen

STATES = {"finished": "finished", "running": "running", "failed": "failed"}  # any other state counts as interrupted
OPEN_STATES = ("running", "crashed")  # of a session that has not set its status
SPEED = "images_per_second"
LOGIN = "W&B needs a login: run `wandb login`, or set WANDB_API_KEY; run folders can be compared without it"


def load_wandb_results(project: str, group: str | None) -> RunResults:
    """Load the training runs of ``ENTITY/PROJECT``, or of one group in it.

    Raises:
        RunError: not logged in, no such project, no run in it, or W&B cannot be reached.
    """
    if project.count("/") != 1 or not all(project.split("/")):
        raise RunError(f"wandb:{project} must be wandb:ENTITY/PROJECT")
    filters = {"jobType": "train"} | ({"group": group} if group else {})
    try:
        runs = [read_wandb_result(run) for run in _api().runs(project, filters=filters, lazy=False)]
    except RunError:
        raise
    except Exception as error:  # the client raises many types of errors
        raise RunError(f"cannot read {project} from W&B: {first_line(error)}") from None
    if not runs:
        raise RunError(f"W&B has no training run in {project}{f' in group {group}' if group else ''}")
    return RunResults(sorted(runs, key=lambda run: (run.started, run.name)), [])


def read_wandb_result(run: Any) -> RunResult:
    """Convert a ``wandb.apis.public.Run``; its predictions are not downloaded.

    Its summary holds the entries of run.json that the tracker logged (``FACTS``). The summary of a private run, or of a
    run by an older version of vitrine, holds none.
    """
    config = flatten({key: value for key, value in run.config.items() if not key.startswith("_")})
    summary = {key: value for key, value in run.summary_metrics.items() if not key.startswith("_")}
    facts = {key: summary[key] for key in FACTS if key in summary}
    if facts:  # without them, it is a value of the last epoch
        facts["speed"] = {SPEED: summary.get(SPEED)}
    facts |= {"started": run.created_at, "code": {"commit": summary.get("commit") or run.commit}}
    facts = {key: value for key, value in facts.items() if not misshapen({key: value}, SHAPES)}  # as of run.json
    metrics = {key: float(value) for key, value in summary.items() if _is_number(value) and key not in (*FACTS, SPEED)}
    history = [_numbers(row) for row in run.scan_history()]
    name = f"{run.entity}/{run.project}/{run.id}"
    status = _status(run.state, summary.get("status"))
    title = "" if config.get("logger.wandb.name") else str(run.name)
    overrides = _overrides(str(facts.get("command", "")), title)
    return RunResult(name, status, config, overrides, facts, metrics if status == "finished" else {}, history)


def _status(state: str, noted: str | None) -> str:
    """Return the status of a run from W&B's state and the status in its summary, which may be an earlier session's."""
    if state in OPEN_STATES or noted is None:
        return STATES.get(state, "interrupted")
    return "interrupted" if noted == "running" else noted


def _overrides(command: str, title: str) -> dict[str, str]:
    """Overrides of a run; in a sweep, the trial's own values are in its ``title``.

    Empty without a command, and for a trial with another or a shortened title: the sweep's command has the values of
    all trials.
    """
    varies = title if "=" in title and len(title) < LONGEST_WANDB_NAME else ""
    in_sweep = {"-m", "--multirun"} & set(command.split())
    return parse_overrides(command, varies) if command and (varies or not in_sweep) else {}


def _api() -> Any:
    import wandb
    from wandb.errors import AuthenticationError, UsageError

    try:
        return wandb.Api(timeout=30)
    except AuthenticationError as error:  # also raised if W&B cannot be reached
        raise RunError(f"W&B authentication failed; run `wandb login`: {first_line(error)}") from None
    except UsageError:
        raise RunError(LOGIN) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """Convert a row of W&B's history to a row of metrics.csv; ``_runtime`` is the time of a row without ``seconds``."""
    kept = {key: float(value) for key, value in row.items() if _is_number(value) and not key.startswith("_")}
    return ({"seconds": float(row["_runtime"])} if _is_number(row.get("_runtime")) else {}) | kept
