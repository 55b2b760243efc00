"""Configurations of a grid that are copies of one another, against compositions of their own."""

import random
from itertools import product

import pytest
import yaml
from helpers.levels import quick, slow

from vitrine.command.composer import Composer
from vitrine.command.overrides import quote
from vitrine.command.sources import Sources, composing
from vitrine.errors import ConfigError

NANO = ["model=vit_nano"]
# Axes that a grid may have: what is copied, what is computed from it, and what is refused.
AXES = [
    ["patch=1", "patch=2", "patch=3", "patch=4"],
    ["depth=1", "depth=2", "depth=12"],
    ["norm=layernorm", "norm=rmsnorm"],
    ["norm_placement=pre", "norm_placement=post", "norm_placement=sandwich"],
    ["loss=cross_entropy", "loss=softmax_cross_entropy"],
    ["schedule=cosine", "schedule=constant"],
    ["optimizer=adamw", "optimizer=sgd", "optimizer=muon"],
    ["augment=none", "augment=light", "augment=strong"],
    ["data=digits", "data=mnist", "data=cifar10"],
    ["experiment=mnist/fast", "experiment=cifar10/fast"],
    ["callbacks=default", "callbacks=[default,ema]"],
    ["logger=csv", "logger=wandb"],
    ["model.dim=64", "model.dim=66", "model.dim=128"],
    ["model.depth=1", "model.depth=0"],
    ["model.position=none", "model.position=rope"],
    ["model.layer_scale=null", "model.layer_scale=1e-5", "model.layer_scale=1"],
    ["model.drop_path=0", "model.drop_path=0.2", "model.drop_path=1"],
    ["model.patch_size=2", "model.patch_size=4"],
    ["model.heads=2", "model.heads=3"],
    ["data.image_size=8", "data.image_size=16"],
    ["data.batch_size=64", "data.batch_size=0"],
    ["optimizer.lr=1e-3", "optimizer.lr=1", "optimizer.lr=${schedule.warmup}"],
    ["schedule.warmup=0.1", "schedule.warmup=0.2"],
    ["trainer.max_epochs=1", "trainer.max_epochs=${data.epochs}"],
    ["trainer.max_time=null", "trainer.max_time=10m", "trainer.max_time=10"],
    ["callbacks.ema.decay=0.9", "callbacks.ema.decay=0.99"],
    ["tags=a", "tags=[a,b]"],
    ["name=a", "name=null"],
    ["seed=0", "seed=1", "seed=-1"],
]
POSITIONS = [f"position={scheme}" for scheme in ("none", "learned", "rope", "relative", "sincos2d")]


def described(config):
    """Everything that a configuration, or its refusal, says: ``1`` is not ``1.0`` here."""
    return config.faults if isinstance(config, ConfigError) else repr(config)


def assert_composes_each(axes, fixed=(), *, drawn=None, folder=None, sound=False):
    """Check combinations of a grid one after another, and each by itself; return how many were composed.

    None is refused if they are ``sound``.
    """
    with composing(Sources.choose(folder)) as loader:
        shared = Composer("train", loader)
        shared.checked(quote(fixed))  # as a multirun does before its trials
        grid = list(product(*axes))
        for combination in grid if drawn is None else drawn.sample(grid, min(len(grid), 6)):
            overrides = quote([*fixed, *combination])
            checked = shared.checked(overrides)
            assert described(checked) == described(Composer("train", loader).checked(overrides))
            assert not (sound and isinstance(checked, ConfigError)), checked
        return len(shared._siblings)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.quick), 1, *map(slow, range(2, 24))])
@pytest.mark.whole
def test_any_grid_is_what_its_trials_compose_to(seed):
    draw = random.Random(seed)
    axes = [POSITIONS, *draw.sample(AXES, 3)]
    assert_composes_each([draw.sample(axis, 2) for axis in axes], NANO[: draw.randrange(2)], drawn=draw)


def test_choices_that_set_plain_values_are_composed_once():
    axes = [POSITIONS[:3], ["patch=2", "patch=4"], ["depth=1", "depth=2"], ["seed=0", "seed=1"]]
    assert assert_composes_each(axes, NANO, drawn=random.Random(0)) == 1


@pytest.mark.whole
def test_sizes_are_copied_that_no_other_value_is_computed_from():
    patches = ["model.patch_size=2", "model.patch_size=[2,4]", "model.patch_size=[4,4]", "model.patch_size=[4,0]"]
    images = ["data.image_size=8", "data.image_size=[8,16]", "data.image_size=[7,9]"]
    assert assert_composes_each([patches, images, ["augment=light"]], NANO) == len(images)


@pytest.mark.whole
def test_choices_that_set_other_keys_are_composed_apart():
    """``norm_placement=post`` also turns the last normalisation off."""
    assert assert_composes_each([["norm_placement=pre", "norm_placement=post"], ["seed=0", "seed=1"]], NANO) == 2


@pytest.mark.whole
@pytest.mark.parametrize(
    "fixed",
    quick(
        [["experiment=mine"], ["model.position=${model.norm}"], ["model.position=rope"], ["experiment=other"]],
        [["model.position=rope"]],
    ),
)
def test_what_is_set_after_a_choice_stays(tmp_path, fixed):
    folder = tmp_path / "mine"
    files = {
        "experiment/mine": ("_global_", {"model": {"position": "rope"}}),
        "experiment/other": ("_global_", {"model": {"mlp_ratio": 2.0}, "name": "${model.position}"}),
        "position/two": ("model", {"position": "learned", "drop_path": 0.5}),
        "position/section": ("_global_", {"callbacks": {"ema": {"decay": 0.5}}}),
    }
    for name, (package, values) in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(f"# @package {package}\n{yaml.safe_dump(values)}")
    positions = ["position=none", "position=learned", "position=two", "position=section"]
    assert_composes_each([positions, ["model.drop_path=0", "model.drop_path=0.1"]], fixed, folder=str(folder))


@pytest.mark.whole
def test_a_choice_that_decides_which_files_follow_is_composed(tmp_path):
    """Only with both choices is there a file that the primary configuration asks for."""
    (tmp_path / "joint").mkdir()
    (tmp_path / "mine.yaml").write_text("defaults:\n- train\n- optional joint@_global_: ${patch}_${norm}\n- _self_\n")
    (tmp_path / "joint/4_rmsnorm.yaml").write_text("seed: 7\n")
    with composing(Sources.choose(str(tmp_path), "mine")) as loader:
        shared = Composer("train", loader)
        found = {}
        for choices in product(["patch=2", "patch=4"], ["norm=layernorm", "norm=rmsnorm"]):
            found[choices] = shared.checked(quote(choices)).seed
    assert found == dict.fromkeys(found, 0) | {("patch=4", "norm=rmsnorm"): 7}


@pytest.mark.whole
def test_every_choice_of_every_group_is_what_it_composes_to():
    apart = ("experiment", "sweep", "local", "data", "debug")  # folders inside these are no choices of their own
    groups = sorted(group for group in Sources().groups if not group.startswith(apart))
    axes = {group: [f"{group}={option}" for option in Sources().choices(group)] for group in groups}
    need_more = {"accelerator", "finetune", "model", "patch"}  # than this model, or other hardware: test_compose.py
    for group, axis in axes.items():
        assert_composes_each([axis, ["seed=3"]], NANO, sound=group not in need_more)
