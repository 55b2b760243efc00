"""Pack a data set into a few files of a chosen size, each with its checksum, for machines that reach no data server.

python scripts/pack.py cifar10 --root data --to packed --part-size 60M     # writes packed/cifar10-packed/
python train.py data=cifar10 data.root=packed                              # there: reads it where it lies
"""

import argparse
import re
from pathlib import Path

from vitrine import compose
from vitrine.errors import VitrineError

NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100")
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def main() -> None:
    """Read, pack, and read again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES, help="the word of data=")
    parser.add_argument("--root", default="data", help="where the data set lies, or is downloaded to (data)")
    parser.add_argument("--to", default=None, help="folder to write NAME-packed to; as --root, if not given")
    parser.add_argument("--part-size", default="60M", type=size, help="most bytes of a file: 500k, 60M, 2G (60M)")
    options = parser.parse_args()
    try:
        files = packed(options.name, options.root, Path(options.to or options.root), options.part_size)
    except VitrineError as error:
        raise SystemExit(f"pack: {error}") from None
    for path in files:
        print(f"{path.stat().st_size:>13,}  {path}")


def size(text: str) -> int:
    """Bytes of ``60M``; units are powers of 1000."""
    match = re.fullmatch(r"(\d+)([kMG]?)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no size: 500k, 60M, 2G")
    return int(match[1]) * UNITS[match[2]]


def packed(name: str, root: str, to: Path, part_size: int) -> list[Path]:
    """Pack what lies under ``root``, and see that it reads back as it was; gives the files."""
    config = compose([f"data={name}", f"data.root={root}"])
    import numpy as np

    from vitrine.data.datasets import load_dataset
    from vitrine.data.shards import read_shards, shards_folder, write_shards

    images = load_dataset(config.data, Path(config.paths.cache_dir))
    found = {"train": images.train, "val": images.val, "test": images.test}
    splits = {word: (one.images.numpy(), one.labels.numpy()) for word, one in found.items() if one is not None}
    folder = shards_folder(to, name)
    files = write_shards(folder, name, images.classes, splits, part_size)
    classes, again = read_shards(folder, name)
    assert classes == images.classes
    for word, arrays in splits.items():
        assert all(map(np.array_equal, arrays, again[word]))
    return files


if __name__ == "__main__":
    main()
