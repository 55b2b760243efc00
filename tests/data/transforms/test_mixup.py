"""MixUp and CutMix, against torchvision's."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from vitrine.data.transforms.mixup import MixUpCutMix, beta_quantile

CLASSES = 10


def draws(count, seed=0):
    return torch.rand(count, MixUpCutMix.num_draws, generator=torch.Generator().manual_seed(seed))


def random_batch(count, size=16):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    return images, torch.randint(0, CLASSES, (count,), generator=generator)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 4.0])
def test_ratios_are_distributed_as_beta(alpha):
    shares = beta_quantile(draws(20_000)[:, 0], alpha)
    assert shares.dtype is torch.float32
    assert ((shares >= 0) & (shares <= 1)).all()
    drawn = np.random.default_rng(0).beta(alpha, alpha, 20_000).astype(np.float32)
    assert stats.ks_2samp(shares.numpy(), drawn).pvalue > 1e-3


def test_mixup_blends_neighbours_and_their_labels_as_torchvision_does():
    images, labels = random_batch(20)
    numbers = draws(20)
    mixed, targets = MixUpCutMix(0.8, 0.0, CLASSES)(images, labels, numbers)
    assert (mixed.dtype, targets.dtype) == (torch.float32, torch.float32)
    theirs = v2.MixUp(alpha=0.8, num_classes=CLASSES)
    for place, share in enumerate(beta_quantile(numbers[:, 0], 0.8).tolist()):
        pair = [place, place ^ 1]
        both = labels[pair]
        params = {"labels": both, "batch_size": 2, "lam": share}
        torch.testing.assert_close(mixed[place], theirs.transform(images[pair].float(), params)[0])
        torch.testing.assert_close(targets[place], theirs.transform(both, params)[0])


def test_cutmix_pastes_a_box_of_the_neighbour_as_torchvision_does():
    images, labels = random_batch(200)
    mixing = MixUpCutMix(0.0, 1.0, CLASSES)
    numbers = draws(200)
    mixed, targets = mixing(images, labels, numbers)
    _, boxes = mixing.ratios_and_boxes(numbers, 16, 16)
    theirs = v2.CutMix(alpha=1.0, num_classes=CLASSES)
    for place, (top, bottom, left, right) in enumerate(boxes.tolist()):
        pair = [place, place ^ 1]
        kept = 1 - (bottom - top) * (right - left) / 256
        both = labels[pair]
        params = {"labels": both, "batch_size": 2, "box": (left, top, right, bottom), "lam_adjusted": kept}
        assert torch.equal(mixed[place], theirs.transform(images[pair].float(), params)[0])
        torch.testing.assert_close(targets[place], theirs.transform(both, params)[0])


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_boxes_have_the_distribution_of_torchvision(alpha):
    torch.manual_seed(0)
    theirs, image = v2.CutMix(alpha=alpha, num_classes=CLASSES), torch.zeros(4, 3, 32, 32)
    drawn = [theirs.make_params([image])["box"] for _ in range(3000)]
    left, top, right, bottom = torch.tensor(drawn).unbind(dim=1)
    expected = torch.stack([top, bottom, left, right], dim=1)
    _, found = MixUpCutMix(0.0, alpha, CLASSES).ratios_and_boxes(draws(3000), 32, 32)
    for measure in (
        lambda box: (box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2]),
        lambda box: box[:, 1] + box[:, 0],
        lambda box: box[:, 3] + box[:, 2],
        lambda box: box[:, 3] - box[:, 2],
    ):
        assert stats.ks_2samp(measure(found).numpy(), measure(expected).numpy()).pvalue > 1e-3


def test_with_both_each_image_takes_one_at_random():
    images, labels = random_batch(400)
    numbers = draws(400)
    mixed, targets = MixUpCutMix(0.8, 0.3, CLASSES)(images, labels, numbers)
    blends = numbers[:, 1] < 0.5
    assert 160 < blends.sum() < 240
    for alone, chosen in ((MixUpCutMix(0.8, 0.0, CLASSES), blends), (MixUpCutMix(0.0, 0.3, CLASSES), ~blends)):
        expected = alone(images, labels, numbers)
        assert torch.equal(mixed[chosen], expected[0][chosen])
        assert torch.equal(targets[chosen], expected[1][chosen])


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_a_share_of_the_images_is_mixed_as_all_of_them_are_otherwise(mixup, cutmix):
    images, labels = random_batch(4000, size=4)
    numbers = draws(4000)
    found, targets = MixUpCutMix(mixup, cutmix, CLASSES, share=0.25)(images, labels, numbers)
    mixed = numbers[:, 0] < 0.25
    assert torch.equal(found[~mixed], images[~mixed].float())
    assert torch.equal(targets[~mixed], torch.nn.functional.one_hot(labels[~mixed], CLASSES).float())
    numbers[:, 0] = torch.where(mixed, numbers[:, 0] * 4, numbers[:, 0])
    expected, soft = MixUpCutMix(mixup, cutmix, CLASSES)(images, labels, numbers)
    assert torch.equal(found[mixed], expected[mixed])
    assert torch.equal(targets[mixed], soft[mixed])
    assert 900 < mixed.sum() < 1100


def test_targets_sum_to_one_and_have_at_most_two_classes():
    images, labels = random_batch(300)
    _, targets = MixUpCutMix(0.5, 0.5, 100)(images, labels, draws(300))
    assert targets.shape == (300, 100)
    assert (targets >= 0).all()
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(300))
    neighbour = labels.view(-1, 2).flip(1).flatten()
    assert ((targets > 0).sum(dim=1) <= 2).all()
    both = targets.gather(1, labels[:, None])[:, 0] + targets.gather(1, neighbour[:, None])[:, 0] * (
        labels != neighbour
    )
    torch.testing.assert_close(both, torch.ones(300))


def test_the_last_image_of_an_odd_batch_is_not_mixed():
    images, labels = random_batch(5)
    mixed, targets = MixUpCutMix(1.0, 1.0, CLASSES)(images, labels, draws(5, seed=2))
    assert torch.equal(mixed[4], images[4].float())
    assert targets[4, labels[4]] == 1
    assert not torch.equal(mixed[:4], images[:4].float())


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_nothing_is_read_back_from_the_device(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    images, labels = (tensor.to(device) for tensor in random_batch(8))
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        mixed, targets = MixUpCutMix(0.8, 1.0, CLASSES)(images, labels, draws(8))
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert (mixed.shape, targets.shape) == (images.shape, (8, CLASSES))
    assert mixed.device.type == targets.device.type == device
