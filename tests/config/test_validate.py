import math
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from pathlib import PurePosixPath

import numpy as np
import pytest

import vitrine
from vitrine.config.augment import RandAugmentConfig
from vitrine.config.loggers import WandbConfig
from vitrine.config.schema import EarlyStoppingConfig, EmaConfig, TrainConfig
from vitrine.config.serialize import from_plain, to_plain
from vitrine.config.validate import PIXELS, train_faults
from vitrine.errors import ConfigError, Fault

PLAIN = "must be a number, text, list or dict of Python's own, not"
SIZE = "must be a whole number, or [height,width]"
OWN_STATISTICS = "`vitrine channel-statistics` prints those of your data"
WITH_BETAS = "adamw, adam, muon, lamb, lion and schedule_free"


@pytest.fixture(scope="module")
def default():
    return vitrine.compose(["model=vit_nano"])


@pytest.fixture
def change(default):
    """The faults of the default configuration with values changed where no command line is in the way."""
    config = deepcopy(default)
    assert train_faults(config) == []

    def call(**changes):
        for path, value in changes.items():
            *sections, leaf = path.split("__")
            target = config
            for section in sections:
                target = getattr(target, section)
            assert hasattr(target, leaf), path
            setattr(target, leaf, value)
        found = train_faults(config)
        changed = {name: value for name, value in vars(config).items() if value != getattr(default, name)}
        assert train_faults(replace(default, **changed), sound=default) == found
        return found

    return call


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("trainer.epochs", 1, Fault("trainer.epochs", "", "there is no such key", "trainer.max_epochs")),
        ("model.dept", 3, Fault("model.dept", "", "there is no such key", "model.depth")),
        ("lr", 0.01, Fault("lr", "", "there is no such key", "optimizer.lr")),
        ("max_epochs", 1, Fault("max_epochs", "", "there is no such key", "trainer.max_epochs")),
        ("augment", "strong", Fault("augment", "strong", "is a section; its keys", "compose(['augment=strong'])")),
        ("model", "vit_tiny", Fault("model", "vit_tiny", "is a section; its keys", "compose(['model=vit_tiny'])")),
        ("trainer", None, Fault("trainer", "null", "is a section; its keys")),
        (
            "optimizer.lr",
            np.float64(0.01),
            Fault("optimizer.lr", "0.01", f"{PLAIN} numpy.float64; its .tolist() is one"),
        ),
        ("seed", np.int32(3), Fault("seed", "3", f"{PLAIN} numpy.int32; its .tolist() is one")),
        ("data.mean", [np.array([0.5])], Fault("data.mean", "[0.5]", f"{PLAIN} numpy.ndarray; its .tolist() is one")),
        (
            "paths.output_dir",
            PurePosixPath("x"),
            Fault("paths.output_dir", "x", f"{PLAIN} pathlib.PurePosixPath; str(...) of it is one"),
        ),
        ("callbacks.early_stopping", True, Fault("callbacks.early_stopping", "true", "is a section; its keys")),
    ],
)
def test_a_key_mistyped_in_python_and_a_word_for_a_section_are_named(default, key, value, fault):
    config = deepcopy(default)
    *sections, leaf = key.split(".")
    setattr(reduce(getattr, sections, config), leaf, value)
    (found,) = train_faults(config)
    assert replace(found, problem=found.problem.partition(" are ")[0]) == fault


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"data__mean": [0.1, 0.2]},
            Fault("data.mean", "[0.1, 0.2]", f"needs 1 value; {OWN_STATISTICS}", "data.mean=[0.15]"),
        ),
        (
            {"data__storage": "disk"},
            Fault(
                "data.storage",
                "disk",
                "is for data=imagefolder, csv and huggingface: data=digits is always read into memory",
            ),
        ),
        (
            {"data__resize": "pad"},
            Fault(
                "data.resize",
                "pad",
                "is for data=imagefolder, csv and huggingface: the images of data=digits are arrays of one size",
            ),
        ),
        (
            {"data__levels": [0, 4095]},
            Fault(
                "data.levels",
                "[0, 4095]",
                "is for data=imagefolder, csv and huggingface: the images of data=digits are of 8 bits",
            ),
        ),
        (
            {"data__crop_pct": 0.9},
            Fault(
                "data.crop_pct",
                "0.9",
                "is for data=imagefolder, csv and huggingface: the images of data=digits are arrays of one size",
            ),
        ),
        (
            {"data__name": "csv", "data__resize": "pad", "data__crop_pct": 0.9},
            Fault("data.crop_pct", "0.9", "belongs to data.resize=crop, not to data.resize=pad"),
        ),
        (
            {"data__train_size": 4},
            Fault(
                "data.train_size",
                "4",
                "is for data=imagefolder, csv and huggingface: the images of data=digits are arrays of one size",
            ),
        ),
        (
            {"data__name": "csv", "data__train_size": [12, 8]},
            Fault(
                "data.train_size",
                "[12,8]",
                "is the size of images that augment.resized_crop crops, and that is null",
                "augment.resized_crop=[0.08,1.0]",
            ),
        ),
        (
            {
                "data__name": "csv",
                "data__train_size": [12, 7],
                "augment__crop": 0,
                "augment__resized_crop": [0.1, 1.0],
            },
            Fault(
                "data.train_size",
                "[12,7]",
                "must be at least data.image_size=8, in height and in width",
                "data.train_size=8",
            ),
        ),
        ({"data__crop_pct": 87.5}, Fault("data.crop_pct", "87.5", "must be >= 0.25 and <= 1")),
        (
            {"schedule__warmup": 5.0},
            Fault(
                "schedule.warmup",
                "5.0",
                "must be >= 0 and < 1: it is a share of all steps, 5 epochs are 5 / trainer.max_epochs",
            ),
        ),
        ({"data__levels": [5, 70_000]}, Fault("data.levels", "[5, 70000]", "must be >= 0 and <= 65535")),
        ({"data__resize": "padd"}, Fault("data.resize", "padd", "is not one of crop, pad, squash", "pad")),
        ({"data__workers": 0}, Fault("data.workers", "0", "must be >= 1 and <= 1024")),
        ({"data__std": []}, Fault("data.std", "[]", f"needs 1 value; {OWN_STATISTICS}")),
        ({"data__std": [0.0]}, Fault("data.std", "[0.0]", "must be > 0")),
        ({"data__std": [58.4]}, Fault("data.std", "[58.4]", PIXELS)),
        ({"data__mean": [123.7]}, Fault("data.mean", "[123.7]", PIXELS)),
        ({"data__mean": [-0.1]}, Fault("data.mean", "[-0.1]", PIXELS)),
        (
            {"data__name": "digit"},
            Fault(
                "data.name",
                "digit",
                "is not one of digits, mnist, fashion_mnist, cifar10, cifar100, imagefolder, csv, huggingface",
                "digits",
            ),
        ),
        ({"data__val_fraction": 1.0}, Fault("data.val_fraction", "1.0", "must be > 0 and < 1")),
        (
            {"optimizer__nesterov": True},
            Fault("optimizer.nesterov", "true", "belongs to sgd, not to optimizer=adamw", "optimizer.nesterov=false"),
        ),
        (
            {"optimizer__name": "sgd", "optimizer__betas": None, "optimizer__momentum": 0, "optimizer__nesterov": True},
            Fault("optimizer.momentum", "0.0", "must be > 0 with optimizer.nesterov=true", "optimizer.momentum=0.9"),
        ),
        (
            {"optimizer__momentum": 0.9},
            Fault("optimizer.momentum", "0.9", "belongs to sgd and muon, not to optimizer=adamw"),
        ),
        (
            {"schedule__gamma": 0.1},
            Fault("schedule.gamma", "0.1", "belongs to step and multistep, not to schedule=cosine", "schedule=step"),
        ),
        (
            {"loss__class_weights_beta": 0.99},
            Fault(
                "loss.class_weights_beta",
                "0.99",
                "belongs to effective, not to loss.class_weights=null",
                "loss.class_weights=effective",
            ),
        ),
        (
            {"augment__mix_share": 0.5},
            Fault(
                "augment.mix_share",
                "0.5",
                "is the share of images that augment.mixup and augment.cutmix mix, and both are 0",
                "augment.cutmix=1.0",
            ),
        ),
        ({"schedule__name": "wsd"}, Fault("schedule.decay", "null", "is required by schedule=wsd")),
        (
            {"schedule__name": "wsd", "schedule__decay": 0.95},
            Fault(
                "schedule.decay", "0.95", "leaves less than schedule.warmup=0.1 before it; both together must be <= 1"
            ),
        ),
        (
            {"schedule__name": "multistep", "schedule__gamma": 0.1, "schedule__milestones": [0.5, 0.3]},
            Fault("schedule.milestones", "[0.5, 0.3]", "must rise", "schedule.milestones=[0.3,0.5]"),
        ),
        (
            {"schedule__name": "restarts", "schedule__cycles": 200, "schedule__growth": 100.0},
            Fault("schedule.growth", "100.0", "to the power of schedule.cycles=200 must be <= 1e290"),
        ),
        (
            {
                "optimizer__lr": "auto",
                "finetune__name": "linear_probe",
                "finetune__head_lr": 1e-3,
                "model__pretrained": "vit_tiny_patch16_224",
            },
            Fault(
                "optimizer.lr",
                "auto",
                "finds a rate that nothing is trained at: finetune=linear_probe trains the head, at finetune.head_lr",
                "finetune.head_lr=null",
            ),
        ),
        ({"optimizer__betas": None}, Fault("optimizer.betas", "null", "is required by optimizer=adamw")),
        (
            {"optimizer__betas": [0.9]},
            Fault("optimizer.betas", "[0.9]", "must be two numbers, such as [0.9,0.999]"),
        ),
        ({"optimizer__betas": [0.9, 1.0]}, Fault("optimizer.betas", "[0.9, 1.0]", "must be >= 0 and < 1")),
        (
            {"optimizer__name": "sgd", "optimizer__betas": None},
            Fault("optimizer.momentum", "null", "is required by optimizer=sgd"),
        ),
        (
            {"optimizer__name": "sgd", "optimizer__momentum": 0.9},
            Fault(
                "optimizer.betas",
                "[0.9, 0.999]",
                f"belongs to {WITH_BETAS}, not to optimizer=sgd",
            ),
        ),
        (
            {"optimizer__name": "adam", "optimizer__betas": None},
            Fault("optimizer.betas", "null", "is required by optimizer=adam"),
        ),
        ({"trainer__devices": 3}, Fault("data.batch_size", "64", "must be divisible by trainer.devices=3")),
        (
            {"trainer__devices": 2, "data__drop_last": False},
            Fault(
                "data.batch_size",
                "64",
                "leaves a last batch that cannot be split evenly between trainer.devices=2; set data.drop_last=true",
            ),
        ),
        (
            {"trainer__accumulate_grad_batches": 3},
            Fault("trainer.accumulate_grad_batches", "3", "must divide data.batch_size=64"),
        ),
        (
            {"trainer__devices": 4, "trainer__accumulate_grad_batches": 32},
            Fault("trainer.accumulate_grad_batches", "32", "must divide the 16 images of each rank"),
        ),
        (
            {"trainer__activation_checkpointing": True, "model__norm": "batchnorm"},
            Fault(
                "trainer.activation_checkpointing",
                "true",
                "computes each block twice, which would count each batch twice in the averages of norm=batchnorm",
                "trainer.activation_checkpointing=false",
            ),
        ),
        (
            {"trainer__compile": "block"},
            Fault("trainer.compile", "block", "is not one of auto, nothing, blocks, model, graphs", "blocks"),
        ),
        ({"trainer__devices": 0}, Fault("trainer.devices", "0", "must be >= 1 and <= 1024")),
        ({"data__batch_size": 0}, Fault("data.batch_size", "0", "must be >= 1 and <= 1000000")),
        (
            {"model__num_classes": 9},
            Fault("model.num_classes", "9", "must be >= 10, the number of classes of data=digits"),
        ),
        (
            {"model__image_size": 16},
            Fault(
                "model.image_size",
                "16",
                "differs from the images, data.image_size=8; set data.image_size only",
                "data.image_size=16",
            ),
        ),
        (
            {"model__in_channels": 3},
            Fault(
                "model.in_channels",
                "3",
                "differs from the images, data.in_channels=1; set data.in_channels only",
                "data.in_channels=3",
            ),
        ),
        (
            {"trainer__precision": "bf16_mixed"},
            Fault(
                "trainer.precision",
                "bf16_mixed",
                "is not one of auto, 32-true, tf32, bf16-mixed, 16-mixed, 64-true",
                "bf16-mixed",
            ),
        ),
        (
            {"callbacks__monitor": "val/los"},
            Fault(
                "callbacks.monitor",
                "val/los",
                "is not one of val/acc, val/loss, val/balanced_acc, val/macro_f1, val/top5_acc, val/auroc, val/ece, "
                "last, or a function of yours in callbacks.metrics",
                "val/loss",
            ),
        ),
        (
            {"callbacks__early_stopping": EarlyStoppingConfig(patience=0)},
            Fault("callbacks.early_stopping.patience", "0", "must be >= 1"),
        ),
        ({"callbacks__ema": EmaConfig(decay=1.0)}, Fault("callbacks.ema.decay", "1.0", "must be > 0 and < 1")),
        (
            {"logger__wandb": WandbConfig(mode="of")},
            Fault("logger.wandb.mode", "of", "is not one of online, offline, disabled", "offline"),
        ),
        (
            {"augment__crop": 8},
            Fault("augment.crop", "8", "must be smaller than the image, data.image_size=8"),
        ),
        ({"augment__degrees": 181.0}, Fault("augment.degrees", "181.0", "must be >= 0 and <= 180")),
        ({"augment__scale": 1.0}, Fault("augment.scale", "1.0", "must be >= 0 and < 1")),
        ({"augment__erasing": 1.1}, Fault("augment.erasing", "1.1", "must be >= 0 and <= 1")),
        ({"augment__cutout": -1}, Fault("augment.cutout", "-1", "must be >= 0 and <= 4096")),
        ({"augment__mixup": -0.1}, Fault("augment.mixup", "-0.1", "must be >= 0 and <= 100")),
        ({"augment__cutmix": 101.0}, Fault("augment.cutmix", "101.0", "must be >= 0 and <= 100")),
        (
            {"augment__trivial": True, "data__in_channels": 4, "model__in_channels": 4},
            Fault("augment.trivial", "true", "needs images of 1 or 3 channels, not data.in_channels=4"),
        ),
        (
            {"augment__rand": RandAugmentConfig(), "data__in_channels": 4, "model__in_channels": 4},
            Fault("augment.rand", "{}", "needs images of 1 or 3 channels, not data.in_channels=4"),
        ),
        (
            {"augment__repeats": 64},
            Fault("augment.repeats", "64", "leaves a batch one image; must be < data.batch_size=64"),
        ),
        (
            {"augment__repeats": 3, "data__sampling": "balanced"},
            Fault(
                "augment.repeats",
                "3",
                "is for epochs without data.sampling=balanced, which repeats images itself; set one of them",
                "augment.repeats=1",
            ),
        ),
        (
            {"augment__cutmix": 1.0, "data__batch_size": 1},
            Fault(
                "augment.cutmix",
                "1",
                "mixes pairs of a batch, and data.batch_size=1 has none",
                "augment.cutmix=0",
            ),
        ),
        (
            {"augment__cutmix": 1.0, "data__batch_size": 66, "trainer__devices": 2},
            Fault(
                "data.batch_size",
                "66",
                "must be divisible by twice trainer.devices=2: augment.mixup and augment.cutmix take pairs",
            ),
        ),
        ({"seed": -1}, Fault("seed", "-1", "must be >= 0 and <= 4294967295")),
    ],
)
def test_each_fault_names_the_key_the_value_and_what_is_allowed(change, changes, fault):
    assert change(**changes) == [fault]


