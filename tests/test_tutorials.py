"""conf/experiment/tutorials against what the tutorials publish: benchmarks/studies/tutorials.yaml."""

import importlib.util
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from helpers.running import ROOT, only_run, run_script, write_image_folder
from PIL import Image

from vitrine import compose
from vitrine.command.compose import points
from vitrine.config.serialize import to_plain
from vitrine.data.shards import write_shards
from vitrine.models import VisionTransformer
from vitrine.runs.flatten import flatten
from vitrine.training.pretrained import Pretrained

EXPERIMENTS = ROOT / "conf/experiment/tutorials"
PAGE = ROOT / "docs/reproductions.md"


def load_facts():
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "benchmarks/studies/tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TUTORIALS


TUTORIALS = load_facts()
T4 = "vit_base_anatomy"
# Defaults that a faithful experiment relies on, as no tutorial has the part. T4's notes do not say how it trains.
IN_NO_MODEL = """
    model.qk_norm=false model.qkv_bias=true model.layer_scale=null model.registers=0 model.residual=true
    model.norm=layernorm model.patch_stride=null model.patch_dropout=0 model.pretrained=null finetune.name=full
"""
IN_NO_TRAINING = """
    optimizer.betas=[0.9,0.999] schedule.warmup=0 trainer.accumulate_grad_batches=1 trainer.image_schedule=null
    augment.mixup=0 augment.cutmix=0 augment.erasing=0 augment.trivial=false augment.degrees=0 augment.translate=0
    augment.scale=0 augment.shear=0 augment.elastic=0 augment.cutout=0 callbacks.ema=null
    callbacks.early_stopping=null data.train_fraction=null data.per_class=null data.sampling=shuffle
    loss.class_weights=null
"""
# What each quirk's overrides set, in the order of tutorials.yaml.
CHANGED_BY_QUIRKS: dict[str, list[dict[str, object]]] = {
    "comsci_mnist": [
        {"model.num_classes": 10},
        {"model.same_init_layers": False},
        {"optimizer.name": "adamw", "optimizer.decay_all": False},
    ],
    "pulfer_mnist": [
        {"loss.name": "cross_entropy"},
        {"model.attention": "joint"},
        {"model.out_projection": True},
        {"model.final_norm": True},
    ],
    "notebook_mnist32": [
        {"loss.name": "cross_entropy"},
        {"model.final_norm": True},
        {"data.image_size": 28, "model.image_size": 28, "model.patch_size": 14},
    ],
    "intuitive_cifar10": [
        {"data.image_size": 32, "model.image_size": 32, "model.patch_size": 4, "augment.crop": 2},
        {"model.final_norm": True, "model.embed_norm": False},
        {"model.embed_dropout": 0.1, "model.mlp_dropout": 0.1},
        {"optimizer.decay_all": False},
        {"schedule.name": "cosine", "schedule.warmup": 0.1},
    ],
}


@pytest.fixture
def composed(tmp_path):
    """Composes a tutorial's experiment; ViT-Base on a folder of two classes."""
    write_image_folder(tmp_path / "pictures", "train", "test")

    def compose_variant(name, variant, *overrides):
        data = [f"data.root={tmp_path / 'pictures'}"] if name == T4 else []
        return compose([f"experiment=tutorials/{name}/{variant}", *data, *overrides])

    return compose_variant


def parameters(config, classes):
    model = replace(config.model, num_classes=classes or config.model.num_classes, pretrained=None)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in VisionTransformer(model).parameters())


def published(name):
    return [one for setting in TUTORIALS[name].settings for one in setting.overrides.split()]


def test_every_tutorial_has_its_facts():
    assert sorted(TUTORIALS) == sorted(path.name for path in EXPERIMENTS.iterdir())


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_faithful_experiment_has_every_published_setting(name, composed):
    classes = [f"model.num_classes={TUTORIALS[name].classes}"] if TUTORIALS[name].classes else []
    absent = [*IN_NO_MODEL.split(), *(IN_NO_TRAINING.split() if TUTORIALS[name].epochs else ())]
    found = flatten(to_plain(composed(name, "faithful", *classes)))
    wanted = flatten(to_plain(composed(name, "faithful", *classes, *published(name), *absent)))
    assert {key: (found[key], value) for key, value in wanted.items() if found[key] != value} == {}
    assert all(setting.place for setting in TUTORIALS[name].settings)


@pytest.mark.parametrize("name", TUTORIALS)
def test_every_key_that_a_faithful_experiment_sets_is_a_published_setting(name):
    sections = yaml.safe_load((EXPERIMENTS / name / "faithful.yaml").read_text())
    sections.pop("defaults")
    keys = {f"{section}.{key}" for section, values in sections.items() for key in values}
    assert keys - {one.partition("=")[0] for one in published(name)} == set()


@pytest.mark.whole
@pytest.mark.parametrize(("name", "variant"), [*((name, "corrected") for name in TUTORIALS), (T4, "described")])
def test_a_changed_experiment_is_the_faithful_one_with_the_listed_changes(name, variant, composed):
    changes = [one for change in getattr(TUTORIALS[name], variant) for one in change.overrides.split()]
    faithful, changed, listed = (
        flatten(to_plain(composed(name, experiment, *overrides)))
        for experiment, overrides in (("faithful", ()), (variant, ()), ("faithful", changes))
    )
    assert {key: (value, listed[key]) for key, value in changed.items() if listed[key] != value} == {}
    keys = {one.partition("=")[0] for one in changes} & faithful.keys()
    assert {key for key in keys if faithful[key] == changed[key]} == set(), "no change"


