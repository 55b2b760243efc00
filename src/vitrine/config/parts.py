"""Parts of a user's own: classes and functions outside vitrine, chosen by dotted name where a built-in part has a word.

``position=my_lab.fourier.Fourier model.position_options.bands=8`` imports ``my_lab/fourier.py`` from the working
directory, or an installed package. How each kind of part is called, and what it must return, stands on its field as an
:class:`Interface`, and with shapes in docs/own_parts.md.

Which names of a stored configuration may be imported: trust.py. This module imports no torch; a part may.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any, get_args

from vitrine.config.source_code import (
    code_hash,
    lacks_source,
    remember_sources,
    stay_importable,
    working_directory,
)
from vitrine.errors import Fault, Interrupted, Pruned, VitrineError
from vitrine.text import nearest

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
IN_A_FILE = "a YAML file can choose a part with its options (docs/own_parts.md)"


@dataclass(frozen=True)
class Interface:
    """How a part is called: ``part(*arguments, **keywords, **options)``.

    Attributes:
        arguments: names of what is passed by position.
        keywords: names of what is passed by keyword.
        optional: names of what is passed by keyword to parts whose signature names it.
        function: whether the part is a function, called again and again. A class in its place is called once, with its
            options, and its instance is the function.
        words: names of built-in parts that a list can have beside the user's; they are not checked here.
    """

    arguments: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    function: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A part that a configuration names.

    Attributes:
        key: where it is named: ``model.position``.
        name: its dotted name.
        options_key: where its options are: ``model.position_options``.
        options: keyword arguments that it is called with.
        interface: how it is called.
    """

    key: str
    name: str
    options_key: str
    options: Mapping[str, Any]
    interface: Interface = field(default_factory=Interface)


def is_dotted(name: Any) -> bool:
    """Whether ``name`` is a dotted name, as ``my_lab.fourier.Fourier``."""
    return isinstance(name, str) and DOTTED.fullmatch(name) is not None


def options_field(name: str) -> str:
    """Return the field that holds the options of the part in the field ``name``, beside it."""
    return "options" if name == "name" else f"{name}_options"


def parts_of(config: Any, prefix: str = "") -> Iterator[Part]:
    """Yield the user's parts that a configuration names, or a section of one; ``prefix`` leads to the section.

    Options of a list of parts are by class: ``callbacks.parts_options.GradientNorm.every=10``.
    """
    for key, value, options_key, options, interface in _choices(config, prefix):
        if is_dotted(value):
            yield Part(key, value, options_key, options, interface)
        elif isinstance(value, list):
            for name in filter(is_dotted, value):
                own = name.rpartition(".")[2]
                yield Part(key, name, f"{options_key}.{own}", options.get(own, {}), interface)


def _choices(config: Any, prefix: str) -> Iterator[tuple[str, Any, str, Mapping[str, Any], Interface]]:
    """Yield each key that can name parts, its value, the key and the value of their options, and their interface."""
    for name, interface in _fields_of_parts(type(config)):  # type: ignore[arg-type]
        value = getattr(config, name)
        if interface is not None:
            options = options_field(name)
            yield f"{prefix}{name}", value, f"{prefix}{options}", getattr(config, options), interface
        elif value is not None:
            yield from _choices(value, f"{prefix}{name}.")


@cache
def _fields_of_parts(section: type) -> tuple[tuple[str, Interface | None], ...]:
    """Return the fields of a section that can name parts, with their interface, and those that are sections."""
    found = []
    for entry in fields(section):
        interface = entry.metadata.get("part")
        if interface is not None or any(map(is_dataclass, (entry.type, *get_args(entry.type)))):
            found.append((entry.name, interface))
    return tuple(found)


class PartError(VitrineError):
    """A part, by its dotted ``name``, that cannot be used; ``near`` is the name that was probably meant, if any."""

    def __init__(self, name: str, problem: str, near: str = "") -> None:
        super().__init__(f"{name} {problem}")
        self.problem = problem
        self.near = near


def part_faults(config: Any, prefix: str = "") -> list[Fault]:
    """Return what is wrong with the parts that a configuration names, and with their options. Imports the parts."""
    found = list(_stray_faults(config, prefix))
    for part in parts_of(config, prefix):
        try:
            found += _call_faults(part)
        except PartError as error:
            found.append(Fault(part.key, part.name, error.problem, error.near and f"{part.key}={error.near}"))
    return found


