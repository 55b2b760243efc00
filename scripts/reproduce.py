"""Reproduce five ViT tutorials; the study itself is benchmarks/studies/reproductions.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "studies"))

from reproductions import main

if __name__ == "__main__":
    main()
