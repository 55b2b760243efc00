"""Images per second of the input path, against torchvision's transforms in a DataLoader.

python benchmarks/timing/input_path.py. Images are random, because their content does not change the time.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import torch
from measure import format_ratio, in_turn, milliseconds, publish, ratio
from PIL import Image
from step import as_trained, training_step
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import InterpolationMode, v2

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.data.image_dataset import Split
from vitrine.data.loader import TrainLoader, batches_at_once
from vitrine.data.transforms.augment import build_augmentation
from vitrine.data.transforms.mixup import build_mixing

BATCH, BATCHES, ROUNDS = 128, 40, 7
PIPELINES: dict[str, tuple[list[str], list[v2.Transform]]] = {
    "MNIST, random affine": (
        ["data=mnist", "augment=digits"],
        [v2.RandomAffine(10, (0.05, 0.05), (0.9, 1.1), 5, InterpolationMode.BILINEAR)],
    ),
    "CIFAR-10, crop and flip": (
        ["data=cifar10", "augment=standard"],
        [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()],
    ),
    "CIFAR-10, crop, flip, TrivialAugment, erasing": (
        ["data=cifar10", "augment=strong", "augment.mixup=0", "augment.cutmix=0"],
        [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide()],
    ),
}


class PillowImages(Dataset):
    """Images as torchvision's data sets return them: one at a time, as Pillow images."""

    def __init__(self, images: Tensor, labels: Tensor, transform: v2.Transform) -> None:
        self.images = images.permute(0, 2, 3, 1).squeeze(3).numpy()
        self.labels = labels.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def main() -> None:
    """Time each pipeline, and the input path's share of a step."""
    rows, claims, rounds = [], {}, {}
    for name, (overrides, transforms) in PIPELINES.items():
        config = compose([*overrides, f"data.batch_size={BATCH}"])
        split = random_images(config)
        pipelines: dict[str, Callable[[], object]] = {"ours": partial(drain, ours(config, split))}
        for workers in (0, 2):
            pipelines[f"{workers} workers"] = partial(drain, torchvision(config, split, transforms, workers))
        times = in_turn(pipelines, rounds=ROUNDS)
        rounds[name] = times
        speeds = {name: BATCH * BATCHES / (milliseconds(seconds) / 1000) for name, seconds in times.items()}
        gains = [ratio(times[f"{workers} workers"], times["ours"]) for workers in (0, 2)]
        rows.append([name, *(f"{speed:,.0f}" for speed in speeds.values()), *map(format_ratio, gains)])
        claims[f"images/s, {name}, against torchvision v2 in a DataLoader with 2 workers"] = format_ratio(gains[1])
    rounds["share of a step"] = in_a_step = batches_and_step()
    batch = milliseconds(in_a_step["8 batches"]) / 8
    share = batch / (batch + milliseconds(in_a_step["step"]))
    claims["input path's share of a `vit_tiny` step on MNIST"] = f"{share:.1%}"
    publish(
        "input_path",
        title="The input path",
        text="Images per second, augmented and normalised, in batches of 128. Ours augments whole batches of a uint8 "
        "tensor; torchvision's transforms (v2) process one image at a time in a DataLoader, with or without worker "
        f"processes. Each pass over {BATCH * BATCHES:,} images includes what an epoch starts with: the worker "
        "processes, or our epoch plan. A batch of MNIST with random affine takes "
        f"{share:.1%} of a `vit_tiny` step.",
        columns=[
            "pipeline",
            "ours, images/s",
            "no workers",
            "2 workers",
            "ours / no workers",
            "ours / 2 workers",
        ],
        rows=rows,
        claims=claims,
        rounds=rounds,
    )


def random_images(config: TrainConfig) -> Split:
    """Random images, enough for a pass."""
    data = config.data
    shape = (BATCH * BATCHES, data.in_channels, data.image_size, data.image_size)
    return Split(torch.randint(0, 256, shape, dtype=torch.uint8), torch.randint(0, 10, shape[:1]))


def ours(config: TrainConfig, split: Split) -> Iterable[tuple[Tensor, Tensor]]:
    """Normalised batches from the loader that training uses."""
    augment, data = config.augment, config.data
    loader = TrainLoader(
        split,
        batch_size=data.batch_size,
        augmentation=build_augmentation(augment, data),
        mixing=build_mixing(augment, data.num_classes),
        seed=0,
        position=lambda: (0, 0),
        at_once=batches_at_once(split.device.type, data.batch_size * split.images[0].numel()),
    )
    mean, std = (torch.tensor(value, device=split.device).view(1, -1, 1, 1) for value in (data.mean, data.std))

    class Normalised:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for images, labels in loader:
                yield (images.float() / 255 - mean) / std, labels

    return Normalised()


def torchvision(config: TrainConfig, split: Split, transforms: list[v2.Transform], workers: int) -> DataLoader:
    """The DataLoader that a tutorial would write."""
    data = config.data
    steps = [v2.ToImage(), *transforms, v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.mean, data.std)]
    if config.augment.erasing:
        steps.append(v2.RandomErasing(config.augment.erasing))
    images = PillowImages(split.images, split.labels, v2.Compose(steps))
    return DataLoader(images, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers)


def drain(batches: Iterable[object]) -> None:
    """Iterate over every batch."""
    for _ in batches:
        pass


def batches_and_step() -> dict[str, list[float]]:
    """Seconds to prepare eight batches of MNIST, and those of a step of vit_tiny on one."""
    config = compose(["model=vit_tiny", "data=mnist", "augment=digits", "accelerator=cpu", f"data.batch_size={BATCH}"])
    split = random_images(config)
    images, labels = next(iter(ours(config, split)))
    step = training_step(config, images, labels)
    return in_turn({"8 batches": lambda: drain(islice(ours(config, split), 8)), "step": step}, rounds=ROUNDS)


if __name__ == "__main__":
    with as_trained():
        main()