@cache
def load(name: str) -> Any:
    """Import the part ``name``: a class or function of its own top-level package, at its public name.

    What the modules of a package import from elsewhere does not belong to it: ``my_lab.fourier.os.system`` is refused.

    Raises:
        PartError: it cannot be imported, or is not a class or function of the package that its name begins with.
    """
    if name.startswith("__main__."):  # of a notebook, a prompt or a script: another program has another
        where = f"put it into a file, and name it there: my_lab.{name.rpartition('.')[2]}"
        raise PartError(name, f"cannot be used: no other program can import it from __main__; {where}")
    remember_sources(name)
    path, *inner = name.split(".")
    module = path
    with working_directory():
        value: Any = _module(name, path)
        for index, attribute in enumerate(inner):
            if attribute.startswith("_"):
                raise PartError(name, f"cannot be used: {attribute} is a private name")
            value, parent, path = _member(name, value, path, attribute, inner[index + 1 :]), path, f"{path}.{attribute}"
            if isinstance(value, ModuleType):
                if value.__name__ != path:
                    problem = f"{parent} only imports {attribute}, the module {value.__name__}"
                    raise PartError(name, f"cannot be used: {problem}")
                module = path
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        raise PartError(name, f"is not a class or function, but of type {type(value).__name__}")
    home = getattr(value, "__module__", None)
    if not isinstance(home, str):
        raise PartError(name, "cannot be used: Python does not know the module that defines it")
    if home.partition(".")[0] != name.partition(".")[0]:
        defined = f"{home}.{value.__qualname__}"
        raise PartError(name, f"cannot be used: it is defined in {home}; name it where it is defined", defined)
    if lacks_source(name, module):
        raise PartError(name, f"cannot be used: {module} has no source file, {module.replace('.', '/')}.py, to store")
    stay_importable(name)
    return value


def _member(part: str, value: Any, path: str, attribute: str, rest: list[str]) -> Any:
    """Return an attribute of a module or class, or a module in a package."""
    if not isinstance(value, (ModuleType, type)):
        raise PartError(part, f"cannot be used: {path} is not a module or class, but of type {type(value).__name__}")
    try:
        if hasattr(value, attribute):
            return getattr(value, attribute)
        spec = (
            find_spec(f"{path}.{attribute}") if isinstance(value, ModuleType) and hasattr(value, "__path__") else None
        )
    except (Exception, SystemExit) as error:  # a module's __getattr__ or a metaclass can fail in any way
        raise PartError(part, f"cannot be imported: {reason(error)}") from None
    if spec is not None:
        return _module(part, f"{path}.{attribute}")
    near = nearest(attribute, [known for known in vars(value) if not known.startswith("_")])
    raise PartError(part, f"cannot be imported: {path} has no {attribute}", near and ".".join([path, near, *rest]))


def build(part: Part, *arguments: Any, **keywords: Any) -> Any:
    """Call a part with ``arguments``, ``keywords`` and its options.

    Optional keywords are passed only if its signature has them.

    Raises:
        PartError: the call fails.
    """
    imported = load(part.name)
    with as_part_error(part.name, "cannot be built"):
        return imported(*arguments, **_taken(imported, part.interface, keywords), **part.options)


def build_list(config: Any, kind: type) -> list[Any]:
    """Build the parts that the list ``parts`` of a section names.

    Raises:
        PartError: one of them is not of the type ``kind``.
    """
    found = []
    for part in (one for one in parts_of(config) if one.key == "parts"):
        found.append(build(part))
        if not isinstance(found[-1], kind):
            raise PartError(part.name, f"must give a {kind.__module__}.{kind.__name__}, not {type(found[-1]).__name__}")
    return found


def takes(part: Part, name: str) -> bool:
    """Whether a part is passed the optional keyword ``name``. Raises PartError as :func:`load`."""
    imported = load(part.name)
    is_made_first = part.interface.function and isinstance(imported, type)
    return name in (_parameters(imported.__call__ if is_made_first else imported) or {})


def function(part: Part) -> Callable[..., Any]:
    """Return the function of a part whose interface is that of a function, its options already given.

    Raises:
        PartError: a class in the function's place cannot be built.
    """
    imported = load(part.name)
    is_class = isinstance(imported, type)
    made = build(replace(part, interface=Interface())) if is_class else partial(imported, **part.options)
    if not part.interface.optional:
        return made
    return lambda *arguments, **keywords: made(*arguments, **_taken(made, part.interface, keywords))


@contextmanager
def as_part_error(name: str, problem: str) -> Iterator[None]:
    """Turn an exception of the user's part ``name`` into a PartError of one line; those of built-in parts stay."""
    try:
        yield
    except (VitrineError, Interrupted, Pruned):
        raise
    except Exception as error:
        if not is_dotted(name):
            raise
        raise PartError(name, f"{problem}: {reason(error, name)}") from error


