"""Early stopping of a search's runs by comparison with its other trials."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna import Study


@dataclass(frozen=True)
class Pruner:
    """Rule by which a run stops early, in whichever process it is trained (``PruningRule`` of training.callbacks).

    Attributes:
        folder: folder of the search, with its study.
        number: number of the trial in the study.
        name: one of ``PRUNERS``.
        metric: validation metric that is compared.
        epochs: epochs of a run that is not stopped.
    """

    folder: Path
    number: int
    name: str
    metric: str
    epochs: int

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Report an epoch's metrics to the study; return whether to stop the run."""
        from vitrine.sweeps.study import make_pruner, report_epoch

        study = _study(self.folder)
        study.pruner = make_pruner(self.name, self.epochs)
        return report_epoch(study, self.number, epoch, metrics[self.metric])


@lru_cache(maxsize=1)
def _study(folder: Path) -> "Study":
    from vitrine.sweeps.study import open_study

    return open_study(folder)
