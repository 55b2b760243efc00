import re

import pytest
import torch
from helpers.running import ROOT
from helpers.user_parts import enter_lab

from vitrine import compose
from vitrine.config import ViTConfig
from vitrine.config.parts import PartError
from vitrine.errors import ConfigError, Fault
from vitrine.models import VisionTransformer, build_model, rollout_problem

LAB = "lab_of_models"
PARTS = """
import torch
from torch import nn


class Failing(nn.Identity):
    def __init__(self, dim, hidden):
        super().__init__()

    def forward(self, x):
        raise ValueError("no such width")


def number(dim, hidden):
    return 3


def ones(model, value=1.0):
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)


def failing(model):
    raise ValueError("no such layer")


class Same(nn.Identity):
    def __init__(self, dim, hidden):
        super().__init__()


class Noisy(Same):
    def forward(self, x):
        return x + 0 * torch.rand_like(x)


class Double(Same):
    def forward(self, x):
        return x.double()


class Table(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(config.tokens, config.dim))
        self.scale = nn.Linear(config.dim, config.dim)

    def forward(self, x):
        return self.scale(x) + self.table

    def no_weight_decay(self):
        return {"table"}


class Misspelt(Table):
    def no_weight_decay(self):
        return {"tabel"}


class Listed(Table):
    no_weight_decay = {"table"}


class Silent(Table):
    def no_weight_decay(self):
        {"table"}


class NamedAlike(nn.Module):  # as tables of vitrine's own
    def __init__(self, dim, hidden):
        super().__init__()
        self.to_latent = nn.Parameter(torch.zeros(dim, dim))
        self.pair_bias = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, x):
        return x @ self.to_latent + x @ self.pair_bias


class Exempting(NamedAlike):
    def no_weight_decay(self):
        return {"pair_bias"}


class Mixing(nn.Identity):
    def __init__(self, dim, hidden_or_heads):
        super().__init__()

    def forward(self, x):
        return x * x.mean(dim=1, keepdim=True)


class Forgetful(Mixing):
    def forward(self, x, record=None):
        return super().forward(x)


class Averaging(Mixing):
    def forward(self, x, record=None):
        if record is not None:
            record("weights", torch.full((len(x), x.shape[1], x.shape[1]), 1 / x.shape[1]))
        return super().forward(x)


class Scores(Mixing):
    def forward(self, x, record=None):
        if record is not None:
            record("weights", self.weights(x, (x @ x.mT)[:, None].expand(-1, 2, -1, -1)))
        return super().forward(x)

    def weights(self, x, scores):
        return scores


class OfKeys(Scores):
    def weights(self, x, scores):
        return scores.softmax(dim=-2)


class Signed(Scores):
    def weights(self, x, scores):
        return scores / scores.sum(dim=-1, keepdim=True)


class Positive(Scores):
    def weights(self, x, scores):
        return scores.relu() / (scores.relu().sum(dim=-1, keepdim=True) + 1e-6)


class Wide(nn.Identity):
    def __init__(self, dim, heads, kernel=3):
        super().__init__()
        self.kernel = kernel


class Shifting(nn.Identity):
    def __init__(self, dim, hidden):
        super().__init__()

    def forward(self, x):
        return x.roll(1, dims=-2)


class ByToken(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()

    def forward(self, x):
        images, tokens, width = x.shape
        return x / width


class Several(nn.Identity):
    def __init__(self, dim, hidden=None, eps=None):
        super().__init__()

    def forward(self, x):
        if x.shape[1] == 1:
            raise ValueError("one token")
        return x


class Grid(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.proj = nn.Conv1d(dim, dim, 1)

    def forward(self, x):
        return self.proj(x.transpose(1, 2).unflatten(2, (4, 4)).flatten(2)).transpose(1, 2)


class Linear(nn.Module):
    def __init__(self, num_classes, image_size, bias=True):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(image_size**2, num_classes, bias=bias))

    def forward(self, images):
        return self.layers(images)


class Vendored(Linear):
    def no_weight_decay(self):
        return {"pos_embed", "dist_token"}

    no_weight_decay.__module__ = "vendor.models"


class Wrapped(nn.Module):
    def __init__(self, num_classes, image_size):
        super().__init__()
        self.net = Vendored(num_classes, image_size)

    def forward(self, images):
        return self.net(images)

    def no_weight_decay(self):
        return {f"net.{name}" for name in self.net.no_weight_decay()}
"""


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, LAB, parts=PARTS)


def config(**changes):
    sizes = {"image_size": 8, "patch_size": 2, "in_channels": 1, "num_classes": 10, "dim": 8, "depth": 1, "heads": 2}
    return ViTConfig(**sizes | changes)


