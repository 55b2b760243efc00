"""The order of rooms in docs/architecture.md, checked against the imports of every module, also those in functions."""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest
from helpers.running import ROOT

SRC = ROOT / "src"
# From bottom to top; a module imports from its own layer and from those below.
LAYERS = [
    {"errors", "files", "redact", "signals", "text", "figure_style"}
    | {"durations", "untrusted", "lean_imports", "safe_path"},
    {"config"},
    {"runs"},
    {"models", "data", "tracking", "distributed"},
    {"training"},
    {"inference", "command"},
    {"sweeps", "compare", "explain"},
    {"cli", "__main__", ""},  # "" is vitrine/__init__.py, which offers compose, fit and load_run
]
MAX_LINES = 400


def module_name(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def trees():
    """The syntax tree of every module of vitrine, by its name."""
    return {module_name(path): ast.parse(path.read_text()) for path in sorted(SRC.rglob("*.py"))}


@pytest.fixture(scope="module")
def imports(trees):
    """Names of the modules of vitrine that each of them imports."""
    return {name: set(imported_modules(tree, trees)) - {name} for name, tree in trees.items()}


def imported_modules(tree, modules):
    """Those of ``modules`` that a module imports, at its head or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in modules:
                    yield submodule
                elif node.module in modules:
                    yield node.module


def room(module):
    return module.partition(".")[2].partition(".")[0]


def layer(module):
    return next(index for index, rooms in enumerate(LAYERS) if room(module) in rooms)


def cycle(graph):
    """The modules of a circular import, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_through_others(imports):
    assert cycle(imports) == []


def test_no_room_imports_itself_through_others(imports):
    rooms = defaultdict(set)
    for module, found in imports.items():
        rooms[room(module)] |= {room(name) for name in found} - {room(module)}
    assert cycle(rooms) == []


def test_imports_go_down_only(imports):
    upward = [
        f"{module} -> {name}"
        for module, found in imports.items()
        for name in sorted(found)
        if layer(name) > layer(module)
    ]
    assert upward == []


def test_the_documented_map_names_every_room(trees):
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {room(module) for module in trees} - {"", "__main__"}
    assert {name for name in rooms if f"`{name}`" not in page} == set()


def test_no_file_is_long():
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in SRC.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > MAX_LINES} == {}


def names_of_types(tree):
    """Names of classes, and of types that a module names, such as ``Batch = tuple[Tensor, Tensor]``."""
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    targets = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    yield from (
        target.id
        for target in targets
        if isinstance(target, ast.Name) and target.id[:1].isupper() and not target.id.isupper()
    )


def test_the_name_of_a_type_has_one_meaning(trees):
    modules = defaultdict(list)
    for module, tree in trees.items():
        for name in names_of_types(tree):
            modules[name].append(module)
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}


@pytest.mark.parametrize("drawer", ["utils", "helpers", "common"])
def test_no_module_is_a_drawer(trees, drawer):
    assert [name for name in trees if drawer in name.split(".")] == []