def test_positions_that_no_output_depends_on_are_refused_in_training(change):
    found = change(model__position="alibi2d", model__depth=1, model__pool="cls", model__class_token=True)
    assert [fault.key for fault in found] == ["model.position"]


def test_statistics_of_colour_images_may_be_one_or_one_per_channel(change):
    sizes = {"data__in_channels": 3, "model__in_channels": 3, "data__std": [0.1, 0.2, 0.3]}
    assert change(**sizes) == []
    problem = f"needs 1 value or 3, one per channel; {OWN_STATISTICS}"
    assert change(data__mean=[0.1, 0.2]) == [Fault("data.mean", "[0.1, 0.2]", problem, "data.mean=[0.15]")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "key", ["optimizer__lr", "optimizer__weight_decay", "trainer__gradient_clip_val", "schedule__warmup"]
)
def test_numbers_that_are_not_finite_are_refused(change, key, value):
    (fault,) = change(**{key: value})
    assert (fault.key, fault.given) == (key.replace("__", "."), str(value))
    assert fault.problem.startswith("must be finite and ")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("key", ["data__mean", "data__std"])
def test_statistics_that_are_not_finite_are_refused(change, key, value):
    (fault,) = change(**{key: [value]})
    assert fault.problem.startswith("must be finite")


@pytest.mark.parametrize(
    "changes",
    [
        {"data__batch_size": 66, "trainer__devices": 2},
        {"data__batch_size": 68, "trainer__devices": 2, "augment__mixup": 0.8},
        {"data__batch_size": 63, "augment__mixup": 0.8},
        {"augment__mixup": 0.8, "loss__name": "softmax_cross_entropy", "loss__label_smoothing": 0.1},
        {"augment__crop": 7},
    ],
)
def test_what_augmentation_can_do_with_is_no_fault(change, changes):
    assert change(**changes) == []


