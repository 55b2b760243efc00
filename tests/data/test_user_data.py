"""A user's own data set: what it may return, and a message for each mistake."""

import numpy as np
import pytest

from vitrine import compose
from vitrine.config.parts import PartError
from vitrine.data.datasets import load_dataset
from vitrine.errors import DataError

IMAGES = np.zeros((6, 4, 4, 1), dtype=np.uint8).transpose(0, 3, 1, 2)
LABELS = np.arange(6) % 3
MODULE = "given = None\n\n\ndef load(root):\n    return given\n"


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Loads the data set that a user's function returns."""
    (tmp_path / "lab_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import lab_of_mine

    sizes = ["data.image_size=4", "data.in_channels=1", "data.num_classes=3", "data.patch_size=2", "data.mean=[0.5]"]

    def load(**given):
        monkeypatch.setattr(lab_of_mine, "given", given)
        config = compose(["model=vit_nano", "data=lab_of_mine.load", *sizes, "data.std=[0.5]"])
        return load_dataset(config.data, tmp_path / "cache")

    return load


@pytest.mark.parametrize("names", [["ant", "bee", "cat"], np.array(["ant", "bee", "cat"]), ("ant", "bee", "cat")])
def test_class_names_are_any_sequence(loaded, names):
    assert loaded(train=(IMAGES, LABELS), classes=names).classes == ["ant", "bee", "cat"]


def test_without_names_classes_are_called_by_their_numbers(loaded):
    found = loaded(train=(IMAGES, LABELS), test=(IMAGES[:2], LABELS[:2]))
    assert found.classes == ["0", "1", "2"]
    assert found.val is None
    assert found.test.labels.tolist() == [0, 1]
    assert found.train.images.shape == (6, 1, 4, 4)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.uint16, np.uint64, np.int32])
def test_labels_are_integers_of_any_kind(loaded, kind):
    assert loaded(train=(IMAGES, (LABELS > 0).astype(kind))).train.labels.tolist() == [0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"classes": ["a", "b"]}, r"has 2 classes, not data\.num_classes=3"),
        ({"classes": ["a", "b", "a"]}, r"names 1 class more than once: a$"),
        ({"classes": 3}, r"classes are not a list of names: .*not iterable"),
        (
            {"training": 1},
            r"must return a dict with train and optionally val, test and classes, not \['train', 'traini",
        ),
        ({"train": None, "val": (IMAGES, LABELS)}, r"must return a dict with train .*, not \['val'\]"),
        ({"test": (IMAGES.repeat(3, 1), LABELS)}, r"has test images with 3 channels, not data\.in_channels=1"),
        ({"val": (IMAGES[:, :, :0], LABELS)}, r"val has images \(6, 1, 0, 4\) uint8; they must be .*, no side 0"),
        ({"val": (IMAGES, LABELS * 1j)}, r"val has labels \(6,\) complex128; they must be \(6,\) int64"),
        ({"val": IMAGES[0]}, r"val must be a pair of arrays, images and labels"),
        ({"val": (IMAGES / 255, LABELS)}, r"val has images \(6, 1, 4, 4\) float64; they must be \(N, C, H, W\) uint8"),
        ({"val": (IMAGES, LABELS[:5])}, r"val has labels \(5,\) int64; they must be \(6,\) int64, one per image"),
        ({"val": (IMAGES, LABELS + 1)}, r"val has labels from 1 to 3; they must be >= 0 and < data\.num_classes=3"),
    ],
)
def test_a_mistake_is_named(loaded, given, problem):
    with pytest.raises((DataError, PartError), match=problem) as error:
        loaded(**{"train": (IMAGES, LABELS), **given})
    assert "\n" not in str(error.value)
