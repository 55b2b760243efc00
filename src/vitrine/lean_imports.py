"""Import torchmetrics without what is not used: most metrics, and plots of metrics.

Lightning needs two of its classes. Its packages import all metrics, and these torchvision, scipy.signal and more: a
second before the first step of each process. Here a package's own code runs once a name is asked for that lies in none
of its modules, such as ``torchmetrics.Accuracy``. Likewise the module that draws metrics runs, and imports matplotlib,
once one is drawn.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
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


class PostponingFinder(MetaPathFinder):
    """Finds the packages and the module to postpone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of what is postponed, ``None`` for any other module."""
        real = PathFinder.find_spec(fullname, path) if fullname in (*PACKAGES, PLOTS) else None
        if real is None:
            return None
        if fullname == PLOTS:
            return ModuleSpec(fullname, PostponedPlots(real), origin=real.origin)
        spec = ModuleSpec(fullname, PostponedPackage(real), origin=real.origin, is_package=True)
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = True
        return spec


def postpone_metrics() -> None:
    """Postpone torchmetrics' packages and its plots, unless they have been imported."""
    if not any(isinstance(finder, PostponingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PostponingFinder())