def test_more_classes_in_the_model_than_in_the_data_are_allowed(change):
    assert change(model__num_classes=1000) == []


def test_devices_that_are_not_counted_yet_are_no_fault(change):
    assert change(trainer__devices=None) == []


def test_faults_of_every_section_are_reported_together(change):
    found = change(model__heads=5, data__mean=[0.1, 0.2], optimizer__lr=-1.0, trainer__max_epochs=0, seed=-1)
    assert {fault.key for fault in found} == {"model.heads", "data.mean", "optimizer.lr", "trainer.max_epochs", "seed"}
    assert len(found) == 5


def test_a_configuration_survives_the_way_through_plain_values(compose):
    config = compose("callbacks=[default,early_stopping,ema]", "logger=all", "tags=[a,b]")
    plain = to_plain(config)
    assert plain["callbacks"]["ema"] == {"decay": 0.999}
    again = from_plain(TrainConfig, plain)
    assert again == config
    assert again != replace(config, seed=1)


def test_a_square_is_the_same_configuration_as_a_number():
    pairs = vitrine.compose(["model=vit_nano", "data.image_size=[16,16]", "model.patch_size=[4,4]"])
    numbers = vitrine.compose(["model=vit_nano", "data.image_size=16", "model.patch_size=4"])
    assert to_plain(pairs) == to_plain(numbers)
    assert (pairs.data.image_size, pairs.model.image_size, pairs.model.patch_size) == (16, 16, 4)


