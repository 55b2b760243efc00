"""What users of Hydra type: it works, or it is refused with what to type instead; it never trains by surprise."""

import hydra
import pytest
from helpers.running import SMALL

from vitrine import compose
from vitrine.cli.flags import parse_flags
from vitrine.errors import ConfigError

QUICK = [*SMALL, "debug=quick", "accelerator=cpu", "trainer.compile=nothing"]


@pytest.fixture
def mine(tmp_path):
    """A folder of configurations of the user's own."""
    texts = {
        "experiment/mine": "# @package _global_\ndefaults:\n  - override /model: small\n\nseed: 7\n",
        "model/small": "dim: 32\ndepth: 1\nheads: 2\n",
        "position/turned": "# @package model\nposition: rope\n",
        "night": "defaults:\n  - train\n  - _self_\n\nseed: 3\n",
    }
    for name, text in texts.items():
        path = tmp_path / "mine" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "mine"


@pytest.mark.whole
def test_a_run_goes_where_hydra_run_dir_says(train, tmp_path):
    done = train(*QUICK, "hydra.run.dir=here/${model.position}")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("run.json")] == [
        (tmp_path / "here/sincos2d/run.json").relative_to(tmp_path)
    ]
    assert "run folder           here/sincos2d" in done.stdout

    again = train(*QUICK, "hydra.run.dir=here/sincos2d")
    assert again.returncode == 1
    assert "here/sincos2d" in again.stderr


