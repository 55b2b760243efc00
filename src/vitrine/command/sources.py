"""The folders that configuration files are read from: the package's ``conf/``, and a folder of the user's beside it.

A user's folder has the same layout: ``experiment/mine.yaml`` is ``experiment=mine``, ``position/mine.yaml`` is
``position=mine``. It is given by ``--config-dir``, or it is the ``conf/`` of the working directory.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Self

import hydra
import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from vitrine.errors import ConfigError, Fault

FOUND = "conf"  # the folder of the working directory that is used without being typed


@dataclass(frozen=True)
class Sources:
    """Where configurations are composed from, beside the package's own files.

    Attributes:
        folder: the user's folder, if any.
        typed: whether the user named the folder. The files of a folder that was only found are not trusted to import
            Python code.
        primary: the user's primary configuration in that folder; ``None`` is the command's own.
    """

    folder: Path | None = None
    typed: bool = False
    primary: str | None = None

    @classmethod
    def choose(
        cls, config_dir: str | Path | None = None, primary: str | None = None, command: str = "train"
    ) -> "Sources":
        """The folder ``config_dir``, else ``conf/`` in the working directory, else none.

        Raises:
            ConfigError: there is no such folder or primary configuration, the primary configuration does not build on
                that of ``command``, or the package has a file of the same name.
        """
        if config_dir is not None and not Path(config_dir).is_dir():
            raise ConfigError([Fault("--config-dir", str(config_dir), "is not a folder")])
        folder: Path | None = Path(config_dir or FOUND).absolute()
        if config_dir is None and folder is not None and (not folder.is_dir() or _is_vitrines(folder)):
            folder = None
        sources = cls(folder, config_dir is not None, primary)
        if found := sources._faults(command):
            raise ConfigError(found)
        return sources

    @property
    def flags(self) -> list[str]:
        """The flags that choose the same files again, from any working directory if the user named the folder."""
        folder = [f"--config-dir={self.folder}"] if self.typed else []
        return [*folder, *([] if self.primary is None else [f"--config-name={self.primary}"])]

    @cached_property
    def files(self) -> list[str]:
        """The YAML files of the user's folder, relative to it, without the ending."""
        return [] if self.folder is None else sorted(_names(self.folder))

    @cached_property
    def groups(self) -> frozenset[str]:
        """All config groups but Hydra's own, those inside others included."""
        found = {path.relative_to(conf()).as_posix() for path in conf().rglob("*/")}
        found.update(str(folder) for name in self.files for folder in PurePosixPath(name).parents)
        return frozenset(group for group in found - {"."} if not group.startswith("hydra"))

    def choices(self, group: str) -> list[str]:
        """The choices of a group, those in folders inside it included: ``mnist/quick``."""
        start = f"{group}/"
        return [name.removeprefix(start) for name in [*self._packaged, *self.files] if name.startswith(start)]

    def vouch_for(self, name: str) -> bool:
        """Whether a file of a folder that the user typed has ``name``, a dotted Python name, as a value."""
        return self.typed and name in self._values

    @property
    def mention_hydra(self) -> bool:
        """Whether ``hydra`` stands anywhere in the user's files."""
        for file in self.files:
            with suppress(OSError):  # reported when the file is composed
                if "hydra" in (Path(self.folder or "") / f"{file}.yaml").read_text(encoding="utf-8", errors="replace"):
                    return True
        return False

    @cached_property
    def _packaged(self) -> list[str]:
        """The YAML files of the package, as :attr:`files`."""
        return sorted(_names(conf()))

    @cached_property
    def _values(self) -> frozenset[str]:
        """Every string that is a value in the user's files, or an entry of a list in one, as ``[default,a.B]``."""
        found: set[str] = set()
        for file in self.files:
            with suppress(yaml.YAMLError, OSError, UnicodeDecodeError):  # reported when the file is composed
                node = yaml.compose(
                    (Path(self.folder or "") / f"{file}.yaml").read_text(encoding="utf-8"), yaml.SafeLoader
                )
                found.update(_scalars(node))
        entries = (entry.strip(" '\"") for value in found if value[:1] == "[" for entry in value.strip("[]").split(","))
        return frozenset(found.union(entries))

    def _faults(self, command: str) -> list[Fault]:
        found = self._taken_names() if command == "train" else []  # no other command chooses files of groups
        if self.primary in self.files:
            return [*found, *self._primary_faults(command)]
        return found if self.primary is None else [*found, self._missing_primary(command)]

    def _taken_names(self) -> list[Fault]:
        packaged = set(self._packaged)
        problem = "vitrine has a file of this name, which would be used instead; rename yours"
        return [Fault(f"{self.folder}/{name}.yaml", "", problem) for name in self.files if name in packaged]

    def _missing_primary(self, command: str) -> Fault:
        if self.folder is None:
            problem = f"is a file in a folder of your own, --config-dir=DIR; without both, it is {command}"
        else:
            shown = "--config-dir" if self.typed else "the folder"
            top = ", ".join(name for name in self.files if "/" not in name) or "none"
            problem = f"there is no {self.primary}.yaml in {shown} {self.folder}; at its top level: {top}"
        return Fault("--config-name", str(self.primary), problem)

    def _primary_faults(self, command: str) -> Iterator[Fault]:
        path = Path(self.folder or "") / f"{self.primary}.yaml"
        try:
            with path.open(encoding="utf-8") as file:
                values = yaml.safe_load(file)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            yield _unreadable(error, str(path))
            return
        if not isinstance(values, dict) or command not in (values.get("defaults") or []):
            problem = f"does not build on vitrine's configuration; its defaults begin with `- {command}`"
            yield Fault("--config-name", str(self.primary), problem)
        if not self.typed and isinstance(values, dict) and (imported := _imported(values)):
            problem = f"imports Python code, so the folder must be named: --config-dir {self.folder}"
            yield Fault("hydra.searchpath", imported, problem)


