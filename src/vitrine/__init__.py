"""vitrine trains Vision Transformers, sweeps over their choices, and says which is better and how sure one can be.

``compose(overrides)`` gives a checked configuration, ``fit(config)`` trains it, ``resume(folder)`` resumes a run
and ``load_run(folder)`` opens one. ``VisionTransformer(ViTConfig(...))`` is a model alone. Each is imported when it is
first used: ``import vitrine`` alone imports no torch.
"""

from typing import TYPE_CHECKING

from vitrine.lean_imports import lazy_names, postpone_unused

if TYPE_CHECKING:
    from vitrine.command.compose import compose as compose
    from vitrine.config import ViTConfig as ViTConfig
    from vitrine.inference.load import load_run as load_run
    from vitrine.models import VisionTransformer as VisionTransformer
    from vitrine.training.fit import fit as fit
    from vitrine.training.resume import resume as resume

__all__ = ["ViTConfig", "VisionTransformer", "compose", "fit", "load_run", "resume"]

postpone_unused()

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ViTConfig": "vitrine.config",
        "VisionTransformer": "vitrine.models",
        "compose": "vitrine.command.compose",
        "fit": "vitrine.training.fit",
        "load_run": "vitrine.inference.load",
        "resume": "vitrine.training.resume",
    },
)
