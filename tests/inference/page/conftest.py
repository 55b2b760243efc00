"""The page's scripts in Chromium."""

from pathlib import Path

import pytest

import vitrine.inference.page

SCRIPTS = Path(vitrine.inference.page.__file__).parent


@pytest.fixture(scope="session")
def scripted(browser):
    """Opens an empty page with some of the scripts, changed by replacements: ``scripted("engine.js", (old, new))``."""

    def load(*names: str, replacing: tuple[str, str] | None = None):
        text = "\n".join((SCRIPTS / name).read_text() for name in names)
        if replacing is not None:
            assert text.count(replacing[0]) == 1, replacing[0]
            text = text.replace(*replacing)
        page = browser.new_page()
        page.add_script_tag(content=text)
        return page

    return load
