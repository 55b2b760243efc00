"""Mean and standard deviation of each channel over the training images of a data set, as conf/data/*.yaml needs them.

vitrine channel-statistics data=cifar10 data.root=DIR
vitrine channel-statistics data=imagefolder data.root=DIR
vitrine channel-statistics data=imagefolder data.root=DIR data.in_channels=1

With data.resize=pad they are those of the pictures without their padding, as data.resize=squash has them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitrine import compose
from vitrine.cli.arguments import add_config_dir, errors_in_one_line, make_parser
from vitrine.command.sources import Sources, composing

CHUNK = 1_000  # images at a time: image files are decoded as they are read


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the statistics of pixels in [0, 1], to four digits."""
    parser = make_parser("channel-statistics", __doc__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="the data set, as in training")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    with errors_in_one_line(), composing(Sources.choose(options.config_dir)):
        means, deviations = channel_statistics(options.overrides)
    for name, values in (("mean", means), ("std", deviations)):
        print(f"{name}: [{', '.join(f'{value:.4f}' for value in values)}]")


def channel_statistics(overrides: Sequence[str]) -> tuple[list[float], list[float]]:
    """The mean and the standard deviation of each channel, without padding."""
    config = compose([*overrides, "data.mean=[0.5]", "data.std=[0.5]"])  # a single value suits any number of channels
    import torch

    from vitrine.data.datasets import load_dataset
    from vitrine.data.placement import memory_budget

    data = replace(config.data, resize="squash") if config.data.resize == "pad" else config.data
    images = load_dataset(data, Path(config.paths.cache_dir), memory_budget(data.storage, 1)).train.images
    pixels, (total, squares) = 0, torch.zeros(2, config.data.in_channels, dtype=torch.float64)
    for indices in torch.arange(len(images)).split(CHUNK):
        chunk = images[indices].double() / 255  # (B, C, H, W)
        pixels += chunk[:, 0].numel()
        total += chunk.sum(dim=(0, 2, 3))
        squares += chunk.square().sum(dim=(0, 2, 3))
    mean = total / pixels
    return mean.tolist(), (squares / pixels - mean.square()).clamp(min=0).sqrt().tolist()
