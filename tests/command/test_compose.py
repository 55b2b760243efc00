import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from helpers.hub_files import write_hub_dataset
from helpers.levels import sampled
from helpers.user_parts import enter_lab

import vitrine
from vitrine.command.compose import composing, launcher, points
from vitrine.command.output_dirs import place
from vitrine.command.sources import Sources
from vitrine.config.schema import OWN_FILES
from vitrine.config.validate import PIXELS
from vitrine.distributed.hardware import gpus
from vitrine.errors import ConfigError, Fault
from vitrine.sweeps.sweep import Sweep

CONF = Path(__file__).parents[2] / "conf"
# Groups whose options need further overrides, or are several files or large ones; test_plain_values.py has the others.
GROUPS = {"accelerator", "data", "debug", "experiment", "finetune", "model", "patch"}
OPTIONS = sorted(
    (group.name, option.relative_to(group).with_suffix("").as_posix())
    for group in CONF.iterdir()
    if group.name in GROUPS
    for option in group.rglob("*.yaml")
    if option.stem != "base"
)


WITH_BETAS = "adamw, adam, muon, lamb, lion and schedule_free"


@pytest.fixture
def pictures(tmp_path):
    """A folder of three classes, as data=imagefolder needs one."""
    for name in ("aster", "rose", "tulip"):
        (tmp_path / "pictures" / "train" / name).mkdir(parents=True)
        (tmp_path / "pictures" / "train" / name / "a.png").touch()
    return tmp_path / "pictures"


@pytest.fixture
def own_files(pictures):
    """Data sets of the user's own images, by the name of their source."""
    table = pictures / "pictures.csv"
    table.write_text("path,label\ntrain/aster/a.png,aster\ntrain/rose/a.png,rose\n")
    return {"imagefolder": pictures, "csv": table, "huggingface": write_hub_dataset(pictures / "hub", train=2)}


def test_there_are_options_to_compose():
    assert {group for group, _ in OPTIONS} == GROUPS
    assert ("model", "vit_tiny") in OPTIONS


@pytest.mark.parametrize(
    ("group", "option"), sampled(OPTIONS, every=6), ids=[f"{group}={option}" for group, option in OPTIONS]
)
@pytest.mark.whole
def test_every_option_of_a_group_composes(compose, pictures, own_files, group, option):
    overrides = [f"{group}={option}"]
    if group == "patch":
        overrides += ["data.image_size=112"]  # all patch sizes divide it
    if option in OWN_FILES:
        overrides += [f"data.root={own_files[option]}"]
    if group == "experiment" and "vit_base" in option:
        overrides += [f"data.root={pictures}"]
    if group == "finetune" and option != "full":
        overrides += ["model.pretrained=vit_tiny_patch16_224"]
    wants_gpu = (group, option) in {("accelerator", "gpu"), ("accelerator", "multi_gpu")}
    wants_gpu = wants_gpu or "override /accelerator: gpu" in (CONF / group / f"{option}.yaml").read_text()
    if wants_gpu and not gpus():
        with pytest.raises(ConfigError, match="there is no GPU here that PyTorch can use"):
            compose(*overrides)
    else:
        config = compose(*overrides)
        assert config.model.image_size == config.data.image_size


def test_an_override_changes_what_its_group_stands_for(compose, pictures):
    default = compose()
    assert (default.data.name, default.model.dim, default.model.depth, default.seed) == ("digits", 192, 12, 0)
    assert compose("model=vit_nano").model.dim == 64
    assert compose("depth=6").model.depth == 6
    assert compose("patch=4").model.patch_size == 4
    assert compose("data=mnist").model.image_size == 28
    assert compose("data=cifar100").model.num_classes == 100
    assert compose("position=learned").model.position == "learned"
    cls = compose("pool=cls").model
    assert (cls.pool, cls.class_token) == ("cls", True)
    assert compose("optimizer=sgd").optimizer.momentum == 0.9
    assert compose("callbacks=[default,ema]").callbacks.ema.decay == 0.999
    assert compose("model.residual=false").model.drop_path == 0.0
    assert compose("debug=quick").trainer.max_epochs == 1
    assert compose("data=imagefolder", f"data.root={pictures}").model.num_classes == 3


