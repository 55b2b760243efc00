"""Loaders: which images are in which batch of which rank."""

import math

import lightning.pytorch as pl
import pytest
import torch

import vitrine
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.loader import EvalLoader, TrainLoader, batches_at_once
from vitrine.data.transforms.augment import Chain, RandomCrop, RandomHorizontalFlip
from vitrine.data.transforms.mixup import MixUpCutMix

AUGMENT = Chain([RandomCrop(2), RandomHorizontalFlip()])
MIXING = MixUpCutMix(1.0, 1.0, classes=40)


def train_loader(split, position=(3, 0), **changes):
    values = {"batch_size": 8, "augmentation": AUGMENT, "seed": 11, "position": lambda: position} | changes
    return TrainLoader(split, **values)


def test_batches_follow_the_plan_and_are_augmented_by_its_draws(numbered):
    split = numbered(27)
    plan = plan_epoch(27, 3, seed=11, epoch=3)
    batches = list(train_loader(split))
    assert len(batches) == 3
    for number, (images, labels) in enumerate(batches):
        places = range(8 * number, 8 * number + 8)
        assert labels.tolist() == [plan.order[place].item() for place in places]
        expected = [AUGMENT(split.images[plan.order[[place]]], plan.draws[[place]]) for place in places]
        assert torch.equal(images, torch.cat(expected))
        assert not torch.equal(images, split.images[labels])


@pytest.mark.parametrize("mixing", [None, MIXING])
@pytest.mark.parametrize("batch_size", [7, 8, 20, 64])
@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_ranks_together_have_exactly_the_batches_of_one_process(numbered, world_size, batch_size, mixing):
    split = numbered(27)
    values = {"batch_size": batch_size, "mixing": mixing}
    whole = list(train_loader(split, **values))
    shares = [list(train_loader(split, rank=rank, world_size=world_size, **values)) for rank in range(world_size)]
    assert [len(share) for share in shares] == [len(whole)] * world_size
    for number, batch in enumerate(whole):
        for own, together in zip(batch, zip(*(share[number] for share in shares), strict=True), strict=True):
            assert torch.equal(torch.cat(together), own)


@pytest.mark.parametrize("mixing", [None, MIXING])
@pytest.mark.parametrize(
    ("batch_size", "world_size", "drop_last"), [(4, 1, True), (5, 1, False), (6, 1, False), (6, 2, True)]
)
@pytest.mark.parametrize("at_once", [2, 3, 100])
def test_batches_augmented_at_once_are_the_same_batches(numbered, at_once, batch_size, world_size, drop_last, mixing):
    values = {"batch_size": batch_size, "drop_last": drop_last, "mixing": mixing, "position": (3, 1)}
    values |= {"rank": world_size - 1, "world_size": world_size}
    one_by_one = list(train_loader(numbered(27), **values))
    together = list(train_loader(numbered(27), at_once=at_once, **values))
    assert len(together) == len(one_by_one) > 2
    for batch, expected in zip(together, one_by_one, strict=True):
        assert all(torch.equal(own, its) for own, its in zip(batch, expected, strict=True))


@pytest.mark.parametrize(
    ("device", "shape", "batches"),
    [
        ("cuda", (128, 3, 32, 32), 8),
        ("cuda", (1024, 3, 32, 32), 5),
        ("cuda", (128, 3, 224, 224), 1),
        ("cpu", (8, 1, 8, 8), 1),
    ],
)
def test_small_batches_on_a_gpu_are_augmented_together(device, shape, batches):
    assert batches_at_once(device, math.prod(shape)) == batches


