"""Atomic file writes: a temporary file in the same folder, synced to disk, then renamed over the target."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``, which replaces ``path`` when the block ends without an error.

    Raises:
        OSError: the folder is not writable, or the disk is full; ``path`` is unchanged.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes it private
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def link(source: Path, path: Path) -> None:
    """Make ``path`` a hard link to ``source``, atomically; a copy where the file system has no hard links."""
    with replacing(path) as temporary:
        temporary.unlink()
        try:
            temporary.hardlink_to(source)
        except OSError:
            temporary.write_bytes(source.read_bytes())


def _sync_folder(folder: Path) -> None:
    """Sync the folder entry, so that the rename survives a power failure (POSIX only)."""
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
