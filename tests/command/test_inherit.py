"""like=RUN: an earlier run's configuration, with what is typed changed in it and all else as it was."""

import pytest
from helpers.levels import sampled

from vitrine import compose
from vitrine.command.compose import launcher, points
from vitrine.config.serialize import to_plain
from vitrine.errors import ConfigError
from vitrine.runs import RunRecord
from vitrine.runs.flatten import flatten

RECIPE = ["data=mnist", "model=vit_nano", "position=rope", "optimizer=sgd", "optimizer.lr=0.25", "trainer.max_epochs=7"]
RECIPE += ["callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=3", "augment.mixup=0.5", "tags=[a]"]


@pytest.fixture(scope="module")
def recipe():
    return to_plain(compose(RECIPE))


@pytest.fixture
def run(tmp_path, recipe):
    """The folder of a run that was made with many things other than they are by themselves."""
    record = RunRecord.create(tmp_path, "word")
    record.update(status="finished")
    record.write_config(recipe)
    return record


def changes(run, *overrides):
    """What differs from the run, as {key: new value}, and the configuration."""
    before, after = flatten(run.config), flatten(to_plain(compose([f"like={run.path}", *overrides])))
    assert after.pop("like") == str(run.path)
    return {key: value for key, value in after.items() if before.get(key, "nothing") != value}


def test_nothing_typed_changes_nothing(run):
    assert changes(run) == {}


def test_a_sweep_that_is_chosen_starts_from_the_run(run):
    found = points("train", [f"like={run.path}", "sweep=seeds"], multirun=True)
    assert [point.varies for point in found] == [{"seed": seed} for seed in "01234"]
    assert {point.config.optimizer.lr for point in found} == {0.25}
    (search,) = points("train", [f"like={run.path}", "sweep=optuna/lr_wd"], multirun=True)
    assert list(search.space) == ["optimizer.lr", "optimizer.weight_decay"]


@pytest.mark.whole
def test_a_new_run_goes_where_new_runs_go_whatever_the_run_names(run, recipe):
    """Others may have made it."""
    theirs = {"output_dir": "/home/me", "data_dir": "/home/me/.config", "cache_dir": "/home/me/.ssh"}
    run.write_config(recipe | {"paths": theirs})
    assert compose([f"like={run.path}"]).paths == compose([]).paths
    assert compose([f"like={run.path}", "paths.output_dir=other"]).paths.output_dir == "other"
    assert vars(compose([f"resume={run.path}"]).paths) == theirs  # where its data was


@pytest.mark.whole
@pytest.mark.parametrize(
    ("overrides", "changed"),
    sampled(
        [
            (["seed=3"], {"seed": 3}),
            (["seed=0", "data=mnist"], {}),
            (["trainer.max_epochs=50"], {"trainer.max_epochs": 50}),
            (["position=learned"], {"model.position": "learned"}),
            (["patch=7"], {"model.patch_size": 7}),
            (["data.image_size=32"], {"data.image_size": 32, "model.image_size": 32}),
            (["callbacks=default"], {"callbacks.early_stopping": None}),
            (["tags=[]", "augment.mixup=0"], {"tags": [], "augment.mixup": 0}),
        ],
        every=4,
    ),
)
def test_what_is_typed_changes_and_what_follows_from_it(run, overrides, changed):
    assert changes(run, *overrides) == changed


@pytest.mark.whole
def test_a_group_takes_its_file_as_hydra_would(run):
    assert changes(run, "optimizer=adamw") == {
        "optimizer.name": "adamw",
        "optimizer.lr": compose(["data=mnist", "model=vit_nano"]).optimizer.lr,
        "optimizer.weight_decay": 0.05,
        "optimizer.betas": [0.9, 0.999],
        "optimizer.momentum": None,
    }
    changed = changes(run, "data=cifar10", "patch=4")
    plain = flatten(to_plain(compose(["data=cifar10"])))
    assert {key: value for key, value in changed.items() if key.startswith("data.")} == {
        key: plain[key] for key in ("name", "image_size", "in_channels", "epochs", "mean", "std", "flip")
        for key in [f"data.{key}"]
    }  # fmt: skip
    assert (changed["model.image_size"], changed["model.in_channels"]) == (32, 3), (
        "the model is made for the new images"
    )
    assert not {"trainer.max_epochs", "optimizer.lr", "model.position"} & set(changed)
    assert not [key for key in changed if key.startswith("augment.")], "a file that nobody asked for changes nothing"


