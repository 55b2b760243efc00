"""The comparison that README.md shows: four positional schemes on digits, five seeds each, by the users' commands.

python benchmarks/report.py              # carries out what is left of the sweep (some ten minutes), then writes
python benchmarks/report.py --picture    # only writes: docs/images/report.png, and what compare.py says in README.md
"""

import argparse
import re
import subprocess
import sys

from running import ROOT, write_between

OUT = ROOT / "outputs" / "report"
SWEEP = "model=vit_nano position=learned,none,sincos2d,rope seed=0,1,2,3,4"
APART = "hydra/launcher=process launcher.workers=2 launcher.threads=1"
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main() -> None:
    """Sweep, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", action="store_true", help="train nothing")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    if not options.picture:
        words = [*SWEEP.split(), *APART.split(), f"paths.output_dir={OUT.relative_to(ROOT)}"]
        subprocess.run([sys.executable, "train.py", "-m", *words], cwd=ROOT, check=True)
    (sweep,) = OUT.glob("sweeps/*")
    page = OUT / "report.html"
    command = [sys.executable, "scripts/compare.py", str(sweep.relative_to(ROOT)), "--html", str(page)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    print(told)
    _draw(page, options.chromium)
    _write(told)


def _draw(page: "object", chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        tab = browser.new_page(viewport={"width": 1280, "height": 1640}, device_scale_factor=1)
        tab.goto(f"file://{page}")
        tab.wait_for_timeout(3000)  # until the plots are drawn
        tab.screenshot(path=ROOT / "docs" / "images" / "report.png")
        browser.close()


def _write(told: str) -> None:
    """Put the commands and what came out between two marks in README.md."""
    said = [line.strip() for line in told.splitlines() if re.search(r" (better|worse|no difference|mean) ", line)]
    lines = [
        "```sh",
        f"python train.py -m {SWEEP} {APART}",
        "python scripts/compare.py outputs/sweeps/NAME --html report.html",
    ]
    lines += ["```", "", *(f"> {line}" for line in said)]
    lines += ["", "![The report of this sweep: findings, table, every run](docs/images/report.png)", ""]
    write_between(ROOT / "README.md", "report", lines)


if __name__ == "__main__":
    main()
