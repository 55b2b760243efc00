"""Write the tutorials' sections of docs/reproductions.md, its record and figures, and the heads of the experiments."""

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageOps
from reproductions_runs import Results, collect, extent, longest
from seeds import ROOT, STUDIES, markdown_table, write_between
from sklearn.datasets import load_sample_image
from tutorials import Tutorial

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import Difference, difference
from vitrine.compare.simultaneous import Family
from vitrine.config import ViTConfig
from vitrine.explain.maps import draw_patches, show_table
from vitrine.models.learned import similarities
from vitrine.text import listed, plural

DOCS = ROOT / "docs"
JSON = STUDIES / "reproductions.json"
SPEED = ROOT / "benchmarks" / "timing" / "speed.json"
FIGURES = DOCS / "images" / "reproductions"
EXPERIMENTS = ROOT / "conf" / "experiment" / "tutorials"
PENDING = "not yet measured"
LEAST_SEEDS = 3  # that the cost of a quirk is told from
FIGURE_TEXTS = {  # title and caption
    "patches": (
        "Patches",
        "What ViT-B/16 reads: 224x224 pixels, and the 196 patches that become tokens. "
        "Photograph by [vultilion](https://www.flickr.com/photos/vultilion/6056698931/), "
        "[CC BY 2.0](https://creativecommons.org/licenses/by/2.0/), cropped.",
    ),
    "losses": ("Published and reproduced loss", "Training loss of each epoch: as published, and the mean over seeds."),
    "accuracy": (
        "Test accuracy",
        "After each epoch, by seed. Grey: what the published accuracy stands for.",
    ),
    "curves": (
        "Loss and accuracy",
        "Seed {seed}. The validation images are among those that are trained on: their curve is not a held-out score.",
    ),
    "confusion": ("Confusion", "Seed {seed}: test images by their class and by the predicted one."),
    "attention": (
        "Attention",
        "Seed {seed}. Top: test images with their class. Bottom: how much of each patch reaches the class token "
        "through all blocks (attention rollout), with the prediction, in red if wrong.",
    ),
    "positions": (
        "Positional embeddings",
        "Seed {seed}: the vectors that are added to tokens, the class token's first, and their similarities.",
    ),
}


def write_page(tutorials: Mapping[str, Tutorial], out: Path) -> None:
    """Write the page from the finished runs under ``out``, and from the record where it has more of them."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    results = {name: collect(tutorial, out / name, known.get(name, {})) for name, tutorial in tutorials.items()}
    columns = [
        "tutorial",
        "reported",
        "faithful, last epoch",
        "faithful, best epoch",
        "corrected",
        "parameters",
        "commit",
    ]
    lines = markdown_table(columns, [row(tutorials[name], measured) for name, measured in results.items()])
    lines += ["", machines(results.values())]
    for name, measured in results.items():
        lines += section(name, tutorials[name], measured, out / name)
    lines = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    write_between(DOCS / "reproductions.md", "tutorials", lines)
    JSON.write_text(json.dumps(results, indent=2) + "\n")
    for name, measured in results.items():
        for variant in ("faithful", "corrected"):
            write_head(EXPERIMENTS / name / f"{variant}.yaml", tutorials[name], measured.get(variant))


def machines(results: Iterable[Results]) -> str:
    """On which machines the compared runs of each commit were trained."""
    found: dict[str, set[str]] = {}
    for variant in (variant for measured in results for variant in comparable(measured).values()):
        where = {f"{machine}, {variant['device']}" for machine in variant["machine"].split("; ")}
        found.setdefault(variant["commit"][:7], set()).update(where)
    return " ".join(f"Trained by commit {commit} on {'; '.join(sorted(where))}." for commit, where in found.items())


def write_head(path: Path, tutorial: Tutorial, result: Mapping[str, Any] | None) -> None:
    """Write an experiment's result to the line of its file that begins with "# Measured:", if it has one."""
    text = "not yet."
    if result is not None and result["epochs"] >= tutorial.epochs:
        text = f"test accuracy {accuracy(tutorial, result)}; {result['machine']}, {result['device']}."
    lines = path.read_text().splitlines()
    lines = [f"# Measured: {text}" if line.startswith("# Measured:") else line for line in lines]
    path.write_text("\n".join(lines) + "\n")


