"""The line on the sizes of classes with which a training begins."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from vitrine import compose
from vitrine.data.image_dataset import Split
from vitrine.training.class_sizes import class_sizes

NAMES = ["viel", "rar", "selten"]


def split(*counts):
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return Split(torch.empty(len(labels), 1, 1, 1, dtype=torch.uint8), labels)


def described(train, val, test, *, names=NAMES, class_weights=None, **data):
    config = compose([])
    config = replace(config, data=replace(config.data, **data), loss=replace(config.loss, class_weights=class_weights))
    dataset = SimpleNamespace(classes=names)
    return class_sizes(SimpleNamespace(config=config, dataset=dataset, train=train, val=val, test=test))


def test_the_accuracy_of_always_answering_the_largest_class_is_given():
    train, always = "viel: 2,700, rar: 7, selten: 0 in train; ", "accuracy of always viel: 0.9375 on validation"
    hint = "; data.sampling=balanced draws each class equally often"
    given = split(2700, 7, 0), split(30, 1, 1)
    assert described(*given, split(8, 2, 2)) == f"{train}{always}, 0.6667 on test{hint}"
    assert described(*given, split(1, 3, 0)) == f"{train}{always}; accuracy of always rar: 0.7500 on test{hint}"
    for evened_out in ({"sampling": "balanced"}, {"class_weights": "balanced"}):
        assert described(*given, None, **evened_out) == f"{train}{always}"


@pytest.mark.parametrize(("smallest", "is_uneven"), [(10, False), (9, True)])
def test_many_classes_are_described_by_their_range(smallest, is_uneven):
    text = described(split(*[99] * 12, smallest), split(*[1] * 13), None, names=[str(number) for number in range(13)])
    assert text.startswith(f"{smallest} to 99 images each in train; accuracy of always 0: 0.0769 on validation")
    assert ("data.sampling=balanced" in text) is is_uneven


@pytest.mark.parametrize("names", [NAMES, [str(number) for number in range(13)]])
def test_of_classes_of_about_one_size_the_range_is_all(names):
    counts = [150, *[100] * (len(names) - 1)]
    assert described(split(*counts), split(*counts), None, names=names) == "100 to 150 images each in train"
    assert described(split(*[5] * len(names)), split(*counts), None, names=names) == "5 images each in train"
    assert described(split(*[1] * len(names)), split(*counts), None, names=names) == "1 image each in train"
    assert "accuracy of always" in described(split(151, *counts[1:]), split(*counts), None, names=names)


def test_of_several_labels_an_image_counts_for_each():
    labels = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.uint8)
    few = Split(torch.empty(2, 1, 1, 1, dtype=torch.uint8), labels)
    assert described(few, few, few, multi_label=True) == "viel: 2, rar: 1, selten: 0 in train"
