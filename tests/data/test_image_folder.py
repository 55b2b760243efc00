"""The scan of an image folder, and the messages for folders that are not one."""

import errno
import os
import re
from pathlib import Path

import pytest
from helpers.running import write_image_folder

from vitrine.data.image_folder import scan_folder
from vitrine.data.own_files import count_classes
from vitrine.errors import DataError


@pytest.fixture
def tree(tmp_path):
    """Create a folder with empty files at the given paths: the scan reads names only."""

    def make(*paths, name="flowers"):
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if path.endswith("/"):
                (root / path).mkdir()
            else:
                (root / path).touch()
        return root

    return make


def refusal(root):
    with pytest.raises(DataError) as error:
        scan_folder(root)
    return str(error.value)


def test_images_are_listed_with_the_index_of_their_class(tree):
    root = tree("train/rose/b.png", "train/rose/a.jpg", "train/aster/deep/er/c.PNG", "test/rose/d.webp")
    folder = scan_folder(root)
    train, test = root / "train", root / "test"
    assert folder.root == root
    assert folder.classes == ["aster", "rose"]
    assert folder.splits == {
        "train": [(train / "aster/deep/er/c.PNG", 0), (train / "rose/a.jpg", 1), (train / "rose/b.png", 1)],
        "test": [(test / "rose/d.webp", 1)],
    }
    assert scan_folder(str(root)) == folder


def test_other_and_hidden_files_are_ignored(tree):
    shown, others = ["train/rose/a.png", "train/aster/b.png"], ["train/rose/notes.txt", "train/rose/._a.png"]
    root = tree(*shown, *others, "train/.git/c.png", "train/rose/.ipynb_checkpoints/a-checkpoint.png")
    folder = scan_folder(root)
    assert folder.classes == ["aster", "rose"]
    assert [path.name for path, _ in folder.splits["train"]] == ["b.png", "a.png"]


def test_links_are_followed_but_not_in_circles(tree, tmp_path):
    root = tree("train/cat/1.png", "train/dog/1.png")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "2.png").touch()
    (elsewhere / "back").symlink_to(root / "train" / "cat")
    (root / "train" / "cat" / "more").symlink_to(elsewhere)
    (root / "train" / "cat" / "all").symlink_to(root / "train")
    (root / "train" / "cat" / "broken.png").symlink_to(tmp_path / "nothing")
    (root / "train" / "cat" / "to_itself.png").symlink_to("to_itself.png")
    files = scan_folder(root)
    assert [path.relative_to(root / "train") for path, label in files.splits["train"] if label == 0] == [
        Path("cat/1.png"),
        Path("cat/more/2.png"),
    ]


def test_a_class_that_cannot_be_read_is_named(tree, monkeypatch):
    root, scandir = tree("train/cat/1.png", "train/dog/1.png"), os.scandir

    def without_dogs(folder):
        if Path(folder).name == "dog":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", without_dogs)  # permissions do not stop root
    assert refusal(root) == f"cannot read {root}/train/dog: Permission denied"


def test_validation_and_test_may_lack_a_class(tree):
    root = tree("train/aster/a.png", "train/rose/a.png", "val/rose/b.png", "test/aster/c.png")
    splits = scan_folder(root).splits
    assert [label for _, label in splits["val"]] == [1]
    assert [label for _, label in splits["test"]] == [0]


def test_names_in_two_unicode_forms_are_one_class_and_sorted_alike(tree):
    classes, composed, decomposed = ["Zoo", "\u00c4hre"], "\u00c4", "A\u0308"
    roots = {
        form: tree(*(f"{split}/{form}hre/{name}" for split in ("train", "test") for name in ("Z.png", f"{form}.png")),
                   "train/Zoo/1.png", name=f"form {len(form)}")
        for form in (composed, decomposed)
    }  # fmt: skip
    for form, root in roots.items():
        folder = scan_folder(root)
        assert folder.classes == classes
        assert folder.splits["test"] == [(root / f"test/{form}hre" / name, 1) for name in ("Z.png", f"{form}.png")]
    mixed = roots[composed]
    (mixed / "test" / f"{composed}hre").rename(mixed / "test" / f"{decomposed}hre")
    assert [label for _, label in scan_folder(mixed).splits["test"]] == [1, 1]
    tree(f"test/{composed}hre/2.png", name=mixed.name)
    assert refusal(mixed).startswith(f"{mixed}/test has two folders called \u00c4hre, which Unicode spells in two ways")


def test_a_missing_root_is_named_with_the_nearest_folder(tree, tmp_path):
    root = tree("train/aster/a.png", "train/rose/a.png")
    message = refusal(tmp_path / "flower")
    assert f"{tmp_path / 'flower'} is not a folder" in message
    assert f"did you mean {root}?" in message


def test_a_missing_root_with_nothing_like_it_gets_no_hint(tmp_path):
    assert refusal(tmp_path / "no" / "such") == f"{tmp_path / 'no' / 'such'} is not a folder"
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file").startswith(f"{tmp_path / 'file'} is not a folder")


def test_a_root_without_train_is_refused_with_the_expected_layout(tree):
    root = tree("aster/a.png", "rose/a.png")
    expected = f"{root}/train/<class>/*.png (or other image types)"
    assert refusal(root) == f"{root} has no train folder; expected {expected}"
    tree("train/aster/a.png", "train/rose/a.png")
    assert refusal(root / "train").endswith(f"; did you mean {root}?")