def test_a_positional_scheme_changes_the_logits_and_is_trained_with_the_model():
    torch.manual_seed(0)
    own = build_model(config(position=f"{LAB}.fourier.Fourier", class_token=True, registers=1)).eval()
    images = torch.randn(2, 1, 8, 8)
    logits = own(images)
    logits.sum().backward()
    assert own.pos_module.proj.weight.grad is not None
    torch.nn.init.zeros_(own.pos_module.proj.weight)
    torch.nn.init.zeros_(own.pos_module.proj.bias)
    assert not torch.equal(own(images), logits)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"position": f"{LAB}.fourier.Halved"},
            r"must give a tensor \(2, 16, 8\) for one of \(2, 16, 8\), not \(2, 8, 8\)",
        ),
        (
            {"mlp": f"{LAB}.parts.Failing"},
            r"fails on a tensor \(2, 16, 8\): ValueError: no such width \(.*parts.py, line 11",
        ),
        (
            {"attention": f"{LAB}.parts.Grid", "patch_dropout": 0.5},
            r"fails on a tensor \(2, 8, 8\), as with model.patch_dropout=0.5: RuntimeError: unflatten: ",
        ),
        ({"mlp": f"{LAB}.parts.Several", "pool": "map"}, r"fails on a tensor \(2, 1, 8\): ValueError: one token"),
        ({"norm": f"{LAB}.parts.Several", "pool": "map"}, r"fails on a tensor \(2, 1, 8\): ValueError: one token"),
        ({"norm": f"{LAB}.parts.ByToken", "qk_norm": True}, r"fails on a tensor \(2, 2, 16, 4\): ValueError: too many"),
        ({"mlp": f"{LAB}.parts.Double"}, "must give torch.float32, not torch.float64"),
        (
            {"attention": f"{LAB}.parts.Forgetful"},
            r"takes record, and must call record\('weights', weights\) with a tensor \(2, 2, 16, 16\) for one of "
            r"\(2, 16, 8\); it records nothing$",
        ),
        ({"attention": f"{LAB}.parts.Averaging"}, r"it records \(2, 16, 16\)$"),
        *(
            ({"attention": f"{LAB}.parts.{name}"}, "in rows that sum to 1; it records some from .* on, in ")
            for name in ("Scores", "OfKeys", "Signed")
        ),
        ({"mlp": f"{LAB}.parts.number"}, "must give an nn.Module, not int"),
        (
            {"position": f"{LAB}.parts.Misspelt"},
            r"exempts tabel from weight decay, which is not one of its parameters; did you mean table\?$",
        ),
        ({"position": f"{LAB}.parts.Listed"}, r"must have a method no_weight_decay\(\), not a set of that name"),
        ({"position": f"{LAB}.parts.Silent"}, r"fails in no_weight_decay\(\): TypeError: 'NoneType' object is not"),
    ],
)
def test_a_part_that_does_not_fit_is_one_line(changes, problem):
    with pytest.raises(PartError, match=problem) as caught:
        VisionTransformer(config(**changes))
    assert "\n" not in str(caught.value)


