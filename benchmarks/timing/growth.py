"""Growth of a training step with batch size, depth, tokens and width: python benchmarks/timing/growth.py."""

import torch
from measure import in_turn, milliseconds, publish
from step import as_trained, training_step

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
    """Vary each size alone, with the others at their base value."""
    rows = []
    for key, values in GROWN.items():
        configs = {}
        for value in values:
            sizes = [f"{name}={size}" for name, size in (BASE | {key: value}).items()]
            configs[value] = compose(["model=vit_nano", "data=mnist", "model.heads=4", "accelerator=cpu", *sizes])
        steps = {}
        for value, config in configs.items():
            images = torch.randn(config.data.batch_size, 1, 28, 28)
            steps[str(value)] = training_step(config, images, torch.zeros(len(images), dtype=torch.int64))
        times = in_turn(steps, rounds=ROUNDS, warm_up=2)
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
        text="A training step of a ViT of width 128 with 4 blocks on 64 images of 28x28 in patches of 4 (49 tokens), "
        "with one of these sizes varied. FLOPs count the matrix products, forward and backward. Time grows more slowly "
        "than FLOPs where small products leave the machine idle, and faster where memory bandwidth limits it.",
        columns=["size", "value", "ms a step", "s for 60,000 images", "relative time", "relative FLOPs", "GFLOP/s"],
        rows=rows,
        claims={},
    )


if __name__ == "__main__":
    with as_trained():
        main()
