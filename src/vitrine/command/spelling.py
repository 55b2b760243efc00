"""The canonical spelling of an override: trials and sweeps are named, recognised and distinguished by it."""

import re

from hydra.core.override_parser.types import Override, ParsedElementType, Quote, QuotedString, RangeSweep, Transformer

from vitrine.command.user_parts import is_option
from vitrine.config.sweep import one_spelling


def key_of(override: Override) -> str:
    """Return the key or group of an override, without the ``++`` that forces what is there anyway."""
    key = override.get_key_element()
    name = key.lstrip("+")
    return name if key.startswith("++") or is_option(name) else key


def spelled_values(override: Override) -> list[str]:
    """Return the value of an override, or each of them where it lists several.

    Steps of a range add up to numbers such as 0.30000000000000004, which are rounded to twelve digits, and one step too
    many may come out below the end, which a range excludes.
    """
    swept, key = override.value(), key_of(override)
    if not override.is_sweep_override():
        texts = [override.get_value_element_as_str()]
    else:
        texts = [str(text) for text in override.sweep_iterator(spelled_value)]
        if isinstance(swept, RangeSweep) and any(isinstance(one, float) for one in (swept.start, swept.step)):
            texts = [rounded for text in texts if (rounded := f"{float(text):.12g}") != f"{swept.stop:.12g}"]
    return [one_spelling(key, text) for text in texts]


def spelled_value(value: ParsedElementType) -> str:
    """Return a value as it is typed, in the quotes of letters outside ASCII, which choice() and others drop.

    In a list, a text that would be read as something else has quotes, too.
    """
    if isinstance(value, list):
        items = (QuotedString(item, Quote.single) if _is_no_bare_text(item) else item for item in value)
        return f"[{','.join(map(spelled_value, items))}]"
    if isinstance(value, str) and not value.isascii():
        value = QuotedString(value, Quote.single)
    return Transformer.str(value)


def _is_no_bare_text(item: ParsedElementType) -> bool:
    """Whether ``item`` is a text that is one in quotes only: ``null``, ``01``."""
    number = r"[+-]?(nan|inf|[\d._]+(e[+-]?\d+)?)"
    return isinstance(item, str) and re.fullmatch(rf"(?i)null|true|false|{number}|", item) is not None


def spelled(override: Override) -> str:
    """Return an override with a single value."""
    return f"{key_of(override)}={spelled_values(override)[0]}"