@dataclass(frozen=True)
class _Active:
    """The sources and the loader of :func:`composing`, and what was composed from files, or why it could not be.

    The last two are by command and choices.
    """

    sources: Sources
    loader: ConfigLoader
    composed: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = field(default_factory=dict)
    failed: dict[tuple[str, ...], Exception] = field(default_factory=dict)


_ACTIVE: ContextVar[_Active | None] = ContextVar("sources", default=None)


def sources() -> Sources:
    """Those of the composition under way."""
    active = _ACTIVE.get()
    return Sources() if active is None else active.sources


def primary_config(name: str) -> str:
    """The primary configuration that the command ``name`` is composed from: its own, or the user's."""
    return sources().primary or name


@contextmanager
def composing(chosen: Sources | None = None) -> Iterator[ConfigLoader]:
    """Hydra ready to compose from ``chosen``, by default as around this call; what it was ready for is restored after.

    Inside another call for the same sources, its loader and what it has composed are used again: either takes a tenth
    of a second or more.

    Raises:
        ConfigError: a file is not valid YAML, or its defaults lead back to itself.
    """
    active = _ACTIVE.get()
    if active is not None and chosen in (None, active.sources):
        yield active.loader
        return
    chosen = chosen or Sources()
    path = create_config_search_path(str(conf()))
    if chosen.folder is not None:
        anchor = SearchPathQuery(provider="schema")
        path.prepend(
            provider="--config-dir" if chosen.typed else "working directory", path=str(chosen.folder), anchor=anchor
        )
    version.setbase("1.3")
    around = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    loader = Hydra.create_main_hydra2("train", path).config_loader
    assert isinstance(loader, ConfigLoaderImpl)
    loader.repository = _FilesRead(loader.repository)  # type: ignore[assignment]
    token = _ACTIVE.set(_Active(chosen, loader))
    try:
        yield loader
    except yaml.YAMLError as error:
        raise ConfigError([_unreadable(error)]) from None
    finally:
        _ACTIVE.reset(token)
        GlobalHydra.instance().hydra = around


