"""The configuration of augmentation."""

from dataclasses import dataclass
from typing import Any

from vitrine.config.fields import number, part_list, part_options
from vitrine.config.parts import Interface


@dataclass
class RandAugmentConfig:
    """RandAugment (arXiv:1909.13719) as timm has it; ``augment.rand={}`` is its ``rand-m9-mstd0.5-inc1``.

    Attributes:
        operations: how many for each image, in sequence; each is one of fifteen, drawn uniformly.
        magnitude: strength of the operations, of 10; torchvision counts to 30, so that 9 is its 27.
        std: standard deviation of a normal distribution around it, from which that of each operation is drawn.
        probability: of applying an operation; 1 in the paper and in torchvision.
    """

    operations: int = number(2, ge=1, le=100)
    magnitude: float = number(9.0, ge=0, le=10)
    std: float = number(0.5, ge=0, le=10)
    probability: float = number(0.5, gt=0, le=1)


@dataclass
class AugmentConfig:
    """Augmentation of training images, in this order, drawn for each image and epoch; 0 and false are off.

    Attributes:
        resized_crop: crop at random to a share of the area between these two, of an aspect ratio from 3/4 to 4/3, and
            scale the crop to the size of the image (arXiv:1409.4842); null is off.
        crop: pixels of black padding on each side before a random crop to the original size.
        flip: mirror half of the images horizontally, if data.flip allows it.
        degrees: rotate by up to this angle in either direction.
        translate: shift by up to this fraction of the image, in either direction of each axis.
        scale: enlarge or shrink by up to this fraction.
        shear: shear by up to this angle in degrees, in either direction.
        elastic: elastic deformation: shift each knot of a 5 x 5 grid by up to this fraction of the image
            (arXiv:1505.04597).
        trivial: one of TrivialAugment's fourteen operations for each image (arXiv:2103.10158, "wide").
        rand: RandAugment in place of it, a section that is off where it is null.
        three: grey, solarised or blurred, one of them for each image (3-Augment, arXiv:2204.07118).
        jitter: change brightness, contrast and saturation by a factor of up to one plus or minus this.
        erasing: probability of filling a rectangle with the mean colour (arXiv:1708.04896).
        cutout: side in pixels of a square filled with the mean colour in each image (arXiv:1708.04552).
        mixup: alpha of MixUp (arXiv:1710.09412), a blend with another image of the batch and its label.
        cutmix: alpha of CutMix (arXiv:1905.04899), a rectangle from it. With both, each image gets one of them at
            random.
        mix_share: share of the images that ``mixup`` and ``cutmix`` mix, in (0, 1].
        repeats: copies of an image in a batch, each augmented for itself (arXiv:1902.05509); an epoch is as long, of as
            many times fewer images.
        parts: augmentations of your own, by dotted name, after these.
        parts_options: their arguments, by class name.
    """

    resized_crop: list[float] | None = number(None, gt=0, le=1)
    crop: int = number(0, ge=0, le=4096)
    flip: bool = False
    degrees: float = number(0.0, ge=0, le=180)
    translate: float = number(0.0, ge=0, le=1)
    scale: float = number(0.0, ge=0, lt=1)
    shear: float = number(0.0, ge=0, lt=90)
    elastic: float = number(0.0, ge=0, le=0.125)
    trivial: bool = False
    rand: RandAugmentConfig | None = None
    three: bool = False
    jitter: float = number(0.0, ge=0, le=1)
    erasing: float = number(0.0, ge=0, le=1)
    cutout: int = number(0, ge=0, le=4096)
    mixup: float = number(0.0, ge=0, le=100)
    cutmix: float = number(0.0, ge=0, le=100)
    mix_share: float = number(1.0, gt=0, le=1)
    repeats: int = number(1, ge=1, le=1000)
    parts: list[str] = part_list(Interface())
    parts_options: dict[str, Any] = part_options()

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with each other."""
        return self.mixup > 0 or self.cutmix > 0
