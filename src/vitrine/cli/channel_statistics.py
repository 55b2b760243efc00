"""Mean and standard deviation of each channel over the training images of a data set, as conf/data/*.yaml needs them.

vitrine channel-statistics data=cifar10 data.root=DIR
vitrine channel-statistics data=imagefolder data.root=DIR
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from vitrine import compose
from vitrine.cli.arguments import make_parser
from vitrine.errors import VitrineError

CHUNK = 1_000  # images at a time: pictures in folders are decoded as they are read


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the statistics of pixels in [0, 1], to four digits."""
    parser = make_parser("channel-statistics", __doc__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="the data set, as in training")
    options = parser.parse_args(arguments)
    try:
        means, deviations = channel_statistics(options.overrides)
    except VitrineError as error:
        print(f"vitrine: {error}", file=sys.stderr)
        sys.exit(2)
    for name, values in (("mean", means), ("std", deviations)):
        print(f"{name}: [{', '.join(f'{value:.4f}' for value in values)}]")


def channel_statistics(overrides: Sequence[str]) -> tuple[list[float], list[float]]:
    """The mean and the standard deviation of each channel."""
    config = compose(overrides)
    import torch

    from vitrine.data.datasets import load_dataset

    images = load_dataset(config.data, Path(config.paths.cache_dir)).train.images
    pixels, total, squares = 0, torch.zeros(config.data.in_channels), torch.zeros(config.data.in_channels)
    total, squares = total.double(), squares.double()
    for indices in torch.arange(len(images)).split(CHUNK):
        chunk = images[indices].double() / 255  # (B, C, H, W)
        pixels += chunk[:, 0].numel()
        total += chunk.sum(dim=(0, 2, 3))
        squares += chunk.square().sum(dim=(0, 2, 3))
    mean = total / pixels
    return mean.tolist(), (squares / pixels - mean.square()).clamp(min=0).sqrt().tolist()
