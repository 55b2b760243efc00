"""Intermediate results by name, without hooks: the model gives each of them to ``note`` as it passes."""

from torch import Tensor


class Notes:
    """Keeps what it is given; as ``IGNORE``, a model's default, keeps nothing and costs nothing.

    Args:
        kept: where results go, by their full names; ``None`` keeps nothing.
        prefix: put in front of each name.
    """

    def __init__(self, kept: dict[str, Tensor] | None = None, prefix: str = "") -> None:
        self.kept = kept
        self.prefix = prefix

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """Keep ``x`` as ``name`` and give it back."""
        if self.kept is not None:
            self.kept[self.prefix + name] = x
        return x

    def under(self, prefix: str) -> "Notes":
        """The same notes, for a part of the model whose names start with ``prefix.``."""
        return self if self.kept is None else Notes(self.kept, f"{self.prefix}{prefix}.")

    @property
    def taken(self) -> bool:
        """Whether anything is kept: what is made for the notes only can be left out if not."""
        return self.kept is not None


IGNORE = Notes()
