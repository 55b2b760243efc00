"""Notice inverted pictures: as bright as those of training are dark, as digits drawn in black on white."""

from torch import Tensor

from vitrine.data.preparation import Preparation

FEW = 3  # pictures: of fewer, nothing is said
NEAR = 0.75  # share of the way from the mean of training to that of inverted pictures


class Brightness:
    """The mean brightness of pictures beside that of training.

    Only of data whose inverse is far from it, more than a standard deviation of its pixels: drawings, not photographs.
    """

    def __init__(self, preparation: Preparation) -> None:
        self.mean = sum(preparation.mean) / len(preparation.mean)
        self.std = sum(preparation.std) / len(preparation.std)
        self._sum, self._count = 0.0, 0

    def add(self, images: Tensor) -> None:
        """Add prepared pictures, (B, C, H, W) uint8."""
        self._sum += float(images.float().mean(dim=(1, 2, 3)).sum()) / 255
        self._count += len(images)

    @property
    def note(self) -> str:
        """What a user should know of it; empty if nothing."""
        if self._count < FEW:
            return ""
        found, inverted = self._sum / self._count, 1 - self.mean
        way = inverted - self.mean
        if abs(way) <= self.std or (found - self.mean) / way < NEAR:
            return ""
        return (
            f"the pictures have a mean brightness of {found:.2f}, those of training {self.mean:.2f}: are they inverted?"
        )
