"""Fine-tuning: layers have timm's learning rates, and frozen parts take nothing and stay as they are."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
from helpers.running import SMALL, only_run
from timm.optim import param_groups_layer_decay
from torch.utils.flop_counter import FlopCounterMode

from vitrine import compose, fit, resume
from vitrine.command.compose import points
from vitrine.config.finetune import FinetuneConfig
from vitrine.config.schema import OPTIMIZERS, OptimizerConfig
from vitrine.data.feature_source import FeatureSource
from vitrine.data.image_dataset import Split
from vitrine.models import VisionTransformer, build_model
from vitrine.runs import RunRecord
from vitrine.training.finetune import freeze, has_constant_features
from vitrine.training.flops import flops_per_image, training_flops_per_image
from vitrine.training.initial_weights import drawn_by_name
from vitrine.training.lit_module import Classifier
from vitrine.training.optim import build_optimizer, parameter_groups
from vitrine.training.schedules import build_schedule
from vitrine.training.weights import model_weights, read_checkpoint

ADAMW = OptimizerConfig("adamw", lr=2e-3, weight_decay=0.3, betas=[0.9, 0.999])
PROBE = ["finetune=linear_probe", "augment=none"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a model to start from; return its folder."""
    folder = tmp_path_factory.mktemp("pretrained")
    fit(compose([*SMALL, "depth=3", "trainer.max_epochs=1", "trainer.compile=nothing", f"paths.output_dir={folder}"]))
    return only_run(folder)


def tuned(run, *overrides):
    """Compose a fine-tuning of ``run`` into a folder beside it."""
    common = [*SMALL, "depth=3", "trainer.compile=nothing", "trainer.precision=32-true", f"model.pretrained={run}"]
    return compose([*common, f"paths.output_dir={run.parent / 'tuned'}", *overrides])


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch16_clip_224.openai"])
def test_layer_decay_is_timms(name):
    with torch.device("meta"):
        theirs = timm.create_model(name, img_size=32, depth=4, num_classes=7)
        size = {"image_size": 32, "patch_size": 16, "in_channels": 3, "num_classes": 7, "depth": 4}
        config = compose(["data=cifar10", "model=vit_tiny"]).model
        clip = "clip" in name
        config = replace(config, **size, position="learned", class_token=True, pool="cls", embed_norm=clip)
        if clip:
            config = replace(config, dim=768, heads=12)
        ours = VisionTransformer(config)
    spared = theirs.no_weight_decay()
    groups = param_groups_layer_decay(theirs, weight_decay=0.3, no_weight_decay_list=spared, layer_decay=0.6)
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    expected = {
        names[id(parameter)]: (pytest.approx(2e-3 * group["lr_scale"]), group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }
    names = {id(parameter): name for name, parameter in ours.named_parameters()}
    found = {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in parameter_groups(ours, ADAMW, FinetuneConfig(layer_decay=0.6))
        for parameter in group["params"]
    }
    if clip:  # which has no bias where a norm follows
        assert found.pop("patch_embed.proj.bias") == (expected["cls_token"][0], 0.0)
    assert found == expected


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_head_and_the_other_layers_have_rates_and_warm_ups_of_their_own(optimizer):
    overrides = ["finetune.head_lr=0.5", "finetune.warmup=0.5", "finetune.layer_decay=0.5"]
    config = compose([*SMALL, "depth=2", f"optimizer={optimizer}", "optimizer.lr=0.1", *overrides])
    model = VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model, config.finetune)
    schedule = build_schedule(replace(config.schedule, name="constant", warmup=0.1), optimizer, steps=10)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def rates():
        return {
            names[id(parameter)]: pytest.approx(group["lr"])
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    assert sorted(rates()) == sorted(names.values())
    expected = {"head.weight": 0.5, "norm.weight": 0.05, "blocks.1.attn.qkv.weight": 0.05}
    expected |= {"blocks.0.attn.qkv.weight": 0.025, "patch_embed.proj.bias": 0.0125}
    first = {name: value / (1 if name.startswith("head") else 5) for name, value in expected.items()}
    assert {name: rates()[name] for name in expected} == first
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert {name: rates()[name] for name in expected} == expected
    assert optimizer.param_groups[0]["lr"] == (0.05 if config.optimizer.name == "muon" else 0.5)


def test_a_linear_probe_has_the_optimisers_rate_from_scratch():
    each = f"optimizer={','.join(name for name in OPTIMIZERS if name != 'muon')}"
    probe = [*PROBE, "model.pretrained=vit_tiny_patch16_224"]
    scratch, probes = (points("train", [*SMALL, each, *more], multirun=True) for more in ([], probe))
    rates = {point.config.optimizer.name: point.config.optimizer.lr for point in scratch}
    assert {point.config.optimizer.name: point.config.finetune.head_lr for point in probes} == rates
    assert len(rates) == len(OPTIMIZERS) - 1


def test_what_a_part_keeps_fixed_is_not_trained_with_the_last_blocks():
    model = VisionTransformer(compose([*SMALL, "depth=2"]).model)
    fixed = "blocks.1.mlp.fc1.weight"  # as random features of a part of the user's
    model.get_parameter(fixed).requires_grad_(False)
    freeze(model, FinetuneConfig("last_blocks", blocks=1))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = ("blocks.1.", "norm.", "head.")
    assert trained == {name for name, _ in model.named_parameters() if name.startswith(others)} - {fixed}


def saved_for_backward(config):
    """Bytes that a forward pass on 16 images stores for the backward pass."""
    model = VisionTransformer(config.model)
    freeze(model, config.finetune)
    stored = 0

    def keep(tensor):
        nonlocal stored
        stored += 0 if isinstance(tensor, torch.nn.Parameter) else tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.randn(16, 1, 8, 8)).sum()
    return stored


