"""Push to Weights & Biases what ran offline, or what it did not get because it was down.

python scripts/wandb_sync.py outputs/sweeps/NAME               # every run in it; what is pushed already is skipped
python scripts/wandb_sync.py RUN RUN --dry-run                 # only says what would be done

What the client kept in a run folder is sent as it is, by `wandb sync`. Where the client was killed or hung, the run is
told to it again from metrics.csv, metrics.json and the pictures. Ids, names and groups are the runs' own.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from vitrine.config import TrainConfig
from vitrine.config.plain import from_plain
from vitrine.errors import RunError, VitrineError
from vitrine.runs import RunRecord
from vitrine.runs.record import now
from vitrine.runs.registry import find

AT_ONCE = 50  # runs given to one `wandb sync`


def main() -> None:
    """Push what is to be pushed; ends with 1 if something could not be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, or a folder with runs in it")
    parser.add_argument("--dry-run", action="store_true", help="push nothing")
    options = parser.parse_args()
    try:
        failed = sync(options.folders, options.dry_run)
    except VitrineError as error:
        sys.exit(f"vitrine: {error}")
    sys.exit(1 if failed else 0)


def sync(folders: list[Path], dry_run: bool) -> int:
    """Push the runs in ``folders``; gives how many could not be."""
    found = find(folders)
    for broken in found.broken:
        print(f"vitrine: skipped {broken.path}: {broken.problem}", file=sys.stderr)
    records = [RunRecord(entry.path) for entry in found.entries if entry.facts.get("wandb_id")]
    waiting = [record for record in records if record.facts.get("wandb_pushed") is None]
    idle = [record for record in waiting if record.status != "running"]
    told_again = [
        record
        for record in idle
        if record.facts.get("wandb_open") or not all(path.is_dir() for path in sessions(record))
    ]
    kept = [record for record in idle if record not in told_again]
    for record in waiting:
        way = "is still running: skipped" if record not in idle else "from its record" if record in told_again else ""
        print(f"{record.path}  {way or f'as it was kept, {len(sessions(record))} session(s)'}")
    print(
        f"{len(idle)} to push, {len(records) - len(waiting)} pushed before, "
        f"{len(found.entries) - len(records)} without Weights & Biases"
    )
    if dry_run or not idle:
        return 0
    import wandb

    if not wandb.login(prompt=False):
        raise RunError("nobody is logged in to Weights & Biases: `wandb login`, or set WANDB_API_KEY")
    failed = []
    for begin in range(0, len(kept), AT_ONCE):
        some = kept[begin : begin + AT_ONCE]
        paths = [str(path) for record in some for path in sessions(record)]
        subprocess.run([sys.executable, "-m", "wandb", "sync", "--yes", "--include-online", *paths], check=False)
        for record in some:
            if all(list(path.glob("*.wandb.synced")) for path in sessions(record)):
                record.update(wandb_kept=[], wandb_pushed=now())
            else:
                failed.append(f"  {record.path}: wandb sync did not push it")
    for record in told_again:
        from vitrine.training.wandb_tracker import push

        try:
            push(record, from_plain(TrainConfig, record.config))
        except VitrineError as error:
            failed.append(f"  {record.path}: {error}")
    print(f"{len(idle) - len(failed)} pushed")
    if failed:
        print("\n".join([f"vitrine: {len(failed)} could not be pushed:", *failed]), file=sys.stderr)
    return len(failed)


def sessions(record: RunRecord) -> list[Path]:
    """The folders that the client kept, the earliest first."""
    return [record.path / "wandb" / name for name in record.facts.get("wandb_kept", [])]


if __name__ == "__main__":
    main()