@pytest.mark.parametrize(("paths", "found"), [(["train/"], "none"), (["train/rose/a.png"], "only rose")])
def test_fewer_than_two_classes_are_refused(tree, paths, found):
    root = tree(*paths)
    assert refusal(root) == f"{root}/train needs a folder for each of at least two classes; found {found}"


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_class_that_train_lacks_is_named_with_the_nearest_class(tree, split):
    tulips = [f"{split}/tulip{number}/a.png" for number in range(9)]
    root = tree("train/aster/a.png", "train/rose/a.png", f"{split}/roses/a.png", *tulips)
    names = "roses, tulip0, tulip1, tulip2, tulip3 and 5 more"
    assert refusal(root) == f"{root}/{split} has classes that train lacks: {names}; did you mean rose?"


def test_an_unknown_class_like_no_other_gets_no_hint(tree):
    root = tree("train/aster/a.png", "train/rose/a.png", "val/xyz/a.png")
    assert refusal(root) == f"{root}/val has classes that train lacks: xyz"


def test_a_class_without_images_is_named(tree):
    root = tree("train/aster/a.png", "train/rose/a.txt", "train/tulip/", "test/rose/a.png", "test/rose/b.doc")
    assert refusal(root) == f"{root}/train has no images of rose and tulip"
    tree("train/tulip/1.heic", "train/tulip/deep/2.HEIC")
    hint = "; left out: 2 files of another type (.heic): save them as .jpg or .png"
    assert refusal(root) == f"{root}/train has no images of rose and tulip{hint}"


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_without_images_is_named_with_the_accepted_suffixes(tree, split):
    paths = [
        f"{other}/{name}/a.png" for other in ("train", "val", "test") for name in ("aster", "rose") if other != split
    ]
    root = tree(*paths, f"{split}/aster/a.doc", f"{split}/rose/")
    assert re.fullmatch(
        rf"{re.escape(str(root))}/{split} has no images \(\.bmp, .*\.png.*\); left out: 1 file of .* \(\.doc\): .*",
        refusal(root),
    )


@pytest.mark.parametrize("more", [[], ["rose/"]])
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_whose_pictures_are_in_no_class_folder_says_what_to_do(tree, split, more):
    paths = ["train/aster/a.png", "train/rose/a.png", *(f"{split}/{number}.JPEG" for number in range(5))]
    root = tree(*paths, *(f"{split}/{path}" for path in more))
    hint = f"move them to {root}/{split}/<class>/, or rename {split}, which is then not read"
    assert refusal(root) == f"{root}/{split} has 5 pictures in no class folder; {hint}"
    tree(f"{split}/rose/1.heic")
    left_out = "left out: 1 file of another type (.heic): save them as .jpg or .png"
    assert refusal(root) == f"{root}/{split} has 5 pictures in no class folder; {hint}; {left_out}"


def test_train_is_not_to_be_renamed(tree):
    root = tree("train/aster/", "train/rose/", "train/1.png")
    problem = f"{root}/train has 1 picture in no class folder"
    assert refusal(root) == f"{problem}; move them to {root}/train/<class>/"


def test_pictures_are_listed_without_asking_for_each_and_classes_are_counted_without_listing_them(tree, monkeypatch):
    folders = [f"{split}/{name}" for split in ("train", "val") for name in "abc"]
    root = tree(*(f"{folder}/{number}.png" for folder in folders for number in range(50)))
    listed, asked, scandir, stat = [], [], os.scandir, os.stat
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(folder) or scandir(folder))
    monkeypatch.setattr(os, "stat", lambda path, **given: asked.append(path) or stat(path, **given))
    assert len(scan_folder(root).splits["train"]) == 150
    assert len(asked) < 30
    listed.clear()
    assert count_classes("imagefolder", str(root)) == [3]
    assert listed == [str(root), f"{root}/train", f"{root}/val"]


def test_cifar10_in_class_folders_is_listed_completely(shared_data):
    if not (shared_data / "cifar10").is_dir():
        pytest.skip("there is no copy of CIFAR-10 in ../shared/data")
    folder = scan_folder(shared_data / "cifar10")
    assert folder.classes == ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    for split, each in (("train", 5000), ("test", 1000)):
        labels = [label for _, label in folder.splits[split]]
        assert [labels.count(label) for label in range(10)] == [each] * 10
    assert "val" not in folder.splits


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_folder_may_have_any_of_its_usual_names(tmp_path, name):
    write_image_folder(tmp_path, "train", name)
    assert sorted(scan_folder(tmp_path).splits) == ["train", "val"]


def test_two_validation_folders_are_refused(tmp_path):
    write_image_folder(tmp_path, "train", "val", "valid")
    with pytest.raises(DataError, match="has val and valid, of which one at most can be the validation split"):
        scan_folder(tmp_path)


def test_a_split_that_is_a_link_to_another_is_refused(tmp_path):
    write_image_folder(tmp_path, "train")
    (tmp_path / "test").symlink_to("train")
    with pytest.raises(DataError, match=r"test and .*train are one folder: leakage"):
        scan_folder(tmp_path)


def test_what_may_be_pictures_and_is_not_read_is_described(tree):
    shown = ["train/rose/a.png", "train/aster/b.png", "test/rose/a.png"]
    root = tree(*shown, "train/rose/notes.txt", "train/rose/Thumbs.db", "train/.hidden.png", "train/list.heic")
    assert scan_folder(root).left_out == ""
    tree("train/c.png", "test/d.JPG", "train/rose/deep/e.heic", "train/aster/f.HEIC", "test/rose/g")
    expected = "2 pictures in no class folder and 3 files of another type (.heic and no suffix)"
    assert scan_folder(root).left_out == expected


@pytest.mark.parametrize("name", ["Test", "VAL"])
def test_a_split_in_capital_letters_is_refused(tree, name):
    root = tree("train/rose/a.png", "train/aster/b.png", f"{name}/rose/a.png")
    assert refusal(root) == f"{root}/{name} is not read; rename it to {name.lower()}, or to something else"