def row(tutorial: Tutorial, results: Results) -> list[str]:
    """A tutorial's row of the main table."""
    faithful, corrected = results.get("faithful"), comparable(results).get("corrected")
    whole = faithful is not None and faithful["epochs"] >= tutorial.epochs
    best = str(ConfidenceInterval.of(faithful["best/acc"])) if faithful and whole and faithful["best/acc"] else ""
    missing = PENDING if tutorial.reported else "not trained: nothing to reach"
    cells = [missing if result is None else accuracy(tutorial, result) for result in (faithful, corrected)]
    parameters = f"{tutorial.parameters:,}; corrected {tutorial.corrected_parameters:,}"
    commit = faithful["commit"][:7] if faithful else ""
    return [tutorial.title, tutorial.reported or "no result", cells[0], best, cells[1], parameters, commit]


def accuracy(tutorial: Tutorial, result: Mapping[str, Any]) -> str:
    """Test accuracy of a variant, as text."""
    text = f"{ConfidenceInterval.of(result['test/acc'])} ({plural(len(result['seeds']), 'seed')})"
    if result["epochs"] >= tutorial.epochs:
        return text
    return f"{PENDING}; {text} after {result['epochs']} of {tutorial.epochs} epochs"


def comparable(results: Results) -> Results:
    """The variants that were trained by the commit of the faithful runs."""
    commit = results.get("faithful", {}).get("commit")
    return {name: result for name, result in results.items() if result["commit"] == commit}


def section(name: str, tutorial: Tutorial, results: Results, folder: Path) -> Iterator[str]:
    """Lines of a tutorial's section."""
    faithful = results.get("faithful")
    data = " data.root=DIR" if name == "vit_base_anatomy" else ""
    changed = {"described": tutorial.described, "corrected": tutorial.corrected}
    experiments = ["faithful", *(variant for variant, changes in changed.items() if changes)]
    commands = [f"python train.py experiment=tutorials/{name}/{variant}{data}" for variant in experiments]
    yield from ("", f"## {tutorial.title}", "", tutorial.source, "", "```bash", *commands, "```", "")
    if faithful is not None and faithful["epochs"] >= tutorial.epochs and tutorial.accuracy is not None:
        yield comparison(tutorial, faithful)
    elif tutorial.reported:
        cost = f"{cost_of(name)}, and a run has {tutorial.epochs}"
        yield f"Reported: {tutorial.reported}. {PENDING.capitalize()}: {cost}."
        if faithful is not None and faithful.get("curves"):
            yield so_far(tutorial, faithful)
        yield "A run in slices, by the same command until its exit code is 0:"
        slices = "--train --variants faithful --seeds 1 --overrides trainer.max_time=1h"
        yield from ("", "```bash", f"python scripts/reproduce.py {name} {slices}", "```")
    yield from ("", tutorial.known, "")
    if tutorial.losses and faithful is not None:
        yield from loss_table(tutorial, faithful)
    yield f"The faithful experiment, setting by setting; places are {tutorial.places}."
    yield ""
    settings = [[setting.published, f"`{setting.overrides}`", setting.place] for setting in tutorial.settings]
    yield from markdown_table(["published", "here", "place"], settings)
    if tutorial.quirks:
        yield from quirk_table(tutorial, results)
    for variant in experiments[1:]:
        parameters = f"; it has {tutorial.corrected_parameters:,} parameters" if variant == "corrected" else ""
        yield from ("", f"The {variant} experiment is the faithful one with these changes{parameters}.", "")
        rows = [[change.change, f"`{change.overrides}`"] for change in changed[variant]]
        yield from markdown_table([variant, "here"], rows)
    yield ""
    if name == "vit_base_anatomy":
        draw_photograph(FIGURES / f"{name}_patches.png")
    if faithful is not None:
        draw_results(name, tutorial, faithful, folder)
    yield from figures(name, faithful["seeds"][0] if faithful is not None else None)


def comparison(tutorial: Tutorial, faithful: Mapping[str, Any]) -> str:
    """The reported result next to those of the seeds."""
    values, best = np.array(faithful["test/acc"]), np.array(faithful["best/acc"])
    text = f"Reported: {tutorial.reported}. The accuracy stands for {stands_for(tutorial)}. "
    if len(values) == 1:
        text += f"The faithful run ends at {values[0]:.4f}, {place_of(values, tutorial)}"
        if len(best):
            epoch = np.argmax(faithful["curves"][0]) + 1
            text += f". Its best epoch, number {epoch}, is at {best[0]:.4f}, {place_of(best, tutorial)}"
        return text + "."
    text += f"Faithful runs over {len(values)} seeds end at {values.min():.4f} to {values.max():.4f}: "
    text += place_of(values, tutorial)
    if len(best):
        text += f". In their best epochs they are at {best.min():.4f} to {best.max():.4f}: {place_of(best, tutorial)}"
    if tutorial.loss is not None:
        text += f". Their test loss is {ConfidenceInterval.of(faithful['test/loss'])}; reported {tutorial.loss:g}"
    return text + "."


