"""All positional schemes under one recipe, for the same number of epochs: runs the sweeps and writes docs/positions.md.

python benchmarks/studies/positions.py            # both data sets; resumes what was interrupted, skips what is finished
python benchmarks/studies/positions.py mnist hydra/launcher=process launcher.threads=1
python benchmarks/studies/positions.py --table    # only writes the page
python benchmarks/studies/positions.py --list     # prints the commands
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from seeds import NEUTRAL_IN_SWEEPS, ROOT, STUDIES, device_name, split_arguments, with_remaining_time

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.table_formats import markdown

OUT = ROOT / "outputs" / "positions"
JSON = STUDIES / "positions.json"
PAGE = ROOT / "docs" / "positions.md"
SCHEMES = "position=learned,none,learned2d,sincos1d,sincos2d,relative,rope,rope_mixed,alibi2d,conv"
SEEDS = "seed=0,1,2,3,4"
DATA = {
    "mnist": ("MNIST", "model=vit_nano data=mnist patch=4 augment=digits trainer.max_epochs=2"),
    "cifar10": ("CIFAR-10", "model=vit_nano data=cifar10 patch=4 augment=standard trainer.max_epochs=3"),
}
HEAD = """# Positional schemes compared

Every scheme of `position=` under one recipe, with the same number of epochs and five seeds each. Training is short and
the model small (`vit_nano`, 0.2 million parameters, patches of 4 pixels), to fit a CPU: the results show what a scheme
contributes early in training, not after hundreds of epochs. Nothing was selected on these test accuracies.

Differences are relative to learned positions (`position=learned`), the usual choice in ViTs. They are paired by seed,
with simultaneous 95 % intervals (Student's t, Bonferroni); see [comparing.md](comparing.md). For the cost of each
scheme, timed step by step, see [variants.md](variants.md). `python benchmarks/studies/positions.py` runs the
sweeps and writes this page.
"""


def main() -> None:
    """Run the sweeps, compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--list", action="store_true", help="print the commands, and do nothing else")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10; downloaded if missing")
    parser.add_argument("arguments", nargs="*", metavar="NAME|KEY=VALUE", help=f"{' or '.join(DATA)}; overrides")
    options = parser.parse_args()
    names, overrides = split_arguments(parser, options.arguments, DATA, NEUTRAL_IN_SWEEPS)
    names = names or list(DATA)
    if options.list:
        print("\n".join(f"python train.py {' '.join(command(name))}" for name in names))
        return
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in names:
        folder = OUT / name
        if not options.table:
            places = [f"data.root={options.data_root}", f"paths.output_dir={folder.relative_to(ROOT)}"]
            arguments = [*command(name), *places, *with_remaining_time(overrides)]
            done = subprocess.run([sys.executable, "train.py", *arguments], cwd=ROOT)
            if done.returncode:  # nothing is concluded from an unfinished sweep
                raise SystemExit(done.returncode)
            results[name] = collect(name, folder)
            JSON.write_text(json.dumps({data: results[data] for data in DATA if data in results}, indent=1) + "\n")
    PAGE.write_text(page(results))


def command(name: str) -> list[str]:
    """Arguments of ``python train.py`` for a data set."""
    return ["-m", *DATA[name][1].split(), SCHEMES, SEEDS]


def collect(name: str, folder: Path) -> dict[str, Any]:
    """Table and findings of the finished sweep of a data set."""
    results = load_results([folder])
    compared = compare(results, metric="test/acc", baseline="learned")
    findings = compared.findings
    return {
        "command": " ".join(command(name)),
        "on": device_name(results.runs[0].facts),
        "table": without_speed(markdown(compared).splitlines()),
        "said": [*findings.sentences, *(comparison.sentences[0] for comparison in findings.comparisons)],
    }


def without_speed(table: list[str]) -> list[str]:
    """The table without its last column, images/s: runs were trained side by side, which distorts speed."""
    return [line.rpartition(" | ")[0] + " |" for line in table] if table[0].endswith(" images/s |") else table


def page(results: dict[str, dict[str, Any]]) -> str:
    """Text of docs/positions.md."""
    parts = [HEAD]
    for name, (title, _) in DATA.items():
        parts.append(f"\n## {title}\n\n")
        if name not in results:
            parts.append(f"Not yet measured: `python train.py {' '.join(command(name))}`.\n")
            continue
        result = results[name]
        parts.append(f"`python train.py {result['command']}`, on {result['on']}.\n\n")
        parts.append("\n".join([*result["table"], "", *(f"- {finding}" for finding in result["said"])]) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    main()