def test_a_size_that_is_not_square_goes_to_the_model_and_through_plain_values():
    made = vitrine.compose(["model=vit_nano", "data.image_size=[16,24]", "augment=light"])
    assert (made.data.image_size, made.model.image_size, made.model.grid) == ([16, 24], [16, 24], (8, 12))
    assert made.augment.crop == 2
    assert from_plain(TrainConfig, to_plain(made)) == made


@pytest.mark.parametrize("size", ["wide", [16], [16, 1.5], True])
def test_a_size_in_a_run_folder_that_is_none_is_refused(default, size):
    values = to_plain(default)
    values["model"]["image_size"] = size
    with pytest.raises(ConfigError) as refusal:
        from_plain(TrainConfig, values)
    (fault,) = refusal.value.faults
    assert (fault.key, fault.problem) == ("model.image_size", SIZE)


@pytest.mark.parametrize(
    ("section", "name", "value", "problem"),
    [
        ("model", "num_classes", 10**12, "must be >= 2 and <= 1000000"),
        ("data", "image_size", 60_000, "must be >= 1 and <= 4096"),
        ("data", "image_size", [8, 60_000], "must be >= 1 and <= 4096"),
        ("data", "image_size", None, "must have a value"),
        ("data", "target_classes", [2, 10**12], "must be >= 2 and <= 1000000"),
        ("optimizer", "lr", math.inf, "must be finite and > 0 and <= 100"),
    ],
)
def test_a_number_in_a_run_folder_outside_its_limits_is_refused(default, section, name, value, problem):
    values = to_plain(default)
    values[section][name] = value
    with pytest.raises(ConfigError) as refusal:
        from_plain(TrainConfig, values)
    (fault,) = refusal.value.faults
    assert (fault.key, fault.problem) == (f"{section}.{name}", problem)


