"""The schema's defaults are those of conf/: a configuration made in Python is the one that the command line makes."""

import hydra
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from vitrine import compose
from vitrine.command.compose import composing, conf
from vitrine.config import EvalConfig, ViTConfig
from vitrine.config.keys import defaults
from vitrine.config.predict import PredictConfig
from vitrine.config.sweep import TrainCommand
from vitrine.models import VisionTransformer

SIZES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((conf() / "model").glob("*.yaml"))}
# The schema turns no augmentation on and chooses no optimiser. Not digits: it has a batch size of its own.
CHOICES = ["augment=none", "callbacks=[default,early_stopping,ema]", "logger=all", "data=cifar10"]
# Off without augmentation; that those of augment=deit are the defaults is tested with the groups of augment.
RAND = {key for key in defaults(TrainCommand) if key.startswith("augment.rand.")}


@pytest.mark.parametrize(
    ("name", "schema", "overrides", "given"),
    [
        ("train", TrainCommand, [*CHOICES, "model=vit_tiny"], {"optimizer.betas", *RAND}),
        ("eval", EvalConfig, [], set()),
        ("predict", PredictConfig, [], set()),
    ],
)
def test_every_default_of_the_schema_is_that_of_conf(name, schema, overrides, given):
    with composing():
        composed = hydra.compose(name, overrides)
    known = defaults(schema)
    differing = {key for key in known if OmegaConf.select(composed, key, default="nothing") != known[key]}
    assert differing == given


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf() / "optimizer").glob("*.yaml")))
def test_pretrained_weights_are_trained_at_a_tenth_of_the_rate(name):
    """But with SGD and LAMB, whose rates are as large for them."""
    with composing():
        new, pretrained = (
            hydra.compose("train", [f"optimizer={name}", "model=vit_tiny", *given]).optimizer.lr
            for given in ([], ["model.pretrained=FILE.safetensors"])
        )
    assert pretrained / new == pytest.approx(1.0 if name in ("sgd", "lamb") else 0.1)


@pytest.mark.parametrize("size", SIZES)
def test_a_model_made_in_python_is_the_one_that_the_command_line_trains(size):
    trained = compose([f"model={size}", "data=cifar10"]).model
    made = ViTConfig(image_size=32, patch_size=4, in_channels=3, num_classes=10, **SIZES[size])
    assert made == trained
    with torch.device("meta"):
        ours, theirs = VisionTransformer(made), VisionTransformer(trained)
    assert str(ours) == str(theirs)
    assert {name: value.shape for name, value in ours.state_dict().items()} == {
        name: value.shape for name, value in theirs.state_dict().items()
    }


def test_the_four_published_sizes_are_there():
    assert {"vit_nano", "vit_tiny", "vit_small", "vit_base"} <= set(SIZES)