def from_files(command: str, choices: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """Return what Hydra composes for ``command`` with choices of files, and its node ``hydra``; in :func:`composing`.

    The same choices are composed once, even where they fail, so the result is to be copied before it is changed.

    Raises:
        HydraException, OmegaConfBaseException, ConfigError: as :func:`compose_files`.
    """
    active = _ACTIVE.get()
    assert active is not None
    key = (primary_config(command), *choices)
    if key in active.failed:
        raise active.failed[key]
    if key not in active.composed:
        try:
            composed = compose_files(command, choices)
        except (HydraException, OmegaConfBaseException, ConfigError) as error:
            active.failed[key] = error
            raise
        settings = composed.hydra
        with open_dict(composed):
            del composed["hydra"]
        active.composed[key] = composed, settings
    return active.composed[key]


def compose_files(command: str, overrides: Sequence[str]) -> DictConfig:
    """Return what Hydra composes for ``command``, with its node ``hydra``; in :func:`composing`.

    Raises:
        HydraException, OmegaConfBaseException: it cannot be composed.
        ConfigError: a file cannot be read, or its defaults lead back to itself.
    """
    try:
        return hydra.compose(primary_config(command), list(overrides), return_hydra_config=True)
    except RecursionError:
        active = _ACTIVE.get()
        assert active is not None
        last = active.loader.repository.last  # type: ignore[attr-defined]
        problem = "its defaults lead back to it; they name a file of its own group without the group: `- mnist/quick`"
        raise ConfigError([Fault(f"{last}.yaml", "", problem)]) from None


class _FilesRead(CachingConfigRepository):
    """Configuration files, read once for all compositions: reading them is a third of a composition's time."""

    last = ""  # the file that was asked for last

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A copy of the file at ``config_path``, which the composition may change.

        Raises:
            ConfigError: it is not UTF-8, its list ``defaults`` is none, or has an entry that names no choice.
        """
        self.last = config_path
        try:
            return deepcopy(super().load_config(config_path))
        except UnicodeDecodeError as error:
            raise ConfigError([_unreadable(error, f"{config_path}.yaml")]) from None
        except ValueError as error:
            hint = 'each entry is a choice, with numbers in quotes: `override /patch: "4"`'
            about_defaults = "@package" not in str(error)  # else about the line at the head of the file
            raise ConfigError(
                [Fault(f"{config_path}.yaml", "", f"{error}; {hint}" if about_defaults else str(error))]
            ) from None

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: Hydra copies the repository for each composition."""
        return self


def as_choice(group: str, choice: str) -> str:
    """Return how a choice is typed: ``experiment=mnist/quick`` where ``group`` is a folder in a group of ours."""
    outer, _, folder = group.partition("/")
    return f"{outer}={folder}/{choice}" if folder and (conf() / outer).is_dir() else f"{group}={choice}"


def as_meant(group: str, value: str, faults: Sequence[Fault]) -> str:
    """Return an override of a group with the nearest choice in place of each that is at fault; empty if one has none.

    Args:
        group: the group.
        value: what it is set to: a choice, a list or several values of a multirun.
        faults: of the override.
    """
    for fault in faults:
        key, _, near = fault.nearest.partition("=")
        if key != group:  # that of a number is set by key
            return fault.nearest if re.fullmatch(r"[\w./]+", key) else ""
        value = re.sub(rf"(?<![\w./-]){re.escape(fault.given)}(?![\w./-])", near, value)
    return f"{group}={value}"


def conf() -> Path:
    """The package's folder ``conf/``: at the top of a checkout, or inside a package installed from a wheel."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


def _names(folder: Path, prefix: str = "", around: tuple[Path, ...] = ()) -> Iterator[str]:
    """Yield the YAML files under ``folder``, links to folders included, except a link to a folder around it."""
    if (resolved := folder.resolve()) in around or not os.access(folder, os.R_OK):
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _names(path, f"{prefix}{path.name}/", (*around, resolved))
        elif path.suffix == ".yaml" and path.is_file():  # reading a pipe may never end
            yield f"{prefix}{path.stem}"


def _scalars(node: yaml.Node | None, around: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield the scalar values in a YAML document; not the keys of mappings."""
    if isinstance(node, yaml.ScalarNode):
        yield str(node.value)
    elif node is not None and id(node) not in around:  # an anchor can lead back to it
        inside = [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else node.value
        for value in inside:
            yield from _scalars(value, (*around, id(node)))


def _imported(primary: dict[str, Any]) -> str:
    """Return the first entry of ``hydra.searchpath`` that is not a folder, as ``pkg://my_lab.conf``; "" for none."""
    try:
        paths = OmegaConf.select(OmegaConf.create(primary, flags={"allow_objects": True}), "hydra.searchpath")
    except OmegaConfBaseException as error:
        return str(error).splitlines()[0]
    entries = [str(path) for path in (paths if OmegaConf.is_list(paths) else [paths] if paths else [])]
    return next((path for path in entries if "://" in path and not path.startswith("file://")), "")


def _unreadable(error: yaml.YAMLError | UnicodeDecodeError, file: str = "configuration") -> Fault:
    """The fault of a file that is not YAML; most of PyYAML's errors know its path."""
    if isinstance(error, UnicodeDecodeError):
        return Fault(file, "", f"is not valid UTF-8: byte {error.start}")
    if isinstance(error, yaml.reader.ReaderError):
        return Fault(str(error.name), "", f"is not valid YAML: it has the character #x{error.character:02x}")
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    where = f"line {mark.line + 1}: " if mark else ""
    return Fault(mark.name if mark else file, "", f"is not valid YAML: {where}{getattr(error, 'problem', error)}")


def _is_vitrines(folder: Path) -> bool:
    """Whether ``folder`` is the package's, or that of a checkout of vitrine."""
    primary = folder / "train.yaml"
    return primary.is_file() and "train_schema" in primary.read_text(encoding="utf-8")
