"""Optimisers are what their configuration says."""

from copy import deepcopy
from functools import cache

import pytest
import schedulefree
import timm.optim
import torch
from helpers.running import ROOT

from vitrine import compose
from vitrine.config import TrainConfig, schema
from vitrine.config.schema import OptimizerConfig
from vitrine.models import VisionTransformer
from vitrine.training.optim import OPTIMIZERS, MuonAndAdamW, build_optimizer, parameter_groups
from vitrine.training.schedules import build_schedule, learning_rate_factor

SMALL = ["model=vit_nano", "depth=1"]


@cache
def composed(*overrides: str) -> TrainConfig:
    return compose(list(overrides))


def one_step(model: VisionTransformer, optimizer: torch.optim.Optimizer) -> float:
    """Take a step on a batch that is always the same; return its loss."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, config.in_channels, config.image_size, config.image_size, generator=generator)
    loss = torch.nn.functional.cross_entropy(model(images), torch.arange(8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_complex_weights_are_trained(name):
    model = VisionTransformer(composed(*SMALL).model)
    model.blocks[0].filter = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.cfloat))
    optimizer = build_optimizer(composed(*SMALL, f"optimizer={name}").optimizer, model)
    (model.blocks[0].filter - 1j).abs().square().sum().backward()
    optimizer.step()
    trained = model.blocks[0].filter.detach()
    assert (trained.real < 1).all()
    assert (trained.imag > 0).all()


def decay(rate: float, *, all_of_them: bool = False) -> OptimizerConfig:
    return OptimizerConfig(name="adamw", lr=1.0, weight_decay=rate, decay_all=all_of_them)


# --- weight decay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [[], ["pool=cls", "position=learned"]], ids=["fixed-tables", "learned-tables"])
def test_only_matrices_decay_and_every_parameter_is_in_one_group(overrides):
    model = VisionTransformer(composed(*SMALL, *overrides).model)
    decaying, spared = parameter_groups(model, decay(0.3))
    assert (decaying["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [[names[id(parameter)] for parameter in group["params"]] for group in (decaying, spared)]
    assert sorted(groups[0] + groups[1]) == sorted(names.values())
    matrices = ["attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"]
    blocks = {f"blocks.{index}.{matrix}" for index in range(1) for matrix in matrices}
    assert set(groups[0]) == blocks | {"patch_embed.proj.weight", "head.weight"}
    assert ({"cls_token", "pos_embed"} <= set(groups[1])) == bool(overrides)


def test_where_all_parameters_decay_none_is_spared():
    model = VisionTransformer(composed(*SMALL).model)
    (group,) = parameter_groups(model, decay(0.3, all_of_them=True))
    assert group["weight_decay"] == 0.3
    assert {id(one) for one in group["params"]} == {id(one) for one in model.parameters()}


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon", "lamb", "lion"])
def test_without_a_gradient_matrices_shrink_and_biases_stay(name):
    config = composed(*SMALL, f"optimizer={name}", "optimizer.weight_decay=0.1", "optimizer.lr=0.5")
    model = VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model)
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {key for key, parameter in model.named_parameters() if (parameter < 1).all()}
    stayed = {key for key, parameter in model.named_parameters() if (parameter == 1).all()}
    assert moved == {key for key, parameter in model.named_parameters() if parameter.ndim > 1}
    assert moved | stayed == {key for key, _ in model.named_parameters()}


# --- optimisers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("adamw", torch.optim.AdamW, {"betas": (0.8, 0.95)}),
        ("adam", torch.optim.Adam, {"betas": (0.8, 0.95)}),
        ("sgd", torch.optim.SGD, {"momentum": 0.7, "nesterov": False}),
        ("sgd", torch.optim.SGD, {"momentum": 0.7, "nesterov": True}),
    ],
)
def test_each_optimizer_has_its_settings_and_takes_a_step(name, kind, settings):
    own = {"betas": "[0.8,0.95]", "momentum": "0.7", "nesterov": str(settings.get("nesterov")).lower()}
    overrides = [f"optimizer.{key}={own[key]}" for key in settings]
    config = composed(*SMALL, f"optimizer={name}", "optimizer.lr=0.02", "optimizer.weight_decay=0.03", *overrides)
    torch.manual_seed(0)
    model = VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model)
    assert type(optimizer) is kind
    for group, decay in zip(optimizer.param_groups, (0.03, 0.0), strict=True):
        assert {"lr": 0.02, "weight_decay": decay, "fused": True, **settings}.items() <= group.items()
    before = {key: parameter.clone() for key, parameter in model.named_parameters()}
    one_step(model, optimizer)
    assert not torch.equal(before["head.weight"], model.head.weight)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_every_choice_has_its_optimizer():
    assert {*OPTIMIZERS, "muon"} == set(schema.OPTIMIZERS)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "optimizer").glob("*.yaml")))
def test_every_optimizer_lowers_the_loss_at_its_own_settings(name):
    config = composed(*SMALL, f"optimizer={name}")
    torch.manual_seed(0)
    model = VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model)
    if name == "schedule_free":
        optimizer.train()
    first, *_, last = (one_step(model, optimizer) for _ in range(6))
    assert last < 0.8 * first


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_the_fused_step_is_the_plain_one(name):
    config = composed(*SMALL, f"optimizer={name}", "optimizer.weight_decay=0.1")
    torch.manual_seed(0)
    model, twin = VisionTransformer(config.model), VisionTransformer(config.model)
    twin.load_state_dict(model.state_dict())
    optimizer, reference = build_optimizer(config.optimizer, model), build_optimizer(config.optimizer, twin)
    for group in reference.param_groups:
        group["fused"] = False
    for _ in range(3):
        for one, its in zip(model.parameters(), twin.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            its.grad = one.grad.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lamb", lambda groups: timm.optim.Lamb(groups, lr=0.02, betas=(0.8, 0.95), max_grad_norm=None)),
        ("lion", lambda groups: timm.optim.Lion(groups, lr=0.02, betas=(0.8, 0.95))),
        ("schedule_free", lambda groups: schedulefree.AdamWScheduleFree(groups, lr=0.02, betas=(0.8, 0.95))),
    ],
)
def test_optimizers_of_other_libraries_take_their_steps(name, make):
    settings = ["optimizer.lr=0.02", "optimizer.betas=[0.8,0.95]", "optimizer.weight_decay=0.1"]
    config = composed(*SMALL, f"optimizer={name}", *settings)
    torch.manual_seed(0)
    model, twin = VisionTransformer(config.model), VisionTransformer(config.model)
    twin.load_state_dict(model.state_dict())
    optimizer, reference = build_optimizer(config.optimizer, model), make(parameter_groups(twin, decay(0.1)))
    for step in range(3):
        for one, its in ((model, optimizer), (twin, reference)):
            with_gradients(one, step)
            if name == "schedule_free":
                its.train()
            its.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()), rtol=0, atol=0)
    assert not torch.equal(model.head.weight, VisionTransformer(config.model).head.weight)


@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_lambs_step_of_a_matrix_is_as_long_as_its_weights_with_and_without_weight_decay(rate):
    config = composed(*SMALL, "optimizer=lamb", "optimizer.lr=0.01", f"optimizer.weight_decay={rate}")
    torch.manual_seed(0)
    model = VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with_gradients(model, 0)
    optimizer.step()
    for name, parameter in model.named_parameters():
        moved = (parameter - before[name]).norm().item()
        adams = before[name].numel() ** 0.5  # each element's first step is 1
        length = before[name].norm().item() if parameter.ndim > 1 else adams
        assert moved == pytest.approx(0.01 * length, rel=1e-3), name


MUON = ["optimizer=muon", "optimizer.lr=0.02", "optimizer.adamw_lr=0.01", "optimizer.weight_decay=0.1"]


def pytorchs_muon(matrices: list[torch.nn.Parameter]) -> torch.optim.Muon:
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    return torch.optim.Muon(matrices, **settings, adjust_lr_fn="match_rms_adamw")


def with_gradients(model: VisionTransformer, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for one in model.parameters():
        one.grad = torch.randn(one.shape, generator=generator).to(one.dtype)


@pytest.mark.parametrize(
    "overrides",
    [[], ["model.class_token=true", "position=relative", "attention=local"], ["optimizer.decay_all=true"]],
    ids=["plain", "tables", "decay-all"],
)
@pytest.mark.usefixtures("muon_in_float64")
def test_muon_is_pytorchs_for_the_matrices_of_blocks_and_its_adamw_for_the_rest(overrides):
    """In float64, where only the order of sums differs."""
    config = composed(*SMALL, *MUON, *overrides)
    torch.manual_seed(0)
    model, twin = VisionTransformer(config.model).double(), VisionTransformer(config.model).double()
    twin.load_state_dict(model.state_dict())
    matrices = {f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    decaying = {"patch_embed.proj.weight", "head.weight"}
    named = dict(twin.named_parameters())
    if "optimizer.decay_all=true" in overrides:
        decaying = set(named) - matrices
    references = [
        pytorchs_muon([named[name] for name in matrices]),
        torch.optim.AdamW([named[name] for name in decaying], lr=0.01, weight_decay=0.1),
    ]
    if others := set(named) - matrices - decaying:
        references.append(torch.optim.AdamW([named[name] for name in others], lr=0.01, weight_decay=0.0))
    optimizer = build_optimizer(config.optimizer, model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for step in range(3):
        with_gradients(model, step)
        with_gradients(twin, step)
        optimizer.step()
        for reference in references:
            reference.step()
    assert not any(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    torch.testing.assert_close(dict(model.named_parameters()), named, rtol=1e-9, atol=1e-12)


def test_muon_moves_a_matrix_as_far_as_adamw_in_every_direction():
    """arXiv:2502.16982, section 2.2: the update's root mean square is 0.2 times the learning rate."""
    config = composed(*SMALL, *MUON, "optimizer.weight_decay=0")
    model = VisionTransformer(config.model)
    before = model.blocks[0].mlp.fc1.weight.detach().clone()
    optimizer = build_optimizer(config.optimizer, model)
    with_gradients(model, 0)
    optimizer.step()
    update = model.blocks[0].mlp.fc1.weight.detach() - before
    # Five iterations leave singular values between 0.7 and 1.2, here 0.84 in the mean square.
    assert update.square().mean().sqrt().item() == pytest.approx(0.2 * 0.02, rel=0.2)
    strengths = torch.linalg.svdvals(update)
    assert strengths.max() < 2 * strengths.min(), "a gradient's own are further apart"


