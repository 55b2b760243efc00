"""Features of pictures in a file of numpy's, ``x.npz``, beside the table of results and in its order."""

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from vitrine.errors import ConfigError, Fault, RunError
from vitrine.files import naming_failed_write, replacing
from vitrine.inference.results import Row


class FeaturesFile:
    """Writes the arrays ``features`` (N, D) float32, ``paths`` (N,) and, where known, ``labels`` (N,) Unicode.

    Features of pictures that cannot be read are NaN; labels that are not known are "".

    Args:
        path: the file; features of an earlier command are replaced.
        size: number of features of a picture, D.

    Raises:
        RunError: it cannot be written, or is a folder.
        ConfigError: it is a file that holds no features.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        if path.is_dir():
            raise RunError(f"cannot write {path}: it is a folder")
        with naming_failed_write(path), TemporaryFile(dir=path.parent):
            if path.is_file() and path.stat().st_size and not _holds_features(path):
                problem = "exists and does not hold features of predict.py; choose another file"
                raise ConfigError([Fault("features", str(path), problem)])

    def write(self, rows: Callable[[], Iterator[Row]], *, labelled: bool) -> None:
        """Write the file, atomically; one row at a time is in memory.

        Args:
            rows: yields the rows with their features, anew each time.
            labelled: whether the true classes of pictures are known.

        Raises:
            RunError: it cannot be written.
        """
        count, longest = 0, {"path": 1, **({"label": 1} if labelled else {})}
        for row in rows():
            count += 1
            longest = {name: max(length, len(getattr(row, name))) for name, length in longest.items()}
        unread = np.full(self.size, np.nan, "<f4").tobytes()
        with naming_failed_write(self.path), replacing(self.path) as temporary, ZipFile(temporary, "w") as archive:
            features = (b64decode(row.features) or unread for row in rows())
            _write_array(archive, "features", "<f4", (count, self.size), features)
            for name, length in longest.items():
                texts = (_utf32(getattr(row, name), length) for row in rows())
                _write_array(archive, f"{name}s", f"<U{length}", (count,), texts)


def _write_array(archive: ZipFile, name: str, dtype: str, shape: tuple[int, ...], parts: Iterable[bytes]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
        for part in parts:
            file.write(part)


def _utf32(text: str, length: int) -> bytes:
    return text.encode("utf-32-le", "surrogatepass").ljust(4 * length, b"\0")  # names of files need not be valid text


def _holds_features(path: Path) -> bool:
    try:
        with ZipFile(path) as archive:
            arrays = [(entry.filename, entry.compress_type) for entry in archive.infolist()]
    except BadZipFile:
        return False
    written = [(f"{name}.npy", ZIP_STORED) for name in ("features", "paths", "labels")]
    return arrays in (written[:2], written)
