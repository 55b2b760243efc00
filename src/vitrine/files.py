"""Atomic file writes: a temporary file in the same folder, synced to disk, then renamed over what may be replaced."""

import errno
import glob
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrine.errors import DiskFull, RunError
from vitrine.text import file_size, listed, report

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit of file sizes is reached (ulimit -f)",
}
COPIED_AT_ONCE = 1 << 26  # bytes
DAY = 86_400  # seconds
HEAD = 1 << 16  # bytes
REPLACED = ".replaced"  # what staging calls a folder until it is replaced
OWN = stat.S_IRUSR | stat.S_IWUSR


@contextmanager
def replacing(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``, which replaces ``path`` when the block ends without an error.

    A file that is replaced keeps its permissions: in a folder that users share, a private umask of one does not take
    the file away from the others.

    Args:
        path: the file to write.
        keep: what the file that is replaced is called from then on, in the same folder.

    Raises:
        DiskFull: the disk is full; ``path`` is unchanged.
        OSError: the folder is not writable; ``path`` is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    mode = None
    with suppress(OSError):
        mode = path.stat().st_mode & 0o777 | OWN  # not setuid, which would be of another owner
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode))
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        if keep is not None and path.exists():
            _rename_keeping(path, keep)
        temporary.replace(path)
        _sync_folder(path.parent)
    except DiskFull:
        raise
    except Exception as error:
        with suppress(OSError):
            temporary.unlink()  # before the space left is measured
        _set_path(error, path)
        if (full := disk_full(error, path)) is None:
            raise
        raise full from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield where to write a file or folder, which replaces ``path`` when the block ends without an error.

    For writers that choose their own temporary names or write several files. What is yielded has the name of ``path``,
    in a hidden folder beside it. Folders above ``path`` are made if need be, and removed again after an error. Hidden
    folders that killed writers of ``path`` left are removed by the first writer after a day. If ``path`` is gone, what
    it was is put back first, and stays in the hidden folder where it cannot be.

    Raises:
        DiskFull: the disk is full; ``path`` is unchanged.
        OSError: nothing can be written there; ``path`` is unchanged.
    """
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(FileNotFoundError, PermissionError):  # another process has removed it, or it is another user's
            if time.time() - leftover.stat().st_mtime > DAY:
                _remove(leftover, path)
    try:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial"))
        try:
            staged = folder / path.name
            yield staged
            for file in [staged, *staged.rglob("*")]:
                if file.is_file():
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            if path.is_dir():  # a folder is not replaced in one step
                path.rename(folder / REPLACED)
            staged.replace(path)
            _sync_folder(path.parent)
        finally:
            _remove(folder, path)
    except BaseException as error:
        _set_path(error, path)
        full = disk_full(error, path)
        for parent in missing:
            with suppress(OSError):  # it holds what another process has written meanwhile
                parent.rmdir()
        if full is None or full is error:
            raise
        raise full from error


def _remove(folder: Path, path: Path) -> None:
    """Remove a hidden folder of :func:`staging`, unless it has what ``path`` was, which cannot be put back."""
    old = folder / REPLACED
    if not path.exists() and old.exists():
        try:
            old.rename(path)
        except OSError as error:
            report(f"{path} is now {old}, as it cannot be put back: {error.strerror}")
            return
    shutil.rmtree(folder, ignore_errors=True)


def refuse_link_out(path: Path, folder: Path) -> None:
    """Raise RunError if ``path`` is in ``folder``, which others may have made, and is a link that leads out of it."""
    home, parent, target = (Path(os.path.realpath(each)) for each in (folder, path.parent, path))
    if parent == home and not target.is_relative_to(home):
        raise RunError(f"cannot write {path}: it is a link that leads out of {folder}, to {target}")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def copy(source: Path, path: Path) -> None:
    """Copy a file, atomically. Where the file system can share blocks, they are shared until one file is written to."""
    with replacing(path) as temporary, source.open("rb") as reader, temporary.open("wb") as writer:
        try:
            while os.copy_file_range(reader.fileno(), writer.fileno(), COPIED_AT_ONCE):
                pass
        except (AttributeError, OSError):  # not Linux, or another file system
            reader.seek(0)
            writer.seek(0)
            writer.truncate()
            shutil.copyfileobj(reader, writer, COPIED_AT_ONCE)


def move_aside(path: Path) -> Path:
    """Rename a damaged file to ``NAME.damaged``, or ``NAME.damaged2`` if that exists; return its new path."""
    aside, number = path.with_name(f"{path.name}.damaged"), 2
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.damaged{number}"), number + 1
    return path.rename(aside)


def remove_leftovers(folder: Path, name: str) -> None:
    """Remove temporary files of :func:`replacing` that killed writers of ``name`` left in ``folder``.

    Nobody else may write it meanwhile.
    """
    for leftover in folder.glob(f".{name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def _rename_keeping(path: Path, keep: Path) -> None:
    """Rename ``path`` to ``keep`` and, where the file system has hard links, leave it at ``path``, too."""
    temporary = path.with_name(f".{keep.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        temporary.hardlink_to(path)
        temporary.replace(keep)
    except OSError:
        path.replace(keep)
    finally:
        temporary.unlink(missing_ok=True)  # renaming to another name of the same file does nothing


@contextmanager
def naming_full_disk(place: Path | None = None) -> Iterator[None]:
    """Replace an error whose cause is a full disk by :class:`DiskFull`, which says so.

    Args:
        place: where the block writes, for errors that name no file.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if (full := disk_full(error, place)) is None:
            raise
        raise full from error


