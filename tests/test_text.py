"""Text for people: plurals, lists, sizes, durations, hints."""

from pathlib import Path

import pytest
from rich.table import Table

from vitrine.text import (
    did_you_mean,
    file_size,
    listed,
    nearest,
    one_line,
    plural,
    print_table,
    short_number,
    similar_path_hint,
)


def test_a_line_takes_linear_time_of_many_spaces():
    assert one_line(" a \t\r\n \n b  c ") == "a b  c"
    assert len(one_line("a" + 300_000 * " " + "b")) == 300_002  # minutes, in quadratic time


@pytest.mark.parametrize(
    ("count", "noun", "several", "text"),
    [
        (1, "run", "", "1 run"),
        (0, "run", "", "0 runs"),
        (12_000, "run", "", "12,000 runs"),
        (1, "class", "classes", "1 class"),
        (2, "class", "classes", "2 classes"),
    ],
)
def test_a_count_comes_with_the_right_form_of_its_noun(count, noun, several, text):
    assert plural(count, noun, several) == text


@pytest.mark.parametrize(
    ("items", "most", "text"),
    [
        ([], None, ""),
        (["a"], None, "a"),
        (["a", "b"], None, "a and b"),
        ([1, 2, 3], None, "1, 2 and 3"),
        (["a", "b", "c"], 3, "a, b and c"),
        (["a", "b", "c"], 2, "a, b and 1 more"),
        (["a", "b", "c"], 1, "a and 2 more"),
    ],
)
def test_items_are_listed_as_in_a_sentence(items, most, text):
    assert listed(items, most) == text


def test_items_that_hold_commas_are_listed_with_another_separator():
    assert listed(["a=1, b=2", "a=2, b=2", "a=3, b=2"], separator="; ") == "a=1, b=2; a=2, b=2; a=3, b=2"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_700, "1 MB"),
        (1_230_000, "1.23 MB"),
        (4.5e9, "4.5 GB"),
        (2e12, "2 TB"),
    ],
)
def test_a_size_is_in_decimal_units_to_three_digits(count, text):
    assert file_size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (999.4, "999"), (999.9, "1 k"), (999_499, "999 k"), (999_999, "1 M"), (2e9, "2 G")],
)
def test_a_number_has_three_digits_and_a_letter(value, text):
    assert short_number(value) == text


def test_the_nearest_name_is_empty_if_none_is_similar():
    assert nearest("sincos", ["none", "sincos2d"]) == "sincos2d"
    assert nearest("32", ["tf32", "32-true", "16-mixed"]) == "32-true"
    assert nearest("s", ["none", "sincos2d"]) == nearest("xyz", ["none", "sincos2d"]) == ""


def test_a_hint_is_empty_without_a_match():
    assert did_you_mean(nearest("ropee", ["rope", "none"])) == "; did you mean rope?"
    assert did_you_mean(nearest("xyz", ["rope", "none"])) == did_you_mean(None) == ""


def test_a_hint_at_a_similar_path_is_spelled_as_the_path_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets.csv").touch()
    assert similar_path_hint(Path("pet.csv")) == "; did you mean pets.csv?"
    assert similar_path_hint(tmp_path / "pet.csv", Path.is_dir) == ""
    assert similar_path_hint(Path("missing/pet.csv")) == ""


def test_a_table_keeps_long_paths_whole_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    path = "outputs/sweeps/a-long-name/" + "-".join(["position-learned"] * 8)
    table = Table("path", "status", box=None)
    table.add_row(path, "finished")
    print_table(table)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "outputs" in line]
    assert path in line
    assert line.rstrip().endswith("finished")
