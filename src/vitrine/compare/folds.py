"""Folds of cross-validation as repetitions: what sets them apart from seeds is that they share training images."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Fold:
    """A run that validated on one fold of the training images.

    Attributes:
        number: of the fold, from 0.
        count: number of folds.
        split: seed of the division into folds, ``data.val_seed``.
        seed: seed of the run; ``None`` stands for all that ran on this fold.
    """

    number: int
    count: int
    split: int
    seed: int | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Fold | None":
        """Return the fold of a run's flat configuration; ``None`` without cross-validation."""
        number, count = config.get("data.fold"), config.get("data.folds")
        split, seed = config.get("data.val_seed", 0), config.get("seed")
        if not (isinstance(number, int) and isinstance(count, int) and isinstance(split, int)) or count < 2:
            return None
        return cls(number, count, split, seed if isinstance(seed, int) else None)

    @property
    def of_all_seeds(self) -> "Fold":
        """This fold without the seed: runs that share a fold share their images, and are no repetitions."""
        return replace(self, seed=None)

    @property
    def overlap(self) -> float:
        """Validation images per training image.

        Any two models share most of their training images, so that their results are correlated and vary less than
        those of models trained on independent data. Nadeau and Bengio (2003, section 3) therefore add this ratio to
        1 / n in the variance of a mean of n results; Bouckaert and Frank (2004) do so for repeated cross-validation.
        """
        return 1 / (self.count - 1)


def repetition_of(config: Mapping[str, Any], name: Hashable) -> Hashable:
    """Return what sets a run apart from others of its configuration: its seed, or its fold with the seed.

    It is ``name``, the run's, where the flat configuration has neither.
    """
    seed = config.get("seed")
    return Fold.of(config) or (seed if isinstance(seed, int) else name)


def overlap_of(repetitions: Mapping[Any, Any]) -> float:
    """Return the largest overlap of the folds among the keys of a row's runs; 0 for seeds."""
    last = (key[-1] if isinstance(key, tuple) else key for key in repetitions)
    return max((key.overlap for key in last if isinstance(key, Fold)), default=0.0)
