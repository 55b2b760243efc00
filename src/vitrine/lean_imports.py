"""Import torchmetrics without the metrics that are not used.

Lightning needs two of its classes. Its packages import all metrics, and these torchvision, scipy.signal and more: a
second before the first step of each process. Here a package's own code runs once a name is asked for that lies in none
of its modules, such as ``torchmetrics.Accuracy``.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
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


class PostponingFinder(MetaPathFinder):
    """Finds the packages to postpone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a package to postpone, ``None`` for any other module."""
        real = PathFinder.find_spec(fullname, path) if fullname in PACKAGES else None
        if real is None:
            return None
        spec = ModuleSpec(fullname, PostponedPackage(real), origin=real.origin, is_package=True)
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = True
        return spec


def postpone_metrics() -> None:
    """Postpone torchmetrics' packages, unless they have been imported."""
    if not any(isinstance(finder, PostponingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PostponingFinder())