@pytest.mark.whole
def test_a_sweep_and_its_trials_go_where_hydra_sweep_says(train, tmp_path):
    where = ["hydra.sweep.dir=night", "hydra.sweep.subdir=${hydra.job.num}"]
    done = train("-m", *QUICK, *where, "seed=0,1")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.parent.name for path in (tmp_path / "night").glob("*/run.json")) == ["0", "1"]
    assert {path.name for path in tmp_path.iterdir()} == {"night"}

    again = train("-m", *QUICK, *where, "seed=0,1")
    assert "already finished" in again.stdout, "the trials are found by what they are"
    other = train("-m", *QUICK, *where, "seed=2,1")
    assert other.returncode == 1
    assert "night/0 belongs to another trial" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-m", "seed=0,1", "hydra.sweep.subdir=same"], ["hydra.sweep.subdir=same", "several trials share this one"]),
        (["-m", "seed=0,1", "hydra.run.dir=x"], ["hydra.run.dir", "hydra.sweep.dir=DIR"]),
        (["hydra.sweep.dir=x"], ["hydra.sweep.dir", "hydra.run.dir=DIR"]),
        (["hydra.run.dir=a,b"], ["hydra.run.dir=a,b", "takes one value"]),
        (["-m", "seed=0,1", "hydra.sweep.dir=a,b"], ["hydra.sweep.dir=a,b", "takes one value"]),
        (["-m", "hydra/launcher=process,slurm"], ["hydra/launcher=process,slurm", "takes one value"]),
        (["callbacks.ema={dcay:0.9}"], ["callbacks.ema.dcay", "did you mean callbacks.ema.decay?"]),
        (["logger.wandb={mode:[1]}"], ["logger.wandb.mode=[1]", "must be a string"]),
        (["data.std=${seed}"], ["data.std=0", "must be a list of numbers"]),
        (["data.mean=${tags}", "tags=[a]"], ["data.mean=['a']", "must be a list of numbers"]),
        (["optimizer.betas=${seed}"], ["optimizer.betas=0", "must be a list of numbers, such as [0.5], or null"]),
        (["data.targets=${seed}"], ["data.targets=0", "must be a list of strings"]),
        (["callbacks.metrics=${seed}"], ["callbacks.metrics=0", "must be a list of strings"]),
        (["model.position_options=${seed}"], ["model.position_options=0", "must be a mapping"]),
        (["callbacks.ema=${seed}"], ["callbacks.ema=0", "is a section; its keys are callbacks.ema.decay"]),
        (["-m", "depth=1,2", "sweep.space=${seed}"], ["sweep.space=0", "must be a mapping"]),
        (["hydra.run.dir="], ["hydra.run.dir\n", "is empty"]),
        (["-m", "seed=0,1", "hydra.sweep.dir=x", "sweep.name=y"], ["sweep.name=y", "with hydra.sweep.dir=x"]),
        (["-m", "seed=0,1", "hydra.sweep.dir="], ["hydra.sweep.dir\n", "is empty"]),
        (["=5"], ["  =5\n", "is not of the form key=value"]),
        (["hydra.run.dir=${nothing}"], ["hydra.run.dir", "nothing"]),
        (["hydra.job.chdir=true"], ["hydra.job.chdir", "hydra.run.dir=DIR"]),
        (["-p", "model"], ["--package=model", "--cfg job --package model"]),
        (["--resolve"], ["--resolve", "--cfg job --resolve"]),
        (["--experimental-rerun", "x.pickle"], ["--experimental-rerun", "like=RUN"]),
        (["--config-path", "mine"], ["--config-path", "--config-dir=mine"]),
        (["--config-name", "other"], ["--config-name=other", "--config-dir=DIR"]),
        (["--config-name", "mine", "like=RUN"], ["--config-name=mine", "has no effect with like="]),
        (["--config-dir", "nowhere"], ["--config-dir=nowhere", "is not a folder"]),
        (["--config-dir"], ["--config-dir", "expected one argument"]),
        (["--multrun"], ["--multrun", "did you mean --multirun?"]),
        (["--seed=3"], ["--seed=3", "did you mean seed=3?"]),
        (["--num-epochs", "2"], ["--num-epochs", "did you mean trainer.max_epochs?"]),
        (["--cfg", "jbo"], ["--cfg", "invalid choice"]),
        (["--cfg", "job", "-p", "modle"], ["--package=modle", "model, data"]),
        (["--shell-completion"], ["install=bash"]),
        (["-m", "--cfg", "job", "seed=0,x"], ["seed=x", "must be a whole number"]),
        (["debug=quick", "model.heads=5"], ["model.heads=5", "must divide the width"]),
        (["debug=quick", "resume=outputs/none"], ["resume=outputs/none", "is not a folder"]),
        (["image_size=32"], ["did you mean data.image_size?"]),
        (["patch=5", "data.image_size=10"], ["did you mean model.patch_size=5?"]),
        (["depth=5"], ["did you mean model.depth=5?"]),
        (["+new.key=1"], ["new.key", "there is no such key"]),
        (["nonsense=1"], ["nonsense", "there is no such key or group"]),
        (["~callbacks"], ["did you mean callbacks=default?"]),
        (["~logger"], ["did you mean logger=csv?"]),
        (["-m", "seed=0,1", "hydra/sweeper=optuna"], ["did you mean sweep=optuna/lr_wd?"]),
        (["experiment/mnist=quick"], ["is a folder in the group", "did you mean experiment=mnist/quick?"]),
        (["+experiment/mnist=quick"], ["did you mean experiment=mnist/quick?"]),
        (["-m", "experiment=glob(cifar10/*t)"], ["did you mean experiment=cifar10/best,cifar10/fast?"]),
        (["-m", "seed=0,1", "hydra/launcher=joblib"], ["did you mean hydra/launcher=process?"]),
    ],
)
def test_what_cannot_work_gets_one_clear_fault_and_leaves_nothing(vitrine, tmp_path, arguments, named):
    code, out, err = vitrine("train", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("vitrine: invalid configuration:\n")
    assert "Traceback" not in err
    assert "usage:" not in err
    for text in named:
        assert text in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["debug=traceback"],
        ["debug=[quick,traceback]"],
        ["debug=quick", "debug.traceback=true"],
        ["++debug.traceback=True"],
        ["debug.traceback=1", "sed=3"],
        ["experiment=loud"],
        ["-m", "experiment=loud", "seed=0,1"],
    ],
)
def test_only_debug_traceback_shows_tracebacks(vitrine, tmp_path, overrides):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/loud.yaml").write_text("# @package _global_\ndebug:\n  traceback: true\n")
    assert "Traceback" in vitrine("train", *overrides, "model.heads=5")[2]