@pytest.mark.parametrize(
    ("given", "near"),
    [("model=vit_nano seed=1", "compose(['model=vit_nano', 'seed=1'])"), ([1], "")],
)
def test_overrides_that_are_no_list_of_strings_are_one_fault(given, near):
    with pytest.raises(ConfigError) as caught:
        vitrine.compose(given)
    assert caught.value.faults == [Fault("overrides", str(given), "must be a list of strings", near)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["patch=7"],
            Fault("model.patch_size", "7", "must divide the image size, 8: 1, 2, 4, 8", "model.patch_size=8"),
        ),
        (
            ["model=vit_nano", "model.heads=3"],
            Fault("model.heads", "3", "must divide the width, model.dim=64: 1, 2, 4, 8, 16, 32, 64", "model.heads=2"),
        ),
        (
            ["model.dim=66", "position=sincos2d"],
            Fault("model.dim", "66", "must be divisible by 4 for model.position=sincos2d", "model.dim=72"),
        ),
        (
            ["data.batch_size=63", "trainer.devices=2"],
            Fault("data.batch_size", "63", "must be divisible by trainer.devices=2"),
        ),
        (
            ["optimizer=sgd", "optimizer.betas=[0.9,0.99]"],
            Fault(
                "optimizer.betas",
                "[0.9, 0.99]",
                f"belongs to {WITH_BETAS}, not to optimizer=sgd",
            ),
        ),
        (
            ["optimizer.momentum=0.9"],
            Fault("optimizer.momentum", "0.9", "belongs to sgd and muon, not to optimizer=adamw"),
        ),
        (["optimizer.lr=nan"], Fault("optimizer.lr", "nan", "must be finite and > 0 and <= 100")),
        (["data.mean=[inf]"], Fault("data.mean", "[inf]", "must be finite")),
        (["data.mean=[123.7]"], Fault("data.mean", "[123.7]", PIXELS)),
        (
            ["seed=1,2"],
            Fault("seed", "1,2", "has several values; python train.py -m ... runs them sequentially"),
        ),
    ],
)
def test_what_does_not_go_together_is_refused(refusal, overrides, expected):
    assert refusal(*overrides) == [expected]


def test_faults_of_overrides_and_of_the_whole_are_reported_together(refusal):
    found = refusal("lr=3", "model=vit_mini", "patch=7", "model.heads=5", "data.batch_size=x", "optimizer.lr=-1")
    assert {fault.key for fault in found} == {
        "lr",
        "model",
        "model.patch_size",
        "model.heads",
        "data.batch_size",
        "optimizer.lr",
    }


@pytest.mark.parametrize(
    ("choice", "key", "nearest", "others"),
    [
        ("data=image_folder", "data.train_size=2", "data=imagefolder", {"data.root", "data.train_size"}),
        ("optimizer=sdg", "optimizer.momentum=0.9", "optimizer=sgd", set()),
        ("patch=5", "data.image_size=10", "model.patch_size=5", set()),
        ("patch=5", "data.image_size=12", "model.patch_size=5", {"model.patch_size"}),
        ("callbacks=[ema,early_stoping]", "callbacks.ema.decay=0.9", "callbacks=early_stopping", set()),
    ],
)
def test_beside_an_unknown_choice_keys_are_checked_against_the_nearest(refusal, choice, key, nearest, others):
    unknown, *found = refusal(choice, key)
    assert unknown.nearest == nearest
    assert {fault.key for fault in found} == others
    assert not any("digits" in fault.problem for fault in found)


def test_a_value_that_cannot_be_read_is_not_also_reported_as_missing(refusal):
    (fault,) = refusal("data=imagefolder", "data.root=~nobody.there/x")
    assert fault.problem.startswith("cannot be read: unexpected '~'")


def test_a_missing_folder_of_images_is_reported_with_the_nearest(refusal, pictures):
    (fault,) = refusal("data=imagefolder", f"data.root={pictures}s")
    assert (fault.key, fault.given) == ("data.root", f"{pictures}s")
    assert fault.problem == f"{pictures}s is not a folder; did you mean {pictures}?"


