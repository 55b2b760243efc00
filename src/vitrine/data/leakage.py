"""Images that are in several splits of a data set of files: equal bytes under different names."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

TAIL = 4096  # bytes at the end of a file that tell most images of equal size apart


def repeated(splits: Mapping[str, Sequence[Path]]) -> list[tuple[Path, Path]]:
    """Return pairs of equal files from two different splits, one pair for each file of the later split.

    Of files of equal size the last bytes are compared, and whole files only where these are equal.
    """
    found: dict[tuple[int, ...], list[tuple[str, Path]]] = defaultdict(list)
    for split, paths in splits.items():
        for path in paths:
            found[(os.stat(path).st_size,)].append((split, path))  # noqa: PTH116 - pathlib is slow
    suspects = [files for files in found.values() if _in_several(files)]
    for digest in (_tail, _whole):
        groups: dict[tuple[int, bytes], list[tuple[str, Path]]] = defaultdict(list)
        for number, files in enumerate(suspects):
            for split, path in files:
                groups[number, digest(path)].append((split, path))
        suspects = [files for files in groups.values() if _in_several(files)]
    return [(files[0][1], path) for files in suspects for split, path in files if split != files[0][0]]


def _in_several(files: Sequence[tuple[str, Path]]) -> bool:
    return len({split for split, _ in files}) > 1


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-min(TAIL, os.fstat(file.fileno()).st_size), os.SEEK_END)
        return file.read()


def _whole(path: Path) -> bytes:
    return blake2b(path.read_bytes(), digest_size=16).digest()