def part_at(config: Any, name: str) -> Part | None:
    """Return the user's part in the field ``name`` of a section; ``None`` where the field names a built-in one."""
    return next((part for part in parts_of(config) if part.key == name), None)


def names_of(config: Any) -> tuple[str, ...]:
    """Return the dotted names in a configuration, each once."""
    return tuple(dict.fromkeys(part.name for part in parts_of(config)))


def code_of(config: Any) -> dict[str, str]:
    """Return the :func:`~vitrine.config.source_code.code_hash` of each part that a configuration names, by its name."""
    return {name: code_hash(name) for name in names_of(config)}


def _module(part: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a module can fail in any way
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            where = "in the working directory or an installed package"
            raise PartError(part, f"cannot be imported: there is no module {name} {where}") from None
        raise PartError(part, f"cannot be imported: {reason(error)}") from None


def reason(error: BaseException, name: str = "") -> str:
    """Return an error as one line, with the innermost file and line in the package of the part ``name``, if any."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [(frame, line) for frame, line in frames if package_of(frame) == name.partition(".")[0]]
    frame, line = (own or frames)[-1]
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0] if message else ''} ({frame.f_code.co_filename}, line {line})"


def package_of(frame: FrameType) -> str:
    """Return the top-level package or module whose code a frame of a traceback runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _taken(called: Any, interface: Interface, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords without the optional ones that the signature of ``called`` lacks."""
    names = _parameters(called) or {}
    return {name: value for name, value in keywords.items() if name not in interface.optional or name in names}


def _parameters(imported: Any) -> Mapping[str, inspect.Parameter] | None:
    """Parameters by name; ``None`` where Python does not know them, as of some functions written in C."""
    try:
        return inspect.signature(imported).parameters
    except (ValueError, TypeError):
        return None


def _call_faults(part: Part) -> Iterator[Fault]:
    """Yield what keeps a part from being called with what vitrine passes and the options given."""
    imported = load(part.name)
    parameters = _parameters(imported)
    if parameters is None:
        return
    interface = Interface() if part.interface.function and inspect.isclass(imported) else part.interface
    passed = [*interface.keywords, *(name for name in interface.optional if name in parameters)]
    by_position = [name for name, one in parameters.items() if one.kind <= one.POSITIONAL_OR_KEYWORD]
    taken = {*by_position[: len(interface.arguments)], *passed}
    named = {name: one for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    known = [name for name in named if name not in taken]
    needed = [name for name in known if named[name].default is inspect.Parameter.empty]
    stand_ins = dict.fromkeys([*passed, *needed])
    try:
        inspect.signature(imported).bind(*interface.arguments, **stand_ins)
    except TypeError as error:
        call = ", ".join([*interface.arguments, *(f"{name}={name}" for name in passed), "**options"])
        yield Fault(part.key, part.name, f"must be callable as {part.name.rpartition('.')[2]}({call}): {error}")
        return
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for name in part.options:
            if name not in known:
                problem = f"is not an option of {part.name}, which has {', '.join(known) or 'none'}"
                near = nearest(str(name), known)  # in a file, a name can be a number
                given = str(part.options[name])
                yield Fault(f"{part.options_key}.{name}", given, problem, near and f"{part.options_key}.{near}")
    for name in needed:
        if name not in part.options:
            key = f"{part.options_key}.{name}"
            yield Fault(key, "", f"is needed by {part.name}: {key}=VALUE")


def _stray_faults(config: Any, prefix: str) -> Iterator[Fault]:
    """Yield options without their part, and entries of lists that are no dotted names or share a class name."""
    for key, value, options_key, options, interface in _choices(config, prefix):
        names = [name for name in (value if isinstance(value, list) else []) if is_dotted(name) or not interface.words]
        classes = [name.rpartition(".")[2] for name in names]
        for option, given in options.items() if not is_dotted(value) else ():
            if not isinstance(value, list):
                problem = f"is an option of a part of your own; {key}={value} takes none; {IN_A_FILE}"
                yield Fault(f"{options_key}.{option}", str(given), problem)
            elif option not in classes:
                yield Fault(f"{options_key}.{option}", str(given), f"{key} names no part {option}")
        for name, own in zip(names, classes, strict=True):
            if not is_dotted(name):
                yield Fault(key, str(name), "is not a dotted name, such as my_lab.parts.MyPart")
            elif classes.count(own) > 1:
                yield Fault(key, name, "another part of the list has this name")
