"""What Weights & Biases is told of a run beside its metrics, and what it is not told of a private one."""

from pathlib import Path
from typing import Any

import numpy as np
import wandb

from vitrine.config.model import WEIGHT_FILES
from vitrine.config.schema import TrainConfig, WandbConfig
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord

# Of run.json, so that runs can be compared from W&B's pages alone.
FACTS = ("epochs", "validation", "images", "parameters", "flops_per_image", "device", "command")
MOST_CLASSES = 100  # that a confusion matrix is drawn of in W&B's pages
MOST_ROWS = 10_000  # of a table that W&B takes


def configuration(config: TrainConfig, settings: WandbConfig) -> dict[str, Any]:
    """The configuration as plain values; a private one has no paths in it."""
    values = to_plain(config)
    if settings.private:
        del values["paths"]
        values["data"].pop("root")
        source = values["model"]["pretrained"]
        if source is not None and Path(source).suffix in WEIGHT_FILES:
            values["model"]["pretrained"] = Path(source).name
    return values


def title(record: RunRecord, settings: WandbConfig, varies: str) -> str | None:
    """The run's name there; None leaves it to W&B, where what varies in a private sweep has paths in it."""
    if settings.private and "/" in varies and not settings.name:
        return None
    return settings.name or varies or record.name


def facts(record: RunRecord, settings: WandbConfig) -> dict[str, Any]:
    """What run.json says of the code, the data and the machine; nothing where the run is private."""
    if settings.private:
        return {}
    said = record.facts
    told = {name: said[name] for name in FACTS if said.get(name) is not None}
    told["commit"] = (said.get("code") or {}).get("commit")
    told["images_per_second"] = (said.get("speed") or {}).get("images_per_second")
    return {name: value for name, value in told.items() if value is not None}


def client_settings(settings: WandbConfig, seconds: float) -> wandb.Settings:
    """What the client itself sends, and for how many seconds it tries to start."""
    told: dict[str, Any] = {}
    if settings.private:
        told = {"x_disable_machine_info": True, "x_save_requirements": False}
        told |= {"host": "private", "program": "train.py", "program_relpath": "train.py", "program_abspath": "train.py"}
    return wandb.Settings(
        console="off",
        silent=True,
        quiet=True,
        save_code=False,
        disable_code=True,
        disable_git=True,  # an address of a repository may have a token in it; the commit is in the summary
        x_disable_meta=True,  # arguments of the command as they are; the summary has them without secrets
        init_timeout=seconds,
        **told,
    )


def predictions(record: RunRecord) -> dict[str, Any]:
    """The confusion matrix, and the test predictions as a table."""
    from scipy.special import softmax

    with np.load(record.path / "predictions.npz") as stored:
        logits, labels = stored["logits"].astype(np.float64), stored["labels"]
    classes = [*record.facts["classes"]]
    classes += [f"no. {number}" for number in range(len(classes), logits.shape[1])]  # a model may have more
    chances = softmax(logits, axis=1)
    guesses = chances.argmax(axis=1)
    rows = [
        [index, classes[label], classes[guess], bool(label == guess), float(chances[index, guess])]
        for index, (label, guess) in enumerate(zip(labels[:MOST_ROWS], guesses, strict=False))
    ]
    columns: list[str | int] = ["test image", "true", "predicted", "right", "confidence"]
    told: dict[str, Any] = {"predictions": wandb.Table(columns=columns, data=rows)}
    if len(classes) <= MOST_CLASSES:
        told["confusion_matrix"] = wandb.plot.confusion_matrix(
            y_true=labels.tolist(), preds=guesses.tolist(), class_names=classes
        )
    return told
