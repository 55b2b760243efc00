"""Pictures are listed in order, from every kind of input, without being read."""

import os
import re
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from vitrine.data.datasets import DATASETS
from vitrine.errors import DataError
from vitrine.inference.inputs import Listed, Pictures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in/b/2.PNG", "in/b/1.jpg", "in/a/deep/3.png", "in/0.png", "in/notes.txt", "in/.x.png", "in/.h/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path / "in"


def test_a_folder_is_listed_in_order_with_its_uppermost_folders_as_labels(folder):
    found = Pictures.of("in")
    expected = [("in/0.png",), ("in/a/deep/3.png", "a"), ("in/b/1.jpg", "b"), ("in/b/2.PNG", "b")]
    assert list(found) == [Listed(*one) for one in expected]
    assert list(found) == list(found)
    assert (found.folders, found.count()) == (("a", "b"), 4)


def test_links_are_followed_but_not_in_circles(folder):
    (folder / "a" / "again").symlink_to(folder)
    (folder / "c").symlink_to(folder / "b")
    assert [one.path for one in Pictures.of("in") if one.label == "c"] == ["in/c/1.jpg", "in/c/2.PNG"]
    (folder / "to_itself.png").symlink_to("to_itself.png")
    assert Pictures.of("in").count() == 7


def test_folders_linked_to_each_other_are_read_once_for_each_class(folder):
    """Following every path through 12 of them would take hours."""
    for name in "abcdefghijkl":
        (folder / name / "deep").mkdir(parents=True, exist_ok=True)
        (folder / name / "deep" / f"{name}.png").touch()
    for name in "abcdefghijkl":
        for other in set("abcdefghijkl") - {name}:
            (folder / name / "deep" / other).symlink_to(folder / other / "deep")
    found = [Path(one.path).name for one in Pictures.of("in") if one.label == "c"]
    assert sorted(found) == ["3.png", *(f"{name}.png" for name in "abcdefghijkl")]


def test_a_pattern_is_listed_in_order(folder):
    assert [one.path for one in Pictures.of("in/**/*.png")] == ["in/0.png", "in/a/deep/3.png"]


def test_a_csv_file_gives_paths_and_labels_in_any_columns(folder):
    (folder / "list.csv").write_text("\ufefflabel,path,split,size\na,in/0.png,test,big\n,missing.png,,\n")
    found = Pictures.of("in/list.csv")
    assert list(found) == [Listed("in/0.png", "a", "test"), Listed("missing.png")]
    assert [one.label for one in found.labelled_by("size")] == ["big", ""]
    assert [found.labelled_by(name).has_labels for name in ("label", "size", "other")] == [True, True, False]


def test_a_csv_files_paths_start_at_its_folder_and_blanks_around_them_are_dropped(folder):
    (folder.parent / "0.png").touch()
    (folder / "list.csv").write_text(f"path,label\n 0.png , a \nin/b/1.jpg,b\n{folder}/0.png,\n,c\n")
    expected = [("in/0.png", "a"), ("in/b/1.jpg", "b"), (f"{folder}/0.png",)]
    assert list(Pictures.of("in/list.csv")) == [Listed(*one) for one in expected]


def test_names_in_another_unicode_form_are_the_same(folder):
    composed, decomposed = "\u00fc", "u\u0308"
    (folder / "a").rename(folder / decomposed)
    assert Pictures.of("in").folders == ("b", composed)
    assert Listed("in/u\u0308/deep/3.png", composed) in list(Pictures.of("in"))
    (folder / "list.csv").write_text(f"path,label\n{composed}/deep/3.png,{decomposed}\n")
    assert list(Pictures.of("in/list.csv")) == [Listed(f"in/{decomposed}/deep/3.png", composed)]


def test_names_on_standard_input_need_not_be_text(monkeypatch):
    lines = TextIOWrapper(BytesIO(b"a\xff.png\n\nb.png"), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", lines)
    assert list(Pictures.of("-")) == [Listed("a\udcff.png"), Listed("b.png")]


def test_a_list_on_standard_input_may_be_written_on_windows(monkeypatch):
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO("\ufeffa.png\r\n\r\nb.png\r\n".encode()), newline="\n"))
    assert list(Pictures.of("-")) == [Listed("a.png"), Listed("b.png")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"\n \n", "input=-: no picture was named"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "holds zero bytes; name one picture a line"),
    ],
)
def test_what_is_no_list_on_standard_input_is_refused(monkeypatch, given, expected):
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(given)))
    with pytest.raises(DataError, match=expected):
        list(Pictures.of("-"))


