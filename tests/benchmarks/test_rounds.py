"""benchmarks/timing: scripts with pages of their own keep each round, and their numbers follow from it."""

import random
from statistics import median
from types import SimpleNamespace

import pytest
import torch


def test_ratios_of_variants_follow_from_the_rounds_that_are_kept(timing, monkeypatch):
    variants = timing("variants")
    names = [variants.PLAIN, "norm=batchnorm"]
    monkeypatch.setattr(variants, "VARIANTS", {name: variants.VARIANTS[name] for name in names})
    monkeypatch.setattr(variants, "models", lambda name, size: [torch.nn.Identity()] * (1 + (name == names[0])))
    seconds = random.Random(0)
    monkeypatch.setattr(variants, "Step", lambda model, precision: lambda images, labels: seconds.uniform(1, 2))
    found, rounds = variants.measure("cpu", 32, "32-true", quick=True)
    plain, timm, changed = (rounds[name] for name in (names[0], f"timm's equal of {names[0]}", names[1]))
    assert found["rounds"] == len(plain) == len(timm) == len(changed)
    assert found["against plain"][names[1]] == variants.ratio(changed, plain)
    assert found["against timm"] == {names[0]: variants.ratio(plain, timm)}
    assert set(rounds) == {*names, f"timm's equal of {names[0]}"}


def test_latencies_of_exports_are_medians_of_the_rounds_that_are_kept(timing, monkeypatch):
    exports, shapes = timing("exports"), []
    source = SimpleNamespace(reference=lambda pictures: shapes.append(pictures.shape), picture_shape=(1, 8, 8))
    monkeypatch.setattr(exports, "ExportSource", SimpleNamespace(load=lambda request: source))
    monkeypatch.setattr(exports.to_onnx, "load", lambda path: SimpleNamespace(run=source.reference))
    report = SimpleNamespace(path="model.onnx", size=1, runtime="onnxruntime", differences={1: 0.0}, cost=None)
    times = exports.timed(None, report)
    assert set(shapes) == {(1, 1, 8, 8), (64, 1, 8, 8)}
    assert exports.facts(report, times)["seconds"] == {
        batch: [pytest.approx(median(each["export"])), pytest.approx(median(each["PyTorch"]))]
        for batch, each in times.items()
    }
    assert all(len(values) == exports.REPEATED for each in times.values() for values in each.values())
