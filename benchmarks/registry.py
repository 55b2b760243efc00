"""How long it takes to list many runs.

python benchmarks/registry.py RUN [10000]

Copies of a finished run's records are made in a temporary folder; each line is the time of a whole command.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vitrine.runs import RunRecord

COMMAND = str(Path(__file__).parents[1] / "scripts" / "runs.py")


def main() -> None:
    """Make the folders, list them, and print the seconds."""
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
        for title, words in (
            ("list, the first time", []),
            ("list", []),
            ("list, two columns and a filter of the configuration", ["seed=0", "--columns", "path,lr,depth"]),
        ):
            begin = time.perf_counter()
            subprocess.run([sys.executable, COMMAND, "list", folder, *words], check=True, stdout=subprocess.DEVNULL)
            print(f"{title}: {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
