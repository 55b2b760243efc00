"""Pack a data set into a few files of a chosen size, each with its checksum, for machines without a network.

vitrine pack cifar10 --root data --to packed --part-size 60M     # writes packed/cifar10-packed/
vitrine train data=cifar10 data.root=packed                      # on the other machine: reads them where they are
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from vitrine import compose
from vitrine.cli.arguments import errors_in_one_line, make_parser
from vitrine.config.schema import DOWNLOADED

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def main(arguments: Sequence[str] | None = None) -> None:
    """Pack a data set, read it back, and print the files."""
    parser = make_parser("pack", __doc__)
    parser.add_argument("name", choices=DOWNLOADED, help="the data set")
    parser.add_argument("--root", default="data", help="folder that holds it, or that it is downloaded to (data)")
    parser.add_argument("--to", default=None, help="folder in which NAME-packed is written (that of --root)")
    parser.add_argument("--part-size", default="60M", type=size, help="largest size of a file: 500k, 60M, 2G (60M)")
    options = parser.parse_args(arguments)
    with errors_in_one_line(exit_code=1):
        files = packed(options.name, options.root, Path(options.to or options.root), options.part_size)
    for path in files:
        print(f"{path.stat().st_size:>13,}  {path}")


def size(text: str) -> int:
    """Bytes from a text such as ``60M``; units are powers of 1000."""
    match = re.fullmatch(r"(\d+)([kMG]?)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 500k, 60M or 2G")
    return int(match[1]) * UNITS[match[2]]


def packed(name: str, root: str, to: Path, part_size: int) -> list[Path]:
    """Pack the data set in ``root``, check that it reads back unchanged, and return the files."""
    config = compose([f"data={name}", f"data.root={root}"])
    import numpy as np
    from torch import Tensor

    from vitrine.data.datasets import load_dataset
    from vitrine.data.shards import read_shards, shards_folder, write_shards

    images = load_dataset(config.data, Path(config.paths.cache_dir))
    found = {"train": images.train, "val": images.val, "test": images.test}
    splits = {
        split: (part.images.numpy(), part.labels.numpy())
        for split, part in found.items()
        if part is not None and isinstance(part.images, Tensor)
    }
    folder = shards_folder(to, name)
    files = write_shards(folder, name, images.classes, splits, part_size)
    classes, written = read_shards(folder, name)
    assert classes == images.classes
    for split, arrays in splits.items():
        assert all(map(np.array_equal, arrays, written[split]))
    return files
