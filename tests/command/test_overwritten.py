"""Tests of the refusal of choices that a recipe overwrites."""

import pytest

from vitrine.command.compose import points
from vitrine.command.sources import Sources, composing
from vitrine.errors import ConfigError

BEST = "experiment=cifar10/best"


def made(*overrides, multirun=False):
    return points("train", list(overrides), multirun=multirun, check_devices=False)


@pytest.mark.parametrize(
    ("overrides", "given", "problem", "instead"),
    [
        ([BEST], "depth=2", f"{BEST} sets model.depth=9", "model.depth=2"),
        (
            [BEST],
            "model=vit_tiny",  # which train.yaml chooses as well
            f"{BEST} sets model.dim=384, model.depth=9 and model.heads=6",
            "model.dim=192 model.depth=12 model.heads=3",
        ),
        ([BEST], "callbacks=[default]", f"{BEST} sets callbacks.ema", "callbacks.ema=null"),
        (
            ["experiment=cifar10/cpu"],
            "model=vit_base",
            "experiment=cifar10/cpu sets model.dim=128 and model.heads=4",
            "model.dim=768 model.heads=12",
        ),
        (
            ["experiment=mnist/fast"],
            "augment=none",
            "experiment=mnist/fast sets augment.degrees=15.0, augment.translate=0.08, augment.scale=0.15 and "
            "augment.shear=8.0",
            "augment.degrees=0.0 augment.translate=0.0 augment.scale=0.0 augment.shear=0.0",
        ),
    ],
)
def test_a_choice_that_a_recipe_overwrites_is_refused(overrides, given, problem, instead):
    with pytest.raises(ConfigError) as caught:
        made(*overrides, given)
    (fault,) = caught.value.faults
    assert (f"{fault.key}={fault.given}", fault.nearest) == (given, instead)
    assert fault.problem == f"has no effect: {problem}"


@pytest.mark.parametrize("others", [["seed=0,1"], ["sweep.sampler=grid"]], ids=["grid", "search"])
def test_each_value_that_a_recipe_overwrites_is_refused_once(others):
    with pytest.raises(ConfigError) as caught:
        made(BEST, "depth=2,4", *others, multirun=True)
    assert [(fault.key, fault.given) for fault in caught.value.faults] == [("depth", "2"), ("depth", "4")]


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides",
    [
        [BEST, "loss=cross_entropy,focal"],  # loss.label_smoothing is the recipe's
        [BEST, "model.depth=2"],
        [BEST, "depth=2", "model.depth=3"],
        ["experiment=digits/quick", "model=vit_nano"],
        ["experiment=cifar10/cpu", "depth=6,2", "optimizer=sgd"],
        ["experiment=tutorials/comsci_mnist/faithful", "optimizer=adam,adamw", "augment=none"],
        ["experiment=tutorials/pulfer_mnist/faithful", "data=fashion_mnist", "norm_placement=pre"],
    ],
    ids=" ".join,
)
def test_a_choice_with_any_effect_is_not_refused(overrides):
    assert made(*overrides, multirun=True)


def test_a_primary_file_of_the_user_overwrites_as_a_recipe_does(tmp_path):
    (tmp_path / "night.yaml").write_text("defaults: [train, _self_]\nmodel: {depth: 5}\n")
    with composing(Sources.choose(str(tmp_path), "night")):
        with pytest.raises(ConfigError, match=r"night\.yaml sets model\.depth=5\n *did you mean model\.depth=2"):
            made("depth=2")
        assert made("model=vit_nano", "patch=4")
