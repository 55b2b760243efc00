"""Training speed: measured, logged by epoch, recorded and printed."""

import json
import time

import numpy as np
import pytest
from helpers.running import SMALL
from lightning.pytorch.callbacks import Callback

from vitrine import compose, fit
from vitrine.data.loader import TrainLoader
from vitrine.data.transforms.augment import Chain
from vitrine.runs import RunRecord
from vitrine.training.peak_flops import PeakFlops
from vitrine.training.throughput import StepStatistics, Throughput, shared


def figures(**changes):
    values = {"steps": 0.1, "waits": 0, "images": 50, "training_flops": 6e6} | changes
    columns = dict(zip(values, np.broadcast_arrays(*values.values()), strict=True))
    return StepStatistics.of(**columns, peak=PeakFlops(6e9, 1.2e10))


def test_statistics_equal_a_manual_calculation():
    steps = np.array([0.1] * 90 + [0.2] * 10)
    found = figures(steps=steps, waits=np.array([0.011] * 100))
    assert found.images_per_second == 500.0
    assert found.images_per_second_slow == 250.0
    assert found.data_share == pytest.approx(1.1 / 11, abs=1e-5)
    assert found.flops_per_second == pytest.approx(6e6 * 500)
    assert found.mfu_measured == pytest.approx(0.5)
    assert found.mfu_datasheet == pytest.approx(0.25)


def test_one_slow_step_does_not_count_as_the_slowest_twentieth():
    steps = np.full(100, 0.1)
    steps[0] = 30.0
    assert figures(steps=steps).images_per_second_slow == 500.0


def test_an_epochs_last_smaller_batch_is_no_measure_of_speed():
    found = figures(steps=np.array([0.1, 0.005] * 10), images=np.array([50, 1] * 10))
    assert found.images_per_second == found.images_per_second_slow == 500.0
    assert found.flops_per_second == pytest.approx(6e6 * 500)


def test_without_a_datasheet_mfu_datasheet_is_none():
    found = StepStatistics.of(np.ones(3), np.zeros(3), np.ones(3), np.ones(3), PeakFlops(1e9))
    assert found.mfu_datasheet is None


class Slow(Callback):
    """Makes each step take 50 ms longer, outside the loader."""

    def on_train_batch_start(self, *_):
        time.sleep(0.05)


@pytest.fixture
def trained(tmp_path):
    def train(*overrides, callbacks=()):
        return RunRecord(
            fit(compose([*SMALL, f"paths.output_dir={tmp_path}", *overrides]), callbacks=callbacks).run_dir
        )

    return train


@pytest.mark.parametrize(("peaks", "utilisation", "left"), [([1e9, 4e9], 0.75, 0), ([1e9, 2e9, 1e9, 9e9], 1.5, 1)])
def test_a_peak_that_training_exceeds_is_measured_again(peaks, utilisation, left):
    """Other programs may have slowed its measurement, and may always do so."""
    measured = iter(peaks)
    throughput = Throughput(lambda epoch: 3e9, lambda: PeakFlops(next(measured)))
    throughput.steps, throughput.waits, throughput.images = [np.ones(3)], [np.zeros(3)], [np.ones(3)]
    throughput.flops = [np.full(3, 3e9)]
    assert throughput.summary["mfu_measured"] == utilisation
    assert throughput.summary["mfu_measured"] == utilisation
    assert len([*measured]) == left


@pytest.mark.whole
def test_speed_is_recorded_by_epoch_and_overall(trained):
    record = trained("trainer.max_epochs=3", callbacks=[Slow()])
    speed = record.facts["speed"]
    assert 0 < speed["images_per_second"] < 256 / 0.05
    assert speed["images_per_second_slow"] <= speed["images_per_second"]
    assert 0 < speed["data_share"] < 0.5
    assert speed["flops_per_second"] == pytest.approx(
        3 * record.facts["flops_per_image"] * speed["images_per_second"], rel=1e-3
    )
    assert speed["mfu_measured"] == pytest.approx(
        speed["flops_per_second"] / speed["matmul_flops_per_second"], abs=1e-4
    )
    assert speed["startup_seconds"] > 0
    assert record.facts["peak_memory"] > 1e8
    rows = [row for row in record.history() if "images_per_second" in row]
    assert len(rows) == 3
    assert all({"data_share", "mfu_measured"} <= set(row) for row in rows)
    assert json.loads((record.path / "run.json").read_text())["speed"] == speed


def test_patches_that_are_left_out_count_neither_as_flops_nor_in_utilisation(trained, capsys):
    facts = trained("trainer.max_epochs=1", "model.patch_dropout=0.5").facts
    speed, forward = facts["speed"], facts["flops_per_image"]
    assert 1.3 * forward < facts["training_flops_per_image"] < 1.6 * forward, "of 3 times, half"
    expected = facts["training_flops_per_image"] * speed["images_per_second"]
    assert speed["flops_per_second"] == pytest.approx(expected, rel=1e-3)
    assert "in training, on 8 of 16 patches" in capsys.readouterr().out


@pytest.mark.whole
def test_a_slow_loader_counts_as_waiting(trained, monkeypatch):
    batches = TrainLoader.__iter__

    def slowly(self):
        for batch in batches(self):
            time.sleep(0.4)
            yield batch

    fast = trained("trainer.max_epochs=1").facts["speed"]
    monkeypatch.setattr(TrainLoader, "__iter__", slowly)
    slow = trained("trainer.max_epochs=1").facts["speed"]
    assert slow["data_share"] > max(0.3, fast["data_share"] + 0.1)
    assert slow["images_per_second"] < 256 / 0.4


def test_a_wait_is_shared_by_the_batches_that_are_augmented_together():
    assert shared(np.array([8.0, 0, 1, 0, 4, 2]), 4).tolist() == [2.25, 2.25, 2.25, 2.25, 3, 3]
    assert shared(np.array([8.0, 0, 1]), 1).tolist() == [8, 0, 1]


@pytest.mark.whole
def test_the_time_of_batches_that_are_augmented_together_counts_in_each_step(trained, monkeypatch):
    """As on a GPU: one of five steps waits for the augmentation of all."""

    def slowly(self, images, draws):
        time.sleep(1.0)
        return images

    monkeypatch.setattr(Chain, "__call__", slowly)
    monkeypatch.setattr("vitrine.data.datamodule.batches_at_once", lambda *_: 5)
    speed = trained("trainer.max_epochs=1").facts["speed"]
    assert speed["images_per_second_slow"] <= speed["images_per_second"] < 256 / 0.2


@pytest.mark.whole
def test_validation_does_not_count(trained, monkeypatch):
    class SlowValidation(Callback):
        def on_validation_batch_start(self, *_):
            time.sleep(1.0)

    record = trained(callbacks=[SlowValidation()])
    rows = [row for row in record.history() if "data_share" in row]
    assert len(rows) == 2
    assert max(row["data_share"] for row in rows) < 0.5
