"""How a step grows with images, depth, tokens and width: python benchmarks/growth.py."""

import torch
from step import as_trained, training_step
from timing import in_turn, milliseconds, publish

from vitrine import compose
from vitrine.training.throughput import flops_per_image

ROUNDS = 7
BASE = {"data.batch_size": 64, "model.depth": 4, "model.patch_size": 4, "model.dim": 128}
GROWN = {
    "data.batch_size": (32, 64, 128, 256),
    "model.depth": (2, 4, 8, 16),
    "model.patch_size": (7, 4, 2),
    "model.dim": (64, 128, 256, 512),
}
NAMES = {
    "data.batch_size": "images",
    "model.depth": "blocks",
    "model.patch_size": "tokens",
    "model.dim": "width",
}


def main() -> None:
    """Each alone, the others as in the base."""
    rows = []
    for key, values in GROWN.items():
        configs = {}
        for value in values:
            words = [f"{name}={one}" for name, one in (BASE | {key: value}).items()]
            configs[value] = compose(["model=vit_nano", "data=mnist", "model.heads=4", "accelerator=cpu", *words])
        ways = {}
        for value, config in configs.items():
            images = torch.randn(config.data.batch_size, 1, 28, 28)
            ways[str(value)] = training_step(config, images, torch.zeros(len(images), dtype=torch.int64))
        times = in_turn(ways, rounds=ROUNDS, warm_up=2)
        first: tuple[float, float] | None = None
        for value, config in configs.items():
            took = milliseconds(times[str(value)])
            work = 3 * flops_per_image(config.model) * config.data.batch_size
            first = first or (took, work)
            size = config.model.tokens if key == "model.patch_size" else value
            epoch = took * 60_000 / config.data.batch_size / 1000
            rows.append([NAMES[key], size, took, epoch, took / first[0], work / first[1], work / took / 1e6])
    publish(
        "growth",
        title="Growth",
        text="A training step of a ViT 128 wide with 4 blocks on 64 images of 28x28 in patches of 4 (49 tokens), and "
        "with one of these changed. FLOPs are those of the matrix products, forward and backward. Time grows more "
        "slowly than they do where small products leave the machine idle, and faster where it waits for memory.",
        columns=["what grows", "to", "ms a step", "s for 60,000 images", "time, times", "FLOPs, times", "GFLOP/s"],
        rows=rows,
        claims={},
    )


if __name__ == "__main__":
    with as_trained():
        main()
