"""The example in docs/comparing.md: four positional schemes on digits, five seeds each, by the users' own commands.

python benchmarks/studies/report.py             # runs what is left of the sweep (about ten minutes), then writes
python benchmarks/studies/report.py --picture   # only writes docs/images/report.png and the findings
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from seeds import ROOT, write_between

OUT = ROOT / "outputs" / "report"
SWEEP = "model=vit_nano position=learned,none,sincos2d,rope seed=0,1,2,3,4"
LAUNCHER = "hydra/launcher=process launcher.workers=2 launcher.threads=1"
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main() -> None:
    """Sweep, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", action="store_true", help="train nothing")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    if not options.picture:
        arguments = [*SWEEP.split(), *LAUNCHER.split(), f"paths.output_dir={OUT.relative_to(ROOT)}"]
        subprocess.run([sys.executable, "train.py", "-m", *arguments], cwd=ROOT, check=True)
    (sweep,) = OUT.glob("sweeps/*")
    page = OUT / "report.html"
    command = [sys.executable, "scripts/compare.py", str(sweep.relative_to(ROOT)), "--html", str(page)]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    print(printed)
    _screenshot(page, options.chromium)
    _write_findings(printed)


def _screenshot(page: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        tab = browser.new_page(viewport={"width": 1280, "height": 1640}, device_scale_factor=1)
        tab.goto(f"file://{page}")
        tab.wait_for_timeout(3000)  # until the plots are drawn
        tab.screenshot(path=ROOT / "docs" / "images" / "report.png")
        browser.close()


def _write_findings(printed: str) -> None:
    """Write the commands and the findings between two markers in docs/comparing.md."""
    finding = re.compile(r" (better|worse|significant|mean) ")
    findings = [line.strip() for line in printed.splitlines() if finding.search(line)]
    lines = [
        "```sh",
        f"python train.py -m {SWEEP} {LAUNCHER}",
        "python scripts/compare.py outputs/sweeps/NAME --html report.html",
    ]
    lines += ["```", "", *(f"> {line}" for line in findings)]
    lines += ["", "![The report of this sweep: findings, table, every run](images/report.png)", ""]
    write_between(ROOT / "docs" / "comparing.md", "report", lines)


if __name__ == "__main__":
    main()
