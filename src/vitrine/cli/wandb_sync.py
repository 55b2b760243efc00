"""Push runs to Weights & Biases that were trained offline or while its server was down.

vitrine wandb-sync outputs/sweeps/NAME               # every run in it that is not pushed yet
vitrine wandb-sync RUN RUN --dry-run                 # only lists what would be pushed
vitrine wandb-sync RUN --force                       # although it is marked as running on another machine

Complete sessions of the W&B client in a run folder are sent with `wandb sync`. If the client was killed or hung, the
run is logged again from metrics.csv, metrics.json and the images. Runs keep their ids, names and groups.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from vitrine.cli.arguments import errors_in_one_line, make_parser
from vitrine.config import TrainConfig
from vitrine.config.parts import ANY
from vitrine.config.serialize import from_plain
from vitrine.errors import RunError, VitrineError, first_line
from vitrine.runs import RunRecord
from vitrine.runs.record import now
from vitrine.runs.registry import find_runs
from vitrine.text import one_line, plural, report

AT_ONCE = 50  # runs given to one `wandb sync`
PATIENCE = 3600.0  # seconds for one `wandb sync`, which never gives up on a server by itself


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
    complete = [record for record in idle if has_complete_sessions(record)]
    replayed = [record for record in idle if record not in complete]
    for record in waiting:
        if record not in idle:
            way = f"is still running on {record.facts.get('host')}: skipped"
        elif record in replayed:
            way = f"from its record{_destination(record)}"
        else:
            way = f"from {plural(len(sessions(record)), 'session')} of the client{_destination(record)}"
        print(one_line(f"{record.path}  {way}"))
    print(
        f"{len(idle)} to push, {len(records) - len(waiting)} pushed before, "
        f"{len(found.entries) - len(records)} without Weights & Biases"
    )
    if dry_run or not idle:
        return 0
    import wandb

    try:
        logged_in = wandb.login(prompt=False)
    except Exception as error:  # an invalid key, or no server
        raise RunError(f"W&B authentication failed; run `wandb login`: {first_line(error)}") from None
    if not logged_in:
        raise RunError("W&B authentication failed; run `wandb login`, or set WANDB_API_KEY")
    pushed, failed = 0, []
    try:
        for begin in range(0, len(complete), AT_ONCE):
            for record, problem in push_sessions(complete[begin : begin + AT_ONCE]):
                pushed += not problem
                failed += [f"  {record.path}: {problem}"] if problem else []
        for record in replayed:
            problem = replay(record)
            pushed += not problem
            failed += [f"  {record.path}: {problem}"] if problem else []
    finally:  # also after Ctrl-C
        print(f"{pushed} pushed")
        if failed:
            report("\n".join([f"{len(failed)} could not be pushed:", *failed]))
    return len(failed)


def _destination(record: RunRecord) -> str:
    """`` to ENTITY/PROJECT``, if the run was logged online before: its folder names them, and may be another's."""
    project = record.facts.get("wandb_project")
    return f" to {'/'.join(filter(None, project))}" if project else ""  # without an entity, the account's own


def push_sessions(records: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, str]]:
    """Send the client's sessions of each run; yield each run with the problem, empty if there is none."""
    paths = [str(path) for record in records for path in sessions(record)]
    safely = [sys.executable, "-P", "-m"]  # no module of the working directory, which may be another person's archive
    command = [*safely, "wandb", "sync", "--yes", "--include-online", *paths]
    try:
        subprocess.run(command, check=False, timeout=PATIENCE)
        problem = "wandb sync did not push it"
    except subprocess.TimeoutExpired:
        problem = f"wandb sync took more than {PATIENCE / 60:.0f} minutes"
    for record in records:
        if all(list(path.glob("*.wandb.synced")) for path in sessions(record)):
            record.update(wandb_kept=[], wandb_pushed=now())
            yield record, ""
        else:
            yield record, problem


def replay(record: RunRecord) -> str:
    """Log a run again from its record; return the problem, empty if there is none."""
    from vitrine.tracking.wandb import push

    try:
        push(record, from_plain(TrainConfig, record.config, trust=ANY))
    except VitrineError as error:
        return " ".join(str(error).split())  # configuration errors have several lines
    except Exception as error:  # the other runs are pushed all the same
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def has_complete_sessions(record: RunRecord) -> bool:
    """Whether the client's sessions hold the whole run, or what comes after all that the server has.

    A session that is sent after a later one replaces the results of that one by its own.
    """
    facts, found = record.facts, sessions(record)
    if facts.get("wandb_open") or facts.get("wandb_gaps"):
        return False
    return bool(found) and all(path.is_dir() and _sends_own_files(record, path) for path in found)


def _sends_own_files(record: RunRecord, session: Path) -> bool:
    """Whether what the client sends of a session is in the run folder; its logs, which stay here, may be elsewhere."""
    sent = (session.glob(pattern) for pattern in ("*.wandb", "files", "files/**/*"))
    return all(map(record.contains, chain([session], *sent)))


def sessions(record: RunRecord) -> list[Path]:
    """The folders of the client's sessions, in order of time.

    Raises:
        RunError: run.json names a folder outside the run's own.
    """
    names = [str(name) for name in record.facts.get("wandb_kept", [])]
    if outside := [name for name in names if Path(name).name != name or name == ".."]:
        raise RunError(f"{record.path / 'run.json'}: wandb_kept must name folders in wandb/, not {', '.join(outside)}")
    return [record.path / "wandb" / name for name in names]