@pytest.mark.parametrize(("mixing", "batch_size"), [(None, 12), (MIXING, 12), (None, 6)])
def test_ranks_have_equal_shares_of_an_even_batch(numbered, mixing, batch_size):
    for rank in range(2):
        loader = train_loader(numbered(27), rank=rank, world_size=2, batch_size=batch_size, mixing=mixing)
        assert {len(images) for images, _ in loader} == {batch_size // 2}


@pytest.mark.parametrize("mixing", [None, MIXING])
@pytest.mark.parametrize(("batch_size", "sizes"), [(8, [8, 8, 8, 3]), (9, [9, 9, 9]), (64, [27])])
def test_a_last_smaller_batch_is_kept_on_request(numbered, batch_size, sizes, mixing):
    split = numbered(27)
    loader = train_loader(split, batch_size=batch_size, mixing=mixing, drop_last=False)
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == sizes
    assert len(loader) == len(sizes)
    full = list(train_loader(split, batch_size=batch_size, mixing=mixing))
    for (images, labels), (same_images, same_labels) in zip(batches, full, strict=False):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
    if mixing is None:
        assert sorted(label for _, labels in batches for label in labels.tolist()) == list(range(27))


def test_mixing_takes_the_draws_after_those_of_the_augmentation(numbered):
    split = numbered(27)
    plan = plan_epoch(27, AUGMENT.num_draws + MIXING.num_draws, seed=11, epoch=3)
    batches = list(train_loader(split, mixing=MIXING))
    assert len(batches) == 3
    for number, (images, targets) in enumerate(batches):
        chosen = split[plan.order[8 * number : 8 * number + 8]]
        draws = plan.draws[8 * number : 8 * number + 8]
        expected = MIXING(AUGMENT(chosen.images, draws[:, :3]), chosen.labels, draws[:, 3:])
        assert torch.equal(images, expected[0])
        assert torch.equal(targets, expected[1])
        assert targets.shape == (8, 40)


@pytest.mark.parametrize("mixing", [None, MIXING])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_pass_can_start_in_the_middle_of_an_epoch(numbered, world_size, mixing):
    split = numbered(40)
    whole = list(train_loader(split, world_size=world_size, mixing=mixing))
    rest = list(train_loader(split, (3, 2), world_size=world_size, mixing=mixing))
    assert len(rest) == 3
    for (images, labels), (later_images, later_labels) in zip(whole[2:], rest, strict=True):
        assert torch.equal(images, later_images)
        assert torch.equal(labels, later_labels)
    assert list(train_loader(split, (3, 5))) == []


def test_an_epoch_of_copies_is_as_long(numbered):
    batches = [labels.tolist() for _, labels in train_loader(numbered(27), repeats=2)]
    assert [batch[4:] for batch in batches] == [batch[:4] for batch in batches]
    assert len({label for batch in batches for label in batch}) == 12


def test_copies_are_those_of_the_configuration():
    data = ImageDataModule(vitrine.compose(["data.batch_size=64", "augment=none", "augment.repeats=4"]))
    data.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    images, _ = next(iter(data.train_dataloader()))
    assert len(images.flatten(1).unique(dim=0)) == 16


def test_images_that_do_not_fill_a_batch_are_left_out(numbered):
    loader = train_loader(numbered(27))
    labels = torch.cat([labels for _, labels in loader]).tolist()
    assert len(loader) == 3
    assert len(labels) == len(set(labels)) == 24


def test_a_batch_larger_than_the_data_is_all_of_the_data(numbered):
    loader = train_loader(numbered(5), batch_size=64)
    ((_, labels),) = loader
    assert len(loader) == 1
    assert sorted(labels.tolist()) == list(range(5))


def test_the_position_is_read_at_the_start_of_each_pass(numbered):
    split, position = numbered(40), [0, 0]
    loader = train_loader(split, position=lambda: tuple(position))
    loader.position = lambda: tuple(position)
    orders = []
    for epoch, start in [(0, 0), (1, 0), (1, 3)]:
        position[:] = epoch, start
        orders.append(torch.cat([labels for _, labels in loader]).tolist())
    assert orders[0] == plan_epoch(40, 3, 11, 0).order.tolist()
    assert orders[1] == plan_epoch(40, 3, 11, 1).order.tolist()
    assert orders[2] == orders[1][24:]


def test_an_epoch_in_progress_keeps_its_order_when_the_position_moves(numbered):
    position = [0, 0]
    loader = TrainLoader(numbered(24), batch_size=8, augmentation=AUGMENT, seed=11, position=lambda: tuple(position))
    seen = []
    for _, labels in loader:
        seen += labels.tolist()
        position[1] += 1
    assert seen == plan_epoch(24, 3, 11, 0).order.tolist()


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 17])
def test_evaluation_has_every_image_once_and_as_many_batches_on_each_rank(numbered, count, world_size, batch_size):
    split = numbered(count)
    loaders = [EvalLoader(split, batch_size=batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [list(loader) for loader in loaders]
    expected = max(1, -(-count // (batch_size * world_size)))
    assert [len(loader) for loader in loaders] == [expected] * world_size
    assert [len(share) for share in shares] == [expected] * world_size
    batches = [batch for share in shares for batch in share]
    assert all(len(images) == len(labels) <= batch_size for images, labels in batches)
    labels = torch.cat([labels for _, labels in batches])
    assert labels.sort().values.tolist() == list(range(count))
    assert torch.equal(torch.cat([images for images, _ in batches]), split.images[labels])


def test_evaluation_on_one_process_keeps_the_order(numbered):
    labels = torch.cat([labels for _, labels in EvalLoader(numbered(10), batch_size=4)])
    assert labels.tolist() == list(range(10))
