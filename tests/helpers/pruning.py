"""A pruning rule for tests, in a module that spawned ranks can import."""

from dataclasses import dataclass


@dataclass(frozen=True)
class After:
    """Stops a run after an epoch."""

    last: int

    def __call__(self, epoch, metrics):
        assert set(metrics) == {"val/acc", "val/loss"}
        return epoch == self.last
