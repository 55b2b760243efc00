"""Time to list many runs: python benchmarks/timing/registry.py RUN [10000].

The records of a finished run are copied to a temporary folder; each printed time is that of a whole command.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import ROOT

from vitrine.runs import RunRecord

COMMAND = str(ROOT / "scripts" / "runs.py")


def main() -> None:
    """Make the run folders, list them, and print the seconds."""
    record = RunRecord.open(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    files = {name: (record.path / name).read_text() for name in ("run.json", "config.yaml", "metrics.json")}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            run = Path(folder, f"sweep-{number // 100}", f"run-{number:05d}")
            run.mkdir(parents=True)
            for name, text in files.items():
                (run / name).write_text(text)
        print(f"{count:,} runs, {os.cpu_count()} cores")
        for title, arguments in (
            ("list for the first time", []),
            ("list", []),
            ("list with three columns, filtered by a configuration key", ["seed=0", "--columns", "path,lr,depth"]),
        ):
            begin = time.perf_counter()
            subprocess.run([sys.executable, COMMAND, "list", folder, *arguments], check=True, stdout=subprocess.DEVNULL)
            print(f"{title}: {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
