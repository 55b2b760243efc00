"""Every positional scheme under one recipe, for the same number of epochs: the sweeps, and docs/positions.md.

python benchmarks/positions.py            # both data sets; what was stopped goes on, what is done is not done again
python benchmarks/positions.py mnist hydra/launcher=process launcher.threads=1
python benchmarks/positions.py --table    # only writes
python benchmarks/positions.py --list     # the commands
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from running import ROOT, WITHOUT_EFFECT_ON_A_SWEEP, in_what_is_left, names_and_overrides, where

from vitrine.compare.comparison import compare
from vitrine.compare.load import gather
from vitrine.compare.tables import markdown

OUT = ROOT / "outputs" / "positions"
JSON = ROOT / "benchmarks" / "positions.json"
PAGE = ROOT / "docs" / "positions.md"
SCHEMES = "position=learned,none,learned2d,sincos1d,sincos2d,relative,rope,rope_mixed,alibi2d,conv"
SEEDS = "seed=0,1,2,3,4"
DATA = {
    "mnist": ("MNIST", "model=vit_nano data=mnist patch=4 augment=digits trainer.max_epochs=2"),
    "cifar10": ("CIFAR-10", "model=vit_nano data=cifar10 patch=4 augment=standard trainer.max_epochs=3"),
}
HEAD = """# Which positions?

Every positional scheme of `position=`, under one recipe, with the same number of epochs, and five seeds each.
Trainings are short and the models small (`vit_nano`, 0.2 million parameters, patches of 4 pixels), as a CPU allows:
what a scheme gives early shows, what it gives after hundreds of epochs does not. Nothing was chosen by these test
accuracies.

Differences are from the table that most ViTs learn (`position=learned`), paired by seed, with a 95 % interval
(Student's t) and p-values after Holm's correction; [comparing.md](comparing.md) says how. What each scheme costs is in
[variants.md](variants.md), where the steps were timed in turn. `python benchmarks/positions.py` runs the sweeps and
writes this page.
"""


def main() -> None:
    """Carry out, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--data-root", default="data", help="where MNIST and CIFAR-10 lie, or are downloaded to")
    parser.add_argument("words", nargs="*", metavar="NAME|KEY=VALUE", help=f"{' or '.join(DATA)}; overrides")
    options = parser.parse_args()
    asked, overrides = names_and_overrides(parser, options.words, DATA, WITHOUT_EFFECT_ON_A_SWEEP)
    asked = asked or list(DATA)
    if options.list:
        print("\n".join(f"python train.py {' '.join(command(name))}" for name in asked))
        return
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in asked:
        place = OUT / name
        if not options.table:
            words = [f"data.root={options.data_root}", f"paths.output_dir={place.relative_to(ROOT)}"]
            words += in_what_is_left(overrides)
            done = subprocess.run([sys.executable, "train.py", *command(name), *words], cwd=ROOT)
            if done.returncode:  # a part of a sweep says nothing yet
                raise SystemExit(done.returncode)
            known[name] = section(name, place)
            JSON.write_text(json.dumps({one: known[one] for one in DATA if one in known}, indent=1) + "\n")
    PAGE.write_text(page(known))


def command(name: str) -> list[str]:
    """What follows ``python train.py`` for a data set."""
    return ["-m", *DATA[name][1].split(), SCHEMES, SEEDS]


def section(name: str, place: Path) -> dict[str, Any]:
    """What the runs of a data set say."""
    gathered = gather([place])
    compared = compare(gathered, metric="test/acc", baseline="learned")
    return {
        "command": " ".join(command(name)),
        "on": where(gathered.runs[0].facts),
        "table": without_speed(markdown(compared).splitlines()),
        "said": [*compared.findings.words, *(one.words[0] for one in compared.findings.comparisons)],
    }


def without_speed(table: list[str]) -> list[str]:
    """The table but for its last column, images/s: several runs were carried out at a time, some beside other work."""
    return [line.rpartition(" | ")[0] + " |" for line in table] if table[0].endswith(" images/s |") else table


def page(known: dict[str, dict[str, Any]]) -> str:
    """docs/positions.md."""
    parts = [HEAD]
    for name, (title, _) in DATA.items():
        parts.append(f"\n## {title}\n\n")
        if name not in known:
            parts.append(f"Not yet measured: `python train.py {' '.join(command(name))}`.\n")
            continue
        one = known[name]
        parts.append(f"`python train.py {one['command']}`, on {one['on']}.\n\n")
        parts.append("\n".join([*one["table"], "", *(f"- {words}" for words in one["said"])]) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    main()
