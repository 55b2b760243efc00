"""What is said to who asks for a GPU where there is none."""

import pytest
from helpers.running import ROOT, make_pictures

from vitrine import compose
from vitrine.training import estimate
from vitrine.training.estimate import TRAIN_IMAGES, missing_gpu
from vitrine.training.throughput import flops_per_image

RECIPES = ROOT / "conf" / "experiment"


@pytest.fixture
def quick(monkeypatch):
    """A CPU that multiplies matrices at 2.5e11 operations a second, of which 1e11 are taken to be reached."""
    monkeypatch.setattr(estimate, "matmul_peak", lambda device, precision, threads: 2.5e11)


@pytest.mark.parametrize(
    ("epochs", "words"),
    # A step on one image takes 3 times 1e9 operations here: 1350 s an epoch of CIFAR-10 without its tenth.
    [(1, "22 minutes"), (10, "4 hours"), (200, "3 days")],
)
def test_the_time_is_that_of_the_operations(quick, monkeypatch, epochs, words):
    monkeypatch.setattr(estimate, "flops_per_image", lambda model: 10**9)
    fault = missing_gpu(compose(["data=cifar10", f"trainer.max_epochs={epochs}"]), RECIPES)
    assert (
        f"this CPU would take about {words} ({epochs * 1.35e14:.1e} operations, at 40% of the 2.5e+11 a"
        in fault.problem
    )
    assert fault.key == "accelerator"
    assert fault.given == "gpu"


def test_a_recipe_for_a_gpu_names_those_for_a_cpu(quick):
    config = compose(["experiment=cifar10/fast", "accelerator=cpu"])
    assert missing_gpu(config, RECIPES).nearest == "experiment=cifar10/cpu, or accelerator=cpu"
    assert config.trainer.accelerator == "cpu"


def test_what_only_a_gpu_has_does_not_matter(quick):
    config = compose(["trainer.compile=graphs", "trainer.precision=tf32"])
    config.trainer.accelerator = "gpu"
    assert missing_gpu(config, RECIPES).nearest == "accelerator=cpu"
    assert config.trainer.accelerator == "gpu"


def test_pictures_are_counted(quick, tmp_path):
    make_pictures(tmp_path, "train", "val")  # 40 of each, none held out
    config = compose(["data=imagefolder", f"data.root={tmp_path}", "trainer.max_epochs=1"])
    assert f"({120 * flops_per_image(config.model):.1e} operations" in missing_gpu(config, RECIPES).problem


def test_every_data_set_has_its_number_of_images():
    from vitrine.config.schema import SOURCES

    assert {*TRAIN_IMAGES, "imagefolder"} == set(SOURCES)