@contextmanager
def naming_failed_write(path: Path) -> Iterator[None]:
    """Replace an error of the system by :class:`RunError` or :class:`DiskFull`; the block writes ``path``."""
    try:
        yield
    except OSError as error:
        raise disk_full(error, path) or RunError(f"cannot write {path}: {error.strerror or error}") from error


def disk_full(error: BaseException, place: Path | None = None) -> DiskFull | None:
    """Return what to report if ``error``, or one that it followed, comes from a full disk; else ``None``.

    Args:
        error: any error; libraries raise their own for a write that failed.
        place: the file or folder that was written, for errors that do not name it.
    """
    if isinstance(error, DiskFull):
        return error
    causes = _causes(error)[::-1]  # of several, the first is reported
    if (known := next((cause for cause in causes if isinstance(cause, DiskFull)), None)) is not None:
        return DiskFull(known.problem, known.advice)
    failure = next((cause for cause in causes if isinstance(cause, OSError) and cause.errno in FULL), None)
    if failure is None:
        return None
    if isinstance(failure.filename, str | bytes):
        place = Path(os.fsdecode(failure.filename))
    return _full(failure.errno, place)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and those that it followed, the last first."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:  # a cause may have been set that followed from its effect
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


def _set_path(error: BaseException, path: Path) -> None:
    """Let an error name ``path``, and not a temporary file of it, nor, on a full disk, none."""
    if isinstance(error, OSError) and (error.errno in FULL or _is_temporary(error.filename, path)):
        error.filename = str(path)


def _is_temporary(name: object, path: Path) -> bool:
    return Path(str(name)).name.startswith(f".{path.name}.")


def _full(number: int | None, path: Path | None) -> DiskFull:
    problem = FULL[number or errno.ENOSPC]
    if path is None:
        return DiskFull(f"{problem}: a file could not be written")
    if number == errno.EFBIG:
        return DiskFull(f"{problem}: cannot write {path}", "raise it and rerun the same command")
    folder = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    free = file_size(shutil.disk_usage(folder).free)
    return DiskFull(f"{problem}: cannot write {path}; {free} left on that disk")


def _sync_folder(folder: Path) -> None:
    """Sync the folder entry, so that the rename survives a power failure (POSIX only)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_target(path: Path, suffixes: Sequence[str] = (), kind: str = "", mark: bytes = b"") -> None:
    """Raise RunError for a file that cannot be written, or that vitrine has not written.

    Args:
        path: the file to write.
        suffixes: of names that it may have, in lower case; none allow any.
        kind: what it will hold.
        mark: what the first 64 KiB of a file must hold to be replaced, unless it is empty or an empty list.
    """
    try:
        if not path.absolute().parent.is_dir():
            raise RunError(f"cannot write {path}: {path.absolute().parent} is not a folder")
        if path.is_dir():
            raise RunError(f"cannot write {path}: it is a folder; name a file in it")
        if suffixes and path.suffix.lower() not in suffixes:
            raise RunError(f"cannot write {path}: its name must end in {listed(suffixes, word='or')}")
        if path.is_file() and not _holds(path, mark):
            raise RunError(f"cannot write {path}: it exists and is not a {kind} of vitrine's; choose another file")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def _holds(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return head in (b"", b"[]") or mark in head
