"""Draw training pictures as the model sees them: resized, and below each its augmentation in the first epochs.

vitrine preview data=imagefolder data.root=DIR augment=deit3
vitrine preview data=cifar10 augment=strong --output strong.png
vitrine preview like=outputs/runs/RUN augment.degrees=30      # of a run, with other overrides
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.cli.arguments import add_config_dir, errors_in_one_line, make_parser, positive
from vitrine.files import check_target, naming_failed_write

if TYPE_CHECKING:
    from torch import Tensor

    from vitrine.config import TrainConfig
    from vitrine.data.image_dataset import Split

PICTURES = 8


def main(arguments: Sequence[str] | None = None) -> None:
    """Compose, load, draw."""
    parser = make_parser("preview", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="the data and the augmentation, as for train")
    parser.add_argument("--output", type=Path, metavar="FILE", default=Path("preview.png"), help="default: preview.png")
    parser.add_argument("--epochs", type=positive, default=5, metavar="N", help="rows of augmented pictures (5)")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.epochs > 20:
        parser.error(f"--epochs {options.epochs} must be at most 20: each is a row of the picture")
    with errors_in_one_line():
        check_target(options.output, (".png", ".pdf", ".svg"))
        _draw(options)


def _draw(options: argparse.Namespace) -> None:
    from vitrine.command.compose import compose
    from vitrine.command.sources import Sources, composing

    with composing(Sources.choose(options.config_dir)):
        config = compose(options.overrides)
    import torch

    from vitrine.config.part_failures import failing_in_one_line
    from vitrine.data.datasets import at_train_size, load_dataset
    from vitrine.figure_style import save
    from vitrine.text import class_name
    from vitrine.training.plots import previewed

    # Without memory, files are decoded when they are shown, and nothing is cached.
    dataset = load_dataset(config.data, Path(config.paths.cache_dir), memory=0.0)
    split = _some(dataset.train)
    ((images, _),) = split.batches([torch.arange(len(split))])
    with failing_in_one_line(config):
        larger = at_train_size(split, config.data)
        rows = [images, *(augmented(larger, config, epoch) for epoch in range(options.epochs))]
    names = [class_name(dataset.classes, label) for label in split.first_labels.tolist()]
    figure = previewed([row.numpy() for row in rows], names, dataset.classes)
    with naming_failed_write(options.output):
        save(figure, options.output)
    print(f"written to {options.output}")


def augmented(split: "Split", config: "TrainConfig", epoch: int) -> "Tensor":
    """Return the images of a split, (N, C, H, W) uint8, as an epoch from 0 has them in a batch of their own.

    They are in the order of the split. MixUp and CutMix mix each with one of the others.
    """
    import torch

    from vitrine.data.epoch_plan import plan_epoch
    from vitrine.data.loader import TrainLoader
    from vitrine.data.transforms.augment import build_augmentation
    from vitrine.data.transforms.mixup import build_mixing

    loader = TrainLoader(
        split,
        batch_size=len(split),
        augmentation=build_augmentation(config.augment, config.data),
        mixing=build_mixing(config.augment, config.data.num_classes),
        seed=config.seed,
        position=lambda: (epoch, 0),
    )
    ((images, _),) = loader
    order = plan_epoch(len(split), 0, config.seed, epoch).order
    return images.round().to(torch.uint8)[order.argsort()]


def _some(split: "Split") -> "Split":
    """Up to eight images, evenly spaced over the classes."""
    import torch

    labels = split.first_labels
    by_class = labels.argsort(stable=True) if labels.dim() == 1 else torch.arange(len(labels))
    places = torch.linspace(0, len(split) - 1, min(PICTURES, len(split))).round().long().unique()
    return split[by_class[places]]
