"""Keys, tokens and passwords, recognised so that they are never written down."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

NAMES = re.compile(
    r"(api|access|auth|secret|private|signing)_?key|token|secret|passw|passphrase|credential|(^|[\W_])(key|pass)$|_pwd$",
    re.IGNORECASE,
)
# As services make them: W&B (the older ones are 40 hexadecimal digits), Hugging Face, GitHub, GitLab, OpenAI, AWS,
# Slack; and what stands before the @ of an address. In a path 40 such digits name a commit.
SHAPES = re.compile(
    r"\b(?:wandb_v1_\w{20,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,})\b|(?<![/\w])[0-9a-f]{40}(?![/\w])|(?<=://)[^/\s@]+(?=@)"
)
SHORTEST = 8  # a shorter value is more likely a setting, and would be found everywhere
TOLD = "looks like a key or token, and what is configured is written down; set it in the environment, or log in"


def names_secret(key: str) -> bool:
    """Whether something of this name is probably secret."""
    return NAMES.search(key) is not None


def holds_secret(text: str) -> bool:
    """Whether a text holds a secret of the environment, or one that looks like those of a well-known service."""
    return hide(text) != text


def hide(text: str) -> str:
    """The text with ``***`` for each secret in it."""
    return _hide(text, _of_the_environment())


def secrets_in(values: Mapping[str, Any]) -> list[str]:
    """The dotted keys of nested plain values that hold a secret."""
    known = _of_the_environment()

    def look(value: Any, key: str) -> Iterator[str]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from look(inner, f"{key}.{name}" if key else name)
        else:
            words = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
            if any(_hide(word, known) != word for word in words):
                yield key

    return list(look(values, ""))


def _hide(text: str, known: Iterable[str]) -> str:
    for value in known:
        text = text.replace(value, "***")
    return SHAPES.sub("***", text)


def _of_the_environment() -> list[str]:
    """Values of variables that are named as secrets; what is the path of a file is not the secret in it."""
    named = {value for name, value in os.environ.items() if names_secret(name)}
    secret = (value for value in named if len(value) >= SHORTEST and not value.isdigit() and not _is_path(value))
    return sorted(secret, key=len, reverse=True)


def _is_path(text: str) -> bool:
    try:
        return Path(text).is_absolute() and Path(text).exists()
    except OSError:
        return False