def test_more_combinations_than_a_sweep_has_trials_are_refused_before_they_are_made():
    swept = ["seed=range(0,50)", "data.val_seed=range(0,50)", "data.subset_seed=range(0,50)"]
    with pytest.raises(ConfigError) as caught:
        points("train", swept, multirun=True)
    problem = "are 125,000 combinations; a sweep has at most 100,000 trials"
    assert caught.value.faults == [Fault(" ".join(swept), "", problem)]


def test_every_trial_of_a_multirun_is_checked_before_any_runs():
    with pytest.raises(ConfigError) as error:
        points("train", ["model=vit_nano", "model.heads=4,5", "data.batch_size=64,0"], multirun=True)
    assert sorted((fault.key, fault.given) for fault in error.value.faults) == [
        ("data.batch_size", "0"),
        ("model.heads", "5"),
    ]
    made = points("train", ["model=vit_nano", "model.heads=2,4", "seed=range(0,3)"], multirun=True)
    assert sorted((point.config.model.heads, point.config.seed) for point in made) == [
        (h, s) for h in (2, 4) for s in range(3)
    ]


CHECK = """
import sys, vitrine
import vitrine.config
from vitrine.errors import ConfigError
config = vitrine.compose(["model=vit_nano"])
try:
    vitrine.compose(["model=vit_nan"])
except ConfigError:
    print(config.model.dim, *(name for name in ("torch", "torchvision", "lightning") if name in sys.modules))
"""


def test_a_configuration_is_composed_and_checked_without_importing_torch(tmp_path):
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("64\n", 0), done.stderr


@pytest.mark.whole
@pytest.mark.parametrize(
    "varying",
    sampled(
        [
            ["model.dim=64,128", "optimizer.lr=0.001,1e-2"],  # the rate is computed from the width, if not given
            ["model.drop_path=0,0.2", "seed=0,3", "trainer.deterministic=true,false"],
            ["model.dim=64,128", "schedule.warmup=0.1,0.2"],
            ["data.image_size=8,16", "patch=2,4", "model.init=paper,torch"],
            ["optimizer.lr=1e-3,1e-2", "optimizer.weight_decay=${optimizer.lr},0"],
        ],
        every=4,
    ),
    ids=" ".join,
)
def test_each_trial_of_a_grid_is_what_its_overrides_compose_to(varying):
    made = points("train", ["model=vit_nano", *varying], multirun=True)
    assert len(made) == 2 ** len(varying)
    for point in made:
        (alone,) = points("train", point.overrides, multirun=False)
        assert point.config == alone.config
        assert type(point.config.optimizer.lr) is float


def test_limits_hold_for_each_trial_of_a_grid():
    with pytest.raises(ConfigError) as error:
        points("train", ["model=vit_nano", "model.drop_path=0,0.5,1", "augment.crop=1,8"], multirun=True)
    assert sorted((fault.key, fault.given) for fault in error.value.faults) == [
        ("augment.crop", "8"),
        ("model.drop_path", "1.0"),
    ]


def test_a_command_composes_each_choice_of_files_once(tmp_path, monkeypatch):
    """A run's values and where it goes, and the launcher of a sweep, come from the same compositions."""
    chosen, compose = [], hydra.compose

    def watched(name, overrides, **options):
        chosen.append(overrides)
        return compose(name, overrides, **options)

    monkeypatch.setattr("hydra.compose", watched)
    swept = ["model=vit_nano", "position=learned,rope", "seed=0,1"]
    with composing(Sources.choose(str(tmp_path))):
        place(points("train", ["model=vit_nano", "seed=3"], multirun=False), multirun=False)
        assert chosen == [["model=vit_nano"]]
        place(points("train", swept, multirun=True), multirun=True)
        assert launcher(swept) == "basic"
    assert chosen[1:] == [["model=vit_nano", "position=learned"]], "its other trials are copies"


def test_a_composition_that_is_used_again_is_as_it_was(compose):
    before = compose("model=vit_nano")
    compose("model=vit_nano", "depth=3", "tags=[a]", "data.mean=[0.25]")
    assert compose("model=vit_nano") == before