@pytest.mark.parametrize(
    ("own", "other", "changed"),
    [
        (["finetune=linear_probe"], ["optimizer=sgd"], {"finetune.head_lr": 0.1, "optimizer.lr": 0.1}),
        (["finetune=linear_probe", "finetune.head_lr=0.3"], ["optimizer=sgd"], {"optimizer.lr": 0.1}),
        (["optimizer=lion"], ["model.dim=100"], {"optimizer.lr": 0.002 / 100}),
    ],
)
def test_learning_rates_follow_the_choices_of_the_run(run, own, other, changed):
    start = ["model=vit_nano", "model.pretrained=vit_tiny_patch16_224"]
    run.write_config(to_plain(compose([*start, *own])))
    assert changes(run) == {}
    found = changes(run, *other)
    assert {key: value for key, value in found.items() if key.endswith("lr")} == changed


def test_a_recipe_takes_what_it_names(run):
    changed = changes(run, "experiment=mnist/quick")
    assert changed["trainer.max_epochs"] == 3
    assert "optimizer.name" not in changed


@pytest.mark.whole
@pytest.mark.parametrize(
    ("other", "choice"),
    [
        ("augment=strong", "augment=none"),
        ("callbacks=[default,ema,early_stopping]", "callbacks=[default]"),
        ("norm_placement=post", "norm_placement=sandwich"),
        ("optimizer=muon", "optimizer=adamw"),
        ("loss=focal", "loss=cross_entropy"),
    ],
)
def test_a_group_keeps_nothing_of_the_run_s_other_choice(run, other, choice):
    run.write_config(to_plain(compose(["model=vit_nano", "augment=none", other])))
    config, plain = compose([f"like={run.path}", choice]), compose(["model=vit_nano", "augment=none", choice])
    assert to_plain(config) == to_plain(plain) | {"like": str(run.path)}


def test_a_group_keeps_what_was_typed_beside_the_run_s_other_choice(run):
    """Also where the file of a third choice has the value: imagefolder that of data.batch_size, post of final_norm."""
    typed = ["model.mlp_ratio=3", "data.batch_size=32", "model.final_norm=false"]
    run.write_config(to_plain(compose(["model=vit_nano", "mlp=swiglu", "norm_placement=sandwich", *typed])))
    assert changes(run, "mlp=gelu", "norm_placement=pre") == {"model.mlp": "gelu", "model.norm_placement": "pre"}
    assert "data.batch_size" not in changes(run, "data=cifar10", "patch=4")