def test_a_choice_in_a_run_folder_that_only_another_version_has_is_read(default):
    values = to_plain(default)
    values["schedule"]["name"] = "of_tomorrow"
    assert from_plain(TrainConfig, values).schedule.name == "of_tomorrow"


def test_crops_are_measured_by_the_shorter_side(change):
    faults = change(data__image_size=[8, 16], model__image_size=[8, 16], augment__crop=8, augment__cutout=9)
    assert [fault.problem for fault in faults] == [
        "must be smaller than the image, data.image_size=[8,16]",
        "must be at most the image, data.image_size=[8,16]",
    ]


def test_settings_of_fine_tuning_are_each_refused_for_a_model_that_may_lack_layers(change):
    problem = "needs the layers of a Vision Transformer, which model=my_lab.Net may lack"
    found = change(model__name="my_lab.Net", finetune__head_lr=0.1, finetune__layer_decay=0.5)
    assert [fault for fault in found if fault.key.startswith("finetune")] == [
        Fault("finetune.layer_decay", "0.5", problem, "finetune.layer_decay=1.0"),
        Fault("finetune.head_lr", "0.1", problem, "finetune.head_lr=null"),
    ]


def test_blocks_of_a_model_that_has_none_cannot_be_computed_twice(change):
    key, problem = "trainer.activation_checkpointing", "recomputes the blocks of Vision Transformers, which"
    found = change(model__name="my_lab.Net", trainer__activation_checkpointing=True)
    assert Fault(key, "true", f"{problem} model=my_lab.Net lacks", f"{key}=false") in found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tags", f"[short,{'x' * 65}]"),
        ("logger.wandb.tags", "['']"),
        ("logger.wandb.project", "team/digits"),
        ("logger.wandb.project", "x" * 129),
        ("logger.wandb.name", "x" * 129),
        ("logger.wandb.group", "x" * 129),
    ],
)
def test_what_weights_and_biases_refuses_is_a_fault_where_it_is_on(key, value):
    with pytest.raises(ConfigError) as refusal:
        vitrine.compose(["logger=wandb", f"{key}={value}"])
    (fault,) = refusal.value.faults
    assert fault.key == key
    assert "characters" in fault.problem
    vitrine.compose(["logger=wandb", f"tags=[{'x' * 64}]", "logger.wandb.project=digits-2"])
    if key == "tags":
        vitrine.compose([f"{key}={value}"])


