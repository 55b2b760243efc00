"""Update the pinned versions in pyproject.toml to a fresh resolution: python scripts/renew_pins.py, then run the tests.

A lock file would hold the same versions, but also download addresses.
"""

import argparse
import re
import subprocess
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
PINS = re.compile(r"(constraint-dependencies = \[\n).*?(^\]\n)", re.DOTALL | re.MULTILINE)


def main() -> None:
    """Resolve without the current pins, for every platform and Python version, and write the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    before = PROJECT.read_text()
    PROJECT.write_text(PINS.sub(r"\1\2", before))
    try:
        (PROJECT.parent / "uv.lock").unlink(missing_ok=True)
        export = "uv export --all-groups --no-hashes --no-annotate --no-header --no-emit-project --quiet"
        done = subprocess.run(export.split(), cwd=PROJECT.parent, capture_output=True, text=True, check=True)
    except BaseException:
        PROJECT.write_text(before)
        raise
    pins = sorted(line.strip() for line in done.stdout.splitlines() if "==" in line)
    lines = "".join(f'    "{pin.replace(chr(34), chr(39))}",\n' for pin in pins)
    PROJECT.write_text(PINS.sub(lambda match: match[1] + lines + match[2], before))
    print(f"{len(pins)} versions written to {PROJECT.name}")


if __name__ == "__main__":
    main()
