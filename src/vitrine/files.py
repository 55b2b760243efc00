"""Files that are there whole or not at all: written beside their place, synced to disk, then renamed into it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of ``path``; what is written to it takes the place of ``path`` if no error occurs.

    Raises:
        OSError: the folder cannot be written to, or the disk is full. ``path`` is then as it was.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp made it private
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def link(source: Path, path: Path) -> None:
    """Make ``path`` another name of ``source``, in one step; where the file system has no hard links, a copy."""
    with replacing(path) as temporary:
        temporary.unlink()
        try:
            temporary.hardlink_to(source)
        except OSError:
            temporary.write_bytes(source.read_bytes())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last through a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