def test_interpolations_of_paths_are_resolved_whatever_else_varies(tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", str(tmp_path))
    outputs = "paths.output_dir=${oc.env:HERE}/${seed}"
    assert [point.config.paths.output_dir for point in points("train", [outputs], multirun=False)] == [f"{tmp_path}/0"]
    roots = ["data=mnist", "data.root=${oc.env:HERE}/a,b", "seed=1"]
    varied = [point.config for point in points("train", [outputs, *roots], multirun=True)]
    assert [config.data.root for config in varied] == [f"{tmp_path}/a", "b"]
    assert {config.paths.output_dir for config in varied} == {f"{tmp_path}/1"}


def test_only_a_training_needs_a_folder_to_write_to():
    nowhere = ["model=vit_nano", "paths.output_dir=/proc/runs"]
    assert vitrine.compose(nowhere).paths.output_dir == "/proc/runs"  # to look at a model, as summary does
    with pytest.raises(ConfigError, match=r"paths.output_dir=/proc/runs\s+cannot write to"):
        points("train", nowhere, multirun=False)


def test_the_folder_that_is_written_to_must_be_writable_and_no_other(tmp_path):
    def placed(*arguments):
        return place(points("train", ["seed=0,1", *arguments], multirun=True), multirun=True)[0].folder

    assert placed("paths.output_dir=/proc/runs", f"hydra.sweep.dir={tmp_path}/here") == tmp_path / "here"
    with pytest.raises(ConfigError, match=r"hydra.sweep.dir=/proc/here\s+cannot write to /proc"):
        placed(f"paths.output_dir={tmp_path}", "hydra.sweep.dir=/proc/here")
    with pytest.raises(ConfigError, match=r"paths.output_dir=/proc/runs\s+cannot write to /proc"):
        placed("paths.output_dir=/proc/runs", "hydra.sweep.subdir=${seed}")


def test_one_choice_at_a_time_with_every_seed_and_data_set():
    given = ["sweep=ablation", "model=vit_nano", "data=digits,mnist", "position=learned,rope,none", "seed=0,1"]
    found = [point.varies for point in points("train", [*given, "patch=2,4", "data.image_size=28"], multirun=True)]
    chosen = [("learned", "2"), ("rope", "2"), ("none", "2"), ("learned", "4")]
    expected = [
        {"data": data, "position": position, "seed": seed, "patch": patch}
        for position, patch in chosen
        for data in ("digits", "mnist")
        for seed in ("0", "1")
    ]
    assert found == expected
    decided = points(
        "train", ["sweep=decide", "sweep.one_at_a_time=true", *given[1:2], *given[3:4], "patch=2,4"], multirun=True
    )
    assert len(decided) == 4
    searched = ["model=vit_nano", "sweep=ablation", "sweep.sampler=random", "sweep.n_trials=2", "patch=2,4"]
    with pytest.raises(ConfigError, match=r"sweep.one_at_a_time=True\n +has no effect in a search"):
        points("train", searched, multirun=True)


def test_a_value_that_no_run_of_an_ablation_would_have_is_refused(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, "lab_of_ablation")
    fourier = "lab_of_ablation.fourier.Fourier"
    given = ["sweep=ablation", "model=vit_nano", "model.position_options.bands=3,4"]
    with pytest.raises(ConfigError, match=r"bands=4\n +never runs with one choice at a time: list the part that takes"):
        points("train", [*given, f"position=rope,{fourier}"], multirun=True)
    found = [point.varies for point in points("train", [*given, f"position={fourier},rope"], multirun=True)]
    assert [own.get("model.position_options.bands") for own in found] == ["3", "4", None]


def test_an_ablation_is_in_the_folder_of_its_grid(tmp_path):
    given = [f"paths.output_dir={tmp_path}", "model=vit_nano", "patch=2,4", "position=learned,rope"]
    folders = {Sweep.plan(points("train", [*given, *more], multirun=True)).folder for more in ([], ["sweep=ablation"])}
    assert len(folders) == 1
