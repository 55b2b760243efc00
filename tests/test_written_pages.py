"""How benchmarks put what they measured into a page that people write the rest of."""

import sys

import pytest
from helpers.running import ROOT

PAGE = "# Page\n\n<!-- speed: written by benchmarks/timing.py -->\nold\n\n\\1 old\n<!-- /speed -->\n\nSpeed.\n{other}"
OTHER = "<!-- speeds: written by another -->\nkept\n<!-- /speeds -->\n"


@pytest.fixture
def write_between(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "running")  # the tests' own has the name of one there
    from helpers.running import write_between

    yield write_between
    del sys.modules["running"]


def test_only_what_stands_between_the_marks_is_written(write_between, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(other=OTHER))
    for _ in range(2):  # the same again changes nothing
        write_between(page, "speed", ["| a \\1 |", "", "<!-- new -->"])
        expected = PAGE.replace("old\n\n\\1 old", "| a \\1 |\n\n<!-- new -->").format(other=OTHER)
        assert page.read_text() == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [("# Page\n", 0), (PAGE.replace("<!-- /speed -->", ""), 0), (PAGE + PAGE, 2)],
    ids=["none", "unclosed", "twice"],
)
def test_a_page_without_marks_or_with_several_stays_as_it_is(write_between, tmp_path, text, count):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=f"page.md has {count} places between marks of speed; there must be one"):
        write_between(page, "speed", ["new"])
    assert page.read_text() == text
