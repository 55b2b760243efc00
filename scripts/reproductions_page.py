"""docs/reproductions.md, its JSON and its pictures, and the heads of the tutorials' experiments, from run folders."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrine import load_run
from vitrine.compare.statistics import Interval
from vitrine.text import plural

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PICTURES = DOCS / "images" / "reproductions"
EXPERIMENTS = ROOT / "conf" / "experiment" / "tutorials"
HEAD = """# Five tutorials, reproduced

Five public tutorials teach the Vision Transformer. Here each is run as it was made (faithful: odd losses, odd sizes and
all) and without what is odd in it (corrected: the same size and number of epochs, chosen on validation images). Test
accuracies are means over seeds with a 95 % interval (Student's t). Nothing was tuned on test images; faithful runs look
at them after every epoch, as the tutorials do, and test the last epoch's weights. Written by
`python scripts/reproduce.py` from run folders; `python train.py experiment=tutorials/NAME/faithful` runs one.

"""
SPEED = "[speed.md](speed.md) compares T2 with its guide's own loops, in turn."
TITLES = {
    "losses": "Published and reproduced loss",
    "curves": "Loss and accuracy",
    "confusion": "Confusion",
    "attention": "Attention",
    "positions": "The table of positions",
}


def folder_of(tutorial: Path, variant: str) -> Path:
    """Where the runs of a variant lie."""
    return tutorial / "".join(letter if letter.isalnum() else "-" for letter in variant)


def write_page(tutorials: Mapping[str, Any], out: Path) -> None:
    """Write the page from the finished runs under ``out``, and from what was measured before where there are fewer."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    record = DOCS / "reproductions.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    found = {
        name: collect(tutorial, out / name, known.get(name, {}).get("variants", {}))
        for name, tutorial in tutorials.items()
    }
    lines = ["| tutorial | reported | faithful | corrected | parameters | seconds an epoch (reported) |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [row(tutorials[name], facts) for name, facts in found.items()]
    sections = [section(name, tutorials[name], facts, out / name) for name, facts in found.items()]
    measured_on = sorted(
        {f"{one['machine']}, {one['device']}" for facts in found.values() for one in facts["variants"].values()}
    )
    tail = f"\nMeasured on {'; '.join(measured_on)}, at times beside other runs. {SPEED}\n" if measured_on else ""
    (DOCS / "reproductions.md").write_text(HEAD + "\n".join(lines) + "\n" + tail + "".join(sections))
    record.write_text(json.dumps(found, indent=2) + "\n")
    for name, facts in found.items():
        for variant in ("faithful", "corrected"):
            write_head(EXPERIMENTS / name / f"{variant}.yaml", tutorials[name], facts, variant)


def write_head(path: Path, tutorial: Any, facts: Mapping[str, Any], variant: str) -> None:
    """Say in an experiment what it costs and reaches, in the line that begins with "Measured:", if it has one."""
    one = facts["variants"].get(variant)
    said = "not yet."
    if one is not None and one["epochs"] >= tutorial.epochs:
        cost = f"{one['seconds_per_epoch']:.0f} s an epoch; {one['machine']}, {one['device']}"
        said = f"test accuracy {measured(tutorial, one)}, {cost}."
    lines = path.read_text().splitlines()
    lines = [f"# Measured: {said}" if line.startswith("# Measured:") else line for line in lines]
    path.write_text("\n".join(lines) + "\n")


def collect(tutorial: Any, folder: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """What the finished runs of a tutorial reached, by variant and seed.

    What is ``known`` of a variant stays until as many runs have been trained for as long.
    """
    facts: dict[str, Any] = {"reported": tutorial.reported, "variants": {}}
    for variant in ("faithful", "corrected", *tutorial.oddities):
        runs = finished(folder_of(folder, variant))
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
    """How many epochs each run has, and how many runs there are."""
    return runs[0].record.facts["epochs"], len(runs)


def finished(folder: Path) -> list[Any]:
    """The finished runs of a variant, by seed."""
    runs = [load_run(path.parent) for path in folder.glob("seed-*/runs/*/metrics.json")]
    return sorted((run for run in runs if run.record.status == "finished"), key=lambda run: run.config.seed)


def epoch_losses(history: list[dict[str, float]]) -> list[float]:
    """Mean training loss of each epoch; each row of the log holds the mean since the row before."""
    sums: dict[int, tuple[float, float]] = {}
    before = 0.0
    for one in history:
        if "train/loss" in one:
            loss, steps = sums.get(int(one["epoch"]), (0.0, 0.0))
            sums[int(one["epoch"])] = (loss + one["train/loss"] * (one["step"] - before), steps + one["step"] - before)
            before = one["step"]
    return [loss / steps for loss, steps in sums.values()]


def row(tutorial: Any, facts: Mapping[str, Any]) -> str:
    """A tutorial's line of the table."""
    cells = [tutorial.title, tutorial.reported or "no result"]
    for variant in ("faithful", "corrected"):
        one = facts["variants"].get(variant)
        cells.append("not yet measured" if one is None else measured(tutorial, one))
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


def measured(tutorial: Any, one: Mapping[str, Any]) -> str:
    """What the runs of a variant reached."""
    reached = f"{Interval.of(one['test/acc'])} ({plural(len(one['seeds']), 'seed')})"
    if one["epochs"] >= tutorial.epochs:
        return reached
    return f"not yet measured; {reached} after {one['epochs']} of {tutorial.epochs} epochs"


def section(name: str, tutorial: Any, facts: Mapping[str, Any], folder: Path) -> str:
    """What else there is to say of a tutorial."""
    variants = facts["variants"]
    if "faithful" not in variants:
        return f"\n## {tutorial.title}\n\nNot yet measured: `python scripts/reproduce.py {name}` runs it.\n"
    faithful = variants["faithful"]
    text = [f"\n## {tutorial.title}\n"]
    if tutorial.shown:
        text.append(
            f"{tutorial.shown} The runs here: {', '.join(faithful['classes'])} in {faithful['images']['train']} "
            f"pictures for training and {faithful['images']['test']} for testing, {faithful['epochs']} epochs.\n"
        )
    if faithful["epochs"] < tutorial.epochs:
        text.append(
            f"Reported: {tutorial.reported}. Here it ran for {faithful['epochs']} of {tutorial.epochs} epochs "
            f"({faithful['device']}), as much as there was time for; `python scripts/reproduce.py {name} --words "
            "accelerator=gpu` runs all of them on a GPU, and goes on where it was stopped.\n"
        )
    elif tutorial.accuracy is not None:
        text.append(where_it_falls(tutorial, faithful))
    if tutorial.losses:
        text.append(loss_table(tutorial, faithful))
    if any(change in variants for change in tutorial.oddities):
        text.append(oddity_table(tutorial, variants))
    text.append(pictures(name, tutorial, faithful, folder))
    return "\n".join(text)


def where_it_falls(tutorial: Any, faithful: Mapping[str, Any]) -> str:
    """Where the reported accuracy lies among those of the seeds."""
    values = np.array(faithful["test/acc"])
    low, high = tutorial.accuracy
    below = int((values < low).sum())
    within = f", {int(((values >= low) & (values < high)).sum())} within it" if high > low else ""
    words = (
        f"Reported: {tutorial.reported}. Faithful runs over {plural(len(values), 'seed')} reach {values.min():.4f} to "
    )
    words += f"{values.max():.4f}; {below} of them lie{'s' * (below == 1)} below the reported accuracy{within}."
    if tutorial.loss is not None:
        words += f" Their test loss is {Interval.of(faithful['test/loss'])}; reported {tutorial.loss:g}."
    return words + "\n"


def loss_table(tutorial: Any, faithful: Mapping[str, Any]) -> str:
    """Training loss epoch by epoch, published and here."""
    epochs = range(1, len(tutorial.losses) + 1)
    lines = [f"| epoch | {' | '.join(map(str, epochs))} |", f"|---|{'---|' * len(tutorial.losses)}"]
    lines.append(f"| published loss | {' | '.join(f'{loss:.3f}' for loss in tutorial.losses)} |")
    lines.append(f"| faithful, mean over seeds | {' | '.join(f'{loss:.3f}' for loss in faithful['training_loss'])} |")
    return "\n".join(lines) + "\n"


def oddity_table(tutorial: Any, variants: Mapping[str, Any]) -> str:
    """What changes when one oddity of the faithful experiment is taken away, paired by seed."""
    lines = ["What each oddity costs: the faithful experiment with one thing changed, on the same seeds.\n"]
    lines += ["| changed | words | test accuracy | difference from faithful |", "|---|---|---|---|"]
    known = dict(zip(variants["faithful"]["seeds"], variants["faithful"]["test/acc"], strict=True))
    for change, words in tutorial.oddities.items():
        if one := variants.get(change):
            pairs = zip(one["seeds"], one["test/acc"], strict=True)
            differences = [value - known[seed] for seed, value in pairs if seed in known]
            accuracy, difference = Interval.of(one["test/acc"]), signed(Interval.of(differences))
            lines.append(f"| {change} | `{words}` | {accuracy} | {difference} |")
    return "\n".join(lines) + "\n"


def signed(interval: Interval) -> str:
    """With its sign."""
    return f"+{interval}" if interval.mean > 0 else str(interval)


def pictures(name: str, tutorial: Any, faithful: Mapping[str, Any], folder: Path) -> str:
    """Copy and draw the pictures of the first faithful run; gives the words that show those there are."""
    if tutorial.losses:
        draw_losses(tutorial.losses, faithful["training_loss"], PICTURES / f"{name}_losses.png")
    if (runs := finished(folder / "faithful")) and extent(runs) == (faithful["epochs"], len(faithful["seeds"])):
        for picture in ("curves", "confusion", "attention"):
            if (source := runs[0].record.path / f"{picture}.png").exists():
                shutil.copy(source, PICTURES / f"{name}_{picture}.png")
        if runs[0].model.pos_embed is not None:
            draw_positions(runs[0].model, PICTURES / f"{name}_positions.png")
    shown = [picture for picture in TITLES if (PICTURES / f"{name}_{picture}.png").exists()]
    return "\n".join(f"![{TITLES[one]}](images/reproductions/{name}_{one}.png)" for one in shown) + "\n"


def draw_losses(published: list[float], ours: list[float], path: Path) -> None:
    """Two curves of training loss."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(published) + 1), published, marker="o", color="#ee6677", label="published")
    axes.plot(range(1, len(ours) + 1), ours, marker="s", color="#4477aa", label="faithful, mean over seeds")
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_positions(model: Any, path: Path) -> None:
    """The table itself, and how alike any two places are."""
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
