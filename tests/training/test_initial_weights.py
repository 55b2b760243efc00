"""Initial weights follow from the seed and the parameter's name, for vitrine's models and for any other module."""

from functools import partial

import pytest
import torch
from helpers.levels import quick
from helpers.running import SMALL
from lightning.pytorch.callbacks import Callback
from torch import nn

from vitrine import compose, fit
from vitrine.config.model import INITS, ViTConfig
from vitrine.config.parts import PartError
from vitrine.models import VisionTransformer, build_model
from vitrine.training.initial_weights import check_all_stored, drawn_by_name

SIZES = {"image_size": 16, "patch_size": 4, "in_channels": 3, "num_classes": 7, "dim": 24, "depth": 2, "heads": 3}
PLAIN = ViTConfig(position="learned", **SIZES)


def state(seed=0, **changes):
    config = ViTConfig(**{**vars(PLAIN), **changes})
    return drawn_by_name(partial(build_model, config), seed).state_dict()


def differing(ours, theirs):
    """Names that both have with equal shapes and other values."""
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    assert len(shared) > 10
    return {name for name in shared if not torch.equal(ours[name], theirs[name])}


@pytest.mark.parametrize(
    "changes",
    [
        {"registers": 3, "position": "sincos2d"},
        {"position": "relative"},
        {"position": "conv", "pool": "map"},
        {"depth": 5},
        {"mlp": "swiglu", "mlp_ratio": 1.5},
        {"patch_embed": "conv_stem", "qk_norm": True},
        {"layer_scale": 0.1, "norm": "rmsnorm"},
    ],
    ids=lambda changes: "-".join(changes),
)
@pytest.mark.parametrize("init", quick(INITS, ["xavier"]))
@pytest.mark.whole
def test_parts_that_two_models_share_start_equal(init, changes):
    found = differing(state(init=init), state(init=init, **changes))
    assert {name for name in found if not name.endswith("mlp.fc2.bias")} == set()  # PyTorch scales it by the width


def test_each_parameter_and_seed_has_values_of_its_own():
    one, again, other = state(0), state(0), state(1)
    assert differing(one, again) == set()
    drawn = {name for name, values in one.items() if values.unique().numel() > 1}
    assert drawn == differing(one, other) >= {"pos_embed", "head.weight", "blocks.1.mlp.fc1.weight"}
    assert not torch.equal(one["blocks.0.attn.qkv.weight"], one["blocks.1.attn.qkv.weight"])
    q, k, _ = one["blocks.0.attn.qkv.weight"].chunk(3)
    assert not torch.equal(q, k)


def test_weights_do_not_depend_on_other_random_numbers_and_leave_them_alone():
    one = state()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert differing(one, state()) == set()
    assert torch.equal(torch.rand(3), expected)


def test_the_distribution_is_still_that_of_the_scheme():
    model = drawn_by_name(
        partial(VisionTransformer, ViTConfig(**{**vars(PLAIN), "dim": 96, "init": "trunc_normal"})), 0
    )
    weights = torch.cat([block.mlp.fc1.weight.flatten() for block in model.blocks])
    assert weights.std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)  # of a normal cut at two deviations
    assert abs(weights.mean().item()) < 2e-4
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("changes", [{}, {"position": "rope_mixed"}, {"init": "torch"}], ids=str)
def test_layers_that_start_as_copies_still_do(changes):
    same, plain = state(same_init_layers=True, **changes), state(**changes)
    assert differing(same, plain) == {name for name in differing(same, plain) if name.startswith("blocks.1.")} != set()
    first = {name.removeprefix("blocks.0."): values for name, values in same.items() if name.startswith("blocks.0.")}
    assert all(torch.equal(values, same[f"blocks.1.{name}"]) for name, values in first.items())


class Own(nn.Module):
    """A user's model, which draws in every way there is."""

    def __init__(self, order=("table", "rows", "fixed", "deep", "head"), extra=False):
        super().__init__()
        makers = {
            "table": lambda: nn.Parameter(torch.randn(5, 8) * 0.02),
            "rows": lambda: nn.Parameter(nn.init.orthogonal_(torch.empty(8, 8))),
            "deep": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Conv2d(2, 2, 3), nn.LazyLinear(3)),
            "head": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)),
        }
        for name in order:
            if name == "fixed":
                self.register_buffer("fixed", torch.rand(6), persistent=False)
            else:
                setattr(self, name, makers[name]())
            if extra:
                setattr(self, f"{name}_too", nn.Linear(7, 3))
        self.own_generator = nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(1)))
        self.deep[3](torch.zeros(1, 8))  # draws the lazy layer's weights
        nn.init.trunc_normal_(self.deep[0].weight, std=0.3, a=-0.1, b=0.5)  # a data-dependent number of draws
        self.tied = self.deep[0].weight


def values_of(model):
    return {name: values.detach().clone() for name, values in [*model.named_parameters(), *model.named_buffers()]}


def test_a_users_model_draws_by_name_too_whatever_the_order_and_company():
    one = values_of(drawn_by_name(Own, 0))
    assert len({tuple(values.flatten()[:4].tolist()) for values in one.values()}) == len(one)
    for build in (partial(Own, ("head", "deep", "fixed", "rows", "table")), partial(Own, extra=True)):
        other = values_of(drawn_by_name(build, 0))
        assert [name for name, values in one.items() if not torch.equal(values, other[name])] == []
    changed = values_of(drawn_by_name(Own, 1))
    assert [name for name, values in one.items() if torch.equal(values, changed[name])] == ["own_generator"]
    assert torch.dist(one["rows"] @ one["rows"].T, torch.eye(8)) < 1e-5


class Fixed(nn.Module):
    """A user's model with fixed random values, behind a gate that begins at 0."""

    def __init__(self, kept, noise=0.0):
        super().__init__()
        self.gate, self.noise = nn.Parameter(torch.zeros(())), noise
        values = torch.randn(2, 2)
        if kept == "attribute":
            self.values = values
        else:
            self.register_buffer("values", values, persistent=kept == "persistent")

    def forward(self, images):
        return (self.gate * self.values * images).sum((2, 3)) + self.noise * torch.rand(2, 1)


def test_random_values_that_no_checkpoint_holds_are_refused():
    before = torch.get_rng_state()
    for kept in ("attribute", "not persistent"):
        with pytest.raises(PartError, match=r"^my_lab\.Fixed computes with random values that no checkpoint holds"):
            check_all_stored(partial(Fixed, kept), (2, 1, 2, 2), ["my_lab.Fixed"])
    for fine in (partial(Fixed, "persistent"), partial(Fixed, "persistent", noise=1.0)):
        check_all_stored(fine, (2, 1, 2, 2), ["my_lab.Fixed"])
    assert torch.equal(torch.get_rng_state(), before)


class Start(Callback):
    """Keeps the weights that a training starts from."""

    def on_train_start(self, trainer, module):
        self.state = {name: values.clone() for name, values in module.model.state_dict().items()}


@pytest.mark.whole
def test_runs_with_equal_seeds_start_from_equal_parts(tmp_path):
    states = []
    for changes in (["model.registers=2", "seed=3"], ["position=none", "seed=3"], ["position=none", "seed=4"]):
        start = Start()
        short = ["trainer.max_epochs=1", "trainer.compile=nothing", f"paths.output_dir={tmp_path}"]
        fit(compose([*SMALL, *short, *changes]), callbacks=[start])
        states.append(start.state)
    assert differing(states[0], states[1]) == set()
    assert len(differing(states[1], states[2])) > 5
