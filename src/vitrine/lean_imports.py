"""Import libraries without what is not used: most of torchmetrics, its plots, and PyTorch's compiler.

Lightning needs two classes of torchmetrics. Its packages import all metrics, and these torchvision, scipy.signal and
more: a second before the first step of each process. Here a package's own code runs once a name is asked for that lies
in none of its modules, such as ``torchmetrics.Accuracy``. Likewise the module that draws metrics runs, and imports
matplotlib, once one is drawn.

Lightning imports ``torch._dynamo`` for one class, and each optimiser for two functions; that imports sympy and 500
modules: another second or two. Here its code runs once something is compiled.

Packages of vitrine import the names that they offer once these are used, by :func:`lazy_names`.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

HOMES = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}  # what Lightning imports
PACKAGES = (
    "torchmetrics",
    "torchmetrics.classification",
    "torchmetrics.functional",
    "torchmetrics.functional.classification",
)
PLOTS = "torchmetrics.utilities.plot"
COMPILER = "torch._dynamo"


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, by which a name is imported when it is used (PEP 562).

    Args:
        package: its ``__name__``.
        homes: the module that defines each name.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})


class PostponedPackage(Loader):
    """Loads a package whose own code runs later, if ever; its modules can be imported before that."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        """Give the package what its modules need while they are imported."""
        name, at_root = module.__name__, module.__name__ == "torchmetrics"

        def find(attribute: str) -> Any:
            if at_root and attribute in HOMES:
                return getattr(importlib.import_module(HOMES[attribute]), attribute)
            if attribute.startswith("__") and attribute != "__all__":
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}")  # asked by the import system
            if find_spec(f"{name}.{attribute}") is not None:
                return importlib.import_module(f"{name}.{attribute}")
            del module.__dict__["__getattr__"]
            assert self.real.loader is not None
            self.real.loader.exec_module(module)
            return getattr(module, attribute)

        module.__dict__["__getattr__"] = find
        if at_root:
            module.__dict__.update(__version__=version(name), _logger=logging.getLogger(name))
            importlib.import_module("torchmetrics.utilities")  # first: torchmetrics.metric and it import each other


class PostponedPlots(Loader):
    """Loads the module of plots, whose own code runs when one of its functions is called."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the types that annotations name, and stand-ins for its functions."""

        def find(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(f"module {PLOTS!r} has no attribute {attribute!r}")
            if attribute.startswith("plot_"):
                return partial(draw, attribute)
            return real(attribute)

        def draw(attribute: str, *arguments: Any, **keywords: Any) -> Any:
            return real(attribute)(*arguments, **keywords)

        def real(attribute: str) -> Any:
            if module.__dict__.pop("__getattr__", None) is not None:
                assert self.real.loader is not None
                self.real.loader.exec_module(module)
            return getattr(module, attribute)

        module.__dict__.update(__getattr__=find, _AX_TYPE=object, _CMAP_TYPE=object, _PLOT_OUT_TYPE=object)


class CompiledModule(type):
    """The class of a stand-in for ``torch._dynamo.OptimizedModule``: nothing is compiled before the compiler runs."""

    def __instancecheck__(cls, instance: object) -> bool:
        real = sys.modules[COMPILER].__dict__["OptimizedModule"]
        return real is not cls and isinstance(instance, real)


class PostponedCompiler(Loader):
    """Loads PyTorch's compiler, whose own code runs once a name is asked for that is not needed without it.

    Lightning asks whether a module is compiled. Each optimiser ends a graph around its step, and keeps some of its
    methods out of graphs; before the compiler's code has run, there are no graphs.
    """

    def __init__(self, real: ModuleSpec) -> None:
        self.real, self.pending = real, True

    def exec_module(self, module: ModuleType) -> None:
        """Give the module what is needed without compiling."""

        def find(attribute: str) -> Any:
            if attribute.startswith("__"):  # asked by the import system
                raise AttributeError(f"module {COMPILER!r} has no attribute {attribute!r}")
            self.load(module)
            return getattr(module, attribute)

        def disable(function: Callable[..., Any], *options: Any, **named: Any) -> Callable[..., Any]:
            def outside_of_graphs(*arguments: Any, **keywords: Any) -> Any:
                if self.pending:
                    return function(*arguments, **keywords)
                return module.disable(function, *options, **named)(*arguments, **keywords)

            return outside_of_graphs

        stand_in = CompiledModule("OptimizedModule", (), {})
        module.__dict__.update(__getattr__=find, OptimizedModule=stand_in, graph_break=lambda: None, disable=disable)

    def load(self, module: ModuleType) -> None:
        """Run the package's own code. If that fails, as without a folder for temporary files, the next use runs it."""
        self.pending = False
        del module.__dict__["__getattr__"]
        assert self.real.loader is not None
        try:
            self.real.loader.exec_module(module)
        except BaseException:
            self.pending = True
            self.exec_module(module)
            raise


class Loaded(Loader):
    """Gives a module that its package has imported meanwhile.

    The import system would run such a module again by the spec that it has, so it has none until then.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__
        module.__dict__["__spec__"] = None  # a module of options refuses to be given attributes

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it was."""
        module.__dict__["__spec__"] = self.spec


class PostponingFinder(MetaPathFinder):
    """Finds the packages and the module to postpone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of what is postponed, ``None`` for any other module."""
        if fullname.startswith(f"{COMPILER}."):
            return self.part_of_compiler(fullname)
        real = PathFinder.find_spec(fullname, path) if fullname in (*PACKAGES, PLOTS, COMPILER) else None
        if real is None:
            return None
        if fullname == PLOTS:
            return ModuleSpec(fullname, PostponedPlots(real), origin=real.origin)
        loader = PostponedCompiler(real) if fullname == COMPILER else PostponedPackage(real)
        spec = ModuleSpec(fullname, loader, origin=real.origin, is_package=True)
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = True
        return spec

    def part_of_compiler(self, fullname: str) -> ModuleSpec | None:
        """Run the package's code before that of its modules, which rely on it, and often import each other."""
        package = sys.modules[COMPILER]
        loader = package.__spec__.loader if package.__spec__ is not None else None
        if not isinstance(loader, PostponedCompiler) or not loader.pending:
            return None
        loader.load(package)
        return ModuleSpec(fullname, Loaded(sys.modules[fullname])) if fullname in sys.modules else None


def postpone_unused() -> None:
    """Postpone torchmetrics' packages and its plots, and PyTorch's compiler, unless they have been imported."""
    if not any(isinstance(finder, PostponingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PostponingFinder())
