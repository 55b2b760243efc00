"""Image files listed in a CSV file, and one line for each mistake in it."""

import pytest

from vitrine.data.image_csv import read_csv
from vitrine.data.image_folder import scan_folder
from vitrine.errors import DataError

ROWS = """\
path,label,split,taken by
im/a.png,cat,train,me
im/b.png,dog,train,you
im/c.png,dog,test,me
"""


@pytest.fixture
def table(tmp_path):
    """Write a CSV file with these rows, beside three image files that are not opened."""
    (tmp_path / "im").mkdir()
    for name in "abc":
        (tmp_path / "im" / f"{name}.png").touch()

    def write(rows=ROWS, encoding="utf-8"):
        path = tmp_path / "pets.csv"
        path.write_text(rows, encoding=encoding)
        return path

    return write


def test_rows_are_read_in_order_with_paths_from_the_files_folder(table, tmp_path):
    found = read_csv(table())
    assert found.classes == ["cat", "dog"]
    assert found.splits == {
        "train": [(tmp_path / "im/a.png", 0), (tmp_path / "im/b.png", 1)],
        "test": [(tmp_path / "im/c.png", 1)],
    }
    assert read_csv(str(table(encoding="utf-8-sig"))) == found, "as Excel writes it"


def test_a_path_or_label_in_another_unicode_form_is_the_same(table, tmp_path):
    composed, decomposed = "\u00fc", "u\u0308"
    (tmp_path / f"{composed}.png").touch()
    (tmp_path / f"{decomposed}b.png").touch()
    rows = [f"{decomposed}.png,{composed}", f"{composed}b.png,b", f"im/a.png,{decomposed}"]
    found = read_csv(table("\n".join(["path,label", *rows])))
    assert found.classes == ["b", composed]
    files = [tmp_path / f"{composed}.png", tmp_path / f"{decomposed}b.png", tmp_path / "im/a.png"]
    assert found.splits == {"train": list(zip(files, [1, 0, 1], strict=True))}
    with pytest.raises(DataError, match=f"lists {composed}.png twice"):
        read_csv(table("\n".join(["path,label", *rows, f"{composed}.png,b"])))


def test_without_a_column_split_all_images_are_for_training(table, tmp_path):
    rows = [",".join(line.split(",")[:2]) for line in ROWS.splitlines()]
    found = read_csv(table("\n".join([*rows[:3], f"{tmp_path}/im/c.png,dog"])))
    assert {split: len(images) for split, images in found.splits.items()} == {"train": 3}


def test_a_file_listed_by_its_absolute_path_and_from_the_csv_files_folder_is_listed_twice(table, tmp_path, monkeypatch):
    table(f"path,label\nim/a.png,cat\nim/b.png,dog\n{tmp_path}/im/a.png,cat\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"lists .*/im/a\.png twice, in lines 2 and 4"):
        read_csv("pets.csv")


def test_two_files_whose_paths_differ_by_a_link_and_back_are_not_one(table, tmp_path):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "far" / "a.png").touch()
    (tmp_path / "a.png").touch()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    rows = "path,label\na.png,cat\nlink/../a.png,dog\n"
    assert len(read_csv(table(rows)).splits["train"]) == 2
    with pytest.raises(DataError, match="twice, in lines 3 and 4"):
        read_csv(table(f"{rows}far/a.png,dog\n"))


def test_a_path_upwards_starts_in_the_folder_behind_a_link(table, tmp_path):
    (tmp_path / "lists" / "deep").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "lists" / "deep")
    table(ROWS.replace("im/", "../../im/")).rename(tmp_path / "lists" / "deep" / "pets.csv")
    assert read_csv(tmp_path / "linked" / "pets.csv").splits["test"] == [(tmp_path / "linked/../../im/c.png", 1)]


def test_each_target_is_a_column_with_classes_of_its_own(table, tmp_path):
    found = read_csv(table(), targets=["taken by", "label"])
    assert found.targets == {"taken by": ["me", "you"], "label": ["cat", "dog"]}
    assert found.classes == ["me", "you"]
    assert found.splits["train"] == [(tmp_path / "im/a.png", (0, 0)), (tmp_path / "im/b.png", (1, 1))]
    assert read_csv(table(), targets=["taken by"]).splits["test"] == [(tmp_path / "im/c.png", 0)]


@pytest.mark.parametrize(
    ("rows", "targets", "problem"),
    [
        (ROWS, ["label", "taken"], "no column taken; its first line is .*; rename taken by to taken"),
        (ROWS.replace("you", "me"), ["label", "taken by"], "at least two classes in column taken by; found only me"),
        (ROWS.replace("test,me", "test,yo"), ["taken by"], "test has labels in column taken by that train lacks: yo"),
        (ROWS.replace("train,you", "train,"), ["label", "taken by"], "line 3: there is no taken by"),
    ],
)
def test_a_mistake_in_a_column_of_a_target_is_named(table, rows, targets, problem):
    with pytest.raises(DataError, match=problem):
        read_csv(table(rows), targets=targets)


