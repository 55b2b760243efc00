"""A run folder with everything a finished run has, whose model has random weights: nothing is trained."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrine import compose, load_run
from vitrine.config.serialize import to_plain
from vitrine.data.datasets import digits
from vitrine.data.preparation import resized
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord
from vitrine.runs.metrics_file import MetricsFile
from vitrine.training.flops import flops_per_image
from vitrine.training.lr_range import RangeTest, best_rate, read_curve, write_curve

WriteRun = Callable[..., RunRecord]


def write_run(
    parent: Path, *overrides: str, classes: list[str] | None = None, status: str = "finished", logits=None, labels=None
) -> RunRecord:
    """Write a run on the bundled digits; its predictions are its model's, unless ``logits`` are given."""
    config = compose(["model=vit_nano", "depth=2", *overrides])
    record = RunRecord.create(parent, "run")
    record.write_config(to_plain(config))
    torch.manual_seed(0)
    model = VisionTransformer(config.model).eval()
    with torch.no_grad():
        for values in model.parameters():  # larger than they start, so that answers differ
            values += 0.1 * torch.randn(values.shape)
    weights = {f"model.{name}": values for name, values in model.state_dict().items()}
    torch.save({"state_dict": weights, "config": asdict(config)}, record.best)
    record.update(
        id=record.name,
        status=status,
        command="python train.py model=vit_nano",
        classes=classes or list("0123456789"),
        images={"train": 1293, "val": 144, "test": 360},
        parameters=sum(values.numel() for values in model.parameters()),
        flops_per_image=flops_per_image(config.model),
    )
    rows = MetricsFile(record)
    for epoch in (1, 2, 3):
        found = {"val/loss": 2 / epoch, "val/acc": 1 - 0.5 / epoch, "train/loss": 1.8 / epoch, "train/acc": 0.9}
        rows.append({"epoch": epoch, "step": 10 * epoch, "seconds": 1.0} | found)
    if logits is None:
        test = digits(config.data).test
        with torch.no_grad():
            images = resized(test.images, config.data.image_size)
            logits = model(load_run(record.path).transform.normalised(images)).numpy()
        labels = test.labels.numpy()
    np.savez(record.path / "predictions.npz", logits=logits.astype(np.float32), labels=labels)
    correct = float((logits.argmax(axis=1) == labels).mean())
    record.write_metrics({"test/acc": correct, "val/acc": 0.83, "best_epoch": 3.0, "train_seconds": 3.0})
    return record


@pytest.fixture(scope="session", name="write_run")
def _write_run() -> WriteRun:
    return write_run


@pytest.fixture(scope="session")
def record(tmp_path_factory) -> RunRecord:
    """A run with a class token and learned positions, and a learning rate that a range test has found."""
    run = write_run(tmp_path_factory.mktemp("run"), "pool=cls", "position=learned")
    rates = np.geomspace(1e-6, 1.0, 30).tolist()
    write_curve(run, rates, [2.3 - step / 25 if step < 20 else 1.5 * 1.4 ** (step - 20) for step in range(30)])
    run.update(lr_range=asdict(RangeTest(best_rate(*read_curve(run)), len(rates), 1.0)))
    return run