def so_far(tutorial: Tutorial, faithful: Mapping[str, Any]) -> str:
    """What runs under way have reached."""
    reached = [
        f"seed {seed} is at {curve[-1]:.4f} (best: {max(curve):.4f}, after {np.argmax(curve) + 1})"
        for seed, curve in zip(faithful["seeds"], faithful["curves"], strict=True)
    ]
    done = f"After {faithful['epochs']} of {tutorial.epochs} epochs, {listed(reached)}"
    return f"{done}. The learning rate is constant, so these are the first epochs of the whole run."


def stands_for(tutorial: Tutorial) -> str:
    """The range of accuracies that the published one was rounded from, or cut."""
    low, high = tutorial.accuracy or (0.0, 1.0)
    return f"{low:.5g} to {high:.5g}"


def place_of(values: np.ndarray, tutorial: Tutorial) -> str:
    """How many accuracies lie below, in and above the range that the published one stands for."""
    low, high = tutorial.accuracy or (0.0, 1.0)
    counts = {"below it": values < low, "in it": (values >= low) & (values < high), "above it": values >= high}
    found = {name: int(hit.sum()) for name, hit in counts.items() if hit.any()}
    return ", ".join(name if len(values) == 1 else f"{count} {name}" for name, count in found.items())


def cost_of(name: str) -> str:
    """What an epoch of a faithful experiment takes, as benchmarks/timing/tutorial_epochs.py measured it."""
    measured = json.loads(SPEED.read_text())["tutorial_epochs"]
    seconds = next(row[3] for row in measured["rows"] if name in row[0])
    return f"an epoch takes {seconds:.0f} s on {measured['machine']}"


def loss_table(tutorial: Tutorial, faithful: Mapping[str, Any]) -> list[str]:
    """Training loss by epoch, published and reproduced."""
    digits = 2 if all(loss == round(loss, 2) for loss in tutorial.losses) else 3
    rows = {"published loss": tutorial.losses, "faithful, mean over seeds": faithful["training_loss"]}
    cells = [[name, *(f"{loss:.{digits}f}" for loss in losses)] for name, losses in rows.items()]
    return [*markdown_table(["epoch", *map(str, range(1, len(tutorial.losses) + 1))], cells), ""]


def quirk_table(tutorial: Tutorial, results: Results) -> Iterator[str]:
    """Effect of removing a single quirk from the faithful experiment, paired by seed, all by one commit."""
    rows, effects, measured = [], [], comparable(results)
    compared: set[int] = set()
    for quirk in tutorial.quirks:
        result = measured.get(quirk.change)
        cells = [PENDING if result is None else f"{PENDING}: {len(result['seeds'])} of {LEAST_SEEDS} seeds", ""]
        if result is not None and len(result["seeds"]) >= LEAST_SEEDS:
            compared |= set(result["seeds"])
            found = effect(result, measured, len(tutorial.quirks))
            effects.append(found)
            interval = f" [{found.low:+.4f}, {found.high:+.4f}]" if math.isfinite(found.low) else ""
            cells = [str(ConfidenceInterval.of(result["test/acc"])), f"{found.mean:+.4f}{interval}"]
        rows.append([quirk.explained, f"{quirk.change}: `{quirk.overrides}`", *cells])
    said = "What each quirk costs: the faithful experiment with one change."
    if compared:
        said += " Differences are paired, over the seeds of both; their 95 % intervals hold together, for all "
        said += f"{len(tutorial.quirks)} (Bonferroni)."
        faithful = measured["faithful"]
        seeds = sorted(compared & set(faithful["seeds"]))
        values = [dict(zip(faithful["seeds"], faithful["test/acc"], strict=True))[seed] for seed in seeds]
        same = f"as published, seeds {listed(seeds)}"
        rows.insert(0, [same, "nothing", str(ConfidenceInterval.of(values)), ""])
    yield from ("", said, "")
    yield from markdown_table(["in the tutorial", "changed to", "test accuracy", "difference"], rows)
    where: dict[str, list[str]] = {}
    for name in ("faithful", *(quirk.change for quirk in tutorial.quirks)):
        if name in measured:
            machine = measured[name]["machine"].replace("; ", " and ")
            where.setdefault(machine, []).append("*as published*" if name == "faithful" else f"*{name}*")
    if len(where) > 1:
        trained = "; ".join(f"{listed(names)} on {machine}" for machine, names in where.items())
        yield from ("", f"Rounding differs between processors, and these rows were trained on several: {trained}.")
    if effects and all(found.low < 0 < found.high for found in effects):
        yield from ("", "No interval excludes zero: so few seeds do not tell what any of these quirks costs.")


