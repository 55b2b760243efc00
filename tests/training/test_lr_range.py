"""optimizer.lr=auto finds a learning rate, and changes nothing else."""

import csv
import json
import math
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from vitrine import compose, fit, resume
from vitrine.errors import ConfigError, Interrupted, OutOfTime, RunError
from vitrine.runs import RunRecord
from vitrine.training import lr_range
from vitrine.training.lit_module import Classifier
from vitrine.training.lr_range import HIGHEST, LOWEST, STEPS, RisingRate, best_rate, diverged, with_lr
from vitrine.training.optim import build_optimizer
from vitrine.training.plots import lr_range as lr_range_figure
from vitrine.training.weights import read_checkpoint

# Two batches in an epoch, so that the test repeats them; dropout would show another random state.
OVERRIDES = [
    "model=vit_nano",
    "depth=1",
    "data.batch_size=16",
    "debug.limit_batches=2",
    "trainer.max_epochs=1",
    "trainer.compile=nothing",
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
    "model.mlp_dropout=0.1",
]
RATES = [LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1)) for step in range(STEPS)]


def trained(folder, *overrides):
    return RunRecord(fit(compose([*OVERRIDES, f"paths.output_dir={folder}", *overrides])).run_dir)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A run that found its learning rate."""
    return trained(tmp_path_factory.mktemp("found"), "optimizer.lr=auto")


def rows(record):
    with (record.path / "metrics.csv").open(newline="") as file:
        return [[row.get(key) for key in ("step", "train/loss", "val/loss", "lr")] for row in csv.DictReader(file)]


def test_the_rate_is_a_share_of_that_with_the_lowest_loss():
    losses = [2.0 + abs(math.log10(rate / 1e-2)) for rate in RATES]
    assert best_rate(RATES, losses) == pytest.approx(0.5e-2, rel=0.1)
    diverged = [*losses[:60], math.nan, *([0.0] * (STEPS - 61))]
    assert best_rate(RATES, diverged) == pytest.approx(0.5 * RATES[59], rel=0.01)


@pytest.mark.parametrize("losses", [[math.nan], [2.0, 2.1, 2.2, 2.3]])
def test_losses_that_never_fall_give_no_rate(losses):
    with pytest.raises(RunError, match=r"falls at no learning rate from 1e-06 to .*set optimizer.lr=NUMBER"):
        best_rate(RATES[: len(losses)], losses)


NOISE = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ((0.25 * (0.8 * torch.randn(STEPS, generator=NOISE)).exp()).tolist(), False),  # they differ thirtyfold
        ([-0.1 - 0.02 * step for step in range(STEPS)], False),  # of a loss that is negative
        ([*[-0.1] * 11, *torch.linspace(-0.1, -5, 30).tolist(), *torch.linspace(-5, -4, 20).tolist()], False),
        ([*[0.2] * 11, 5.0, 9.0, 20.0], True),
        ([0.2, 5.0, 9.0, 20.0], False),  # too few to know
        ([0.2, math.nan], True),
    ],
)
def test_a_divergence_is_told_from_noise(losses, ends):
    assert any(diverged(losses[: count + 1]) for count in range(len(losses))) is ends


@pytest.mark.whole
def test_where_no_rate_is_found_the_curve_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(lr_range, "diverged", lambda losses: len(losses) == 2)
    monkeypatch.setattr(lr_range, "smoothed", torch.tensor)
    monkeypatch.setattr(Classifier, "unlogged_steps", lambda self: torch.full((1, 2), float(self.global_step)))
    with pytest.raises(RunError, match="falls at no learning rate"):
        trained(tmp_path, "optimizer.lr=auto")
    (record,) = map(RunRecord, (tmp_path / "runs").glob("[!.]*"))
    assert lr_range.read_curve(record)[1] == [1.0, 2.0]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_rates_of_groups_are_those_of_an_optimizer_built_with_the_rate(name):
    config = compose(
        ["model=vit_nano", "depth=2", f"optimizer={name}", "finetune.layer_decay=0.5", "optimizer.lr=auto"]
        + (["finetune.head_lr=0.01"] if name == "adamw" else [])
    )
    auto, config = config.optimizer, replace(config, optimizer=with_lr(config.optimizer, LOWEST))
    module = Classifier(config, steps=2, images_per_step=4)
    optimizer = build_optimizer(config.optimizer, module.model, config.finetune)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    trainer = SimpleNamespace(optimizers=[optimizer])
    rising = RisingRate(auto)
    rising.on_train_start(trainer, module)
    for rate in RATES[:3]:
        rising.on_train_batch_start(trainer, module)
        alike = build_optimizer(with_lr(auto, rate), module.model, config.finetune)
        expected = [group["lr"] for group in alike.param_groups]
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected)
    assert rising.rates == pytest.approx(RATES[:3])


@pytest.mark.whole
def test_a_run_records_what_it_found(found):
    facts = found.facts["lr_range"]
    rates, losses = lr_range.read_curve(found)
    assert facts["found"] == best_rate(rates, losses)
    assert facts["steps"] == len(rates) == len(losses) > 2 * found.facts["steps_per_epoch"]
    assert found.config["optimizer"]["lr"] == "auto"  # what was asked for: runs of several seeds are one configuration
    assert read_checkpoint(found.last)["config"]["optimizer"]["lr"] == facts["found"]
    assert Image.open(found.path / "lr_range.png").size[0] > 500
    assert max(float(row[3]) for row in rows(found) if row[3]) <= facts["found"]
    assert found.facts["status"] == "finished"  # although the loss diverged in the test
    assert diverged(losses) or len(losses) == STEPS


@pytest.mark.parametrize(
    ("content", "problem"),
    [("1e-3,2.5\n" * 200_000, "larger than 1 MiB"), ("1" * 200_000, "field larger than"), ("1e-3,high\n", "high")],
)
def test_a_curve_that_is_too_large_or_damaged_is_refused(tmp_path, content, problem):
    (tmp_path / lr_range.CURVE).write_text(f"lr,loss\n{content}")
    with pytest.raises(ValueError, match=problem):
        lr_range.read_curve(RunRecord(tmp_path))


def test_the_picture_names_rates_in_plain_text():
    figure = lr_range_figure(RATES, [2.0 + abs(math.log10(rate / 1e-2)) for rate in RATES], 5e-3)
    figure.draw_without_rendering()
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert "1e+00" in shown
    assert not any("$" in text for text in shown)


@pytest.mark.whole
def test_training_starts_as_without_the_test(found, tmp_path):
    given = trained(tmp_path, f"optimizer.lr={found.facts['lr_range']['found']}")
    assert rows(given) == rows(found)
    one, other = (read_checkpoint(record.last)["state_dict"] for record in (given, found))
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.whole
def test_a_seed_finds_the_same_rate_again_and_a_resumed_run_does_not_search(found, tmp_path, monkeypatch):
    again = trained(tmp_path, "optimizer.lr=auto")
    assert (again.path / "lr_range.csv").read_bytes() == (found.path / "lr_range.csv").read_bytes()
    monkeypatch.setattr(lr_range, "_range_test", lambda *_: pytest.fail("searched again"))
    resume(again.path, compose([f"resume={again.path}", "trainer.max_epochs=2"]))
    assert again.facts["lr_range"]["found"] == found.facts["lr_range"]["found"]
    checkpoint = read_checkpoint(again.last)
    assert checkpoint["config"]["optimizer"]["lr"] == found.facts["lr_range"]["found"]


@pytest.mark.parametrize("stop", ["signal", "time"])
@pytest.mark.whole
def test_a_stop_within_the_test_ends_it_at_once_and_the_run_can_be_resumed(tmp_path, monkeypatch, stop):
    steps = []
    measure = RisingRate.on_train_batch_end

    def signal_at_the_third(self, *arguments):
        measure(self, *arguments)
        steps.append(1)
        if stop == "signal" and len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RisingRate, "on_train_batch_end", signal_at_the_third)
        kind = OutOfTime if stop == "time" else Interrupted
        limit = ["trainer.max_time=1s"] if stop == "time" else []
        with pytest.raises(kind, match=r"resume with: resume\("):
            trained(tmp_path, "optimizer.lr=auto", *limit)
    assert len(steps) == (1 if stop == "time" else 3)
    (record,) = map(RunRecord, (tmp_path / "runs").glob("[!.]*"))
    assert record.facts["status"] == "interrupted"
    assert "lr_range" not in record.facts
    resume(record.path, compose([f"resume={record.path}", "trainer.max_time=null"]))
    assert record.facts["status"] == "finished"
    assert json.loads((record.path / "run.json").read_text())["lr_range"]["steps"] > 3


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("optimizer.lr=autoo", "must be a number, or auto.*did you mean auto"),
        ("optimizer.lr=null", "must be a number, or auto"),
        ("optimizer.lr=true", "must be a number, or auto"),
        ("optimizer.lr=0", "must be > 0"),
        ("optimizer.adamw_lr=auto", "is what the range test of optimizer.lr=auto finds"),
    ],
)
def test_what_is_no_learning_rate_is_refused(given, problem):
    with pytest.raises(ConfigError, match=f"(?s){problem}"):
        compose(["model=vit_nano", "optimizer=muon", "optimizer.lr=0.01", given])


def test_numbers_are_floats_and_muon_finds_one_rate_for_both():
    assert repr(compose(["optimizer.lr=1"]).optimizer.lr) == "1.0"
    config = compose(["optimizer=muon", "optimizer.lr=auto"]).optimizer
    assert (with_lr(config, 0.25).lr, with_lr(config, 0.25).adamw_lr) == (0.25, 0.25)
