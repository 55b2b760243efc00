"""Start Python processes that import nothing from the working directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "PYTHONSAFEPATH"


@contextmanager
def without_working_directory() -> Iterator[None]:
    """Let Python processes that start in this context leave the working directory out of ``sys.path``.

    ``python -c``, which multiprocessing uses, puts it first: a random.py in a folder that somebody sent would replace
    Python's own.
    """
    before = os.environ.get(NAME)
    os.environ[NAME] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NAME]
        else:
            os.environ[NAME] = before
