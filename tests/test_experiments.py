"""The recipes in conf/experiment: each composes, and trains. tests/test_tutorials.py has the tutorials' settings."""

import numpy as np
import pytest
import torch
from helpers.levels import slow
from helpers.running import ROOT, write_image_folder
from safetensors.torch import save_file

from vitrine import compose, fit, load_run
from vitrine.data.shards import write_shards
from vitrine.models import VisionTransformer

EXPERIMENTS = sorted(
    str(path.relative_to(ROOT / "conf/experiment").with_suffix(""))
    for path in (ROOT / "conf/experiment").rglob("*.yaml")
)


@pytest.fixture
def image_folder(tmp_path):
    write_image_folder(tmp_path / "DIR", "train", "test", size=(32, 32))
    return tmp_path / "DIR"


def composed(experiment, tmp_path, *overrides):
    if "vit_base" in experiment:
        overrides = (f"data.root={tmp_path / 'DIR'}", *overrides)
    return compose([f"experiment={experiment}", f"paths.output_dir={tmp_path}", "accelerator=cpu", *overrides])


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes_and_its_file_shows_its_command(experiment, tmp_path, image_folder):
    composed(experiment, tmp_path)
    text = (ROOT / "conf/experiment" / f"{experiment}.yaml").read_text()
    assert f"#   python train.py experiment={experiment}" in text


def test_vit_base_has_the_shapes_that_its_notes_walk_through(tmp_path, image_folder):
    overrides = ("model.num_classes=1000",)
    with torch.device("meta"):
        model = VisionTransformer(composed("tutorials/vit_base_anatomy/faithful", tmp_path, *overrides).model)
    shapes = {}
    images = torch.zeros(2, 3, 224, 224, device="meta")
    for name, value in model.to("meta").intermediates(images, "patches", "embedded", "logits").items():
        shapes[name] = tuple(value.shape)
    assert shapes == {"patches": (2, 196, 768), "embedded": (2, 197, 768), "logits": (2, 1000)}


@pytest.mark.parametrize(
    ("name", "accelerator"), [("cpu", "auto"), ("fast", "gpu"), slow("best", "gpu"), ("stem", "gpu")]
)
@pytest.mark.whole
def test_a_recipe_for_cifar10_trains_from_shards(name, accelerator, tmp_path):
    """On random images of CIFAR-10's size: the real ones take too long to decode for each recipe."""
    text = (ROOT / "conf/experiment/cifar10" / f"{name}.yaml").read_text()
    assert ("override /accelerator: gpu" in text) == (accelerator == "gpu")
    random = np.random.default_rng(0)
    splits = {
        split: (random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10)
        for split, count in (("train", 300), ("test", 40))
    }
    write_shards(tmp_path / "cifar10-packed", "cifar10", [str(label) for label in range(10)], splits, shard_size=10**6)
    small = ("model.depth=2", "debug.limit_batches=2", "trainer.max_epochs=1", "data.batch_size=16")
    result = fit(composed(f"cifar10/{name}", tmp_path, *small, f"data.root={tmp_path}"))
    assert 0 <= result.metrics["test/acc"] <= 1


@pytest.mark.parametrize("name", ["comsci_mnist", "pulfer_mnist", "notebook_mnist32"])
@pytest.mark.parametrize("variant", [slow("faithful"), "corrected"])  # test_notebooks trains the faithful ones
@pytest.mark.whole
def test_a_tutorial_on_mnist_trains(name, variant, tmp_path, shared_data):
    overrides = [
        f"data.root={shared_data}",
        f"paths.cache_dir={tmp_path}",
        "debug.limit_batches=2",
        "trainer.max_epochs=1",
    ]
    result = fit(composed(f"tutorials/{name}/{variant}", tmp_path, *overrides))
    assert 0 <= result.metrics["test/acc"] <= 1


@pytest.mark.whole
def test_vit_base_trains_on_pictures_at_224(tmp_path, image_folder):
    overrides = ("model.depth=1", "trainer.max_epochs=1", "data.batch_size=8")  # one block instead of twelve
    result = fit(composed("tutorials/vit_base_anatomy/faithful", tmp_path, *overrides))
    assert 0 <= result.metrics["test/acc"] <= 1


@pytest.mark.whole
def test_vit_base_is_fine_tuned_from_weights_in_a_file(tmp_path, image_folder):
    small = ("model.depth=1", "trainer.max_epochs=1", "data.batch_size=8")
    weights = VisionTransformer(composed("tutorials/vit_base_anatomy/described", tmp_path, *small).model).state_dict()
    filters = weights["patch_embed.proj.weight"].normal_(generator=torch.Generator().manual_seed(5))
    save_file(weights, tmp_path / "published.safetensors")
    pretrained = f"model.pretrained={tmp_path / 'published.safetensors'}"
    result = fit(composed("tutorials/vit_base_anatomy/corrected", tmp_path, *small, pretrained))
    found = load_run(result.run_dir).model.patch_embed.proj.weight
    assert 0 < (found - filters).abs().max() < 0.01
