"""A judge of runs for tests, in a module that a training's other processes can import."""

from dataclasses import dataclass


@dataclass(frozen=True)
class After:
    """Stops a run after an epoch."""

    last: int

    def __call__(self, epoch, metrics):
        assert set(metrics) == {"val/acc", "val/loss"}
        return epoch == self.last