@pytest.mark.whole
def test_frozen_parts_take_no_gradients_no_optimizer_state_and_no_activations(run):
    full, one, probe = (
        tuned(run, *overrides)
        for overrides in (["finetune=full"], ["finetune=last_blocks", "finetune.blocks=1"], PROBE)
    )
    memory = [saved_for_backward(config) for config in (full, one, probe)]
    assert memory[1] < 0.45 * memory[0]
    assert memory[2] <= 16 * full.model.dim * 4 + 1024  # what the head reads, and nothing of the blocks
    for config, trained in ((one, ("blocks.2.", "norm.", "head.")), (probe, ("head.",))):
        module = Classifier(config, steps=4, images_per_step=16)
        optimizer = build_optimizer(config.optimizer, module.model, config.finetune)
        module(torch.rand(16, 1, 8, 8)).sum().backward()
        optimizer.step()
        names = {id(parameter): name for name, parameter in module.model.named_parameters()}
        with_state = {names[id(parameter)] for parameter in optimizer.state}
        with_gradient = {name for name, parameter in module.model.named_parameters() if parameter.grad is not None}
        assert with_state == with_gradient == {name for name in names.values() if name.startswith(trained)}
        module.eval()
        module.train()
        assert module.model.head.training
        assert not module.model.blocks[0].training
        assert not module.model.pos_drop.training


@pytest.mark.whole
def test_flops_count_the_passes_that_are_made(run):
    full, probe = tuned(run), tuned(run, *PROBE)
    forward = flops_per_image(full.model)
    head = 2 * full.model.dim * 10
    assert training_flops_per_image(full, forward) == 3 * forward
    assert training_flops_per_image(probe, forward) == 3 * head
    augmented = tuned(run, "finetune=linear_probe", "augment=light")
    assert training_flops_per_image(augmented, forward) == forward + 2 * head


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_flops_of_last_blocks_are_those_of_their_forward_and_backward_pass(pool, blocks):
    config = compose([*SMALL, "depth=3", f"pool={pool}", "model.attention_kernel=explicit"])
    config.finetune = FinetuneConfig("last_blocks", blocks=blocks)
    model = VisionTransformer(config.model)
    freeze(model, config.finetune)
    with FlopCounterMode(display=False) as counter:
        model(torch.rand(1, 1, 8, 8)).sum().backward()
    forward = flops_per_image(config.model)
    assert training_flops_per_image(config, forward) == counter.get_total_flops()


@pytest.mark.whole
def test_features_are_computed_once_and_only_where_images_stay_the_same(run):
    assert has_constant_features(tuned(run, *PROBE))
    for changed in (["augment=light"], ["augment.mixup=0.2"], ["finetune=full"]):
        assert not has_constant_features(tuned(run, *PROBE, *changed))
    undrawn = "torch.nn.Identity"  # stands for an augmentation that may draw random numbers of its own
    assert not has_constant_features(tuned(run, *PROBE, f"augment.parts=[{undrawn}]"))

    seen = []

    def extract(images):
        seen.append(len(images))
        return images.flatten(1).float() * 2

    split = Split(torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), torch.arange(10))
    source = FeatureSource(split, extract, at_once=2)
    for indices in ([[3, 1], [1, 4, 4]], [[3, 4], [9]]):  # balanced sampling draws images several times
        for chosen, (features, labels) in zip(indices, source.batches([torch.tensor(i) for i in indices]), strict=True):
            assert features[:, 0].tolist() == [2 * index for index in chosen]
            assert labels.tolist() == chosen
    assert seen == [2, 1, 1]
    ((features, _),) = source.batches([torch.arange(10)])
    assert features[:, 0].tolist() == [2 * index for index in range(10)]
    assert seen[3:] == [2, 2, 2], "of six more, as many at once as allowed"


