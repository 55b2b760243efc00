"""Pictures are listed in order, from every kind of input, without being read."""

import re

import pytest

from vitrine.errors import DataError
from vitrine.inference.inputs import Pictures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in/b/2.PNG", "in/b/1.jpg", "in/a/deep/3.png", "in/0.png", "in/notes.txt", "in/.x.png", "in/.h/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path / "in"


def test_a_folder_is_listed_in_order_with_its_uppermost_folders_as_labels(folder):
    found = Pictures.of("in")
    assert list(found) == [("in/0.png", ""), ("in/a/deep/3.png", "a"), ("in/b/1.jpg", "b"), ("in/b/2.PNG", "b")]
    assert list(found) == list(found)
    assert (found.folders, found.count()) == (("a", "b"), 4)


def test_links_are_followed_but_not_in_circles(folder):
    (folder / "a" / "again").symlink_to(folder)
    (folder / "c").symlink_to(folder / "b")
    assert [path for path, label in Pictures.of("in") if label == "c"] == ["in/c/1.jpg", "in/c/2.PNG"]
    assert Pictures.of("in").count() == 6


def test_a_pattern_is_listed_in_order(folder):
    assert [path for path, _ in Pictures.of("in/**/*.png")] == ["in/0.png", "in/a/deep/3.png"]


def test_a_csv_file_gives_paths_and_labels_in_any_columns(folder):
    (folder / "list.csv").write_text("\ufefflabel,path\na,in/0.png\n,missing.png\n")
    found = Pictures.of("in/list.csv")
    assert list(found) == [("in/0.png", "a"), ("missing.png", "")]
    assert found.has_labels


def test_a_single_file_needs_no_ending_of_a_picture(folder):
    assert list(Pictures.of("in/notes.txt")) == [("in/notes.txt", "")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("out", "there is no picture or folder out"),
        ("ins", "did you mean in?"),
        ("in/*.gif", "no file matches in/"),
        ("empty", "empty has no pictures (.bmp"),
        ("files.csv", "files.csv has no column path; its first line is file,class"),
        ("none.csv", "none.csv has no rows"),
    ],
)
def test_what_names_no_picture_is_refused(folder, source, expected):
    (folder.parent / "empty").mkdir()
    (folder.parent / "files.csv").write_text("file,class\n")
    (folder.parent / "none.csv").write_text("path\n")
    with pytest.raises(DataError, match=re.escape(expected)):
        Pictures.of(source)