def test_muon_resumes_from_a_checkpoint_and_both_parts_follow_the_schedule():
    config = composed(*SMALL, *MUON)
    torch.manual_seed(0)
    model, twin = VisionTransformer(config.model), VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model)
    schedule = build_schedule(config.schedule, optimizer, steps=10)
    for step in range(2):
        with_gradients(model, step)
        optimizer.step()
        schedule.step()
    twin.load_state_dict(model.state_dict())
    resumed = build_optimizer(config.optimizer, twin)
    later = build_schedule(config.schedule, resumed, steps=10)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))  # as from a file
    later.load_state_dict(schedule.state_dict())
    for step in range(2, 4):
        for one, its_optimizer, its_schedule in ((model, optimizer, schedule), (twin, resumed, later)):
            with_gradients(one, step)
            its_optimizer.step()
            its_schedule.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(twin.named_parameters()), rtol=0, atol=0)
    assert isinstance(resumed, MuonAndAdamW)
    factor = learning_rate_factor(4, config.schedule, steps=10)
    assert resumed.muon.param_groups[0]["lr"] == pytest.approx(0.02 * factor)
    assert [group["lr"] for group in resumed.adamw.param_groups] == pytest.approx([0.01 * factor] * 2)


def test_muon_clips_gradients_before_its_step():
    """Lightning does so in the closure that a step is given."""
    config = composed(*SMALL, *MUON)
    model = VisionTransformer(config.model)
    optimizer = build_optimizer(config.optimizer, model)
    with_gradients(model, 0)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        for one in model.parameters():
            one.grad.zero_()
        return 3.0

    before = model.blocks[0].mlp.fc1.bias.detach().clone()
    assert optimizer.step(closure) == 3.0
    assert calls == [True]
    assert torch.equal(model.blocks[0].mlp.fc1.bias, before)
