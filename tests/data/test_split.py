import pytest
import torch

from vitrine.data.split import HeldOut, hold_out
from vitrine.errors import DataError

LABELS = torch.arange(600).remainder(10).clamp(max=7)  # 7 is three times as frequent as the others


def test_the_two_sides_are_disjoint_complete_and_sorted():
    held_out = hold_out(LABELS, 0.1, seed=0)
    together = torch.cat([held_out.train, held_out.val])
    assert together.dtype is torch.int64
    assert together.sort().values.tolist() == list(range(600))
    for side in (held_out.train, held_out.val):
        assert side.tolist() == sorted(side.tolist())


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_each_class_gives_the_same_share(fraction):
    held_out = hold_out(LABELS, fraction, seed=0)
    counts = LABELS[held_out.val].bincount() / LABELS.bincount()
    assert counts.tolist() == pytest.approx([fraction] * 8, abs=0.01)


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    first = hold_out(LABELS, 0.1, seed=0)
    torch.manual_seed(2)
    again, other = hold_out(LABELS, 0.1, seed=0), hold_out(LABELS, 0.1, seed=1)
    assert torch.equal(first.val, again.val)
    assert first.hash == again.hash
    assert not torch.equal(first.val, other.val)
    assert first.hash != other.hash


def test_the_hash_changes_with_any_validation_index_and_with_nothing_else():
    train, val = torch.arange(10), torch.tensor([2, 5, 7])
    known = HeldOut(train, val).hash
    assert HeldOut(train[:3], val.clone()).hash == known
    for other in ([3, 5, 7], [2, 5, 8], [2, 5], [2, 5, 7, 9], [2, 7]):
        assert HeldOut(train, torch.tensor(other)).hash != known


def test_a_class_too_rare_to_be_on_both_sides_is_an_error_that_says_so():
    labels = torch.cat([LABELS, torch.tensor([8])])
    with pytest.raises(DataError, match=r"data\.val_fraction=0\.1 of 601 images, the rarest class having 1"):
        hold_out(labels, 0.1, seed=0)


def test_fewer_held_out_images_than_classes_is_an_error_that_says_so():
    with pytest.raises(DataError, match=r"data\.val_fraction=0\.1 of 20 images, the rarest class having 2"):
        hold_out(torch.arange(20).remainder(10), 0.1, seed=0)