def test_a_run_resumes_with_what_weights_and_biases_refuses():
    config = vitrine.compose(["logger=wandb"])
    config.tags, config.logger.wandb.project = ["x" * 65], "team/digits"
    assert [fault.key for fault in train_faults(config)] == ["tags", "logger.wandb.project"]
    assert train_faults(replace(config, resume="RUN")) == []


def test_the_variable_of_weights_and_biases_is_checked_where_it_counts(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(ConfigError) as refusal:
        vitrine.compose(["logger=wandb"])
    (fault,) = refusal.value.faults
    assert (fault.key, fault.given, fault.nearest) == ("WANDB_MODE", "ofline", "offline")
    assert fault.problem == "is not one of online, offline, disabled, and W&B's client reads it in any case"
    vitrine.compose([])
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    with pytest.raises(ConfigError, match=r"WANDB_PROJECT=a/b\s+must have at most 128 characters, and none of /"):
        vitrine.compose(["logger=wandb"])
    vitrine.compose(["logger=wandb", "logger.wandb.project=mine"])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MODE", "Offline"),
        ("MODE", ""),
        ("TAGS", "x" * 65),
        ("TAGS", "a,,b"),
        ("NAME", "x" * 129),
        ("RUN_GROUP", "x" * 129),
    ],
)
def test_a_variable_that_weights_and_biases_refuses_is_a_fault(monkeypatch, variable, value):
    """Its client reads the mode and the tags also where the configuration has others."""
    monkeypatch.setenv(f"WANDB_{variable}", value)
    with pytest.raises(ConfigError) as refusal:
        vitrine.compose(["logger=wandb", "logger.wandb.mode=offline", "logger.wandb.tags=[mine]"])
    (fault,) = refusal.value.faults
    assert (fault.key, fault.given) == (f"WANDB_{variable}", value)


def test_a_variable_that_the_client_takes_or_does_not_read_is_none(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    vitrine.compose(["logger=wandb", "logger.wandb.mode=offline"])
    monkeypatch.setenv("WANDB_TAGS", "")
    vitrine.compose(["logger=wandb", "logger.wandb.mode=disabled"])


def test_a_private_run_uploads_no_checkpoint_as_it_has_the_paths():
    with pytest.raises(ConfigError) as refusal:
        vitrine.compose(["logger=wandb", "logger.wandb.private=true", "logger.wandb.checkpoints=best"])
    (fault,) = refusal.value.faults
    assert (fault.key, fault.nearest) == ("logger.wandb.checkpoints", "logger.wandb.checkpoints=none")


def test_a_sweeps_metric_outside_a_sweep_is_refused_once():
    with pytest.raises(ConfigError) as refusal:
        vitrine.compose(["sweep.metric=val/auroc"])
    assert str(refusal.value).count("sweep.metric=val/auroc") == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data__subset_seed": 3}, "draws the images of data.train_fraction or data.per_class, and neither is set"),
        (
            {"data__val_fraction": 0.5, "data__folds": 4, "data__fold": 0},
            "has no effect with data.folds=4: a fold is the validation split",
        ),
    ],
)
def test_a_key_of_the_data_without_effect_is_a_fault(change, changes, problem):
    assert [fault.problem for fault in change(**changes)] == [problem]
