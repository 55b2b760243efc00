"""Mean and standard deviation of each channel over the training images of a data set, as conf/data/*.yaml needs them.

vitrine channel-statistics data=cifar10 data.root=DIR
vitrine channel-statistics data=imagefolder data.root=DIR
"""

from collections.abc import Sequence
from pathlib import Path

from vitrine import compose
from vitrine.cli.arguments import errors_in_one_line, make_parser

CHUNK = 1_000  # images at a time: image files are decoded as they are read


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the statistics of pixels in [0, 1], to four digits."""
    parser = make_parser("channel-statistics", __doc__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="the data set, as in training")
    options = parser.parse_args(arguments)
    with errors_in_one_line():
        means, deviations = channel_statistics(options.overrides)
    for name, values in (("mean", means), ("std", deviations)):
        print(f"{name}: [{', '.join(f'{value:.4f}' for value in values)}]")


def channel_statistics(overrides: Sequence[str]) -> tuple[list[float], list[float]]:
    """The mean and the standard deviation of each channel."""
    config = compose(overrides)
    import torch

    from vitrine.data.datasets import load_dataset

    images = load_dataset(config.data, Path(config.paths.cache_dir)).train.images
    pixels, (total, squares) = 0, torch.zeros(2, config.data.in_channels, dtype=torch.float64)
    for indices in torch.arange(len(images)).split(CHUNK):
        chunk = images[indices].double() / 255  # (B, C, H, W)
        pixels += chunk[:, 0].numel()
        total += chunk.sum(dim=(0, 2, 3))
        squares += chunk.square().sum(dim=(0, 2, 3))
    mean = total / pixels
    return mean.tolist(), (squares / pixels - mean.square()).clamp(min=0).sqrt().tolist()
