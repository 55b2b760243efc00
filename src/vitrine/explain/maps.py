"""Figures of what a model has learned, most of them maps of patches in rows and columns."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from vitrine.config.model import ViTConfig
from vitrine.explain.observed import Measured
from vitrine.figure_style import (
    ATTENTION,
    COLOURS,
    LIKENESS,
    QUIET,
    SIGNED,
    WIDTH,
    bare,
    colour_bar,
    evenly,
    styled,
)
from vitrine.training.plots import show_image

MAX_LINES = 12  # blocks or heads of a figure of tiles
MAX_TILES = 14  # along a side of a figure of similarities
MAX_ROWS = 512  # tokens or channels of a table, more than a figure has pixels for


@styled()
def draw_patches(image: np.ndarray, config: ViTConfig) -> Figure:
    """Draw an image (C, H, W) uint8 and, beside it, the patches that it is cut into."""
    (rows, columns), (height, width), (down, right) = config.grid, config.patch_hw, config.stride
    pixels = image[:3] if len(image) in (3, 4) else image[:1].repeat(3, axis=0)
    scale = -(-12 // min(height, width))  # a gap is a twelfth of a patch, or less
    patches = [
        pixels[:, down * row : down * row + height, right * column : right * column + width]
        for row in range(rows)
        for column in range(columns)
    ]
    large = np.stack(patches).repeat(scale, axis=2).repeat(scale, axis=3).transpose(0, 2, 3, 1)
    framed = np.pad(large, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=140)  # seen beside black and white
    cut = framed.reshape(rows, columns, *framed.shape[1:]).swapaxes(1, 2)
    figure = Figure(figsize=(WIDTH, 2.2))
    whole, parts = figure.subplots(1, 2)
    show_image(whole, image)
    whole.set_title(f"{image.shape[1]} x {image.shape[2]} pixels")
    bare(parts)
    parts.imshow(cut.reshape(rows * framed.shape[1], columns * framed.shape[2], 3)[:-1, :-1])
    parts.set_title(f"{rows} x {columns} patches of {height} x {width}")
    return figure


@styled()
def draw_filters(components: np.ndarray, shares: np.ndarray) -> Figure:
    """Draw filters (K, C, h, w) in rows of seven, each scaled to the full range around 0, and its share in per cent."""
    lines = -(-len(components) // 7)
    figure = Figure(figsize=(WIDTH, 0.78 * lines))
    grid = figure.subplots(lines, 7, squeeze=False).ravel()
    for axes in grid[len(components) :]:
        axes.set_axis_off()
    for axes, values, share in zip(grid, components, shares, strict=False):
        bare(axes)
        scaled = 0.5 + values / (2 * max(np.abs(values).max(), 1e-12))
        axes.imshow(scaled.transpose(1, 2, 0) if len(values) == 3 else scaled[0], cmap=SIGNED, vmin=0, vmax=1)
        axes.set_title(f"{100 * share:.1f} %", fontsize=7, pad=2)
    return figure


@styled()
def draw_position_table(table: np.ndarray) -> Figure:
    """Draw the vectors (N, D) that are added to tokens: a row for each token, prefix tokens first."""
    figure = Figure(figsize=(WIDTH, 3.0))
    axes = figure.subplots()
    colour_bar(show_table(axes, table), [axes], "value")
    return figure


@styled()
def draw_position_similarities(similarities: np.ndarray, config: ViTConfig) -> Figure:
    """Draw (P, P) similarities as a map of the grid for each patch, or for evenly spaced ones if there are many."""
    grid = config.grid
    rows, columns = (evenly(side, MAX_TILES) for side in grid)
    tiles = similarities.reshape(*grid, *grid)[np.ix_(rows, columns)]
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    image = show_tiles(axes, tiles, LIKENESS, (min(0.0, float(tiles.min())), 1.0), _aspect(config))
    axes.set_xticks(_centres(len(columns), grid[1]), [str(column + 1) for column in columns])
    axes.set_yticks(_centres(len(rows), grid[0]), [str(row + 1) for row in rows])
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    colour_bar(image, [axes], "cosine similarity")
    return figure


@styled()
def draw_offset_scores(scores: np.ndarray, label: str, config: ViTConfig) -> Figure:
    """Draw scores by offset (blocks, heads, rows, columns): a line for each block, a column for each head."""
    blocks, heads = (evenly(count, MAX_LINES) for count in scores.shape[:2])
    shown = scores[np.ix_(blocks, heads)]
    largest = float(np.abs(shown).max()) or 1.0
    figure = Figure(figsize=(WIDTH, _height_of(shown, _aspect(config))))
    axes = figure.subplots()
    image = show_tiles(axes, shown, SIGNED, (-largest, largest), _aspect(config))
    _name_lines(axes, shown.shape, blocks if scores.shape[0] > 1 else [], heads if scores.shape[1] > 1 else [])
    colour_bar(image, [axes], label)
    return figure


@styled()
def draw_heads(attention: np.ndarray, config: ViTConfig) -> Figure:
    """Draw attention (blocks, heads, P) to the patches: a line for each block, a column for each head."""
    blocks, heads = (evenly(count, MAX_LINES) for count in attention.shape[:2])
    shown = attention[np.ix_(blocks, heads)].reshape(len(blocks), len(heads), *config.grid)
    figure = Figure(figsize=(WIDTH, _height_of(shown, _aspect(config))))
    axes = figure.subplots()
    image = show_tiles(axes, 100 * shown, ATTENTION, (0.0, 100 * float(shown.max())), _aspect(config))
    _name_lines(axes, shown.shape, blocks, heads)
    colour_bar(image, [axes], "attention (%)")
    return figure


@styled()
def draw_distances(measured: Measured, uniform: float) -> Figure:
    """Draw the mean attention distance of each head by block, and that of uniform attention."""
    depth, heads = measured.distance.shape
    figure = Figure(figsize=(WIDTH, 3.0))
    axes = figure.subplots()
    blocks = np.arange(1, depth + 1)
    axes.plot(np.repeat(blocks, heads), measured.distance.ravel(), "o", color=COLOURS[0], alpha=0.75, label="a head")
    axes.plot(blocks, measured.distance.mean(axis=1), color=COLOURS[1], label="mean of the heads")
    axes.axhline(uniform, color=QUIET, linestyle=":", linewidth=1, label="uniform attention")
    axes.set(xlabel="block", ylabel="mean distance (pixels)", ylim=(0, None), xlim=(0.5, depth + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    figure.legend(loc="outside upper center", ncols=3)
    return figure


@styled()
def draw_similarity_by_depth(measured: Measured) -> Figure:
    """Draw the mean similarity of two patches of an image by block, with the middle half of the images."""
    figure = Figure(figsize=(WIDTH, 3.0))
    axes = figure.subplots()
    depths = np.arange(measured.similarity.shape[1])
    low, middle, high = np.quantile(measured.similarity, [0.25, 0.5, 0.75], axis=0)
    axes.fill_between(depths, low, high, color=COLOURS[0], alpha=0.25, linewidth=0)
    axes.plot(depths, middle, "o-", color=COLOURS[0], markersize=4)
    axes.set(xlabel="blocks passed", ylabel="mean cosine similarity", ylim=(min(0.0, float(low.min())) - 0.02, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    return figure


@styled()
def draw_patch_similarities(similarity: np.ndarray) -> Figure:
    """Draw the similarities (1 + depth, P, P) of the patches of an image, at up to six depths."""
    depths = evenly(len(similarity), 6)
    figure = Figure(figsize=(WIDTH, 1.5 * -(-len(depths) // 3) + 0.2))
    grid = figure.subplots(-(-len(depths) // 3), 3, squeeze=False).ravel()
    for axes in grid[len(depths) :]:
        axes.set_axis_off()
    for axes, depth in zip(grid, depths, strict=False):
        bare(axes)
        image = axes.imshow(similarity[depth], cmap=LIKENESS, vmin=min(0.0, float(similarity.min())), vmax=1)
        axes.set_title(f"after block {depth}" if depth else "embedded", fontsize=8, pad=2)
    colour_bar(image, list(grid), "cosine similarity")
    return figure


def show_table(axes: Axes, table: np.ndarray) -> AxesImage:
    """Show vectors (N, D), a row for each token; evenly spaced ones if there are many."""
    tokens, channels = table.shape
    shown = table[np.ix_(evenly(tokens, MAX_ROWS), evenly(channels, MAX_ROWS))]
    largest = float(np.abs(shown).max()) or 1.0
    ends = (-0.5, channels - 0.5, tokens - 0.5, -0.5)
    axes.set(xlabel="channel", ylabel="token")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return axes.imshow(shown, cmap=SIGNED, vmin=-largest, vmax=largest, aspect="auto", extent=ends)


def show_tiles(axes: Axes, tiles: np.ndarray, colours: str, limits: tuple[float, float], aspect: float) -> AxesImage:
    """Show maps (rows, columns, h, w) as tiles with gaps; ``aspect`` is the height of a cell, by its width."""
    rows, columns, height, width = tiles.shape
    padded = np.pad(tiles.astype(float), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    whole = padded.swapaxes(1, 2).reshape(rows * (height + 1), columns * (width + 1))[:-1, :-1]
    bare(axes)
    axes.tick_params(length=0)
    return axes.imshow(np.ma.masked_invalid(whole), cmap=colours, vmin=limits[0], vmax=limits[1], aspect=aspect)


def _aspect(config: ViTConfig) -> float:
    """Height of a patch's cell in a map, by its width."""
    down, right = config.stride
    return down / right


def _height_of(tiles: np.ndarray, aspect: float) -> float:
    """Height in inches of a figure of maps (rows, columns, h, w)."""
    rows, columns, height, width = tiles.shape
    return max(1.9, 0.7 + 3.2 * aspect * rows * height / (max(columns, 4) * width))


def _name_lines(axes: Axes, shape: Sequence[int], blocks: Sequence[int], heads: Sequence[int]) -> None:
    """Number the lines of tiles by block and their columns by head."""
    _, _, height, width = shape
    axes.set_yticks(_centres(len(blocks), height), [str(block + 1) for block in blocks])
    axes.set_xticks(_centres(len(heads), width), [str(head + 1) for head in heads])
    axes.set(xlabel="head" if len(heads) else "", ylabel="block" if len(blocks) else "")


def _centres(count: int, size: int) -> list[float]:
    """Places of the centres of tiles of ``size`` cells with gaps of one."""
    return [index * (size + 1) + (size - 1) / 2 for index in range(count)]
