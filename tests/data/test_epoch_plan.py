"""Epoch plans: functions of seed and epoch, with uniform draws."""

import time

import pytest
import torch

from vitrine.data.epoch_plan import derive_seed, plan_epoch


def test_a_plan_depends_on_its_arguments_alone():
    torch.manual_seed(1)
    first = plan_epoch(50, 3, seed=7, epoch=2)
    torch.manual_seed(2)
    torch.rand(5)
    second = plan_epoch(50, 3, seed=7, epoch=2)
    assert torch.equal(first.order, second.order)
    assert torch.equal(first.draws, second.draws)


def test_planning_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    plan_epoch(50, 3, seed=7, epoch=2)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("count", [1, 2, 97])
def test_the_order_is_a_permutation_with_draws_for_each_position(count):
    plan = plan_epoch(count, 3, seed=0, epoch=0)
    assert plan.order.dtype is torch.int64
    assert plan.order.sort().values.tolist() == list(range(count))
    assert plan.draws.shape == (count, 3)
    assert plan.draws.min() >= 0
    assert plan.draws.max() < 1


@pytest.mark.parametrize("other", [(0, 1), (1, 0), (1, 1)])
def test_plans_of_neighbouring_seeds_and_epochs_are_uncorrelated(other):
    count = 2000
    first, second = plan_epoch(count, 2, 0, 0), plan_epoch(count, 2, *other)
    assert (first.order == second.order).sum() < 10
    for values, others in [(first.order.double(), second.order.double()), (first.draws[:, 0], second.draws[:, 0])]:
        assert torch.corrcoef(torch.stack([values, others]))[0, 1].abs() < 0.1


def test_seed_and_epoch_are_not_merely_added():
    pairs = [(seed, epoch) for seed in range(20) for epoch in range(20)]
    assert len({derive_seed(*pair) for pair in pairs}) == len(pairs)
    assert all(0 <= derive_seed(*pair) < 2**63 for pair in pairs)
    assert not torch.equal(plan_epoch(50, 0, seed=0, epoch=1).order, plan_epoch(50, 0, seed=1, epoch=0).order)


@pytest.mark.parametrize(("repeats", "batch_size", "count"), [(3, 12, 50), (2, 7, 20), (4, 8, 5), (3, 9, 2)])
def test_copies_of_an_image_are_in_its_batch_each_with_its_own_draws(repeats, batch_size, count):
    plan = plan_epoch(count, 2, seed=0, epoch=0, repeats=repeats, batch_size=min(batch_size, count))
    assert plan.order.shape == (count,)
    seen = set()
    for batch in plan.order.split(batch_size):
        counts = batch.bincount()[batch.unique()].tolist()
        assert len(counts) == -(-len(batch) // repeats)
        assert max(counts) <= repeats
        if len(counts) > 1:
            assert (batch[1:] != batch[:-1]).all(), "MixUp takes neighbours"
        assert not seen & set(batch.tolist())
        seen |= set(batch.tolist())
    assert len(plan.draws.unique(dim=0)) == count


def test_draws_are_uniform():
    draws = plan_epoch(5000, 2, seed=3, epoch=4).draws
    assert draws.mean(dim=0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    assert draws.std(dim=0).tolist() == pytest.approx([12**-0.5] * 2, abs=0.01)


def test_a_balanced_epoch_has_equally_many_of_each_class_and_repeats_rare_images_equally():
    labels = torch.tensor([0] * 70 + [2] * 20 + [3] * 11)
    plan = plan_epoch(len(labels), 3, seed=0, epoch=0, balanced=labels)
    assert plan.draws.shape == (101, 3)
    counts = labels[plan.order].bincount().tolist()
    assert counts[1] == 0
    assert sorted(counts[:1] + counts[2:]) == [33, 34, 34]
    for label, least in ((0, 0), (2, 1), (3, 3)):
        times = plan.order.bincount(minlength=101)[labels == label]
        assert least <= int(times.min()) <= int(times.max()) <= least + 1
    assert not torch.equal(plan.order, plan_epoch(101, 3, seed=0, epoch=1, balanced=labels).order)
    assert set(labels[plan.order[:50]].tolist()) == {0, 2, 3}


def test_a_balanced_epoch_takes_time_linear_in_its_classes():
    before = time.process_time()
    plan_epoch(39_999, 0, seed=0, epoch=0, balanced=torch.arange(39_999) % 20_000)
    assert time.process_time() - before < 1.8  # 3 s if each class searches a list
