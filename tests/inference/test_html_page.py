"""What is written over: pages of any version of vitrine's, and nothing else."""

import pytest
from helpers.running import ROOT

from vitrine.errors import RunError
from vitrine.inference.html_page import check_page

TEMPLATES = [path for path in (ROOT / "src").rglob("*.j2") if path.read_text().startswith("<!doctype html>")]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_page_may_be_written_again(template, tmp_path):
    page = tmp_path / "page.html"
    page.write_bytes(template.read_bytes())
    check_page(page)


def test_any_other_file_is_kept(tmp_path):
    page = tmp_path / "page.HTM"
    check_page(page)
    page.touch()
    check_page(page)
    page.write_text("<!doctype html>\n<p>mine")
    with pytest.raises(RunError, match="it exists and is not a page of vitrine's; choose another file"):
        check_page(page)
