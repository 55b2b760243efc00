"""Recognise keys, tokens and passwords: masked in texts that are stored, refused in configurations."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

NAMES = re.compile(
    r"(api|access|auth|secret|private|signing)_?key|token|secret|passw|passphrase|credential|(^|[\W_])(key|pass)$|_pwd$",
    re.IGNORECASE,
)
# Token formats of W&B (older ones are 40 hexadecimal digits), Hugging Face, GitHub, GitLab, OpenAI, AWS and Slack, and
# the credentials before the last @ of a URL's authority. In a path, 40 hexadecimal digits are a commit.
FORMATS = re.compile(
    r"\b(?:wandb_v1_\w{20,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,})\b|(?<![/\w])[0-9a-f]{40}(?![/\w])|(?<=://)[^/\s]+(?=@)"
)
MIN_LENGTH = 8  # a shorter value is more likely a setting, and would match everywhere
SECRET_PROBLEM = "looks like a key or token; configurations are written to disk: set an environment variable, or log in"


@lru_cache(10_000)
def is_secret_name(key: str) -> bool:
    """Whether a key or environment variable of this name probably holds a secret."""
    return NAMES.search(key) is not None


def contains_secret(text: str) -> bool:
    """Whether a text contains a secret of the environment, or a token in the format of a well-known service."""
    return redact(text) != text


def redact(text: str) -> str:
    """Return the text with each secret in it replaced by ``***``."""
    return _redact(text, _environment_secrets())


def secret_keys(values: Any) -> list[str]:
    """Return the dotted keys of a nested mapping, or of dataclasses, whose values contain a secret."""
    known = _environment_secrets()

    def search(value: Any, key: str) -> Iterator[str]:
        if isinstance(value, (int, float)):  # most are, and to ask for a Mapping takes long
            return
        if isinstance(value, str):
            if _has_secret(value, known):
                yield key
        elif isinstance(value, list):
            for inner in value:
                yield from search(inner, key)
        elif isinstance(value, Mapping) or is_dataclass(value):
            for name, inner in (value if isinstance(value, Mapping) else vars(value)).items():
                if inner is not None:
                    yield from search(inner, f"{key}.{name}" if key else name)

    return list(dict.fromkeys(search(values, "")))


@lru_cache(10_000)
def _has_secret(text: str, known: tuple[str, ...]) -> bool:
    """Whether a value of a configuration contains a secret; the trials of a grid have most values in common."""
    return _redact(text, known) != text


def _redact(text: str, known: Iterable[str]) -> str:
    for value in known:
        text = text.replace(value, "***")
    return FORMATS.sub("***", text)


def _environment_secrets() -> tuple[str, ...]:
    """Values of environment variables with secret names, longest first; the path of a key file is not a secret."""
    values = {value for name, value in os.environ.items() if is_secret_name(name)}
    secrets = (value for value in values if len(value) >= MIN_LENGTH and not value.isdigit() and not _is_path(value))
    return tuple(sorted(secrets, key=len, reverse=True))


def _is_path(text: str) -> bool:
    try:
        return Path(text).is_absolute() and Path(text).exists()
    except OSError:
        return False
