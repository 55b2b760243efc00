"""Mean and standard deviation of each channel over a data set's training images, as conf/data/*.yaml wants them.

python scripts/channel_statistics.py data=cifar10 data.root=DIR
"""

import sys
from pathlib import Path

from vitrine import compose
from vitrine.data.datasets import load_dataset


def main() -> None:
    """Print the statistics, of pixels in [0, 1], to four digits."""
    config = compose(sys.argv[1:])
    images = load_dataset(config.data, Path(config.paths.cache_dir)).train.images
    pixels = images.movedim(1, 0).flatten(1).double() / 255  # (C, N*H*W)
    for name, values in (("mean", pixels.mean(dim=1)), ("std", pixels.std(dim=1, correction=0))):
        print(f"{name}: [{', '.join(f'{value:.4f}' for value in values.tolist())}]")


if __name__ == "__main__":
    main()
