"""Recording of intermediate results by name, without hooks: the model passes each result to its recorder."""

from torch import Tensor


class Recorder:
    """Stores the tensors that it is called with; :data:`NO_RECORDER`, a model's default, stores nothing.

    Args:
        stored: tensors by their full names; ``None`` stores nothing.
        prefix: put in front of each name.
    """

    def __init__(self, stored: dict[str, Tensor] | None = None, prefix: str = "") -> None:
        self.stored = stored
        self.prefix = prefix

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """Store ``x`` as ``name``, and return it."""
        if self.stored is not None:
            self.stored[self.prefix + name] = x
        return x

    def scope(self, prefix: str) -> "Recorder":
        """Return a recorder for a part of the model, which puts ``prefix.`` in front of each name."""
        return self if self.stored is None else Recorder(self.stored, f"{self.prefix}{prefix}.")

    @property
    def active(self) -> bool:
        """Whether anything is stored; if not, results that are computed for the recorder alone can be left out."""
        return self.stored is not None


NO_RECORDER = Recorder()
