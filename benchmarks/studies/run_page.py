"""The page of a run: its picture in docs/run_page.md. Trains model=vit_nano on digits, unless it is there.

python benchmarks/studies/run_page.py
"""

import argparse
import subprocess
import sys
from pathlib import Path

from seeds import ROOT

OUT = ROOT / "outputs" / "run_page"
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main() -> None:
    """Train, write the page, take its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    if not list(OUT.glob("runs/*/metrics.json")):
        _run("train.py", "model=vit_nano", "pool=cls", "position=learned", f"paths.output_dir={OUT.relative_to(ROOT)}")
    run = next(OUT.glob("runs/*/metrics.json")).parent
    _run("scripts/report.py", str(run.relative_to(ROOT)))
    _picture(run / "report.html", options.chromium)


def _picture(page: Path, chromium: str) -> None:
    """Confusion, attention of a patch, and rollout, one above the other."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    parts = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        tab = browser.new_page(viewport={"width": 1100, "height": 900})
        tab.goto(page.as_uri())
        tab.locator("#picture").focus()
        for key in ("ArrowUp", "ArrowLeft"):
            tab.keyboard.press(key)
        for selector in ("#confusion", "#explorer", "#rollout"):
            file = page.parent / "part.png"
            tab.locator(selector).screenshot(path=file)
            parts.append(Image.open(file).convert("RGB"))
            file.unlink()
        browser.close()
    gap = 24
    size = (max(part.width for part in parts) + 2 * gap, sum(part.height + gap for part in parts) + gap)
    whole, top = Image.new("RGB", size, "white"), gap
    for part in parts:
        whole.paste(part, (gap, top))
        top += part.height + gap
    whole.save(ROOT / "docs" / "images" / "run_page.png", optimize=True)


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
