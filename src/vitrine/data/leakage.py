"""Images that are in several splits of a data set of files: equal bytes under different names."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from vitrine.data.decode import ImageFile
from vitrine.text import listed, plural, report

MAX_LISTED = 2
MAX_FILES = 200_000  # as many may have to be opened
TAIL = 4096  # bytes at the end of a file that tell most images of equal size apart
MAX_BYTES = 2**30  # of the files whose ends are equal, as those of uncompressed pictures with a border may be


def warn_of_leakage(where: object, splits: Mapping[str, Sequence[ImageFile]]) -> None:
    """Report equal files in two splits, unless there are more than ``MAX_FILES``, or one cannot be read.

    Args:
        where: the data, for the message.
        splits: files of each split.
    """
    if sum(map(len, splits.values())) > MAX_FILES:
        return
    try:
        pairs = repeated(splits)
    except OSError:  # decoding names the file
        return
    if not pairs:
        return
    shown = listed([f"{second} = {first}" for first, second in pairs], MAX_LISTED, separator="; ")
    equal = f"{plural(len(pairs), 'image')} of one split with the bytes of an image of another: {shown}"
    report(f"warning: {where}: {equal}: leakage, which makes measured accuracies too high")


def repeated(splits: Mapping[str, Sequence[ImageFile]]) -> list[tuple[ImageFile, ImageFile]]:
    """Return pairs of equal files from two different splits, one pair for each file of the later split.

    Of files of equal size the last bytes are compared, and whole files only where these are equal, up to ``MAX_BYTES``
    of them.
    """
    suspects = [[(split, file) for split, files in splits.items() for file in files]]
    for digest in (_size, _tail, _whole):
        if digest is _whole:
            suspects = _readable(suspects)
        groups: dict[tuple[int, object], list[tuple[str, ImageFile]]] = defaultdict(list)
        for number, files in enumerate(suspects):
            for split, file in files:
                groups[number, digest(file)].append((split, file))
        suspects = [files for files in groups.values() if len({split for split, _ in files}) > 1]
    return [(files[0][1], file) for files in suspects for split, file in files if split != files[0][0]]


def _readable(groups: list[list[tuple[str, ImageFile]]]) -> list[list[tuple[str, ImageFile]]]:
    """Return the groups that may be read whole: as many as have ``MAX_BYTES`` together."""
    kept, left = [], MAX_BYTES
    for files in groups:
        size = sum(_size(file) for _, file in files)
        if size <= left:
            kept.append(files)
            left -= size
    return kept


def _size(file: ImageFile) -> int:
    return os.stat(file).st_size if isinstance(file, Path) else file.size()  # noqa: PTH116 - pathlib is slow


def _tail(file: ImageFile) -> bytes:
    if not isinstance(file, Path):
        return file.tail(TAIL)
    opened = os.open(file, os.O_RDONLY)
    try:
        return os.pread(opened, TAIL, max(0, os.fstat(opened).st_size - TAIL))
    finally:
        os.close(opened)


def _whole(file: ImageFile) -> bytes:
    content = file.read_bytes() if isinstance(file, Path) else file.open().read()
    return blake2b(content, digest_size=16).digest()