@pytest.mark.whole
def test_a_run_like_one_that_was_logged_is_logged_and_its_guest_can_be_set(run):
    run.write_config(to_plain(compose([*RECIPE, "logger=wandb", "logger.wandb.project=mine"])))
    assert changes(run) == {}
    assert changes(run, "logger=csv") == {"logger.wandb": None}
    assert changes(run, "logger.wandb.mode=offline", "seed=3") == {"logger.wandb.mode": "offline", "seed": 3}
    assert changes(run, "logger=wandb", "logger.wandb.project=mine") == {}
    with pytest.raises(ConfigError, match=r"logger\.wandb is off; turn it on with logger=wandb"):
        compose([f"like={run.path}", "logger=csv", "logger.wandb.mode=offline"])
    with pytest.raises(ConfigError, match=r"callbacks\.ema is off"):
        compose([f"like={run.path}", "callbacks.ema.decay=0.9"])
    overrides = [f"like={run.path}", "seed=1,2", "logger.wandb.mode=offline"]
    assert [one.config.logger.wandb.mode for one in points("train", overrides, multirun=True)] == ["offline"] * 2
    assert launcher(overrides) == "basic"
    with pytest.raises(ConfigError, match=r"logger\.wandb is off"):
        points("train", overrides[1:], multirun=True)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["modle=vit_tiny"], "did you mean model"),
        (["model.heads=5"], "must divide the width"),
        (["resume=x"], "starts a new run, but resume continues an old one"),
        (["patch=3"], "patch=3"),
    ],
)
def test_what_cannot_work_is_reported(run, overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        compose([f"like={run.path}", *overrides])


def test_no_such_run_is_reported_with_the_nearest(run):
    with pytest.raises(ConfigError, match=f"is not a folder; did you mean {run.path}"):
        compose([f"like={run.path}x"])


def test_a_configuration_of_another_version_is_reported_by_its_keys(run):
    values = run.config
    values["model"]["no_such_key"] = 1
    values["trainer"]["max_epochs"] = "many"
    run.write_config(values)
    with pytest.raises(ConfigError) as caught:
        compose([f"like={run.path}"])
    assert {fault.key for fault in caught.value.faults} == {"model.no_such_key", "trainer.max_epochs"}
    assert "another version" in str(caught.value)


def test_a_key_that_the_run_did_not_know_is_as_it_is_by_itself(run):
    values = run.config
    del values["data"]["workers"], values["callbacks"]["monitor"]
    run.write_config(values)
    assert compose([f"like={run.path}"]).callbacks.monitor == "val/acc"


def test_a_damaged_configuration_is_reported(run):
    values = run.config
    (run.path / "config.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"like=.*\n.*cannot read"):
        compose([f"like={run.path}"])
    run.write_config(values | {"model": 3})
    with pytest.raises(ConfigError, match="another version"):
        compose([f"like={run.path}"])


def test_resume_composes_to_the_runs_configuration_with_what_may_change(run):
    config = compose([f"resume={run.path}", "trainer.max_epochs=9", "accelerator=cpu", "logger=tensorboard"])
    before, after = flatten(run.config), flatten(to_plain(config))
    assert {key for key in before if before[key] != after.get(key)} == {
        "trainer.max_epochs",
        "trainer.accelerator",
        "resume",
    }
    assert config.logger.tensorboard is not None
    assert compose([f"resume={run.path}", "position=rope"]).model.position == "rope", "it is the run's value"


def test_what_may_not_change_on_resume_is_refused_with_what_may(run):
    with pytest.raises(ConfigError) as caught:
        compose([f"resume={run.path}", "position=learned", "data.val_seed=1", "tags=[b]", "trainer.max_epochs=9"])
    faults = caught.value.faults
    assert [(fault.key, fault.given) for fault in faults] == [
        ("model.position", "learned"),
        ("data.val_seed", "1"),
        ("tags", "['b']"),
    ]
    assert faults[0].problem.startswith("is rope in the run, and cannot change on resume; what can: data.root, ")
    assert ", logger, " in faults[0].problem


@pytest.mark.parametrize("key", ["like", "resume"])
@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ({"[trust]": ["os"]}, "[trust]"),
        ({"launcher.setup": ["touch x"]}, "launcher.setup"),
        ({"no_such_key": 1}, "no_such_key"),
        ({5: 1}, "5"),
    ],
)
def test_a_run_folder_sets_only_keys_of_runs(run, key, planted, name):
    run.write_config(run.config | planted)
    with pytest.raises(ConfigError) as caught:
        compose([f"{key}={run.path}"])
    assert [fault.key for fault in caught.value.faults] == [name]


def test_a_nested_key_of_a_run_folder_reaches_no_other_key(run):
    values = run.config
    values["model"]["[depth]"] = 3
    run.write_config(values)
    with pytest.raises(ConfigError) as caught:
        compose([f"like={run.path}"])
    assert [fault.key for fault in caught.value.faults] == ["model.[depth]"]


def test_a_run_folder_grants_no_trust_by_a_key_in_brackets(run):
    values = run.config | {"[trust]": ["os"]}
    values["callbacks"]["parts"] = ["os.system"]
    run.write_config(values)
    with pytest.raises(ConfigError):
        compose([f"like={run.path}"])


def test_how_a_run_was_launched_and_trusted_is_not_inherited(run):
    launch = {"launcher": {"setup": ["touch x"], "sbatch": ["--x"]}, "sweep": {"space": {"seed": [1, 2]}}}
    run.write_config(run.config | launch | {"rerun": True, "trust": ["os"], "allow_changed_code": True})
    (point,) = points("train", [f"like={run.path}"], multirun=True)
    assert (point.config.launcher.setup, point.config.launcher.sbatch, point.config.rerun) == ([], [], False)
    assert (point.config.trust, point.config.allow_changed_code) == ([], False)


@pytest.mark.parametrize("key", ["like", "resume"])
def test_a_run_folder_reads_no_environment(run, key, monkeypatch):
    monkeypatch.setenv("SECRET_OF_A_TEST", "hunter2")
    values = run.config | {"name": "${oc.env:SECRET_OF_A_TEST}"}
    values["model"]["position"] = "${oc.env:SECRET_OF_A_TEST}"
    run.write_config(values)
    with pytest.raises(ConfigError, match="is an interpolation") as caught:
        compose([f"{key}={run.path}"])
    assert {fault.key for fault in caught.value.faults} == {"name", "model.position"}
    assert "hunter2" not in str(caught.value)


def test_a_computed_key_of_another_type_is_converted(run):
    values = run.config
    values["model"]["num_classes"] = str(values["model"]["num_classes"])
    run.write_config(values)
    assert compose([f"like={run.path}"]).model.num_classes == 10
