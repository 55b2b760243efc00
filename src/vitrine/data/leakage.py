"""Images that are in several splits of a data set of files, or under several labels: equal bytes, different names."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from vitrine.data.decode import ImageFile
from vitrine.text import listed, plural, report

Entry = tuple[str, ImageFile, bytes]  # split, file, and its label's bytes
Pairs = list[tuple[ImageFile, ImageFile]]

MAX_LISTED = 2
MAX_FILES = 200_000  # as many may have to be opened
TAIL = 4096  # bytes at the end of a file that tell most images of equal size apart
MAX_BYTES = 2**30  # of the files whose ends are equal, as those of uncompressed pictures with a border may be


def warn_of_equal_files(where: object, splits: Mapping[str, tuple[Sequence[ImageFile], Tensor]]) -> None:
    """Report equal files in two splits, and under two labels; not of more than ``MAX_FILES``, or where one is missing.

    Args:
        where: the data, for the message.
        splits: files of each split, and their labels as :class:`Split` has them.
    """
    if sum(len(files) for files, _ in splits.values()) > MAX_FILES:
        return
    entries = [
        (split, file, label.tobytes())
        for split, (files, labels) in splits.items()
        for file, label in zip(files, labels.numpy(), strict=True)
    ]
    try:
        leaked, contradictory = repeated(entries)
    except OSError:  # decoding names the file
        return
    if leaked:
        equal = f"{plural(len(leaked), 'image')} of one split with the bytes of an image of another: {_shown(leaked)}"
        report(f"warning: {where}: {equal}: leakage, which makes measured accuracies too high")
    if contradictory:
        equal = f"{plural(len(contradictory), 'image')} with the bytes of an image with another label"
        report(f"warning: {where}: {equal}: {_shown(contradictory)}: one of the labels is wrong")


def repeated(entries: Sequence[Entry]) -> tuple[Pairs, Pairs]:
    """Return pairs of equal files: one for each that an earlier split has with its label, and for each further label.

    Of files of equal size the last bytes are compared, and whole files only where these are equal, up to ``MAX_BYTES``
    of them.
    """
    suspects = _alike(_alike([list(entries)], _size), _tail)
    suspects = _alike(_readable(suspects), _whole)
    leaked: Pairs = []
    contradictory: Pairs = []
    for equal in suspects:
        first: dict[bytes, Entry] = {}  # of each label
        for split, file, label in equal:
            earlier = first.setdefault(label, (split, file, label))
            if split != earlier[0]:
                leaked.append((earlier[1], file))
            elif file is earlier[1] and len(first) > 1:
                contradictory.append((equal[0][1], file))
    return leaked, contradictory


def _alike(groups: list[list[Entry]], digest: Callable[[ImageFile], object]) -> list[list[Entry]]:
    """Divide groups by a digest of their files; those of one split and one label are left out."""
    found: dict[tuple[int, object], list[Entry]] = defaultdict(list)
    for number, group in enumerate(groups):
        for entry in group:
            found[number, digest(entry[1])].append(entry)
    return [group for group in found.values() if len({(split, label) for split, _, label in group}) > 1]


def _shown(pairs: Pairs) -> str:
    return listed([f"{second} = {first}" for first, second in pairs], MAX_LISTED, separator="; ")


def _readable(groups: list[list[Entry]]) -> list[list[Entry]]:
    """Return the groups that may be read whole: as many as have ``MAX_BYTES`` together."""
    kept, left = [], MAX_BYTES
    for files in groups:
        size = sum(_size(file) for _, file, _ in files)
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
