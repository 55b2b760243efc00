"""Small files that stand for more than a computer holds."""

import copy
import zipfile
from itertools import pairwise
from pathlib import Path

# Nine values that stand for nine each, nine times: 9^9.
YAML_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{inner}'] * 9)}]\n" for inner, name in pairwise("abcdefghi")
)


def let_entries_overlap(path: Path) -> None:
    """Add a hundred entries to an archive that are all its largest one's bytes."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("new", b"")  # has the directory of entries written anew
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        for number in range(100):
            archive.filelist.append(entry := copy.copy(largest))
            entry.filename = f"archive/data/new{number}"
