"""What a look at a sequential decision compares: results of finished runs, and what test images add to their error."""

import math
from dataclasses import dataclass

import numpy as np

from vitrine.compare.sequential_rule import image_variance
from vitrine.runs.image_groups import group_freedom


@dataclass(frozen=True)
class SeedResult:
    """What a run came to.

    Attributes:
        value: its metric; ``None`` if it failed.
        images: independent values whose mean is the accuracy on N test images, one for each of their groups, (G,), and
            each image's group, (N,), numbered from 0; its own where images come in none. ``None`` if unknown.
    """

    value: float | None
    images: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class ImageError:
    """The part of test images in the error of a difference; by default, none: it is about these images.

    Attributes:
        error: standard error, which more seeds do not reduce.
        freedom: its degrees of freedom.
        groups: number of groups of images that are the sample; 0 if images themselves are.
    """

    error: float = 0.0
    freedom: float = math.inf
    groups: int = 0


@dataclass(frozen=True)
class Sample:
    """What an arm is looked at with: results of finished runs, in pairs if seeds are paired.

    Attributes:
        seeds: number of seeds of each side that have ended.
        failures: number of failed runs of the arm and of the baseline.
        results: of the arm and of the baseline.
    """

    seeds: int
    failures: tuple[int, int]
    results: tuple[list[SeedResult], list[SeedResult]]

    @property
    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Their metrics."""
        ours, theirs = (np.array([result.value for result in side], float) for side in self.results)
        return ours, theirs

    def image_error(self, level: float, *, paired: bool) -> ImageError:
        """Return the error that is due to the choice of test images, or of groups of them.

        There is none unless they are known in every run, in the same groups. A group that has nearly all images does
        not tell how others vary.

        Args:
            level: two-sided, of the interval of the difference, in (0, 1).
            paired: both sides have the same seeds, row by row.
        """
        sides = [[run.images for run in side if run.images is not None] for side in self.results]
        groups = [groups for side in sides for _, groups in side]
        if len(groups) < sum(map(len, self.results)) or not all(np.array_equal(groups[0], some) for some in groups):
            return ImageError()
        if (freedom := group_freedom(groups[0])) < 1:
            return ImageError()
        ours, theirs = (np.array([values for values, _ in side]) for side in sides)
        images, count = len(groups[0]), ours.shape[1]
        variance = image_variance(ours, theirs, shared=len(ours) if paired else 0, level=level, images=images)
        return ImageError(math.sqrt(variance), freedom, count if count < images else 0)
