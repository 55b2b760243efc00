"""The source of a user's parts and of what they import, found without importing it, and its hash."""

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, resolve_name
from pathlib import Path


@contextmanager
def working_directory() -> Iterator[None]:
    """Let modules be imported from the working directory: while parts are imported, and no longer."""
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


def sources(name: str) -> dict[str, str]:
    """Return the source of the part ``name``: text by path relative to the folder that it is imported from.

    That is its module, the packages around it, and what these import from the same folder, followed without importing
    anything. Empty for a part of an installed package, whose version stands for its source.
    """
    top = name.partition(".")[0]
    if (root := _root(top)) is None or _is_installed(top, root):
        return {}
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        names = waiting.pop().split(".")
        for count in range(1, len(names) + 1):
            module = ".".join(names[:count])
            path = next((path for path in _module_files(root, module) if path.is_file()), None)
            if path is not None and (relative := path.relative_to(root).as_posix()) not in found:
                found[relative] = path.read_text(encoding="utf-8", errors="replace")
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                waiting += _imports(found[relative], package)
    return dict(sorted(found.items()))


def code_hash(name: str) -> str:
    """Return a hash of the source of the part ``name``, or the version of the installed package that it is in."""
    found = sources(name)
    if found:
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]
    top = name.partition(".")[0]
    try:
        return f"{top} {version(top)}"
    except PackageNotFoundError:
        return top


def _root(top: str) -> Path | None:
    """The folder that the top-level module or package ``top`` is imported from."""
    try:
        with working_directory():
            spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin and spec.has_location else None


def _is_installed(top: str, root: Path) -> bool:
    standard = Path(sysconfig.get_path("stdlib"))
    return top == "vitrine" or root == standard or bool({"site-packages", "dist-packages"} & set(root.parts))


def _module_files(root: Path, module: str) -> Iterator[Path]:
    path = root.joinpath(*module.split("."))
    yield path / "__init__.py"
    yield path.with_name(f"{path.name}.py")


def _imports(text: str, package: str) -> Iterator[str]:
    """Every module that a source may import, by full name; ``package`` is the one it is in."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
            except ImportError:  # more dots than packages
                continue
            yield from (f"{base}.{alias.name}" for alias in node.names)
