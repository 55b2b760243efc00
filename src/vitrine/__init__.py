"""vitrine trains Vision Transformers, sweeps over their choices, and says which is better and how sure one can be.

``compose(overrides)`` gives a checked configuration, ``fit(config)`` trains it, ``resume(folder)`` resumes a run
and ``load_run(folder)`` opens one. ``VisionTransformer(ViTConfig(...))`` is a model alone. Each is imported when it is
first used: ``import vitrine`` alone imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitrine.lean_imports import postpone_unused

if TYPE_CHECKING:
    from vitrine.command.compose import compose as compose
    from vitrine.config import ViTConfig as ViTConfig
    from vitrine.inference.load import load_run as load_run
    from vitrine.models import VisionTransformer as VisionTransformer
    from vitrine.training.fit import fit as fit
    from vitrine.training.resume import resume as resume

_HOMES = {
    "ViTConfig": "vitrine.config",
    "VisionTransformer": "vitrine.models",
    "compose": "vitrine.command.compose",
    "fit": "vitrine.training.fit",
    "load_run": "vitrine.inference.load",
    "resume": "vitrine.training.resume",
}

postpone_unused()

__all__ = ["ViTConfig", "VisionTransformer", "compose", "fit", "load_run", "resume"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
