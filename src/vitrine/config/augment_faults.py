"""Checks of an augmentation: whether it fits the images, and keys that exclude each other."""

from collections.abc import Iterator

from vitrine.config.augment import AugmentConfig
from vitrine.config.schema import OWN_FILES, TrainConfig
from vitrine.config.size import size_override
from vitrine.errors import Fault
from vitrine.text import as_override


def augmentation_fits_the_image(config: TrainConfig) -> Iterator[Fault]:
    """Yield what is larger than the images, or of other channels."""
    data, augment = config.data, config.augment
    shown, side = size_override(data.image_size), min(data.image_hw)
    if augment.crop >= side:
        problem = f"must be smaller than the image, data.image_size={shown}"
        yield Fault("augment.crop", str(augment.crop), problem)
    if augment.cutout > side:
        problem = f"must be at most the image, data.image_size={shown}"
        yield Fault("augment.cutout", str(augment.cutout), problem)
    if data.train_size is not None and data.name in OWN_FILES:
        given = size_override(data.train_size)
        if augment.resized_crop is None:
            problem = "is the size of images that augment.resized_crop crops, and that is null"
            yield Fault("data.train_size", given, problem, "augment.resized_crop=[0.08,1.0]")
        if any(large < small for large, small in zip(data.train_hw, data.image_hw, strict=True)):
            problem = f"must be at least data.image_size={shown}, in height and in width"
            yield Fault("data.train_size", given, problem, f"data.train_size={shown}")
    parts = {"trivial": augment.trivial, "three": augment.three, "jitter": augment.jitter}
    for key, value in (parts | {"rand": augment.rand and "{}"}).items():
        if value and data.in_channels not in (1, 3):
            problem = f"needs images of 1 or 3 channels, not data.in_channels={data.in_channels}"
            yield Fault(f"augment.{key}", as_override(value), problem)
    if augment.rand and augment.trivial:
        problem = "is one more random operation beside those of augment.rand; set one of them"
        yield Fault("augment.trivial", "true", problem, "augment.trivial=false")
    if (area := augment.resized_crop) is not None:
        if len(area) != 2 or area[0] > area[1]:
            problem = "must be the least and the greatest share of the area, such as [0.08,1.0]"
            yield Fault("augment.resized_crop", as_override(area), problem)
        if augment.crop:
            problem = "crops a second time beside augment.resized_crop; set one of them"
            yield Fault("augment.crop", str(augment.crop), problem, "augment.crop=0")


def repeats_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield what repeated images exclude."""
    repeats, data = config.augment.repeats, config.data
    if repeats == 1:
        return
    if repeats >= data.batch_size:
        problem = f"leaves a batch one image; must be < data.batch_size={data.batch_size}"
        yield Fault("augment.repeats", str(repeats), problem)
    if data.sampling != "shuffle":
        problem = f"is for epochs without data.sampling={data.sampling}, which repeats images itself; set one of them"
        yield Fault("augment.repeats", str(repeats), problem, "augment.repeats=1")


def mixing_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield what mixes nothing: a share of images alone, and pairs in batches of one."""
    augment = config.augment
    if augment.mixes and config.data.batch_size == 1:
        key, value = ("mixup", augment.mixup) if augment.mixup else ("cutmix", augment.cutmix)
        problem = "mixes pairs of a batch, and data.batch_size=1 has none"
        yield Fault(f"augment.{key}", f"{value:g}", problem, f"augment.{key}=0")
    if augment.mix_share != AugmentConfig.mix_share and not augment.mixes:
        problem = "is the share of images that augment.mixup and augment.cutmix mix, and both are 0"
        yield Fault("augment.mix_share", f"{augment.mix_share:g}", problem, "augment.cutmix=1.0")
