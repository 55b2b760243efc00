"""Sizes of images and patches: a number of pixels, the side of a square, or ``[height, width]``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Size = int | list[int]
else:
    Size = Any  # OmegaConf has no unions with lists: fields.size checks what is given

Sides = int | tuple[int, int]  # a size that does not change, outside configurations
SIDES = ("height", "width")
SIZE_TYPE = "a whole number, or [height,width]"  # for messages


def height_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Return a size as height and width: (4, 4) for 4, (4, 8) for [4, 8]."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def fixed(size: Size) -> Sides:
    """Return a size of a configuration as one that can be hashed."""
    return size if isinstance(size, int) else height_width(size)


def plain_size(value: Any) -> Any:
    """Return a size as configurations store it: an int if it is square, else a list of two.

    Texts of digits are read, as OmegaConf does for a key that is an int. What is no size is returned as it is.
    """
    if isinstance(value, (list, tuple)):
        sides = [plain_size(side) for side in value]
        if len(sides) != 2 or not all(type(side) is int for side in sides):
            return value
        return sides[0] if sides[0] == sides[1] else sides
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return value
    return value


def is_size(value: Any) -> bool:
    """Whether a value is a size, as :func:`plain_size` returns it; of any number of pixels."""
    sides = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(type(side) is int for side in sides)


def format_size(size: int | Sequence[int]) -> str:
    """A size as a text, height first: ``32x32``, ``48x64``."""
    return "x".join(map(str, height_width(size)))


def size_override(size: int | Sequence[int]) -> str:
    """A size as an override has it: ``32``, ``[48,64]``."""
    return str(size) if isinstance(size, int) else f"[{','.join(map(str, size))}]"