def effect(result: Mapping[str, Any], results: Results, comparisons: int) -> Difference:
    """Difference of a variant from the faithful runs of its seeds, with its simultaneous interval."""
    values, others = (dict(zip(one["seeds"], one["test/acc"], strict=True)) for one in (result, results["faithful"]))
    shared = values.keys() & others.keys()
    values, others = ({seed: some[seed] for seed in sorted(shared)} for some in (values, others))
    return difference(values, others, Family(comparisons))


def draw_results(name: str, tutorial: Tutorial, faithful: Mapping[str, Any], folder: Path) -> None:
    """Draw what the faithful runs learned, and copy the figures of the first of them."""
    if tutorial.losses:
        draw_losses(tutorial.losses, faithful["training_loss"], FIGURES / f"{name}_losses.png")
    if faithful.get("curves") and tutorial.accuracy is not None:
        draw_accuracy(faithful, tutorial.accuracy, FIGURES / f"{name}_accuracy.png")
    if (trained := longest(folder / "faithful")) and extent(trained) == (faithful["epochs"], len(faithful["seeds"])):
        first = trained[0].run
        for figure in ("curves", "confusion", "attention"):
            if (source := first.record.path / f"{figure}.png").exists():
                shutil.copy(source, FIGURES / f"{name}_{figure}.png")
        if first.model.pos_embed is not None:
            draw_positions(first.model, FIGURES / f"{name}_positions.png")


def figures(name: str, seed: int | None) -> list[str]:
    """Markdown that shows all figures of a tutorial that exist; ``seed`` is that of the run that they show."""
    shown = [figure for figure in FIGURE_TEXTS if (FIGURES / f"{name}_{figure}.png").exists()]
    lines = []
    for figure in shown:
        title, caption = FIGURE_TEXTS[figure]
        image = f"![{title}](images/reproductions/{name}_{figure}.png)"
        lines += [image, "", f"*{caption.format(seed=seed)}*", ""]
    return lines


def draw_photograph(path: Path) -> None:
    """Draw a photograph at the paper's size, and the patches that its ViT-B/16 cuts it into."""
    config = ViTConfig(image_size=224, patch_size=16, in_channels=3, num_classes=1000)
    photograph = Image.fromarray(load_sample_image("flower.jpg"))
    square = ImageOps.fit(photograph, config.image_hw)
    draw_patches(np.asarray(square).transpose(2, 0, 1), config).savefig(path, dpi=180)


def draw_losses(published: Sequence[float], ours: Sequence[float], path: Path) -> None:
    """Draw the published and the reproduced training loss over the epochs."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(published) + 1), published, marker="o", color="#ee6677", label="published")
    axes.plot(range(1, len(ours) + 1), ours, marker="s", color="#4477aa", label="faithful, mean over seeds")
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_accuracy(faithful: Mapping[str, Any], published: tuple[float, float], path: Path) -> None:
    """Draw the test accuracy of each seed over the epochs, and the range that the published one stands for."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.axhspan(*published, color="#bbbbbb", label="published")
    for seed, curve in zip(faithful["seeds"], faithful["curves"], strict=True):
        axes.plot(range(1, len(curve) + 1), curve, label=f"faithful, seed {seed}")
    axes.set(xlabel="epoch", ylabel="test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_positions(model: Any, path: Path) -> None:
    """Draw the positional table, and the cosine similarity of its rows."""
    table = model.position_table()[0].detach()
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    show_table(left, table.numpy())
    left.set_title("table")
    right.imshow(similarities(table), cmap="viridis")
    right.set(xlabel="token", ylabel="token", title="cosine similarity")
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=100)