@pytest.mark.parametrize("others", [[], ["sed=3"]])
def test_a_setting_of_tracebacks_that_cannot_be_resolved_is_a_fault(vitrine, others):
    code, out, err = vitrine("train", "debug.traceback=${oc.env:NOPE_X}", *others)
    assert (code, out) == (2, "")
    assert err.startswith("vitrine: invalid configuration")
    assert "debug.traceback" in err
    assert all(other.partition("=")[0] in err for other in others)
    assert "Traceback" not in err
    assert "object_type" not in err


def test_files_that_cannot_be_composed_are_composed_once(vitrine, tmp_path, monkeypatch):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/broken.yaml").write_text("# @package _global_\ntrainer: 3\n")
    composed, compose = [], hydra.compose
    monkeypatch.setattr(hydra, "compose", lambda *args, **options: composed.append(args) or compose(*args, **options))
    code, _, err = vitrine("train", "-m", "experiment=broken", "seed=0,1")
    assert code == 2
    assert "experiment/broken.yaml" in err
    assert len(composed) == 1


def test_cfg_prints_what_would_be_trained(vitrine):
    code, out, _ = vitrine("train", "-p", "model", "--cfg", "job", "model=vit_nano", "--resolve")
    assert code == 0
    assert out.startswith("# @package model\n")
    assert "\nimage_size: 8\n" in out
    assert vitrine("train", "--cfg=job", "--package=data.image_size")[1] == "8\n"
    assert vitrine("train", "tags=night", "--cfg", "job", "-p", "tags")[1] == "# @package tags\n- night\n"
    assert vitrine("train", "-m", "--cfg", "job", "-p", "seed", "seed=5,6")[1] == "# run 1 of 2: seed=5\n5\n"
    off = ["callbacks.ema={decay:0.5}", "callbacks.early_stopping={patience:3}", "logger.wandb={mode:offline}"]
    assert vitrine("train", "--cfg", "job", "-p", "callbacks.ema", *off)[1] == "# @package callbacks.ema\ndecay: 0.5\n"
    assert vitrine("train", "--cfg", "job", "-p", "logger.wandb.project", *off)[1] == "vitrine\n"
    assert "\nhydra:" in "\n" + vitrine("train", "--cfg", "all")[1]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--hydra-help"], "== Flags =="),
        (["--info", "defaults-tree", "position=torch.nn.Identity"], "train_schema"),
        (["--info"], "Installed Hydra Plugins"),
        (["-i", "seed=3"], "Installed Hydra Plugins"),
        (["--version"], "vitrine "),
    ],
)
def test_what_prints_does_not_train(train, tmp_path, arguments, printed):
    done = train(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--cfg", "job", "--resolve", "name=${nothing}"], "name"),
        (["--cfg", "job", "-p", "name", "name=${nothing}"], "name"),
        (["--cfg", "hydra", "--resolve", "hydra.run.dir=${nothing}"], "hydra.run.dir"),
        (["--help", "--resolve", "data=imagefolder"], "model.num_classes"),
        (["--cfg", "job", "seed=0,1"], "seed=0,1"),
        (["--cfg", "hydra", "seed=0,1"], "seed=0,1"),
    ],
)
def test_what_cannot_be_printed_is_one_fault(vitrine, arguments, key):
    code, out, err = vitrine("train", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"vitrine: invalid configuration:\n  {key}\n")


def test_a_folder_of_the_users_own_adds_choices(vitrine, mine):
    arguments = ["--config-dir", "mine", "--cfg", "job", "-p"]
    assert vitrine("train", "experiment=mine", *arguments, "seed")[1] == "7\n"
    assert vitrine("train", "experiment=mine", *arguments, "model.dim")[1] == "32\n"
    assert vitrine("train", "position=turned", "-cd", "mine", *arguments[2:], "model.position")[1] == "rope\n"
    assert vitrine("train", "--config-name", "night", *arguments, "seed")[1] == "3\n"
    assert compose(["experiment=mine"], config_dir=str(mine)).seed == 7
    code, out, err = vitrine("train", "--config-name", "nigth", *arguments, "seed")
    assert (code, out) == (2, "")
    assert "at its top level: night" in err
    (mine / "alone.yaml").write_text("seed: 3\n")
    assert "its defaults begin with `- train`" in vitrine("train", "--config-name", "alone", *arguments, "seed")[2]
    (mine / "position" / "astray.yaml").write_text("position: rope\n")
    (mine / "position" / "broken.yaml").write_text("position: [rope\n  x: : y\n")
    assert (
        f"{mine}/position/broken.yaml\n      is not valid YAML: line 2"
        in vitrine("train", "position=broken", *arguments, "seed")[2]
    )
    assert "`# @package model`" in vitrine("train", "position=astray", *arguments, "seed")[2]


