"""The model card of an ``hf`` export: README.md with the metadata that the hub reads, made from the run folder."""

import re
from dataclasses import dataclass
from typing import Any

from vitrine.config.size import format_size
from vitrine.data.preparation import Preparation
from vitrine.inference.export.source import ExportSource
from vitrine.inference.load import LoadedRun
from vitrine.runs.facts import images_of
from vitrine.runs.predictions import is_correct, predicted_classes, read_groups
from vitrine.text import listed, one_line, plural
from vitrine.training.metrics import share_interval, wilson_interval

# The data sets' names in the hub.
HUB_NAMES = {
    "mnist": "ylecun/mnist",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
MAX_CLASSES = 20  # named in the card; config.json has all of them

CARD = """\
---
{metadata}
---

# {name}

A Vision Transformer that {does}, trained with
[vitrine](https://pypi.org/project/vitrine) {vitrine}. It is stored for [timm](https://github.com/huggingface/pytorch-image-models).

| | |
|---|---|
| {accuracy} |
{precision}{calibration}| model | {model} |
| parameters | {parameters:,} |
| pictures | {channels}, {size} pixels |
| licence | {license} |

Classes: {classes}.

## Data

{data}: {images}. {selection} The licence of the data is that of its publisher.

## How to use it

```python
import timm
import torch
from PIL import Image, ImageOps

model = timm.create_model("hf-hub:{repository}", pretrained=True).eval()  # or "local-dir:FOLDER"
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
picture = ImageOps.exif_transpose(Image.open("picture.png")).convert("{mode}")
{crop}with torch.no_grad():
    probabilities = model(transform(picture).unsqueeze(0)).{probabilities}[0]
{use}
```

In training, each picture was prepared so: {preparation}. The program above clips 16-bit pixels at 255{off}.

## How it was trained

```bash
{command}
```

{provenance}
"""


CROP = """\
{sides}
left, top = (picture.width - wide) // 2, (picture.height - high) // 2
picture = picture.crop((left, top, left + wide, top + high))  # as in training, before timm resizes it
"""
USE = """\
best = int(probabilities.argmax())
print(model.pretrained_cfg["label_names"][best], float(probabilities[best]))"""
USE_MULTI_LABEL = """\
for name, probability in zip(model.pretrained_cfg["label_names"], probabilities.tolist()):
    print(name, probability)"""


@dataclass(frozen=True)
class AccuracyOnTest:
    """Accuracy on the test images, with its 95 % interval (Wilson's, for one model on a sample of images)."""

    value: float
    low: float
    high: float
    images: int
    groups: int = 0

    @classmethod
    def of(cls, run: LoadedRun) -> "AccuracyOnTest | None":
        """Return the run's, from its predictions or else its metrics; ``None`` if these have none of test images."""
        if (tested := run.test_outputs) is None:
            images = images_of(run.record.facts, "test")
            if not images or "test/acc" not in (metrics := metrics_of(run)):
                return None
            count = round(metrics["test/acc"] * images)
            return cls(count / images, *wilson_interval(count, images), images)
        logits, labels = (values.numpy() for values in tested)
        right = is_correct(predicted_classes(logits, labels), labels)
        groups = read_groups(run.record.path / "predictions.npz")
        return cls(*share_interval(right, groups), len(right), 0 if groups is None else int(groups.max()) + 1)


def model_card(source: ExportSource) -> str:
    """Return the text of README.md."""
    facts, config = source.request.record.facts, source.run.config
    accuracy = AccuracyOnTest.of(source.run)
    precision = mean_average_precision(source.run, "val" if accuracy is None else "test")
    channels = {1: "grey", 3: "RGB", 4: "RGBA"}.get(config.data.in_channels, f"{config.data.in_channels} channels")
    repository = source.request.hub or "NAME"
    count, multi_label = len(source.run.classes), config.data.multi_label
    of_target = f" of the target {code(source.run.answers)}" if source.run.answers else ""
    does = f"gives pictures any of {count} labels" if multi_label else f"sorts pictures into {count} classes{of_target}"
    return CARD.format(
        metadata=metadata(source, accuracy),
        name=repository.rpartition("/")[2] if source.request.hub else code(source.request.record.name),
        does=does,
        probabilities="sigmoid()" if multi_label else "softmax(dim=1)",
        use=USE_MULTI_LABEL if multi_label else USE,
        crop=crop(source.run.transform),
        off=", and\ntimm's crop can lie one pixel off" if source.run.transform.from_files else "",
        vitrine=source.facts["vitrine"],
        accuracy=accuracy_row(accuracy, source.run),
        precision="" if precision is None else f"| mean average precision | {precision:.4f} |\n",
        calibration=calibration_row(source),
        model=f"width {config.model.dim}, depth {config.model.depth}, {config.model.heads} heads, patches of "
        f"{format_size(config.model.patch_size)}, position={config.model.position}, pool={config.model.pool}",
        parameters=sum(values.numel() for values in source.run.model.parameters()),
        channels=channels,
        size=format_size(config.data.image_size).replace("x", " x "),
        license=source.request.license,
        classes=listed([code(name) for name in source.run.classes], MAX_CLASSES),
        data=code(config.data.name),
        images=image_counts(facts),
        selection=selection(source.run, tested=accuracy is not None),
        preparation=source.facts["preparation"],
        repository=repository,
        mode={1: "L", 4: "RGBA"}.get(config.data.in_channels, "RGB"),
        command=one_line(str(facts.get("command", "vitrine train"))).replace("`", "'"),
        provenance=provenance(facts),
    )


def crop(preparation: Preparation) -> str:
    """Return the lines that crop a picture as the data set's arrays were; of picture files, timm's transform does."""
    if preparation.from_files:
        return ""
    height, width = preparation.ratio
    sides = "high = wide = min(picture.size)"
    if height != width:
        sides = (
            f"scale = min(picture.height / {height}, picture.width / {width})\n"
            f"high, wide = max(1, round(scale * {height})), max(1, round(scale * {width}))"
        )
    return CROP.format(sides=sides)


def metadata(source: ExportSource, accuracy: AccuracyOnTest | None) -> str:
    """Return the YAML at the head of the card, as the hub's own library writes it."""
    from huggingface_hub import EvalResult, ModelCardData

    data, multi_label = source.run.config.data.name, source.run.config.data.multi_label
    metrics = {} if accuracy is None else {"accuracy": accuracy.value}
    if metrics and (precision := mean_average_precision(source.run, "test")) is not None:
        metrics["mean_average_precision"] = precision
    results = [
        EvalResult(
            task_type="image-classification",
            dataset_type=HUB_NAMES.get(data, data),
            dataset_name=data,
            dataset_split="test",
            metric_type=name,
            metric_name="exact match" if multi_label and name == "accuracy" else None,
            metric_value=round(value, 4),
        )
        for name, value in metrics.items()
    ]
    card = ModelCardData(
        license=source.request.license,
        library_name="timm",
        pipeline_tag="image-classification",
        tags=["image-classification", "timm", "vision-transformer", "vitrine"],
        datasets=[HUB_NAMES[data]] if data in HUB_NAMES else None,
        metrics=[*metrics] or ["accuracy"],
        model_name=source.request.record.name,
        eval_results=results or None,
    )
    return card.to_yaml().strip()


def accuracy_row(accuracy: AccuracyOnTest | None, run: LoadedRun) -> str:
    """Return the row of accuracy: on the test images with its interval, else on the validation images."""
    name = f"accuracy{' (all labels of a picture right)' * run.config.data.multi_label}"
    if accuracy is None:
        uses = ["the epoch was selected"] * selects(run) + ["the model was trained"] * (not run.record.holds_out)
        used = f", on which {listed(uses)}" if uses else ""
        validated = metrics_of(run).get("val/acc")
        return "accuracy | not recorded" if validated is None else f"{name} on validation{used} | {validated:.4f}"
    value = f"{accuracy.value:.4f} (95 % interval {accuracy.low:.4f} to {accuracy.high:.4f})"
    of_groups = f" in {plural(accuracy.groups, 'group')}" if accuracy.groups else ""
    return f"test {name} | {value}, {accuracy.images:,} images{of_groups}, one training"


def mean_average_precision(run: LoadedRun, stage: str) -> float | None:
    """Return that of the test or validation images, ``val``, where images have several labels and it was measured."""
    return metrics_of(run).get(f"{stage}/map") if run.config.data.multi_label else None


def calibration_row(source: ExportSource) -> str:
    """Return the row of the temperature and its effect; nothing of an export without one."""
    if source.calibration is None:
        return ""
    return f"| temperature, inside the head | {source.extra_facts['calibration']} |\n"


def metrics_of(run: LoadedRun) -> dict[str, float]:
    """Return a run's metrics; none of a run whose metrics.json was not copied with its model."""
    return run.metrics if (run.record.path / "metrics.json").exists() else {}


def selection(run: LoadedRun, *, tested: bool) -> str:
    """Return how the epoch was chosen, and what else the validation and test images were used for."""
    taken = "The last epoch was taken." if run.checkpoint is None else f"Epoch {run.checkpoint} was taken."
    sentences = ["The epoch was selected on the validation images." if selects(run) else taken]
    if not run.record.holds_out:
        sentences.append("The model was trained on the validation images, too.")
    if tested:
        curve = run.config.callbacks.test_curve
        sentences.append(f"The test images selected nothing{'; they were measured after each epoch' if curve else ''}.")
    return " ".join(sentences)


def selects(run: LoadedRun) -> bool:
    """Whether the validation images selected the epoch."""
    return run.checkpoint is None and run.config.callbacks.monitor != "last"


def code(text: str) -> str:
    """Return any text as one line of Markdown that shows it as it is, between backticks."""
    line = one_line(text)
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, space = "`" * (longest + 1), " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"


def image_counts(facts: dict[str, Any]) -> str:
    """Return the numbers of images of each split."""
    counts = facts.get("images") or {}
    names = {"train": "training", "val": "validation", "test": "test"}
    return listed([f"{counts[key]:,} {name}" for key, name in names.items() if counts.get(key)]) + " images"


def provenance(facts: dict[str, Any]) -> str:
    """Return when, on what and with which versions the model was trained."""
    versions, state = facts.get("versions") or {}, facts.get("code") or {}
    parts = [f"Started {code(facts['started'])}" if facts.get("started") else ""]
    parts += [f"on {code(facts['device'])}" if facts.get("device") else "on a computer"]
    parts += [f"with torch {code(versions['torch'])}" if "torch" in versions else ""]
    parts += [f"vitrine's commit {code(state['commit'][:12])}" if state.get("commit") else ""]
    return ", ".join(part for part in parts if part) + "."