def test_labels_that_are_numbers_are_sorted_as_numbers(table):
    assert read_csv(table("path,label\nim/a.png,10\nim/b.png,9\n")).classes == ["9", "10"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("path,label,", "file,lable,"),
            "no column path or label; .*file,lable,split,taken by; rename lable to label?",
        ),
        ((",", ";"), "no column path or label; .*path;label;split;taken by; separate columns by a comma, not by ';'"),
        ((ROWS, ""), "its first line is empty"),
        (
            ("im/b.png", "im/bb.png"),
            "line 3: there is no file .*im/bb.png; relative paths .*; did you mean .*im/b.png?",
        ),
        (("im/b.png", r"im\\b.png"), "line 3: there is no file .*; write / between folders"),
        (("im/", "pictures/"), "line 2: there is no file .*pictures/a.png and 2 more files; relative paths start at"),
        (("c.png,dog", "c.png,dogg"), "pets.csv: test has labels that train lacks: dogg; did you mean dog?"),
        (("im/c.png", "./im/a.png"), r"lists ./im/a.png in train \(line 2\) and in test \(line 4\): leakage"),
        (("im/b.png", "im/a.png"), "lists im/a.png twice, in lines 2 and 3; keep one of them"),
        (("dog,test", "dog,tset"), "line 4: split 'tset' is not one of train, val, test; did you mean test?"),
        (("dog,test", ",test"), "line 4: there is no label"),
        (("cat", "dog"), "needs training images of at least two classes; found only dog"),
        (("train", "val"), "needs training images of at least two classes; found none"),
        (("dog,test,me", "dog,test,me,a lake"), "line 4: there are more cells than columns; quote cells that hold com"),
        (("b.png,dog,train", 'b.png,"dog,train'), "line 4: label continues past the line's end; is a quote missing?"),
        (("im/b.png", '"im/b.png'), "line 4: path continues past the line's end; is a quote missing?"),
        (("label,split", "label,Split"), "has a column 'Split'; rename it to 'split', or to something else"),
        (("label,split", "label, split"), "has a column ' split'; rename it to 'split', or to something else"),
        (("taken by", "label"), "pets.csv has more than one column label; rename or remove the others"),
        (("taken by", "path"), "pets.csv has more than one column path; rename or remove the others"),
        (("im/b.png", f"{'é' * 300}.png"), "line 3: there is no file .*é.png; relative paths start at the folder of"),
        (("taken by", "split"), "pets.csv has more than one column split; rename or remove the others"),
    ],
)
def test_a_mistake_is_one_line(table, change, problem):
    with pytest.raises(DataError, match=problem.replace("?", r"\?")) as error:
        read_csv(table(ROWS.replace(*change)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "encoding", "number"),
    [(("dog", "grün"), "latin-1", 3), (("c.png", "ä.png"), "latin-1", 4), ((), "utf-16", 1), ((), "utf-16-le", 1)],
)
def test_a_line_that_is_not_utf8_is_named(table, change, encoding, number):
    with pytest.raises(DataError, match=rf"pets\.csv, line {number}, is not UTF-8; save the file as UTF-8$"):
        read_csv(table(ROWS.replace(*change) if change else ROWS, encoding))


def test_a_missing_csv_file_is_named_with_the_nearest(table, tmp_path):
    table()
    with pytest.raises(DataError, match=r"there is no file .*/pet\.csv; did you mean .*/pets\.csv\?"):
        read_csv(tmp_path / "pet.csv")


def test_a_folder_is_no_csv_file_and_a_csv_file_no_folder(table, tmp_path):
    with pytest.raises(DataError, match=r"is a folder; did you mean data=imagefolder\?$"):
        read_csv(tmp_path)
    with pytest.raises(DataError, match=r"pets\.csv is not a folder; did you mean data=csv\?$"):
        scan_folder(table())


def test_several_labels_are_separated_by_a_bar(table):
    rows = "path,label\nim/a.png,dog | cat|dog\nim/b.png,cat\nim/c.png,|\n"
    found = read_csv(table(rows), multi_label=True)
    assert found.classes == ["cat", "dog"]
    assert [labels for _, labels in found.splits["train"]] == [(0, 1), (0,), ()]
    assert read_csv(table(rows)).classes == ["cat", "dog | cat|dog", "|"], "one label each, unless it is asked for"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("dog,test", ",test"), "line 4: there is no label; for an image with none, |"),
        (("dog,test", "cat|dgo,test"), "test has labels that train lacks: dgo; did you mean dog?"),
        (("dog,train", "cat|,train"), "needs training images of at least two classes; found only cat"),
    ],
)
def test_a_mistake_in_several_labels_is_one_line(table, change, problem):
    with pytest.raises(DataError) as error:
        read_csv(table(ROWS.replace(*change)), multi_label=True)
    assert problem in str(error.value)