def test_a_rank_without_images_has_empty_batches():
    split = Split(torch.zeros(3, 1, 1, 1, dtype=torch.uint8), torch.arange(3))
    source = FeatureSource(split, lambda images: images, at_once=2)
    ((images, labels),) = source.batches([torch.zeros(0, dtype=torch.int64)])
    assert len(images) == len(labels) == 0


@pytest.mark.whole
def test_a_linear_probe_trains_as_without_stored_features_and_leaves_the_rest(run, monkeypatch):
    probe = tuned(run, *PROBE, "callbacks=[default,ema]", "name=probe")
    stored = fit(probe)
    monkeypatch.setattr("vitrine.training.trainer.has_constant_features", lambda config: False)
    computed = fit(replace(probe, name="computed"))
    assert {key: value for key, value in stored.metrics.items() if key != "train_seconds"} == pytest.approx(
        {key: value for key, value in computed.metrics.items() if key != "train_seconds"}, abs=1e-4
    )
    before, after = (
        torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        for folder in (run, stored.run_dir)
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"model.head.weight", "model.head.bias"}


@pytest.mark.whole
def test_a_stopped_fine_tuning_resumes_to_the_same_weights(run):
    overrides = ["finetune=last_blocks", "finetune.layer_decay=0.5", "optimizer=muon", "callbacks=[default,ema]"]
    whole = fit(tuned(run, *overrides, "schedule=constant", "name=whole"))
    half = fit(tuned(run, *overrides, "schedule=constant", "name=half", "trainer.max_epochs=1"))
    resumed = resume(half.run_dir, compose([f"resume={half.run_dir}", "trainer.max_epochs=2"]))
    weights = [
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for folder in (whole.run_dir, resumed.run_dir)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.whole
def test_the_head_is_new_for_as_many_other_classes(run, tmp_path, capsys, others):
    shutil.copytree(run, tmp_path / "run")
    record = RunRecord(tmp_path / "run")
    if others:
        record.update(classes=[f"letter {name}" for name in record.facts["classes"]])
    still = ["trainer.max_epochs=1", "debug.limit_batches=1", "optimizer.lr=1e-9", f"paths.output_dir={tmp_path}/tuned"]
    tuning = RunRecord(fit(tuned(record.path, *still)).run_dir)
    before, after = (model_weights(read_checkpoint(one.best)) for one in (record, tuning))
    new = [name for name in before if not torch.allclose(before[name], after[name], atol=1e-6)]
    assert new == (["head.weight", "head.bias"] if others else [])
    config = tuned(record.path)
    begun = drawn_by_name(partial(build_model, config.model), config.seed).head.weight
    near = torch.allclose(after["head.weight"], begun, atol=1e-2)
    assert near != others, "a new head does not begin as that which the features grew up with"
    assert ("new head for 10 classes: that of the weights is for others" in capsys.readouterr().out) == others


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["finetune=linear_probe"], "there are none: set model.pretrained"),
        ([*PROBE, "model.patch_dropout=0.25", "model.pretrained={run}"], "which finetune=linear_probe freezes"),
        ([*PROBE, "model.embed_dropout=0.1", "model.pretrained={run}"], "which finetune=linear_probe freezes"),
        (["finetune=linear_prob"], "did you mean finetune=linear_probe?"),
        (["finetune=layer_decay", "finetune.layer_decay=1.5"], "must be > 0 and <= 1"),
        (["finetune=last_blocks", "finetune.blocks=9", "model.pretrained={run}"], "must be <= 3, the number of blocks"),
        (["finetune=last_blocks", "finetune.blocks=null", "model.pretrained={run}"], "is required by"),
        (["finetune.blocks=2"], "belongs to last_blocks"),
        ([*PROBE, "optimizer=muon", "model.pretrained={run}"], "which finetune=linear_probe freezes"),
        ([*PROBE, "finetune.layer_decay=0.5", "model.pretrained={run}"], "trains the head alone"),
        (
            [*PROBE, "finetune.warmup=0.5", "model.pretrained={run}"],
            "did you mean finetune.warmup=null schedule.warmup=0.5",
        ),
        (["model.pretrained={run}x"], "did you mean {run}?"),
        (["model.pretrained={run}/checkpoints"], "has no checkpoints/best.ckpt"),
    ],
)
@pytest.mark.whole
def test_what_excludes_each_other_is_refused_in_one_line(refusal, run, overrides, message):
    faults = refusal("model=vit_nano", "depth=3", *(override.format(run=run) for override in overrides))
    assert message.format(run=run) in str(faults[0])
    assert len(faults) == 1


@pytest.mark.whole
def test_a_run_to_start_from_brings_its_own_positions_token_and_pool(run):
    config = tuned(run)
    assert (config.model.position, config.model.class_token, config.model.pool) == ("sincos2d", False, "mean")
    assert compose(["model.pretrained=vit_tiny_patch16_224.augreg_in21k"]).model.position == "learned"
