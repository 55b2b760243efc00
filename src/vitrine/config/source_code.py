"""The source of a user's parts and of what they import, found without importing it, and its hash."""

import ast
import hashlib
import json
import os
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_DEPTH = 1000  # of a syntax tree, in nodes and lists; Python's own limit changes with the depth of the caller


@contextmanager
def working_directory() -> Iterator[None]:
    """Let modules be imported from the working directory, while a part is looked for."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.append(here)  # behind installed packages: a user's random.py replaces nothing
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def stay_importable(name: str) -> None:
    """Leave the folders that the part ``name`` is in on the path, for what it imports inside functions."""
    roots, _ = _roots(name.partition(".")[0])
    sys.path += [str(root) for root in roots if str(root) not in sys.path]  # behind installed packages


def sources(name: str) -> dict[str, str]:
    """Return the source of the part ``name``: text by path relative to the folder that it is imported from.

    That is its module, the packages around it, and what these import from the same folder, followed without importing
    anything. A package without ``__init__.py`` can be in several folders; all of them are searched. Empty for a part of
    an installed package, whose version stands for its source.
    """
    roots, _ = _roots(name.partition(".")[0])
    found: dict[str, str] = {}
    waiting, known = [name], {name}
    while waiting:
        names = waiting.pop().split(".")
        for count in range(1, len(names) + 1):
            module = ".".join(names[:count])
            files = ((root, path) for root in roots for path in _module_files(root, module))
            root, path = next((pair for pair in files if pair[1].is_file()), (None, None))
            if root and path and (relative := path.relative_to(root).as_posix()) not in found:
                found[relative] = path.read_text(encoding="utf-8", errors="replace")
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                new = _imports(found[relative], package) - known
                waiting += new
                known |= new
    return dict(sorted(found.items()))


def code_hash(name: str) -> str:
    """Return a hash of the source of the part ``name``, or the version of the installed package that it is in."""
    if found := sources(name):
        return source_hash(found)
    top = name.partition(".")[0]
    try:
        return f"{top} {version(top)}"
    except PackageNotFoundError:  # a package can be imported under another name than it is installed by: PIL, pillow
        return ", ".join(f"{name} {version(name)}" for name in _distributions().get(top, [])) or top


def source_hash(found: Mapping[str, str]) -> str:
    """Return a hash of what :func:`sources` found, in which comments, docstrings and formatting do not count."""
    trees = {path: _syntax(text) for path, text in found.items()}
    return hashlib.sha256(json.dumps(trees).encode()).hexdigest()[:16]


def lacks_source(name: str, module: str) -> bool:
    """Whether ``module``, which the part ``name`` is in, is not installed and has no source that identifies it."""
    roots, installed = _roots(name.partition(".")[0])
    return bool(roots) and not installed and module not in map(_module_of, sources(name))


def remember_sources(name: str) -> None:
    """Keep the source of the part ``name`` as it is now, just before those of its modules are imported that are not."""
    for path, text in sources(name).items():
        module = sys.modules.get(_module_of(path))
        if module is None:
            _imported[path] = text
        elif path not in _imported:
            _imported[path] = text if _is_as_compiled(module) else ""  # the text that was imported is not known


def edited_since_import(name: str) -> list[str]:
    """Return the files of the part ``name`` whose code was edited after this process imported them."""
    return [path for path, text in sources(name).items() if _syntax(_imported.get(path, text)) != _syntax(text)]


def _is_as_compiled(module: ModuleType) -> bool:
    """Whether a module's file has the time and size with which Python compiled it; true where that is not stored."""
    spec = getattr(module, "__spec__", None)  # a module may have replaced itself by any object
    if sys.dont_write_bytecode or spec is None or spec.cached is None or spec.origin is None:
        return True
    if not os.access(Path(spec.cached).parent, os.W_OK):
        return True
    try:
        found = Path(spec.origin).stat()
        hashed, seconds, size = struct.unpack("<4xIII", Path(spec.cached).read_bytes()[:16])
    except (OSError, struct.error):
        return True
    return bool(hashed) or (seconds, size) == (int(found.st_mtime), found.st_size)


_imported: dict[str, str] = {}  # source by path, as sources() returns it


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Names of the installed distributions, by what is imported."""
    return {top: sorted(set(names)) for top, names in packages_distributions().items()}


def _roots(top: str) -> tuple[list[Path], bool]:
    """The folders of the user's that the top-level module or package ``top`` is in, and whether it is installed."""
    try:
        with working_directory():
            spec = find_spec(top)
    except (ImportError, ValueError):
        return [], False
    if spec is None:
        return [], False
    if spec.submodule_search_locations:
        roots = [Path(location).parent for location in spec.submodule_search_locations]
    else:
        roots = [Path(spec.origin).parent] if spec.origin and spec.has_location else []
    local = [root for root in roots if not _is_installed(top, root)]
    return local, len(local) < len(roots)


def _is_installed(top: str, root: Path) -> bool:
    standard = Path(sysconfig.get_path("stdlib"))
    within = standard in (root, *root.parents)
    return top == "vitrine" or within or bool({"site-packages", "dist-packages"} & set(root.parts))


def _module_of(path: str) -> str:
    """The module of a source file, by its path relative to the folder that it is imported from."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _module_files(root: Path, module: str) -> Iterator[Path]:
    path = root.joinpath(*module.split("."))
    yield path / "__init__.py"
    yield path.with_name(f"{path.name}.py")


@lru_cache(200)
def _syntax(text: str) -> str:
    """The syntax tree of a source without docstrings, as text; the source itself if it has none, or a deep one."""
    try:
        return _dump(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def _dump(tree: ast.AST) -> str:
    """A syntax tree as text, the same in every version of Python, unlike that of :func:`ast.dump`.

    Raises:
        RecursionError: it is nested deeper than ``MAX_DEPTH``.
    """
    written, entered = [], [_pieces(tree)]
    while entered:
        piece = next(entered[-1], None)
        if piece is None:
            entered.pop()
        elif isinstance(piece, str):
            written.append(piece)
        elif len(entered) == MAX_DEPTH:
            raise RecursionError
        else:
            entered.append(_pieces(piece))
    return "".join(written)


def _pieces(node: ast.AST | list[Any]) -> Iterator[str | ast.AST | list[Any]]:
    """The text of a node or list, in pieces, with the nodes and lists in it as they are."""
    if isinstance(node, list):
        start, end = "[", "]"
        given = [("", inner) for inner in node if not _is_docstring(inner)]
    else:
        start, end = f"{type(node).__name__}(", ")"
        fields = [(name, value) for name, value in ast.iter_fields(node) if name != "kind"]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some with an empty text
            fields = [("values", [part for part in node.values if not _is_empty_text(part)])]
        given = [(f"{name}=", value) for name, value in fields if value not in (None, [])]
    yield start
    for place, (name, value) in enumerate(given):
        yield f",{name}" if place else name
        yield value if isinstance(value, ast.AST | list) else ascii(value)
    yield end


def _is_docstring(node: Any) -> bool:
    """Whether a statement is nothing but a string."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_empty_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


@lru_cache(200)
def _imports(text: str, package: str) -> frozenset[str]:
    """Every module that a source may import, by full name; ``package`` is the one it is in."""
    found: set[str] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
            except ImportError:  # more dots than packages
                continue
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(found)
