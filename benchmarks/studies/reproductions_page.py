"""Write docs/reproductions.md with its JSON record and figures, and the heads of the tutorials' experiments."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from seeds import ROOT, STUDIES

from vitrine import load_run
from vitrine.compare.statistics import ConfidenceInterval
from vitrine.text import plural

DOCS = ROOT / "docs"
JSON = STUDIES / "reproductions.json"
FIGURES = DOCS / "images" / "reproductions"
EXPERIMENTS = ROOT / "conf" / "experiment" / "tutorials"
HEAD = """# Five tutorials, reproduced

Five public tutorials teach the Vision Transformer. Each is trained here twice: as published, including losses and sizes
that are quirks of the tutorial (faithful), and with the quirks removed (corrected: the same size and number of epochs,
selected on the validation split). Test accuracies are means over seeds with a 95 % interval (Student's t). Nothing was
tuned on test images. Faithful runs evaluate them after every epoch and report the last epoch. Written by
`python scripts/reproduce.py` from run folders; `python train.py experiment=tutorials/NAME/faithful` trains one.

"""
SPEED = "[speed.md](speed.md) times T2 side by side with its guide's own loops."
TITLES = {
    "losses": "Published and reproduced loss",
    "curves": "Loss and accuracy",
    "confusion": "Confusion",
    "attention": "Attention",
    "positions": "Positional embeddings",
}


def variant_folder(tutorial: Path, variant: str) -> Path:
    """Folder of a variant's runs, inside the tutorial's folder."""
    return tutorial / "".join(letter if letter.isalnum() else "-" for letter in variant)


def write_page(tutorials: Mapping[str, Any], out: Path) -> None:
    """Write the page from the finished runs under ``out``, and from the record where it has more of them."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    results = {
        name: collect(tutorial, out / name, known.get(name, {}).get("variants", {}))
        for name, tutorial in tutorials.items()
    }
    lines = ["| tutorial | reported | faithful | corrected | parameters | seconds an epoch (reported) |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [row(tutorials[name], result) for name, result in results.items()]
    sections = [section(name, tutorials[name], result, out / name) for name, result in results.items()]
    variants = [variant for result in results.values() for variant in result["variants"].values()]
    machines = sorted({f"{variant['machine']}, {variant['device']}" for variant in variants})
    tail = f"\nMeasured on {'; '.join(machines)}, partly next to other runs. {SPEED}\n" if machines else ""
    (DOCS / "reproductions.md").write_text(HEAD + "\n".join(lines) + "\n" + tail + "".join(sections))
    JSON.write_text(json.dumps(results, indent=2) + "\n")
    for name, result in results.items():
        for variant in ("faithful", "corrected"):
            write_head(EXPERIMENTS / name / f"{variant}.yaml", tutorials[name], result, variant)


def write_head(path: Path, tutorial: Any, facts: Mapping[str, Any], variant: str) -> None:
    """Write an experiment's cost and result to the line of its file that begins with "# Measured:", if it has one."""
    result = facts["variants"].get(variant)
    text = "not yet."
    if result is not None and result["epochs"] >= tutorial.epochs:
        cost = f"{result['seconds_per_epoch']:.0f} s an epoch; {result['machine']}, {result['device']}"
        text = f"test accuracy {measured(tutorial, result)}, {cost}."
    lines = path.read_text().splitlines()
    lines = [f"# Measured: {text}" if line.startswith("# Measured:") else line for line in lines]
    path.write_text("\n".join(lines) + "\n")


def collect(tutorial: Any, folder: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """Results of a tutorial's finished runs, by variant and seed.

    The ``known`` results of a variant stay until as many runs have been trained for as many epochs.
    """
    facts: dict[str, Any] = {"reported": tutorial.reported, "variants": {}}
    for variant in ("faithful", "corrected", *tutorial.quirks):
        runs = finished(variant_folder(folder, variant))
        before = known.get(variant)
        if before and (not runs or extent(runs) < (before["epochs"], len(before["seeds"]))):
            facts["variants"][variant] = before
            continue
        if not runs:
            continue
        first = runs[0].record.facts
        machine = first["machine"]
        facts["variants"][variant] = {
            "seeds": [run.config.seed for run in runs],
            "test/acc": [run.metrics["test/acc"] for run in runs],
            "test/loss": [run.metrics["test/loss"] for run in runs],
            "parameters": first["parameters"],
            "epochs": first["epochs"],
            "seconds_per_epoch": min(run.metrics["train_seconds"] for run in runs) / first["epochs"],
            "training_loss": np.mean([epoch_losses(run.record.history()) for run in runs], axis=0).tolist(),
            "machine": f"{machine['processor']}, {machine['cores']} cores, torch {first['versions']['torch']}",
            "device": first["device"],
            "images": first["images"],
            "classes": first["classes"],
            "commit": first["code"].get("commit"),
        }
    return facts


def extent(runs: Sequence[Any]) -> tuple[int, int]:
    """Number of epochs of each run, and number of runs."""
    return runs[0].record.facts["epochs"], len(runs)


def finished(folder: Path) -> list[Any]:
    """The finished runs of a variant, sorted by seed."""
    runs = [load_run(path.parent) for path in folder.glob("seed-*/runs/*/metrics.json")]
    return sorted((run for run in runs if run.record.status == "finished"), key=lambda run: run.config.seed)


def epoch_losses(history: list[dict[str, float]]) -> list[float]:
    """Mean training loss of each epoch, weighted by steps: a row of the log is the mean since the previous row."""
    sums: dict[int, tuple[float, float]] = {}
    before = 0.0
    for logged in history:
        if "train/loss" in logged:
            epoch, count = int(logged["epoch"]), logged["step"] - before
            loss, steps = sums.get(epoch, (0.0, 0.0))
            sums[epoch] = (loss + logged["train/loss"] * count, steps + count)
            before = logged["step"]
    return [loss / steps for loss, steps in sums.values()]


def row(tutorial: Any, facts: Mapping[str, Any]) -> str:
    """A tutorial's row of the main table."""
    cells = [tutorial.title, tutorial.reported or "no result"]
    for variant in ("faithful", "corrected"):
        result = facts["variants"].get(variant)
        cells.append("not yet measured" if result is None else measured(tutorial, result))
    faithful = facts["variants"].get("faithful")
    parameters = f"{tutorial.parameters:,}"
    if faithful is not None and tutorial.accuracy is None:
        cells[2] = f"trains: {cells[2]}"
    elif faithful is not None and faithful["parameters"] != tutorial.parameters:
        parameters += f" (here {faithful['parameters']:,})"
    seconds = "" if faithful is None else f"{faithful['seconds_per_epoch']:.1f}"
    if tutorial.seconds is not None and faithful is not None:
        seconds += f" ({tutorial.seconds[0]:.0f} to {tutorial.seconds[1]:.0f})"
    return f"| {' | '.join([*cells, parameters, seconds])} |"


def measured(tutorial: Any, result: Mapping[str, Any]) -> str:
    """Test accuracy of a variant, as text."""
    accuracy = f"{ConfidenceInterval.of(result['test/acc'])} ({plural(len(result['seeds']), 'seed')})"
    if result["epochs"] >= tutorial.epochs:
        return accuracy
    return f"not yet measured; {accuracy} after {result['epochs']} of {tutorial.epochs} epochs"


def section(name: str, tutorial: Any, facts: Mapping[str, Any], folder: Path) -> str:
    """A tutorial's section of the page."""
    variants = facts["variants"]
    if "faithful" not in variants:
        return f"\n## {tutorial.title}\n\nNot yet measured: `python scripts/reproduce.py {name}` trains it.\n"
    faithful = variants["faithful"]
    text = [f"\n## {tutorial.title}\n"]
    if tutorial.notes:
        text.append(
            f"{tutorial.notes} Trained here: {', '.join(faithful['classes'])}; {faithful['images']['train']} training "
            f"and {faithful['images']['test']} test images, {faithful['epochs']} epochs.\n"
        )
    if faithful["epochs"] < tutorial.epochs:
        text.append(
            f"Reported: {tutorial.reported}. Here it was trained for {faithful['epochs']} of {tutorial.epochs} epochs "
            f"({faithful['device']}), for lack of time. `python scripts/reproduce.py {name} --overrides "
            "accelerator=gpu` trains all of them on a GPU; if interrupted, rerun it.\n"
        )
    elif tutorial.accuracy is not None:
        text.append(comparison(tutorial, faithful))
    if tutorial.losses:
        text.append(loss_table(tutorial, faithful))
    if any(change in variants for change in tutorial.quirks):
        text.append(quirk_table(tutorial, variants))
    text.append(figures(name, tutorial, faithful, folder))
    return "\n".join(text)


def comparison(tutorial: Any, faithful: Mapping[str, Any]) -> str:
    """The reported accuracy next to those of the seeds."""
    values = np.array(faithful["test/acc"])
    low, high = tutorial.accuracy
    below = int((values < low).sum())
    text = f"Reported: {tutorial.reported}. Faithful runs over {plural(len(values), 'seed')} reach "
    text += f"{values.min():.4f} to {values.max():.4f}, {below} of {len(values)} below the reported accuracy"
    if high > low:
        text += f" and {int(((values >= low) & (values < high)).sum())} in the range that it stands for"
    if tutorial.loss is not None:
        text += f". Their test loss is {ConfidenceInterval.of(faithful['test/loss'])}; reported {tutorial.loss:g}"
    return text + ".\n"


def loss_table(tutorial: Any, faithful: Mapping[str, Any]) -> str:
    """Training loss by epoch, published and reproduced."""
    epochs = range(1, len(tutorial.losses) + 1)
    lines = [f"| epoch | {' | '.join(map(str, epochs))} |", f"|---|{'---|' * len(tutorial.losses)}"]
    lines.append(f"| published loss | {' | '.join(f'{loss:.3f}' for loss in tutorial.losses)} |")
    lines.append(f"| faithful, mean over seeds | {' | '.join(f'{loss:.3f}' for loss in faithful['training_loss'])} |")
    return "\n".join(lines) + "\n"


def quirk_table(tutorial: Any, variants: Mapping[str, Any]) -> str:
    """Effect of removing a single quirk from the faithful experiment, paired by seed."""
    lines = ["The effect of each quirk: the faithful experiment with one change, on the same seeds.\n"]
    lines += ["| change | overrides | test accuracy | difference from faithful |", "|---|---|---|---|"]
    known = dict(zip(variants["faithful"]["seeds"], variants["faithful"]["test/acc"], strict=True))
    for change, overrides in tutorial.quirks.items():
        if result := variants.get(change):
            pairs = zip(result["seeds"], result["test/acc"], strict=True)
            differences = [value - known[seed] for seed, value in pairs if seed in known]
            accuracy, difference = ConfidenceInterval.of(result["test/acc"]), signed(ConfidenceInterval.of(differences))
            lines.append(f"| {change} | `{overrides}` | {accuracy} | {difference} |")
    return "\n".join(lines) + "\n"


def signed(interval: ConfidenceInterval) -> str:
    """The interval with an explicit plus sign."""
    return f"+{interval}" if interval.mean > 0 else str(interval)


def figures(name: str, tutorial: Any, faithful: Mapping[str, Any], folder: Path) -> str:
    """Copy and draw the figures of the first faithful run; returns the Markdown that shows all that exist."""
    if tutorial.losses:
        draw_losses(tutorial.losses, faithful["training_loss"], FIGURES / f"{name}_losses.png")
    if (runs := finished(folder / "faithful")) and extent(runs) == (faithful["epochs"], len(faithful["seeds"])):
        for figure in ("curves", "confusion", "attention"):
            if (source := runs[0].record.path / f"{figure}.png").exists():
                shutil.copy(source, FIGURES / f"{name}_{figure}.png")
        if runs[0].model.pos_embed is not None:
            draw_positions(runs[0].model, FIGURES / f"{name}_positions.png")
    shown = [figure for figure in TITLES if (FIGURES / f"{name}_{figure}.png").exists()]
    return "\n".join(f"![{TITLES[figure]}](images/reproductions/{name}_{figure}.png)" for figure in shown) + "\n"


def draw_losses(published: list[float], ours: list[float], path: Path) -> None:
    """Draw the published and the reproduced training loss over the epochs."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(published) + 1), published, marker="o", color="#ee6677", label="published")
    axes.plot(range(1, len(ours) + 1), ours, marker="s", color="#4477aa", label="faithful, mean over seeds")
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_positions(model: Any, path: Path) -> None:
    """Draw the positional table, and the cosine similarity of its rows."""
    table = model.pos_embed.detach()[0].numpy()
    norms = np.linalg.norm(table, axis=1, keepdims=True).clip(1e-9)
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(table, aspect="auto", cmap="RdBu", vmin=-np.abs(table).max(), vmax=np.abs(table).max())
    left.set(xlabel="channel", ylabel="token", title="table")
    right.imshow((table / norms) @ (table / norms).T, cmap="viridis")
    right.set(xlabel="token", ylabel="token", title="cosine similarity")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=100)
