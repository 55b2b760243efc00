"""Tests of the refusal of keys without effect."""

import pytest
from helpers.running import ROOT

from vitrine.command.compose import points
from vitrine.errors import ConfigError

PROBE = ["model=vit_nano", "model.pretrained=vit_tiny_patch16_224", "finetune=linear_probe"]
SEARCH = ["sweep.sampler=tpe", "sweep.n_trials=2"]


@pytest.mark.parametrize(
    ("overrides", "given"),
    [
        (["optimizer.lr=0.05"], "0.05"),
        (["optimizer.lr=0.01,0.1"], "0.01,0.1"),
        ([*SEARCH, "optimizer.lr=interval(0.01,0.1)"], "interval(0.01,0.1)"),
        (["sweep=optuna/lr_wd"], ""),
    ],
    ids=" ".join,
)
def test_a_rate_that_nothing_is_trained_at_is_refused(overrides, given):
    with pytest.raises(ConfigError) as caught:
        points("train", [*PROBE, *overrides], multirun=overrides != ["optimizer.lr=0.05"])
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("optimizer.lr", given)
    assert fault.nearest == (f"finetune.head_lr={given}" if given else "finetune.head_lr")


@pytest.mark.parametrize(
    "overrides",
    [
        ["finetune=linear_probe", "finetune.head_lr=null", "optimizer.lr=0.05"],
        ["finetune=linear_probe", "finetune.head_lr=${optimizer.lr}", "optimizer.lr=0.05,0.1"],
        ["finetune=linear_probe,full", "optimizer.lr=0.05"],
        [*SEARCH, "finetune=linear_probe,full", "optimizer.lr=interval(0.01,0.1)"],
    ],
    ids=" ".join,
)
def test_a_rate_that_a_run_is_trained_at_is_not_refused(overrides):
    assert points("train", [*PROBE[:2], *overrides], multirun=True)


@pytest.mark.parametrize(
    ("overrides", "instead"),
    [
        (["model.position_init=normal", "position=rope"], "position=learned"),
        (["model.position_init=small,uniform", "position=none,sincos2d"], "position=learned"),
        (["model.sincos_frequencies=big_vision", "position=learned"], "position=sincos2d"),
        (["model.class_token_init=normal", "model.class_token=false"], "model.class_token=true"),
        (["model.drop_path_shape=constant", "model.drop_path=0"], "model.drop_path=0.1"),
        (["model.drop_path=0,0.3", "depth=1"], "model.drop_path_shape=constant"),
        (["model.patch_dropout=0.5", "patch=8"], "model.patch_dropout=0.0"),
        (["augment.flip=true,false", "data=mnist"], "augment.flip=false"),
        ([*PROBE[1:], "trainer.activation_checkpointing=true"], "trainer.activation_checkpointing=false"),
        (["distill=soft,hard"], "distill.teacher=RUN"),
        (["distill.weight=0.5"], "distill.teacher=RUN"),
        (["distill.temperature=1,2"], "distill.teacher=RUN"),
        (["data.root=elsewhere", "data=digits"], ""),
        ([*SEARCH, "model.position_init=small,normal", "position=rope,alibi2d"], "position=learned"),
    ],
    ids=" ".join,
)
def test_a_key_without_effect_on_any_run_is_refused(overrides, instead):
    with pytest.raises(ConfigError) as caught:
        points("train", ["model=vit_nano", *overrides], multirun=True)
    (fault,) = caught.value.faults
    assert any(override.startswith(f"{fault.key}=") for override in overrides)
    assert ("has no effect" in fault.problem, fault.nearest) == (True, instead)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.position_init=small", "position=rope"],
        ["model.position_init=normal", "position=rope,learned"],
        ["model.sincos_frequencies=big_vision", "position=sincos2d"],
        ["experiment=tutorials/comsci_mnist/faithful", "position=sincos2d", "model.heads=8"],
        ["model.drop_path=0.3", "depth=1,2"],
        ["model.drop_path=0.0", "depth=1"],
        ["augment=standard", "data=mnist"],
        ["data.root=elsewhere", "data=digits,mnist"],
        [f"distill.teacher={ROOT}", "distill.weight=0"],  # as a sweep prints its best configuration
        [*SEARCH, "model.position_init=small,normal", "position=rope,learned"],
        [*SEARCH, "model.drop_path_shape=linear,constant", "model.drop_path=interval(0,0.3)"],
    ],
    ids=" ".join,
)
def test_a_key_with_its_default_or_from_a_file_or_with_an_effect_on_some_run_is_not_refused(overrides):
    assert points("train", ["model=vit_nano", *overrides], multirun=True)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--time=10", "is set by launcher.time"),
        ("--partition low", "is set by launcher.partition"),
        ("--gpus-per-node=8", "is set by launcher.gpus"),
        ("--cpus_per_task=1", "is set by launcher.threads"),
        ("--arr=0-0", "is set by launcher.workers"),
        ("--sig=KILL", "is set by the launcher, whose jobs rely on it"),
        ("--no-requeue", "is set by the launcher, whose jobs rely on it"),
        ("-C a100", "must be an option's long name, as in --constraint=a100"),
    ],
)
def test_an_option_of_sbatch_that_the_launcher_sets_is_refused(option, problem):
    overrides = ["model=vit_nano", f"launcher.sbatch=['--exclusive','{option}']", "hydra/launcher=slurm"]
    with pytest.raises(ConfigError) as caught:
        points("train", overrides, multirun=True)
    assert [(fault.given, fault.problem) for fault in caught.value.faults] == [(option, problem)]