def test_a_name_that_vitrine_has_is_refused(vitrine, mine):
    (mine / "model" / "vit_nano.yaml").write_text("dim: 3\n")
    code, _, err = vitrine("train", "--config-dir", "mine", "--cfg", "job")
    assert code == 2
    assert f"{mine}/model/vit_nano.yaml\n      vitrine has a file of this name" in err
    assert "vitrine has" not in vitrine("predict", "--config-dir", "mine", "run=none")[2], "it has no groups"


def test_conf_in_the_working_directory_is_used_and_reported(vitrine, mine):
    conf = mine.rename(mine.with_name("conf"))
    code, out, err = vitrine("train", "experiment=mine", "--cfg", "job", "-p", "seed")
    assert (code, out) == (0, "7\n")
    assert err == f"vitrine: configuration files of {conf} are used too\n"

    (conf / "train.yaml").write_text("defaults:\n  - train_schema\n")
    assert vitrine("train", "--cfg", "job", "-p", "seed")[1:] == ("0\n", ""), "a checkout's conf/ is vitrine's"


@pytest.mark.parametrize(
    ("module", "allowed"),
    [("my_allowed_part", ["trust=[my_allowed_part]"]), ("my_typed_part", ["--config-dir", "conf"])],
)
def test_code_that_a_found_conf_names_is_imported_only_if_that_is_allowed(vitrine, tmp_path, module, allowed):
    (tmp_path / "conf" / "position").mkdir(parents=True)
    (tmp_path / "conf" / "position" / "mine.yaml").write_text(f"# @package model\nposition: {module}.Position\n")
    imported = tmp_path / "imported"
    text = f"from pathlib import Path\n\nPath({str(imported)!r}).touch()\n\nclass Position: ...\n"
    (tmp_path / f"{module}.py").write_text(text)
    code, out, err = vitrine("train", "position=mine")
    assert (code, out, imported.exists()) == (2, "", False)
    assert f"trust=[{module}.Position]" in err
    code, out, err = vitrine("train", "position=mine", *allowed)
    assert (code, out, imported.exists()) == (2, "", True)
    assert "must be callable as Position(config, **options)" in err


def test_an_unquoted_path_with_signs_is_one_path(vitrine, tmp_path):
    folder = tmp_path / "sweeps" / "position=learned,seed=0_31f1"
    folder.mkdir(parents=True)
    code, _, err = vitrine("eval", f"run={folder.relative_to(tmp_path)}")
    assert code == 1
    assert err.startswith("vitrine: sweeps/position=learned,seed=0_31f1 is not a run folder")
    code, _, err = vitrine("train", "resume=sweeps/position=learned,seed=9")
    assert "resume=sweeps/position=learned,seed=9\n      sweeps/position=learned,seed=9 is not a folder" in err


@pytest.mark.parametrize(
    ("command", "flag", "key"),
    [
        ("train", "--ckpt-path", "resume"),
        ("eval", "--ckpt-path", "run"),
        ("predict", "--ckpt-path", "run"),
        ("train", "--checkpoint", "resume"),
        ("eval", "--checkpoint", "checkpoint"),
        ("predict", "--allow-changed-code", "allow_changed_code"),
    ],
)
def test_a_flag_of_another_tool_is_answered_with_the_commands_own_key(command, flag, key):
    with pytest.raises(ConfigError, match=rf"did you mean {key}\?"):
        parse_flags([flag, "x.ckpt"], command)
