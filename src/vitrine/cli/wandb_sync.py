"""Push to Weights & Biases what ran offline, or what it did not get because it was down.

vitrine wandb-sync outputs/sweeps/NAME               # every run in it; what is pushed already is skipped
vitrine wandb-sync RUN RUN --dry-run                 # only says what would be done
vitrine wandb-sync RUN --force                       # though it reads as running, on a machine that is gone

What the client kept in a run folder is sent as it is, by `wandb sync`. Where the client was killed or hung, the run is
told to it again from metrics.csv, metrics.json and the pictures. Ids, names and groups are the runs' own.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitrine.cli.arguments import make_parser
from vitrine.config import TrainConfig
from vitrine.config.parts import ANY
from vitrine.config.serialize import from_plain
from vitrine.errors import RunError, VitrineError, first_line
from vitrine.runs import RunRecord
from vitrine.runs.record import now
from vitrine.runs.registry import find_runs

AT_ONCE = 50  # runs given to one `wandb sync`
PATIENCE = 3600.0  # seconds that it may take: a server that is gone would be asked for ever


def main(arguments: Sequence[str] | None = None) -> None:
    """Push what is to be pushed; ends with 1 if something could not be, with 2 after a mistake."""
    parser = make_parser("wandb-sync", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, or a folder with runs in it")
    parser.add_argument("--dry-run", action="store_true", help="push nothing")
    parser.add_argument("--force", action="store_true", help="also what reads as running on another machine")
    options = parser.parse_args(arguments)
    try:
        failed = sync(options.folders, dry_run=options.dry_run, force=options.force)
    except VitrineError as error:
        print(f"vitrine: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if failed else 0)


def sync(folders: list[Path], *, dry_run: bool = False, force: bool = False) -> int:
    """Push the runs in ``folders``; gives how many could not be.

    Raises:
        RunError: a folder is none, or nobody is logged in.
    """
    found = find_runs(folders)
    for broken in found.unreadable:
        print(f"vitrine: skipped {broken.path}: {broken.problem}", file=sys.stderr)
    records = [RunRecord(entry.path) for entry in found.entries if entry.facts.get("wandb_id")]
    waiting = [record for record in records if record.facts.get("wandb_pushed") is None]
    idle = [record for record in waiting if record.has_ended(force=force)]
    kept = [record for record in idle if is_kept(record)]
    told_again = [record for record in idle if record not in kept]
    for record in waiting:
        still = f"is still running on {record.facts.get('host')}: skipped"
        way = still if record not in idle else "from its record" if record in told_again else ""
        print(f"{record.path}  {way or f'as it was kept, {len(sessions(record))} session(s)'}")
    print(
        f"{len(idle)} to push, {len(records) - len(waiting)} pushed before, "
        f"{len(found.entries) - len(records)} without Weights & Biases"
    )
    if dry_run or not idle:
        return 0
    import wandb

    hint = "`wandb login`, or set WANDB_API_KEY"
    try:
        known = wandb.login(prompt=False)
    except Exception as error:  # a key that is none, a server that is none
        raise RunError(f"Weights & Biases lets nobody in: {first_line(error)} ({hint})") from None
    if not known:
        raise RunError(f"nobody is logged in to Weights & Biases: {hint}")
    pushed, failed = 0, []
    try:
        for begin in range(0, len(kept), AT_ONCE):
            for record, problem in push_kept(kept[begin : begin + AT_ONCE]):
                pushed += not problem
                failed += [f"  {record.path}: {problem}"] if problem else []
        for record in told_again:
            problem = tell_again(record)
            pushed += not problem
            failed += [f"  {record.path}: {problem}"] if problem else []
    finally:  # also after Ctrl-C
        print(f"{pushed} pushed")
        if failed:
            print("\n".join([f"vitrine: {len(failed)} could not be pushed:", *failed]), file=sys.stderr)
    return len(failed)


def push_kept(records: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, str]]:
    """Send what the client kept of each run as it is; gives what went wrong, or nothing."""
    paths = [str(path) for record in records for path in sessions(record)]
    command = [sys.executable, "-m", "wandb", "sync", "--yes", "--include-online", *paths]
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


def tell_again(record: RunRecord) -> str:
    """Tell W&B of a run from its record; gives what went wrong, or nothing."""
    from vitrine.tracking.wandb import push

    try:
        push(record, from_plain(TrainConfig, record.config, trust=ANY))
    except VitrineError as error:
        return " ".join(str(error).split())  # those of a configuration have several lines
    except Exception as error:  # what is wrong with one run keeps no other from being pushed
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def is_kept(record: RunRecord) -> bool:
    """Whether the client kept all of the run."""
    kept = sessions(record)
    return bool(kept) and not record.facts.get("wandb_open") and all(path.is_dir() for path in kept)


def sessions(record: RunRecord) -> list[Path]:
    """The folders that the client kept, the earliest first."""
    return [record.path / "wandb" / name for name in record.facts.get("wandb_kept", [])]
