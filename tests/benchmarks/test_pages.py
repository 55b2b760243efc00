"""benchmarks/pages.py: tables, and the generated part of a page that people write the rest of."""

import pytest

PAGE = "# Page\n\n<!-- speed: written by measure.py -->\nold\n\n\\1 old\n<!-- /speed -->\n\nSpeed.\n{other}"
OTHER = "<!-- speeds: written by another -->\nkept\n<!-- /speeds -->\n"


@pytest.fixture
def write_between(study):
    return study("seeds").write_between


def test_only_the_part_between_the_markers_is_replaced(write_between, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(other=OTHER))
    for _ in range(2):  # writing the same again changes nothing
        write_between(page, "speed", ["| a \\1 |", "", "<!-- new -->"])
        expected = PAGE.replace("old\n\n\\1 old", "| a \\1 |\n\n<!-- new -->").format(other=OTHER)
        assert page.read_text() == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [("# Page\n", 0), (PAGE.replace("<!-- /speed -->", ""), 0), (PAGE + PAGE, 2)],
    ids=["none", "unclosed", "twice"],
)
def test_a_page_without_markers_or_with_several_stays_unchanged(write_between, tmp_path, text, count):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=f"page.md has {count} pairs of markers named speed; exactly one is expected"):
        write_between(page, "speed", ["new"])
    assert page.read_text() == text
