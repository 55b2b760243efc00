"""Random validation splits: stratified, reproducible, identified by a hash."""

import pytest
import torch

from vitrine.data.split import TrainValSplit, split_train_val
from vitrine.errors import DataError

LABELS = torch.arange(600).remainder(10).clamp(max=7)  # 7 is three times as frequent as the others


def test_both_parts_are_disjoint_complete_and_sorted():
    split = split_train_val(LABELS, 0.1, seed=0)
    together = torch.cat([split.train, split.val])
    assert together.dtype is torch.int64
    assert together.sort().values.tolist() == list(range(600))
    for indices in (split.train, split.val):
        assert indices.tolist() == sorted(indices.tolist())


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_the_split_is_stratified(fraction):
    split = split_train_val(LABELS, fraction, seed=0)
    counts = LABELS[split.val].bincount() / LABELS.bincount()
    assert counts.tolist() == pytest.approx([fraction] * 8, abs=0.01)


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    first = split_train_val(LABELS, 0.1, seed=0)
    torch.manual_seed(2)
    again, other = split_train_val(LABELS, 0.1, seed=0), split_train_val(LABELS, 0.1, seed=1)
    assert torch.equal(first.val, again.val)
    assert first.hash == again.hash
    assert not torch.equal(first.val, other.val)
    assert first.hash != other.hash


def test_the_hash_depends_on_the_validation_indices_alone():
    train, val = torch.arange(10), torch.tensor([2, 5, 7])
    known = TrainValSplit(train, val).hash
    assert TrainValSplit(train[:3], val.clone()).hash == known
    for other in ([3, 5, 7], [2, 5, 8], [2, 5], [2, 5, 7, 9], [2, 7]):
        assert TrainValSplit(train, torch.tensor(other)).hash != known


def test_a_class_too_rare_to_be_in_both_parts_is_refused():
    labels = torch.cat([LABELS, torch.tensor([8])])
    with pytest.raises(
        DataError, match=r"data\.val_fraction=0\.1 of 601 images off for validation; the rarest class has 1:"
    ):
        split_train_val(labels, 0.1, seed=0)


def test_fewer_validation_images_than_classes_are_refused():
    with pytest.raises(
        DataError, match=r"data\.val_fraction=0\.1 of 20 images off for validation; the rarest class has 2:"
    ):
        split_train_val(torch.arange(20).remainder(10), 0.1, seed=0)
