"""Which run is meant by a path at which there is none."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from vitrine.text import did_you_mean, similar_path_hint

LEVELS = 3  # of folders, as those of trials in outputs/
MOST = 20_000  # entries: a path may be that of a whole disk


def nearest_run_hint(path: Path) -> str:
    """A hint at a run folder: the one around ``path``, the newest inside it, or the most similar name beside it."""
    try:
        if around := [folder for folder in path.parents if (folder / "run.json").is_file()]:
            return did_you_mean(around[0])
        if path.is_dir():
            newest = newest_run(path)
            return f"; the newest run in it is {newest}" if newest else ""
    except OSError:
        return ""
    return similar_path_hint(path, lambda folder: (folder / "run.json").exists())


def newest_run(path: Path) -> Path | None:
    """Return the run folder in ``path`` that was written to last, up to ``LEVELS`` deep; ``None`` if there is none."""
    try:
        files = [entry for entry in islice(_entries(path), MOST) if entry.name == "run.json"]
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
    except OSError:
        return None
    return None if newest is None else Path(newest.path).parent


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, and in those that are at most ``LEVELS`` below it, apart from hidden ones."""
    level = [str(root)]
    for _ in range(LEVELS + 1):
        below = []
        for folder in level:
            with suppress(OSError), os.scandir(folder) as inside:
                for entry in inside:
                    yield entry
                    if entry.name[0] != "." and entry.is_dir(follow_symlinks=False):
                        below.append(entry.path)
        level = below