def test_trying_a_part_leaves_the_weights_of_the_others_as_they_were():
    """Although the part draws random numbers in each forward pass."""
    weights = []
    for part in ("Same", "Noisy"):
        torch.manual_seed(0)
        weights.append(VisionTransformer(config(mlp=f"{LAB}.parts.{part}", init="torch")).state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize(
    ("changes", "exempted"),
    [
        ({"position": f"{LAB}.parts.Table"}, {"pos_module.table"}),
        ({"mlp": f"{LAB}.parts.NamedAlike", "position": "none"}, set()),
        ({"mlp": f"{LAB}.parts.Exempting", "position": "none"}, {"blocks.0.mlp.pair_bias"}),
    ],
)
def test_of_a_part_weight_decay_leaves_out_what_the_part_exempts(changes, exempted):
    assert build_model(config(**changes)).no_weight_decay() == exempted


@pytest.mark.parametrize("name", ["Wrapped", "Vendored"])
def test_installed_code_may_exempt_parameters_that_it_lacks(name):
    model = build_model(config(name=f"{LAB}.parts.{name}"))
    assert {exempted.rpartition(".")[2] for exempted in model.no_weight_decay()} == {"pos_embed", "dist_token"}


def test_parts_in_the_pool_get_one_token_of_each_image():
    parts = {"mlp": f"{LAB}.parts.Shifting", "norm": f"{LAB}.parts.ByToken"}
    model = VisionTransformer(config(pool="map", patch_dropout=0.5, **parts)).eval()
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


def test_initial_weights_are_set_by_a_function():
    model = build_model(config(init=f"{LAB}.parts.ones", init_options={"value": 0.5}))
    assert {value.item() for parameter in model.parameters() for value in parameter.flatten()} == {0.5}


@pytest.mark.parametrize(("init", "largest"), [("xavier", (6 / 128) ** 0.5), ("paper", 0.45)])
def test_convolutions_of_a_part_are_initialised_like_the_others(init, largest):
    torch.manual_seed(0)
    proj = build_model(config(attention=f"{LAB}.parts.Grid", init=init, dim=64)).blocks[0].attn.proj
    assert proj.weight.abs().max().item() == pytest.approx(largest, rel=0.2)
    assert not proj.bias.any()


def test_a_function_that_fails_on_the_model_is_one_line():
    with pytest.raises(PartError, match=r"failed: ValueError: no such layer \(.*parts.py, line \d+\)$"):
        build_model(config(init=f"{LAB}.parts.failing"))


def test_a_whole_model_gets_the_sizes_that_it_names():
    model = build_model(config(name=f"{LAB}.parts.Linear", options={"bias": False}))
    assert model.layers[1].weight.shape == (10, 64)
    assert model.layers[1].bias is None


@pytest.mark.parametrize("part", ["mlp", "attention"])
def test_a_part_that_may_mix_tokens_gets_all_of_them(part):
    model = VisionTransformer(config(**{part: f"{LAB}.parts.Mixing", "pool": "cls", "class_token": True})).double()
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    features = model.forward_features(images)
    torch.testing.assert_close(model(images), model.head(features[:, 0]), rtol=0, atol=1e-12)


def test_an_attention_that_takes_no_recorder_has_no_maps():
    model = VisionTransformer(config(attention=f"{LAB}.parts.Mixing"))
    assert rollout_problem(model) == f"attention={LAB}.parts.Mixing records no weights"
    with pytest.raises(ValueError, match=f"^attention={LAB}.parts.Mixing records no weights; docs/own_parts.md"):
        model.attention_maps(torch.randn(2, 1, 8, 8))


@pytest.fixture
def documented(tmp_path):
    """The attentions in docs/own_parts.md."""
    page = (ROOT / "docs" / "own_parts.md").read_text().partition("## Attention")[2]
    code = "\n".join(re.findall(r"```python\n(from.*?)```", page, re.DOTALL))
    (tmp_path / LAB / "documented.py").write_text(code)
    return f"{LAB}.documented"


@pytest.mark.parametrize("name", ["Sharpened", "TalkingHeads"])
def test_an_attention_that_records_its_weights_has_maps_and_positions_inside(documented, randomise, images_for, name):
    own = config(attention=f"{documented}.{name}", position="relative", patch_dropout=0.5, depth=2)
    model, images = randomise(VisionTransformer(own)).eval(), images_for(own)
    assert not rollout_problem(model)
    maps = model.attention_maps(images)
    assert maps.shape == (len(images), 2, 2, 16, 16)
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones_like(maps[..., 0]))
    before = model(images)
    torch.nn.init.zeros_(model.blocks[0].attn.relation.table)
    assert not torch.allclose(model(images), before)
    assert model.train()(images).isfinite().all()


@pytest.mark.parametrize("position", ["none", "rope", "relative"])
def test_a_subclass_computes_what_the_built_in_attention_does(documented, randomise, images_for, position):
    sizes = {"position": position, "dim": 8, "attention_kernel": "explicit"}
    built_in = randomise(VisionTransformer(config(**sizes)))
    own = config(attention=f"{documented}.Sharpened", attention_options={"temperature": 1.0}, **sizes)
    subclass = VisionTransformer(own).double()
    subclass.load_state_dict(built_in.state_dict())
    images = images_for(own)
    torch.testing.assert_close(subclass(images), built_in(images))
    assert {block.attn.kernel for block in subclass.blocks} == {"explicit"}


def test_weights_of_an_attention_without_softmax_may_sum_to_one():
    VisionTransformer(config(attention=f"{LAB}.parts.Positive"))


def test_an_option_called_kernel_is_the_users():
    own = config(attention=f"{LAB}.parts.Wide", attention_options={"kernel": 5}, attention_kernel="sdpa")
    assert VisionTransformer(own).blocks[0].attn.kernel == 5


def test_a_kernel_is_chosen_for_an_attention_of_vitrines(documented):
    kernel = ["model=vit_nano", "model.attention_kernel=explicit"]
    compose([*kernel, f"attention={documented}.Sharpened"])
    compose([*kernel, f"attention={LAB}.parts.Mixing", "pool=map"])
    with pytest.raises(ConfigError) as caught:
        compose([*kernel, f"attention={LAB}.parts.Mixing"])
    problem = f"is not passed to model.attention={LAB}.parts.Mixing; make it an option of that part"
    assert caught.value.faults == [Fault("model.attention_kernel", "explicit", problem, "model.attention_kernel=auto")]


def test_positions_inside_attention_need_one_that_takes_them():
    problem = f"acts inside attention, and attention={LAB}.parts.Mixing takes no argument relation"
    with pytest.raises(ConfigError, match=problem):
        VisionTransformer(config(attention=f"{LAB}.parts.Mixing", position="rope"))
