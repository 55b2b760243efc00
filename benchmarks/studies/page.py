"""The page to try a model: its picture in README, and its size and speed in docs/page.md. Takes about two minutes.

python benchmarks/studies/page.py             # trains model=vit_nano on digits for the picture, unless it is there
python benchmarks/studies/page.py --picture   # measures nothing
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from seeds import ROOT, markdown_table, write_between

from vitrine.text import file_size

OUT = ROOT / "outputs" / "page"
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
MODELS = [
    ("digits, 8 x 8, patches of 2", ["model=vit_nano"]),
    ("digits at 28 x 28, patches of 4", ["model=vit_nano", "data.image_size=28", "patch=4"]),
    ("digits at 28 x 28, patches of 4", ["model=vit_tiny", "data.image_size=28", "patch=4"]),
]
THREE = [(90, 80), (130, 50), (180, 70), (180, 110), (135, 135), (190, 160), (185, 215), (130, 235), (85, 205)]


def main() -> None:
    """Train, write pages, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", action="store_true", help="measure nothing")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    digits = _run_of("digits", "model=vit_nano")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=CHROMIUM)
        _screenshot(browser, _page(digits))
        if not options.picture:
            rows = [_measured(browser, name, overrides) for name, overrides in MODELS]
            columns = ["model", "images", "page", "with float16", "an answer"]
            machine = f"Chromium {browser.version}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
            note = f"Median of 30 answers, from a click to the shown result. {machine}."
            write_between(ROOT / "docs" / "page.md", "page", [*markdown_table(columns, rows), "", note])
        browser.close()


def _measured(browser: Any, images: str, overrides: list[str]) -> list[str]:
    """The row of a model: time does not depend on its weights, so it is trained for two batches."""
    run = _run_of("-".join(overrides), *overrides, "debug=quick")
    sizes = [file_size(_page(run, "--dtype", dtype).stat().st_size) for dtype in ("float16", "float32")]
    tab = _opened(browser, run / "page.html")
    times = []
    for _ in range(3):
        for button in tab.locator("#samples button").all():
            button.click()
            _wait(tab)
            times.append(int(re.search(r"Computed in (\d+) ms", tab.locator("#status").inner_text())[1]))
    tab.close()
    return [overrides[0].removeprefix("model="), images, *reversed(sizes), f"{median(times):.0f} ms"]


def _screenshot(browser: Any, page: Path) -> None:
    tab = _opened(browser, page, viewport={"width": 1280, "height": 900})
    box = tab.locator("#pad").bounding_box()
    places = [(box["x"] + x, box["y"] + y) for x, y in THREE]
    tab.mouse.move(*places[0])
    tab.mouse.down()
    for place in places[1:]:
        tab.mouse.move(*place, steps=12)
    tab.mouse.up()
    _wait(tab)
    tab.screenshot(path=ROOT / "docs" / "images" / "page.png", full_page=True)
    tab.close()


def _opened(browser: Any, page: Path, **options: Any) -> Any:
    tab = browser.new_page(**options)
    tab.goto(page.as_uri())
    _wait(tab)
    return tab


def _wait(tab: Any) -> None:
    """Wait until an image is answered. Polls, since the page allows no code in strings."""
    tab.wait_for_timeout(20)
    while not tab.evaluate("!busy && !waiting && Boolean(answer)"):
        tab.wait_for_timeout(5)


def _run_of(name: str, *overrides: str) -> Path:
    """The run in a folder of this name; it is trained if there is none."""
    folder = OUT / name
    if not list(folder.glob("runs/*/metrics.json")):
        _run("train.py", *overrides, f"paths.output_dir={folder}")
    return next(folder.glob("runs/*/metrics.json")).parent


def _page(run: Path, *options: str) -> Path:
    _run("scripts/page.py", str(run), *options)
    return run / "page.html"


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
