"""Push runs to Weights & Biases that were trained offline or while its server was down.

vitrine wandb-sync outputs/sweeps/NAME               # every run in it that is not pushed yet
vitrine wandb-sync RUN RUN --dry-run                 # only lists what would be pushed
vitrine wandb-sync RUN --force                       # although it is marked as running on another machine

Runs are logged again from metrics.csv, metrics.json and the images, with their ids, names and groups. What the W&B
client has stored in a run folder is not sent: in a folder from someone else, it can name any file of this machine.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrine.cli.arguments import errors_in_one_line, make_parser
from vitrine.config import TrainConfig
from vitrine.config.loggers import WandbConfig
from vitrine.config.serialize import from_plain
from vitrine.config.trust import TRUST_ALL
from vitrine.errors import RunError, VitrineError, first_line, joined_lines
from vitrine.runs import RunRecord
from vitrine.runs.lock import RunLocked
from vitrine.runs.registry import find_runs
from vitrine.text import one_line, report


def main(arguments: Sequence[str] | None = None) -> None:
    """Push runs; exits with 1 if some could not be pushed, and with 2 if the command cannot work."""
    parser = make_parser("wandb-sync", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, or a folder with runs in it")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be pushed")
    marked = "also push runs marked as running on other machines, or since before a reboot"
    parser.add_argument("--force", action="store_true", help=marked)
    options = parser.parse_args(arguments)
    with errors_in_one_line():
        failed = sync(options.folders, dry_run=options.dry_run, force=options.force)
    sys.exit(1 if failed else 0)


def sync(folders: list[Path], *, dry_run: bool = False, force: bool = False) -> int:
    """Push the runs in ``folders``; return how many could not be pushed.

    Raises:
        RunError: a folder does not exist, or W&B authentication fails.
    """
    found = find_runs(folders)
    for run in found.unreadable:
        report(one_line(f"skipped {run.path}: {run.problem}"))
    records = [RunRecord(entry.path) for entry in found.entries if entry.facts.get("wandb_id")]
    waiting = [record for record in records if record.facts.get("wandb_pushed") is None]
    idle = [record for record in waiting if record.has_ended(force=force)]
    for record in waiting:
        way = f"is still running on {record.facts.get('host')}: skipped"
        if record in idle:
            way = f"to {'/'.join(filter(None, _place(record))) or 'the default project of the account'}"
        print(one_line(f"{record.path}  {way}"))
    print(
        f"{len(idle)} to push, {len(records) - len(waiting)} pushed before, "
        f"{len(found.entries) - len(records)} without Weights & Biases"
    )
    if dry_run or not idle:
        return 0
    import wandb

    from vitrine.tracking.wandb_client import ClientProcess

    ClientProcess("")  # which may be ended, as after Ctrl-C
    try:
        logged_in = wandb.login(prompt=False)
    except Exception as error:  # an invalid key, or no server
        raise RunError(f"W&B authentication failed; run `wandb login`: {first_line(error)}") from None
    if not logged_in:
        raise RunError("W&B authentication failed; run `wandb login`, or set WANDB_API_KEY")
    pushed, failed = 0, []
    try:
        for record in idle:
            problem = replay(record, force=force)
            pushed += not problem
            failed += [f"  {record.path}: {problem}"] if problem else []
    finally:  # also after Ctrl-C
        print(f"{pushed} pushed")
        if failed:
            report("\n".join([f"{len(failed)} could not be pushed:", *failed]))
    return len(failed)


def _place(record: RunRecord) -> list[Any]:
    """Where a run is pushed: entity, ``None`` for the account's own, and project. Its folder may be another's."""
    return record.facts.get("wandb_project") or [None, WandbConfig.project]


def replay(record: RunRecord, *, force: bool = False) -> str:
    """Log a run again from its record, holding its lock; return the problem, empty if there is none."""
    from vitrine.tracking.wandb import push

    try:
        with record.owned(force=force) as own:
            push(own, from_plain(TrainConfig, own.config, trust=TRUST_ALL), _place(own))
    except RunLocked as error:
        return f"skipped: {error}"
    except VitrineError as error:
        return joined_lines(error)  # configuration errors have several lines
    except Exception as error:  # the other runs are pushed all the same
        return f"{type(error).__name__}: {first_line(error)}"
    return ""
