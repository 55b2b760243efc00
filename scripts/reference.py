"""Write docs/reference/keys.md and choices.md from the schema and conf/: python scripts/reference.py.

A key's meaning is its line in the docstring of its section, its limits are those of its field, and its default is that
of ``train.py`` without overrides. A choice is described by the comment at the head of its file.
"""

import argparse
import dataclasses
import math
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from vitrine.command.compose import as_composed
from vitrine.config.fields import KeyFacts
from vitrine.config.keys import key_facts, without_none
from vitrine.config.sweep import TrainCommand

ROOT = Path(__file__).parents[1]
CONF, PAGES = ROOT / "conf", ROOT / "docs" / "reference"
FACTS = {
    "may_change_on_resume": "may change on resume",
    "shared_by_trials": "one value for all trials of a multirun",
}


def main() -> None:
    """Write both pages."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, text in pages().items():
        (PAGES / name).write_text(text)


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    return {"keys.md": keys_page(), "choices.md": choices_page()}


def keys_page() -> str:
    """A table for each section of the configuration."""
    head = """\
        # Keys

        Every key of `train.py`, as `key=value` on the command line. A default that begins with `$` is computed from
        other keys. Sections that are off by default, such as `logger.wandb`, are turned on by a choice: `logger=wandb`.
        The values behind each choice of a group: [Choices](choices.md). Written by `python scripts/reference.py`.
        """
    defaults = OmegaConf.to_container(as_composed("train", []), resolve=False)
    return textwrap.dedent(head) + "".join(_section_tables(TrainCommand, "", defaults))


def choices_page() -> str:
    """A table for each config group."""
    head = """\
        # Choices

        Every config group, as `group=choice` on the command line; each choice is a file in `conf/` with the values it
        sets. Dotted names of your own stand in their place: [Your own parts](../own_parts.md).
        Written by `python scripts/reference.py`.
        """
    groups = sorted({path.parent.relative_to(CONF).parts[0] for path in CONF.glob("*/**/*.yaml")} - {"hydra", "local"})
    tables = [_choices_table(group, CONF / group) for group in groups]
    return textwrap.dedent(head) + "".join([*tables, _choices_table("hydra/launcher", CONF / "hydra" / "launcher")])


def _section_tables(section: type, prefix: str, values: Any) -> Iterator[str]:
    """The table of a section's own keys, then those of the sections in it."""
    hints = typing.get_type_hints(section)
    summary, meanings = _docstring(section)
    rows, inner = [], []
    for field in dataclasses.fields(section):
        kind, key = without_none(hints[field.name]), f"{prefix}{field.name}"
        value = values.get(field.name) if isinstance(values, dict) else _own_default(field)
        if dataclasses.is_dataclass(kind):
            inner.append(list(_section_tables(typing.cast(type, kind), f"{key}.", value)))
        else:
            meaning = _with_facts(meanings.get(field.name) or _of_options(field.name), key_facts(TrainCommand, key))
            rows.append(f"| `{key}` | {_default(value)} | {_allowed(field, hints[field.name])} | {meaning} |\n")
    title = f"`{prefix[:-1]}`" if prefix else "Keys of a run and a command"
    yield f"\n## {title}\n\n{summary}\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n{''.join(rows)}"
    for tables in inner:
        yield from tables


def _docstring(section: type) -> tuple[str, dict[str, str]]:
    """A section's description, and the meaning of each of its keys, as Markdown for a table's cell."""
    text = textwrap.dedent(f"    {section.__doc__}")
    for parent in section.__mro__[1:]:
        if dataclasses.is_dataclass(parent):
            text += "\n\n" + textwrap.dedent(f"    {parent.__doc__}")
    meanings, names = {}, ()
    outside = []
    for line in text.splitlines():
        if match := re.match(r" {4}(\w+(?:, \w+)*): (.*)", line):
            names = tuple(match[1].split(", "))
            meanings |= dict.fromkeys(names, match[2])
        elif line.startswith("        ") and names:
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
        elif line.strip() != "Attributes:":
            names = ()
            outside.append(line)
    summary = " ".join(" ".join(outside).split())
    return _markdown(summary), {name: _markdown(meaning) for name, meaning in meanings.items()}