def test_every_experiment_of_a_tutorial_has_its_list_of_changes():
    changed = {
        name: {kind for kind in ("corrected", "described") if getattr(TUTORIALS[name], kind)} for name in TUTORIALS
    }
    assert changed == {
        name: {path.stem for path in (EXPERIMENTS / name).iterdir()} - {"faithful"} for name in TUTORIALS
    }


@pytest.mark.parametrize("name", TUTORIALS)
def test_networks_have_the_parameters_that_the_page_states(name, composed):
    tutorial = TUTORIALS[name]
    assert parameters(composed(name, "faithful"), tutorial.classes) == tutorial.parameters
    assert parameters(composed(name, "corrected"), tutorial.classes) == tutorial.corrected_parameters


def test_vit_base_as_printed_has_a_norm_in_each_block_that_nothing_calls(composed):
    config = composed(T4, "faithful", "model.num_classes=1000")
    unused = config.model.depth * sum(p.numel() for p in torch.nn.LayerNorm(config.model.dim).parameters())
    assert parameters(config, 1000) + unused == 86_586_088


def test_vit_base_as_printed_starts_from_standard_normal_tokens_and_as_described_from_the_papers(composed):
    small = ("model.depth=1",)
    printed, described = (
        VisionTransformer(composed(T4, variant, *small).model) for variant in ("faithful", "described")
    )
    for table in (printed.cls_token, printed.pos_embed):
        assert table.std().item() == pytest.approx(1, abs=0.1)
    assert printed.head.weight.std().item() == pytest.approx(1 / (3 * 768) ** 0.5, rel=0.05)
    assert not described.cls_token.any()
    assert not described.head.weight.any()
    assert described.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.whole
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_quirk_is_removed_by_its_overrides_which_change_nothing_else(name, composed):
    faithful = flatten(to_plain(composed(name, "faithful")))
    for quirk, changes in zip(TUTORIALS[name].quirks, CHANGED_BY_QUIRKS.get(name, ()), strict=True):
        found = flatten(to_plain(composed(name, "faithful", *quirk.overrides.split())))
        assert found == faithful | changes, quirk.change
        assert all(faithful[key] != value for key, value in changes.items()), quirk.change


@pytest.mark.whole
def test_what_is_said_of_a_trained_model_works_as_it_stands(tmp_path):
    """The commands and the snippet under "With what was trained", on T2 after two batches of random digits."""
    random = np.random.default_rng(0)
    splits = {
        split: (random.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), np.arange(count) % 10)
        for split, count in (("train", 600), ("test", 40))
    }
    write_shards(tmp_path / "data" / "mnist-packed", "mnist", list("0123456789"), splits, shard_size=10**6)
    write_image_folder(tmp_path / "DIR", "train", "test", size=(28, 28))
    Image.fromarray(splits["test"][0][7, 0]).save(tmp_path / "7.png")
    brief = ["debug=quick", "trainer.compile=nothing", "accelerator=cpu"]
    t2 = ["experiment=tutorials/pulfer_mnist/faithful", *brief]
    run_script("train.py", "-m", *t2, "pool=cls,mean", "seed=0,1", "hydra.sweep.dir=outputs/sweeps/NAME", cwd=tmp_path)
    run_script("train.py", *t2, cwd=tmp_path)
    run = only_run(tmp_path / "outputs" / "runs").relative_to(tmp_path)
    said = PAGE.read_text().partition("\nWith what was trained")[2]

    for command in re.findall(r"`python (.*?)`", said):
        script, *arguments = shlex.split(command.replace("RUN", str(run)))
        result = run_script(script, *arguments, *(brief if script == "train.py" else ()), cwd=tmp_path)
        assert result.returncode == 0, (command, result.stdout, result.stderr)
    assert {path.name for path in tmp_path.joinpath(run).glob("*.html")} == {"report.html", "page.html"}
    assert (tmp_path / "report.html").exists()

    (snippet,) = re.findall(r"```python\n(.*?)```", said, re.DOTALL)
    found = {}
    exec(snippet.replace("outputs/runs/RUN", str(tmp_path / run)).replace("7.png", str(tmp_path / "7.png")), found)
    shapes = {name: tuple(found[name].shape) for name in ("images", "tokens", "features", "positions", "filters")}
    assert shapes["images"] == (1, 1, 28, 28)
    assert shapes["tokens"] == (1, 50, 8)
    assert shapes["features"] == (1, 8)
    assert shapes["positions"] == (1, 50, 8)
    assert shapes["filters"] == (8, 1, 4, 4)
    assert tuple(found["row"].shape) == tuple(found["patch"].shape) == (2, 50)


@pytest.mark.whole
def test_the_things_to_try_can_be_typed(tmp_path):
    commands = re.findall(r"`python train\.py (.*?)`", PAGE.read_text())
    assert len(commands) >= 10
    model = compose(["experiment=tutorials/pulfer_mnist/faithful"]).model
    weights = {f"model.{name}": value for name, value in VisionTransformer(model).state_dict().items()}
    run = tmp_path / "best.ckpt"
    torch.save({"state_dict": weights, "config": {"model": to_plain(model)}}, run)
    write_image_folder(tmp_path / "DIR", "train", "test")
    for command in commands:
        arguments = shlex.split(command.replace("RUN", str(run)).replace("DIR", str(tmp_path / "DIR")))
        found = points("train", [word for word in arguments if word != "-m"], multirun="-m" in arguments)
        assert bool(Pretrained.prepare(found[0].config.model)) is ("pretrained" in command)
