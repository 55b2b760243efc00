"""Sections of the page on what a run's Vision Transformer has learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vitrine.compare.predictions import Predictions
from vitrine.compare.report.image_panels import image_url
from vitrine.config.model import ViTConfig
from vitrine.errors import RunError, VitrineError, joined_lines
from vitrine.explain import maps
from vitrine.explain.explorer import details, packed
from vitrine.explain.observed import Measured, Observed, chosen_images, how_many, measure, observe
from vitrine.explain.run_images import RunImages
from vitrine.explain.section import DrawnFigure, RunSection
from vitrine.figure_style import evenly
from vitrine.models import VisionTransformer, rollout_problem
from vitrine.models.learned import attention_distances, offset_scores, patch_filters, position_similarities
from vitrine.runs.facts import images_of
from vitrine.text import class_name, isolated, listed, plural
from vitrine.training import plots

IN_ROLLOUT = 4  # images of the figure
EXPLORER_SIDE = 192  # pixels of an image in the page, at most
EMBEDDINGS = {"conv_stem": "a convolutional stem", "shifted": "the unshifted image"}
POSITIONS = {
    "none": "The model has no positions: it sees a set of patches.",
    "conv": "Positions come from a convolution after the first block (position=conv): there is no table to show.",
}
BIASES = ("relative", "alibi2d")


@dataclass(frozen=True)
class Shown:
    """Images to look at, with what the model does with them.

    Attributes:
        pixels: (B, C, H, W) uint8.
        truth, guesses: names of the true and of the predicted class of each.
        observed: of each; empty if the model has no attention maps.
        measured: averages over more images.
        kind: what one is called.
        problem: why there are none; empty otherwise.
    """

    pixels: np.ndarray
    truth: Sequence[str]
    guesses: Sequence[str]
    observed: Sequence[Observed]
    measured: Measured | None
    kind: str = "test image"
    problem: str = ""


def learned_sections(run_images: RunImages, predictions: Predictions | None, names: Sequence[str]) -> list[RunSection]:
    """Return the sections on a model.

    Raises:
        RunError: the checkpoint is missing, damaged or refused, or names code that is not trusted.
    """
    model = run_images.run.model
    if not isinstance(model, VisionTransformer):
        text = f"The model, {run_images.run.config.model.name}, is not vitrine's: its parts are not known here."
        return [RunSection("learned", "What the model has learned", text)]
    shown = _look(run_images, model, predictions, names)
    found = [patch_section(model.config, shown), filter_section(model), position_section(model)]
    if problem := rollout_problem(model):
        return [*found, RunSection("attention", "Attention", f"There are no attention maps: {problem}.")]
    if shown.problem:
        return [*found, RunSection("attention", "Attention", f"There are no images to look at: {shown.problem}.")]
    return [
        *found,
        attention_section(model.config, shown),
        rollout_section(model.config, shown, names),
        distance_section(model.config, shown),
        likeness_section(shown),
    ]


def _look(
    run_images: RunImages, model: VisionTransformer, predictions: Predictions | None, names: Sequence[str]
) -> Shown:
    """Choose images, and run the model on them."""
    config, loaded, kind = model.config, run_images.run, run_images.kind
    mistakes = [] if predictions is None else predictions.mistakes.tolist()
    try:
        count = images_of(loaded.record.facts, run_images.stage) if predictions is None else len(predictions.labels)
        if not count:
            return _nothing(f"the data set has no {kind}s")
        _, most = details(config.depth, config.heads, config.patches)
        chosen = chosen_images(count, mistakes, most)
        measured_on = evenly(count, how_many(float(loaded.record.facts.get("flops_per_image") or 1e9)))
        pixels = run_images.pixels([*chosen, *measured_on])
        labels = run_images.split.first_labels[chosen].tolist()
    except (VitrineError, OSError, ImportError) as error:
        return _nothing(joined_lines(error))
    images = loaded.transform.normalised(torch.from_numpy(pixels))
    truth = [class_name(names, label) for label in labels]
    if rollout_problem(model):
        return Shown(pixels[: len(chosen)], truth, [], [], None, kind)
    observed = [observe(model, image) for image in images[: len(chosen)]]
    multi_label = loaded.config.data.multi_label
    predicted = [(one.logits > 0).tolist() if multi_label else int(one.logits.argmax()) for one in observed]
    guesses = [class_name(names, one) for one in predicted]
    return Shown(pixels[: len(chosen)], truth, guesses, observed, measure(model, images[len(chosen) :]), kind)


def _nothing(problem: str) -> Shown:
    return Shown(np.empty((0, 1, 1, 1), np.uint8), [], [], [], None, problem=problem)


def patch_section(config: ViTConfig, shown: Shown) -> RunSection:
    """An image, cut into patches."""
    (rows, columns), (height, width), (down, right) = config.grid, config.patch_hw, config.stride
    apart = f"{down} pixels" if down == right else f"{down} pixels down and {right} right"
    overlap = f", {apart} apart, so that they overlap" if (down, right) != (height, width) else ""
    text = f"The model sees {rows} x {columns} patches of {height} x {width} pixels{overlap}."
    if config.prefix:
        text += (
            f" In front of them: {plural(config.prefix, 'token')} that no patch belongs to, {prefix_tokens(config)}."
        )
    if not len(shown.pixels):
        return RunSection("patches", "Patches", text)
    figure = maps.draw_patches(shown.pixels[0], config)
    caption = f"A {shown.kind}, {isolated(shown.truth[0])}, and its patches, numbered in rows from the top left."
    drawn = DrawnFigure("patches", "", caption, f"{caption} {text}", figure)
    return RunSection("patches", "Patches", text, [drawn])


def prefix_tokens(config: ViTConfig) -> str:
    """What the tokens in front of the patches are."""
    tokens = ["the class token"] * config.class_token
    tokens += [plural(config.registers, "register")] if config.registers else []
    return listed(tokens)


def filter_section(model: VisionTransformer) -> RunSection:
    """Principal components of the patch embedding."""
    found = patch_filters(model)
    if found is None:
        name = EMBEDDINGS.get(model.config.patch_embed, model.config.patch_embed)
        text = f"Patches are embedded by {name}, not by a linear map: it has no filters of a patch to show."
        return RunSection("filters", "Patch embedding", text)
    components, shares = (values.numpy() for values in found)
    text = "The patch embedding is a linear map: each channel of a token is a filter of the patch."
    if model.config.patch_embed == "shifted":
        text += " Shown are the filters of the unshifted image."
    if components.shape[1] not in (1, 3):
        return RunSection(
            "filters", "Patch embedding", f"{text} Images of {components.shape[1]} channels have no colours."
        )
    covered = 100 * float(shares.sum())
    caption = (
        f"The first {len(components)} principal components of the filters, with their share of the variance: "
        f"{covered:.0f} % together (arXiv:2010.11929, figure 7)."
    )
    alt = f"{plural(len(components), 'filter')}; the first has {100 * shares[0]:.1f} % of the variance."
    figure = maps.draw_filters(components, shares)
    return RunSection("filters", "Patch embedding", text, [DrawnFigure("filters", "", caption, alt, figure)])


def position_section(model: VisionTransformer) -> RunSection:
    """What the model knows of positions."""
    config, title = model.config, "Positions"
    if model.pos_embed is not None:
        return _table_section(model, title)
    scores = offset_scores(model)
    if scores is None:
        text = POSITIONS.get(config.position, f"position={config.position} is not vitrine's: it has no table to show.")
        return RunSection("positions", title, text)
    values, bias = scores.numpy(), config.position in BIASES
    caption = "By the offset of the key from the query, which is in the middle of each tile: "
    caption += "the bias that is added to the score." if bias else "the score of equal contents, 1 at no offset."
    alt = f"{caption} Values are from {values.min():.2f} to {values.max():.2f}."
    text = f"Positions act on queries and keys inside attention (position={config.position})."
    if len(values) == 1:
        text += " All blocks share them."
    label = "bias of the score" if bias else "mean cosine"
    figure = maps.draw_offset_scores(values[..., ::-1, ::-1].copy(), label, config)
    return RunSection("positions", title, text, [DrawnFigure("positions", "", caption, alt, figure)])


def _table_section(model: VisionTransformer, title: str) -> RunSection:
    """Positions that are added to tokens: the table, and the similarities of its rows where it is not too long."""
    config = model.config
    text = f"Positions are added to the tokens (position={config.position})."
    table = model.position_table()[0].detach().float().cpu().numpy()
    first = f", {prefix_tokens(config)} first" if config.prefix else ""
    caption = f"What is added to the tokens: a row for each{first}, a column for each channel."
    alt = f"{caption} Values are from {table.min():.2f} to {table.max():.2f}."
    figures = [DrawnFigure("position_table", "Table", caption, alt, maps.draw_position_table(table))]
    try:
        found = position_similarities(model)
    except RunError as error:
        return RunSection("positions", title, f"{text} There is no figure of their similarities: {error}.", figures)
    assert found is not None
    values = found.numpy()
    caption = (
        "Each tile belongs to the patch in this row and column: the cosine similarity of its position embedding to "
        "those of all patches (arXiv:2010.11929, figure 7)."
    )
    alt = f"{caption} Similarities are from {values.min():.2f} to {values.max():.2f}."
    drawn = maps.draw_position_similarities(values, config)
    return RunSection(
        "positions", title, text, [*figures, DrawnFigure("positions", "Similarities", caption, alt, drawn)]
    )


def reader(config: ViTConfig) -> str:
    """What the head reads, whose attention is "the image's"."""
    if config.pool == "cls":
        return "the class token"
    return "the patches on average" if config.pool == "mean" else "the patches on average; the pool's query at the end"


def attention_section(config: ViTConfig, shown: Shown) -> RunSection:
    """Attention by block and head: interactive, and a figure of one image."""
    detail, _ = details(config.depth, config.heads, config.patches)
    captions = [_caption(true, guess) for true, guess in zip(shown.truth, shown.guesses, strict=True)]
    sources = [image_url(image, EXPLORER_SIDE) for image in shown.pixels]
    explorer = packed(shown.observed, sources, captions, detail)
    (rows, columns), (height, width) = config.grid, config.image_hw
    explorer |= {"rows": rows, "columns": columns, "height": height, "width": width, "reader": reader(config)}
    text = "Choose an image and a block. Click a patch, or move with the arrow keys, to see what it attends to; "
    text += f"Escape returns to what the head reads: {reader(config)}."
    if detail == "mean":
        text += " Of single patches, the mean over heads is shown: that of each head would make the page too large."
    elif detail == "image":
        text = (
            f"Choose an image and a block. Maps of {reader(config)}; those of each patch would make the page too large."
        )
    first = shown.observed[0].attention[:, :, 0].numpy()
    caption = f"Attention of {reader(config).partition(';')[0]} by block and head, for one image: {captions[0]}."
    figure = maps.draw_heads(first, config)
    block, head, patch = np.unravel_index(int(first.argmax()), first.shape)
    alt = f"{caption} Largest in block {block + 1}, head {head + 1}: {100 * first.max():.0f} % to one patch, "
    alt += f"in row {patch // columns + 1}, column {patch % columns + 1}."
    return RunSection("attention", "Attention", text, [DrawnFigure("attention", "", caption, alt, figure)], explorer)


def rollout_section(config: ViTConfig, shown: Shown, classes: Sequence[str]) -> RunSection:
    """Images with their rollout."""
    chosen = evenly(len(shown.observed), IN_ROLLOUT)
    values = np.stack([shown.observed[index].rollout[0].numpy().reshape(config.grid) for index in chosen])
    truth, guesses = ([names[index] for index in chosen] for names in (shown.truth, shown.guesses))
    figure = plots.attention(shown.pixels[chosen], values, truth, guesses, classes)
    caption = (
        f"Above {shown.kind}s with their classes, below the share of each patch in what the head reads, by attention "
        "rollout (arXiv:2005.00928), and the prediction."
    )
    described = "; ".join(_caption(true, guess) for true, guess in zip(truth, guesses, strict=True))
    alt = f"{caption} {described}."
    text = "Attention of all blocks, followed back to the patches"
    text += "; the residual path counts as much as attention." if config.residual else "."
    return RunSection("rollout", "Rollout", text, [DrawnFigure("rollout", "", caption, alt, figure)])


def distance_section(config: ViTConfig, shown: Shown) -> RunSection:
    """Mean attention distance by depth."""
    measured = shown.measured
    assert measured is not None
    count = config.patches
    uniform = float(attention_distances(torch.full((count, count), 1 / count), config.grid, config.stride))
    caption = (
        f"Mean distance of a patch from the patches it attends to, over {plural(measured.images, shown.kind)}: "
        "a point for each head (arXiv:2010.11929, figure 7). Low: a head looks nearby."
    )
    table = [["block", *(f"head {head + 1}" for head in range(config.heads))]]
    table += [[str(block + 1), *(f"{value:.2f}" for value in line)] for block, line in enumerate(measured.distance)]
    ends = [f"{measured.distance[place].mean():.1f}" for place in (0, -1)]
    alt = f"{caption} On average {ends[0]} pixels in the first block, {ends[1]} in the last; uniform: {uniform:.1f}."
    figure = maps.draw_distances(measured, uniform)
    drawn = DrawnFigure("attention_distance", "", caption, alt, figure, table)
    return RunSection("distance", "Attention distance", figures=[drawn])


def likeness_section(shown: Shown) -> RunSection:
    """How alike the patches of an image are."""
    assert shown.measured is not None
    values = shown.measured.similarity
    middle = np.median(values, axis=0)
    caption = (
        f"Mean cosine similarity of two patches of an image, by depth: median and middle half of "
        f"{plural(shown.measured.images, shown.kind)}."
    )
    alt = f"{caption} It is {middle[0]:.2f} before the first block, and {middle[-1]:.2f} after the last."
    table = [["blocks passed", "median"], *([str(depth), f"{value:.3f}"] for depth, value in enumerate(middle))]
    by_depth = DrawnFigure("similarity", "By depth", caption, alt, maps.draw_similarity_by_depth(shown.measured), table)
    caption = (
        f"Similarities of all patches of one image, {isolated(shown.truth[0])}: a row and a column for each patch."
    )
    similarity = shown.observed[0].similarity.numpy()
    alt = f"{caption} From {similarity.min():.2f} to {similarity.max():.2f}."
    figure = maps.draw_patch_similarities(similarity)
    within = DrawnFigure("patch_similarity", "Within an image", caption, alt, figure)
    text = "Where the patches of an image become alike, the model no longer tells them apart."
    return RunSection("likeness", "Similarity of patches", text, [by_depth, within])


def _caption(true: str, guess: str) -> str:
    recognised = true == guess
    return f"{isolated(true)}, {'recognised' if recognised else f'taken for {isolated(guess)}'}"
