from dataclasses import replace

import pytest

from vitrine import compose
from vitrine.command.compose import points
from vitrine.command.overrides import keys
from vitrine.config.schema import TrainConfig
from vitrine.config.sweep import has_no_effect
from vitrine.sweeps.fingerprint import fingerprint, sweep_name, trial_name
from vitrine.sweeps.sweep import Sweep

WITHOUT_EFFECT = {
    "name",
    "tags",
    "resume",
    "like",
    "debug.traceback",
    "debug.profile",
    "data.root",
    "data.storage",
    "data.workers",
    "trainer.log_every_n_steps",
    "trainer.max_time",
}


@pytest.fixture(scope="module")
def config():
    return compose(["model=vit_nano", "callbacks=[default,early_stopping,ema]", "logger=all"])


def changed(config, key):
    """``config`` with another value at the dotted ``key``."""
    name, _, rest = key.partition(".")
    value = getattr(config, name)
    if rest:
        return replace(config, **{name: changed(value, rest)})
    other = [*value, "x"] if isinstance(value, list) else f"{value}x"
    return replace(config, **{name: other})


def test_every_value_that_can_change_a_result_makes_another_trial(config):
    for key in keys(TrainConfig):
        same = fingerprint(changed(config, key)) == fingerprint(config)
        assert same == (key in WITHOUT_EFFECT or key.startswith(("paths.", "logger."))), key


@pytest.mark.parametrize("key", ["paths.output_dir", "logger.wandb.mode", "data.workers", "tags", "debug.traceback"])
def test_where_a_run_lies_and_who_is_told_makes_no_other_trial(config, key):
    assert fingerprint(changed(config, key)) == fingerprint(config)


def test_the_folder_of_ones_own_pictures_is_part_of_what_is_asked():
    assert has_no_effect("data.root", "mnist")
    assert not has_no_effect("data.root", "imagefolder")


def test_a_sweep_is_named_by_what_is_fixed_and_what_varies_whatever_the_values(tmp_path):
    def name(*words):
        made = points("train", ["model=vit_nano", f"paths.output_dir={tmp_path}", *words], multirun=True)
        return Sweep.plan(made).folder.name

    asked = name("patch=2,4", "seed=0,1")
    assert asked.startswith("vit_nano_patch-seed_")
    assert name("seed=0,1", "patch=2,4") == name("patch=2,4,8", "seed=range(5)") == asked
    assert name("patch=2,4", "seed=0,1", "logger=wandb", "launcher.workers=2") == asked
    others = {name("patch=2,4", "seed=0,1", "depth=3"), name("patch=2,4", "model.heads=2,4"), name("seed=0,1")}
    assert len(others | {asked}) == 4


def test_names_can_be_folders_and_tell_what_varies(config):
    assert trial_name(config, {"patch": "2", "data.root": "a/b c"}).startswith("data.root=a-b-c,patch=2_")
    assert len(trial_name(config, {"position": "ä" * 300}).encode()) < 130
    assert trial_name(config, {"patch": "2", "seed": "0"}) == trial_name(config, {"seed": "0", "patch": "2"})
    assert len(sweep_name([], ["x" * 300], "digits")) < 130
