"""Print the layers of a model: shapes, parameters and FLOPs, from overrides as for train, or of a run. Trains nothing.

vitrine summary model=vit_tiny data=cifar10 patch=4
vitrine summary outputs/runs/RUN               # the same as like=outputs/runs/RUN
vitrine summary model=vit_base --depth 4       # down to blocks.0.attn.qkv; --depth 1 shows blocks as one
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from vitrine.cli.arguments import add_config_dir, errors_in_one_line, make_parser, positive
from vitrine.cli.tables import print_rows
from vitrine.config.size import format_size
from vitrine.text import plural, short_number

COLUMNS = ("layer", "type", "input", "output", "parameters", "FLOPs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compose, build, print."""
    parser = make_parser("summary", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="RUN or OVERRIDE", help="a run folder, overrides as for train")
    parser.add_argument("--depth", type=positive, default=2, metavar="N", help="how deep to look into parts (2)")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    with errors_in_one_line():
        show(options)


def show(options: argparse.Namespace) -> None:
    """Print the table and the totals."""
    from vitrine.command.compose import compose
    from vitrine.command.sources import Sources, composing

    given = [f"like={text}" if Path(text).is_dir() else text for text in options.overrides]
    with composing(Sources.choose(options.config_dir)):
        config = compose(given)
    from vitrine.training.summary import layers

    found = layers(config.model, options.depth)
    rows = [
        [layer.name, layer.kind, _shape(layer.takes), _shape(layer.gives), f"{layer.parameters:,}", _flops(layer.flops)]
        for layer in found.layers
    ]
    print_rows(COLUMNS, rows)
    model = config.model
    print(f"\nparameters       {found.parameters:,}")
    print(f"FLOPs per image  {short_number(found.flops)} (forward; a multiply-add is 2)")
    size = f"{format_size(model.image_size)}x{model.in_channels}"
    print(f"images           {size}, {plural(model.num_classes, 'class', 'classes')}")


def _shape(shape: tuple[int, ...] | None) -> str:
    """``(B, 17, 64)``, the first dimension being the batch."""
    return "" if shape is None else f"({', '.join(['B', *map(str, shape[1:])])})"


def _flops(count: int) -> str:
    return short_number(count) if count else ""