@pytest.mark.parametrize(
    ("closed", "given", "named"),
    [("in", "in", "in"), ("in/b", "in", "in/b"), ("in/list.csv", "in/list.csv", "in/list.csv"), ("in", "in/1", "in/1")],
)
def test_what_may_not_be_read_is_named_in_one_line(folder, closed, given, named):
    (folder / "list.csv").write_text("path\n0.png\n")
    folder.parent.chmod(0o755)
    before, user = Path(closed).stat().st_mode, os.geteuid()
    Path(closed).chmod(0)
    os.seteuid(user or 65534)  # to an administrator nothing is closed
    try:
        with pytest.raises(DataError, match=f"cannot read {named}: Permission denied"):
            list(Pictures.of(given))
    finally:
        os.seteuid(user)
        Path(closed).chmod(before)


def test_a_pattern_lists_what_may_not_be_looked_at(folder):
    before, user = Path("in/b").stat().st_mode, os.geteuid()
    folder.parent.chmod(0o755)
    Path("in/b").chmod(0o444)
    os.seteuid(user or 65534)  # to an administrator nothing is closed
    try:
        assert list(Pictures.of("in/*/*.jpg")) == [Listed("in/b/1.jpg")]
    finally:
        os.seteuid(user)
        Path("in/b").chmod(before)


@pytest.mark.parametrize("data", ["csv", "imagefolder"])
def test_labels_have_the_names_of_classes_that_training_gives_them(data, compose, tmp_path):
    """A name has a mark that reorders text; that of a folder may be in Latin-1."""
    names = ["\u200ecat", "café" if data == "csv" else os.fsdecode(b"caf\xe9")]
    table = "path,label\n"
    for name in names:
        path = tmp_path / "train" / name / "1.png"
        path.parent.mkdir(parents=True)
        path.touch()
        table += f"{path},{name}\n"
    (tmp_path / "list.csv").write_text(table, "utf-8", "surrogateescape")
    root, source = (tmp_path / "list.csv",) * 2 if data == "csv" else (tmp_path, tmp_path / "train")
    classes = DATASETS[data](compose(f"data={data}", f"data.root={root}").data).classes
    found = Pictures.of(str(source))
    shown = [r"\u200ecat", "café" if data == "csv" else r"caf\xe9"]
    assert sorted(one.label for one in found) == sorted(classes) == shown
    assert set(found.folders) == (set() if data == "csv" else set(classes))


def test_a_single_file_needs_no_ending_of_a_picture(folder):
    assert list(Pictures.of("in/notes.txt")) == [Listed("in/notes.txt")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("out", "there is no picture or folder out"),
        ("ins", "did you mean in?"),
        ("https://a.b/c.png?d", "https://a.b/c.png?d is a URL; pictures are read from files only"),
        ("in/*.gif", "no file matches in/"),
        ("empty", "empty has no pictures (.bmp"),
        ("phone", "; left out: 1 file of another type (.heic): save them as .jpg or .png"),
        ("files.csv", "files.csv has no column path; its first line is file,class"),
        ("none.csv", "none.csv has no rows"),
        ("twice.csv", "twice.csv has more than one column label; rename or remove the others"),
        ("latin.csv", "latin.csv, line 2, is not UTF-8; save the file as UTF-8"),
        ("long.csv", "cannot read long.csv: field larger than field limit"),
    ],
)
def test_what_names_no_picture_is_refused(folder, source, expected):
    (folder.parent / "empty").mkdir()
    (folder.parent / "phone").mkdir()
    (folder.parent / "phone" / "1.heic").touch()
    (folder.parent / "files.csv").write_text("file,class\n")
    (folder.parent / "none.csv").write_text("path\n")
    (folder.parent / "twice.csv").write_text("path,label,label\na.png,cat,7\n")
    (folder.parent / "latin.csv").write_text("path\nä.png\n", "latin-1")
    (folder.parent / "long.csv").write_text("path" * 50_000)
    with pytest.raises(DataError, match=re.escape(expected)):
        Pictures.of(source)
