"""Who stops a run of a search, in whichever process it is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna import Study


@dataclass(frozen=True)
class Pruner:
    """A :class:`vitrine.training.callbacks.PruningRule` that goes by the other trials of a search.

    Attributes:
        folder: of the sweep.
        number: of the trial in the study.
        name: of the rule, one of ``PRUNERS``.
        metric: compared.
        epochs: that the run has.
    """

    folder: Path
    number: int
    name: str
    metric: str
    epochs: int

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Tell the study what the epoch has reached; gives whether others leave the run behind."""
        from vitrine.sweeps.study import pruner, report

        study = _study(self.folder)
        study.pruner = pruner(self.name, self.epochs)
        return report(study, self.number, epoch, metrics[self.metric])


@lru_cache(maxsize=1)
def _study(folder: Path) -> "Study":
    from vitrine.sweeps.study import open_study

    return open_study(folder)
