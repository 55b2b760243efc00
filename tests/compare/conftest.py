"""Run folders without training: written with the record's own writer, holding what a test says they reached."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrine import compose
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord

WriteRun = Callable[..., Path]


@pytest.fixture(scope="session")
def plain_config() -> Callable[..., dict[str, Any]]:
    """The resolved configuration that overrides give, composed once for each."""
    known: dict[tuple[str, ...], str] = {}

    def config(*overrides: str) -> dict[str, Any]:
        if overrides not in known:
            known[overrides] = json.dumps(to_plain(compose(list(overrides))))
        return json.loads(known[overrides])

    return config


@pytest.fixture(scope="session")
def write_run(plain_config) -> WriteRun:
    """Writes a run folder: ``write_run(parent, "position=rope", seed=1, acc=0.98)``."""

    def write(
        parent: Path,
        *overrides: str,
        seed: int = 0,
        acc: float = 0.9,
        sweep: str = "",
        status: str = "finished",
        right: np.ndarray | None = None,
        labels: np.ndarray | None = None,
        metrics: dict[str, float] | None = None,
        facts: dict[str, Any] | None = None,
        epochs: int = 4,
        model: dict[str, Any] | None = None,
        predictions: bool = True,
    ) -> Path:
        config = plain_config("model=vit_nano", *overrides)
        config["seed"] = seed
        config["model"] |= model or {}
        record = RunRecord.create(parent, f"run-s{seed}")
        record.write_config(config)
        command = f"python train.py -m {sweep}" if sweep else f"python train.py model=vit_nano {' '.join(overrides)}"
        known = {
            "id": record.name,
            "status": status,
            "started": f"2026-01-31T12:00:00.{write.count:06d}+00:00",
            "command": command if sweep else f"{command} seed={seed}",
            "varies": ",".join([*overrides, f"seed={seed}"]) if sweep else "",
            "code": {"commit": "0123456789abcdef", "changed": False, "untracked": []},
            "versions": {"torch": "2.15.0"},
            "machine": {"processor": "AMD EPYC"},
            "device": "CPU, 1 thread",
            "images": {"train": 1293, "val": 144, "test": 360},
            "classes": [str(digit) for digit in range(10)],
            "validation": "292becf10e12e92c",
            "parameters": 200_000 + 1000 * config["model"]["patch_size"],
            "flops_per_image": 26_000_000 // config["model"]["patch_size"],
            "epochs": epochs,
            "speed": {"images_per_second": 1000.0 + 10 * seed},
        }
        write.count += 1
        record.update(**known | (facts or {}))
        rows = ["epoch,step,seconds,train/loss,val/loss,val/acc"]
        for epoch in range(1, epochs + 1):
            reached = acc * (1 - 0.5**epoch)
            rows.append(f"{epoch},{20 * epoch},{2.0 * epoch},{1 - reached},{1.1 - reached},{reached}")
        (record.path / "metrics.csv").write_text("\r\n".join(rows) + "\r\n")
        if status == "finished":
            reached = {"val/acc": acc, "val/loss": 1 - acc, "best_epoch": float(epochs), "train_seconds": 2.0 * epochs}
            record.write_metrics(metrics or reached | {"test/acc": acc, "test/loss": 1 - acc})
            if predictions:
                write_predictions(record.path, acc, seed, right, labels)
        return record.path

    write.count = 0
    return write


def write_predictions(
    path: Path, acc: float, seed: int, right: np.ndarray | None = None, labels: np.ndarray | None = None
) -> None:
    """Logits of ten classes, right for a share of ``acc`` of 100 images, or where ``right`` says so."""
    generator = np.random.default_rng([seed, round(acc * 10_000)])
    labels = np.arange(100) % 10 if labels is None else labels
    right = generator.permutation(len(labels)) < acc * len(labels) if right is None else right
    predicted = np.where(right, labels, (labels + 1 + generator.integers(0, 9, len(labels))) % 10)
    logits = generator.normal(0, 0.3, (len(labels), 10)).astype(np.float32)
    logits[np.arange(len(labels)), predicted] += 3
    np.savez(path / "predictions.npz", logits=logits, labels=labels.astype(np.int64))


@pytest.fixture(scope="session")
def write_sweep(write_run) -> Callable[[Path], Path]:
    """Three positional schemes by three seeds: the second clearly better than the first, the third hardly different."""

    def write(parent: Path) -> Path:
        command = "model=vit_nano position=learned,rope,none seed=0,1,2"
        reached = {"learned": (0.90, 0.91, 0.92), "rope": (0.95, 0.962, 0.97), "none": (0.905, 0.90, 0.921)}
        for scheme, accs in reached.items():
            for seed, acc in enumerate(accs):
                write_run(parent / "sweep", f"position={scheme}", seed=seed, acc=acc, sweep=command)
        return parent / "sweep"

    return write


@pytest.fixture
def sweep(tmp_path, write_sweep) -> Path:
    """That sweep's folder, in the test's own."""
    return write_sweep(tmp_path)