def _of_options(name: str) -> str:
    """The meaning of a key such as ``position_options``."""
    part = name.removesuffix("_options").removesuffix("options")
    return f"arguments of the part of your own that `{part or 'name'}` names." if part != name else ""


def _own_default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _default(value: Any) -> str:
    if value == "???" or value is dataclasses.MISSING:
        return "set by a choice"
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix('...' + chr(10)).strip()}`"


def _allowed(field: "dataclasses.Field[Any]", kind: Any) -> str:
    if (options := field.metadata.get("options")) is not None:
        listed = ", ".join([*(f"`{option}`" for option in options), *filter(None, [field.metadata.get("others")])])
        return f"{listed}, or a dotted name" if "part" in field.metadata else listed
    if "part" in field.metadata:
        return ", ".join([*(f"`{word}`" for word in field.metadata["part"].words), "dotted names"])
    word = field.metadata.get("word")
    if kind is typing.Any and word is None and "size" not in field.metadata:
        return "text, numbers, or names with numbers, null"
    kind = float if word else kind
    name = {bool: "true, false", int: "whole number", float: "number", str: "text"}.get(without_none(kind), "")
    lists = {"list[float]": "numbers", "list[str]": "texts", "list[int]": "whole numbers"}
    name = name or lists.get(str(kind).split(" | ")[0], str(kind).split(" | ")[0])
    name = "keys with values" if name.startswith("dict") else name
    name = "whole number, or `[height,width]`," if "size" in field.metadata else name
    limits = zip((">=", ">", "<=", "<"), field.metadata.get("bounds", ()), strict=False)  # fields.number's order
    bounds = " and ".join(f"{sign} {_number(bound)}" for sign, bound in limits if math.isfinite(bound))
    none = ", null" if type(None) in typing.get_args(kind) or (word and field.default is None) else ""
    return f"{name} {bounds}".strip() + (f", `{word}`" if word else "") + none


def _number(bound: float) -> str:
    return f"{bound:,.0f}" if abs(bound) >= 1000 else f"{bound:g}"


def _with_facts(meaning: str, known: KeyFacts) -> str:
    true = [text for name, text in FACTS.items() if getattr(known, name)]
    if not known.affects_result:
        true.insert(0, "no effect on the result")
    note = f"*{'; '.join(true)}*" if true else ""
    return " ".join(part for part in (meaning, note) if part)


def _choices_table(group: str, folder: Path) -> str:
    rows = []
    for path in sorted(folder.rglob("*.yaml"), key=_order):
        name = path.relative_to(folder).with_suffix("").as_posix()
        rows.append(f"| `{group}={name}` | {_markdown(_head_comment(path.read_text()))} |\n")
    return f"\n## `{group}`\n\n| choice | what it is |\n|---|---|\n{''.join(rows)}"


def _order(path: Path) -> tuple[bool, int, str]:
    """Numbers by their value, then names."""
    return (not path.stem.isdigit(), int(path.stem) if path.stem.isdigit() else 0, str(path))


def _head_comment(text: str) -> str:
    """The comment lines at the top of a file, or else its values."""
    lines = [line for line in text.splitlines() if not line.startswith("# @package")]
    head = []
    for line in lines:
        if not line.startswith("#"):
            break
        head.append(line.lstrip("# ").strip())
    if head:
        return " ".join(head)
    values = [
        re.sub(r"\s+#.*", "", line).strip() for line in lines if line.strip() and not line.lstrip().startswith("#")
    ]
    return f"``{', '.join(values)}``" if values else ""


def _markdown(text: str) -> str:
    """Text of a docstring or a comment as Markdown: code in backquotes, links for arXiv numbers, no bare pipes."""
    text = text.replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


if __name__ == "__main__":
    main()
