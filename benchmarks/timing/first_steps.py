"""Seconds that the commands of docs/first_steps.md take, once each, on a machine that does nothing else.

python benchmarks/timing/first_steps.py   # ten minutes or so; writes a table to the page
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator

from measure import ROOT, TIMING, at_commit, markdown_table, measured_on, run_command, write_between
from PIL import Image
from sklearn.datasets import load_digits

OUT = ROOT / "outputs" / "first_steps"  # the commands run in this folder
JSON = TIMING / "first_steps.json"
PAGE = ROOT / "docs" / "first_steps.md"
STEP = re.compile(r"^## (\d\. .*?)\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:uv run|python) (\S+\.py .*?)(?: +#.*)?$", re.MULTILINE)
FOLDERS = {"outputs/runs/RUN": "outputs/runs/[!.]*", "outputs/sweeps/NAME": "outputs/sweeps/[!.]*", "=DIR": "pictures"}


def main() -> None:
    """Run what the page says, in its order, and write the seconds of each step."""
    shutil.rmtree(OUT, ignore_errors=True)
    write_pictures()
    steps = {name: dict(timed(text)) for name, text in STEP.findall(PAGE.read_text())}
    measured = {"steps": steps, **measured_on()}
    JSON.write_text(json.dumps(measured, indent=1) + "\n")
    rows = [[name, f"{sum(commands.values()):.0f}"] for name, commands in steps.items()]
    where = f"`python benchmarks/timing/first_steps.py` on {measured['machine']}{at_commit(measured)}."
    write_between(PAGE, "times", [*markdown_table(["step", "seconds"], rows), "", where])


def write_pictures() -> None:
    """Write a hundred digits as pictures, for the command that predicts a folder."""
    (OUT / "pictures").mkdir(parents=True)
    for number, pixels in enumerate(load_digits().images[:100]):
        Image.fromarray((pixels * 15).astype("uint8")).save(OUT / "pictures" / f"{number}.png")


def timed(text: str) -> Iterator[tuple[str, float]]:
    """The commands in the text of a step, each with the seconds it takes."""
    for command in COMMAND.findall(text):
        filled_in = command
        for placeholder, pattern in FOLDERS.items():
            if placeholder in command:
                first = min(OUT.glob(pattern)).relative_to(OUT)  # their names begin with their time
                filled_in = filled_in.replace(placeholder.removeprefix("="), str(first))
        script, *arguments = shlex.split(filled_in)
        cost = run_command(str(ROOT / script), *arguments, folder=OUT)
        if cost.code:
            raise SystemExit(f"exit code {cost.code}; run `python {filled_in}` in {OUT} to see why")
        yield f"python {command}", cost.seconds


if __name__ == "__main__":
    main()
