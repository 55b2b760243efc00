import dataclasses
import math
from ast import literal_eval

import pytest
import torch
from helpers.published import PUBLISHED
from timm.layers import PatchDropout

from vitrine.config import model as vit
from vitrine.config.model import ViTConfig, vit_config_from
from vitrine.config.model_faults import unread_positions, vit_faults
from vitrine.config.serialize import from_plain, to_plain
from vitrine.errors import ConfigError, Fault
from vitrine.models import attention, block, init, layers, mlp, patch_embed, pool, pos_embed


def config(**changes):
    sizes = {"image_size": 28, "patch_size": 4, "in_channels": 1, "num_classes": 10, "dim": 64, "depth": 4, "heads": 4}
    return ViTConfig(**(sizes | PUBLISHED | changes))


def test_every_default_is_accepted():
    assert vit_faults(ViTConfig(image_size=28, patch_size=4, in_channels=1, num_classes=10)) == []


FIELDS = {field.name: field.metadata for field in dataclasses.fields(ViTConfig)}
CHOICES = {name: metadata["options"] for name, metadata in FIELDS.items() if "options" in metadata}
PARTS = CHOICES.pop("pretrained_new")  # which takes several


@pytest.mark.parametrize("reader", [{}, {"class_token": False, "pool": "mean"}, {"class_token": False, "pool": "map"}])
@pytest.mark.parametrize(("key", "choice"), [(key, name) for key, names in CHOICES.items() for name in names])
def test_every_choice_is_accepted(key, choice, reader):
    assert vit_faults(config(**(reader | ({} if key == "pool" and reader else {key: choice})))) == []


def test_every_part_may_start_anew_beside_pretrained_weights_alone():
    assert vit_faults(config(pretrained="weights.pth", pretrained_new=list(PARTS))) == []
    (fault,) = vit_faults(config(pretrained="weights.pth", pretrained_new=["pool", "head"]), "model.")
    assert (fault.key, fault.given) == ("model.pretrained_new", "head")
    (fault,) = vit_faults(config(pretrained_new=["pool"]), "model.")
    assert (fault.problem, fault.nearest) == (
        "is for model.pretrained, which is null: all parts start anew",
        "model.pretrained_new=[]",
    )


@pytest.mark.parametrize(
    ("choices", "registry"),
    [
        (vit.PATCH_EMBEDS, patch_embed.PATCH_EMBEDS),
        (vit.POOLS, pool.POOLS),
        (vit.NORMS, layers.NORMS),
        (vit.NORM_PLACEMENTS, block.BLOCKS),
        (vit.ATTENTIONS, attention.ATTENTIONS),
        (vit.MLPS, mlp.MLPS),
        (vit.INITS, init.INITS),
    ],
)
def test_every_choice_has_what_it_builds(choices, registry):
    assert choices == tuple(registry)


def test_every_position_has_what_it_builds():
    # conv has a place of its own in the model, between the blocks
    built = [*pos_embed.TABLES, *pos_embed.LEARNED_RELATIONS, *pos_embed.FIXED_RELATIONS, "conv"]
    assert sorted(vit.POSITIONS) == sorted(built)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 50),
        ({"class_token": False}, 49),
        ({"registers": 3}, 53),
        ({"class_token": False, "registers": 3}, 52),
        ({"patch_stride": 3}, 82),
        ({"patch_size": 28}, 2),
        ({"image_size": 32, "patch_size": 8, "patch_stride": 4}, 50),
    ],
)
def test_the_sequence_counts_patches_class_token_and_registers(changes, tokens):
    made = config(**changes)
    assert made.tokens == tokens
    assert made.prefix == made.class_token + made.registers
    assert made.tokens == made.prefix + made.patches


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("patch", [28, 14, 7, 4])
def test_patch_dropout_keeps_as_many_patches_as_timms(rate, patch):
    made = config(patch_size=patch, patch_dropout=rate)
    theirs = PatchDropout(rate, num_prefix_tokens=1)(torch.zeros(1, made.tokens, 1))
    assert made.prefix + made.kept_patches == theirs.shape[1]


def test_the_patches_that_are_kept_do_not_depend_on_rounding():
    assert config(image_size=40, patch_size=4, patch_dropout=0.9).kept_patches == 10  # 100 * (1 - 0.9) is below 10


def test_what_follows_from_sizes_that_are_not_square():
    made = config(image_size=(28, 56), patch_size=[7, 4], patch_stride=[7, 2], registers=1)
    assert (made.image_hw, made.patch_hw, made.stride, made.grid) == ((28, 56), (7, 4), (7, 2), (4, 27))
    assert (made.patches, made.tokens) == (108, 109 + made.class_token)


def test_a_square_is_stored_as_a_number_however_it_is_given():
    made = config(image_size=[28, 28], patch_size=(4, 4), patch_stride="2")
    assert made == config(patch_stride=2)
    assert (made.image_size, made.patch_size, made.patch_stride) == (28, 4, 2)
    assert config(image_size=(28, 56)).image_size == [28, 56]


def test_what_follows_from_other_values():
    assert (config().stride, config(patch_stride=3).stride) == ((4, 4), (3, 3))
    assert config(dim=96, heads=6).head_dim == 16
    assert [config(dim=768, mlp_ratio=ratio).mlp_dim for ratio in (4.0, 8 / 3, 0.5)] == [3072, 2048, 384]
    assert [config(position=name).theta for name in ("rope", "rope_mixed")] == [100.0, 10.0]
    assert [config(position=name, rope_theta=50.0).theta for name in ("rope", "rope_mixed")] == [50.0, 50.0]


STEM = {"patch_embed": "conv_stem"}
BIG_VISION = {"position": "sincos2d", "sincos_frequencies": "big_vision"}
NO_PREFIX = {"class_token": False, "pool": "mean"}


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_size": 28},
        {"patch_stride": 1},
        {"patch_stride": 3},
        {"patch_size": 5, "image_size": 29, "patch_stride": 4},
        {"patch_embed": "shifted", "patch_size": 2},
        {"patch_embed": "shifted", "patch_size": 7, "patch_stride": 3},
        STEM | {"patch_size": 2},
        STEM | {"patch_size": 4, "patch_stride": 4, "dim": 6, "heads": 1},
        STEM | {"image_size": 64, "patch_size": 32, "dim": 16},
        {"dim": 65, "heads": 13},
        {"position": "rope", "heads": 16, "rope_theta": 5.0},
        {"position": "rope_mixed", "heads": 1, "rope_theta": 5.0},
        {"position": "sincos2d", "dim": 4},
        BIG_VISION | {"dim": 8},
        {"sincos_frequencies": "big_vision", "dim": 7, "heads": 7},
        {"class_token": False, "pool": "map"},
        {"position": "conv", "depth": 1, "pool": "map"},
        {"position": "conv", "depth": 1, "pool": "mean"},
        {"position": "conv", "depth": 2},
        {"attention": "local", "image_size": 4},
        {"attention": "local", "image_size": 5, "patch_stride": 1} | NO_PREFIX,
        {"mlp_ratio": 1 / 64},
        {"mlp_ratio": 8 / 3, "dim": 96},
        {"dim": 192, "mlp_ratio": 2.6666666},
    ],
)
def test_what_just_goes_together_is_accepted(changes):
    assert vit_faults(config(**changes)) == []


# For each rule what breaks it and no other, the key it tells and what it suggests.
BROKEN = [
    ({"patch_size": 5}, "patch_size", "patch_size=4"),
    ({"patch_size": 30}, "patch_size", "patch_size=28"),
    ({"patch_size": 30, "patch_stride": 3}, "patch_size", "patch_size=28"),
    ({"patch_stride": 6}, "patch_stride", "patch_stride=null"),
    ({"patch_size": 7, "patch_stride": 6}, "patch_stride", "patch_stride=7"),
    ({"patch_size": 7, "patch_stride": 2}, "patch_stride", "patch_stride=1"),
    ({"image_size": 13, "patch_size": 6, "patch_stride": 5}, "patch_stride", "patch_stride=1"),  # 7 is nearer
    ({"patch_embed": "shifted", "patch_size": 1}, "patch_embed", ""),
    (STEM | {"image_size": 24, "patch_size": 12}, "patch_size", "patch_size=8"),
    (STEM | {"patch_size": 1}, "patch_size", "patch_size=2"),
    (STEM | {"patch_size": 14}, "patch_size", "patch_size=4"),
    (STEM | {"image_size": 27, "patch_size": 9}, "patch_size", "patch_embed=conv"),
    (STEM | {"image_size": 32, "patch_size": 8, "dim": 66, "heads": 2}, "dim", "dim=68"),
    (STEM | {"patch_stride": 3}, "patch_stride", "patch_stride=null"),
    (STEM | {"image_size": 4}, "patch_embed", "patch_embed=conv"),
    ({"heads": 5}, "heads", "heads=4"),
    ({"heads": 50}, "heads", "heads=64"),
    ({"dim": 1031, "heads": 600}, "heads", "heads=1"),
    ({"position": "rope", "heads": 32}, "heads", "heads=16"),
    ({"position": "rope_mixed", "heads": 32}, "heads", "heads=16"),
    ({"position": "rope_mixed", "dim": 24, "heads": 4}, "heads", "heads=3"),
    ({"position": "rope", "dim": 66, "heads": 1}, "dim", "dim=68"),
    ({"position": "sincos2d", "dim": 66, "heads": 2}, "dim", "dim=68"),
    ({"position": "sincos2d", "dim": 66, "heads": 3}, "dim", "dim=72"),
    (BIG_VISION | {"dim": 4}, "dim", "dim=8"),
    ({"rope_theta": 10.0}, "rope_theta", "rope_theta=null"),
    ({"class_token": False}, "pool", "pool=mean"),
    ({"position": "conv", "depth": 1}, "position", "pool=mean"),
    ({"attention": "local", "image_size": 4} | NO_PREFIX, "attention", "attention=joint"),
    ({"mlp_ratio": 0.001}, "mlp_ratio", "mlp_ratio=0.015625"),
    ({"mlp_ratio": 2.7}, "mlp_ratio", "mlp_ratio=2.703125"),
    ({"mlp_ratio": 2.7, "dim": 96}, "mlp_ratio", "mlp_ratio=2.697916666666667"),
    ({"patch_embed": "conf"}, "patch_embed", "patch_embed=conv"),
]


def followed(made, fault):
    """The configuration with what a fault suggests: ``key=value``, or a value for the fault's own key."""
    name, text = fault.nearest.split("=") if "=" in fault.nearest else (fault.key, fault.nearest)
    value = literal_eval(text) if text[0] in "[0123456789" else None if text == "null" else text
    return dataclasses.replace(made, **{name: value})


@pytest.mark.parametrize(("changes", "key", "nearest"), BROKEN)
def test_each_rule_names_the_key_and_a_value_that_is_accepted(changes, key, nearest):
    made = config(**changes)
    (fault,) = vit_faults(made)
    assert (fault.key, fault.given) == (key, str(getattr(made, key)))
    assert nearest in (fault.nearest, f"{key}={fault.nearest}")
    if nearest:
        assert vit_faults(followed(made, fault)) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"patch_size": 5},
            Fault("patch_size", "5", "must divide the image size, 28: 1, 2, 4, 7, 14, 28", "patch_size=4"),
        ),
        (
            {"image_size": [28, 30], "patch_size": [4, 8]},
            Fault(
                "patch_size",
                "[4,8]",
                "its width, 8, must divide that of the image, 30: 1, 2, 3, 5, 6, 10, 15, 30",
                "patch_size=[4,6]",
            ),
        ),
        (
            {"image_size": [30, 28]},
            Fault(
                "patch_size",
                "4",
                "its height, 4, must divide that of the image, 30: 1, 2, 3, 5, 6, 10, 15, 30",
                "patch_size=[3,4]",
            ),
        ),
        (
            {"patch_stride": [2, 5]},
            Fault(
                "patch_stride",
                "[2,5]",
                "its width, 5, leaves pixels out between patches of 4; must be <= 4",
                "patch_stride=null",
            ),
        ),
        (
            {"image_size": [28, 32], "patch_stride": 3},
            Fault(
                "patch_stride",
                "3",
                "its width, 3, leaves pixels over at the edge: must divide 32 - 4, image less patch: 1, 2, 4",
                "patch_stride=[3,2]",
            ),
        ),
        (
            {"patch_size": [4, 7], "patch_embed": "conv_stem"},
            Fault(
                "patch_size",
                "[4,7]",
                "must be one number, a power of 2, for patch_embed=conv_stem, "
                "which halves the image at each step: 2, 4",
                "patch_size=4",
            ),
        ),
        ({"patch_size": [0, 7]}, Fault("patch_size", "[0,7]", "must be >= 1 and <= 4096")),
        ({"patch_size": [7]}, Fault("patch_size", "[7]", "must be a whole number, or [height,width]")),
        ({"image_size": "wide"}, Fault("image_size", "wide", "must be a whole number, or [height,width]")),
        ({"heads": 5}, Fault("heads", "5", "must divide the width, dim=64: 1, 2, 4, 8, 16, 32, 64", "heads=4")),
        (
            {"dim": 66, "heads": 2, "position": "sincos2d"},
            Fault("dim", "66", "must be divisible by 4 for position=sincos2d", "dim=68"),
        ),
        (
            {"mlp_ratio": 0.001},
            Fault(
                "mlp_ratio",
                "0.001",
                "gives the MLP 0.064 hidden units at dim=64; must give a whole number",
                "mlp_ratio=0.015625",
            ),
        ),
        (
            {"position": "sincos"},
            Fault("position", "sincos", f"is not one of {', '.join(vit.POSITIONS)}", "sincos2d"),
        ),
        ({"pool": "means"}, Fault("pool", "means", "is not one of cls, mean, map", "mean")),
        (
            {"init": "papers"},
            Fault("init", "papers", "is not one of xavier, paper, trunc_normal, torch, torch_encoder", "paper"),
        ),
        (
            {"attention_kernel": "flash"},
            Fault("attention_kernel", "flash", "is not one of auto, sdpa, explicit"),
        ),
        ({"num_classes": 1}, Fault("num_classes", "1", "must be >= 2 and <= 1000000")),
        ({"depth": 0}, Fault("depth", "0", "must be >= 1 and <= 1000")),
        ({"patch_dropout": 1.0}, Fault("patch_dropout", "1.0", "must be >= 0 and < 1")),
        (
            {"patch_dropout": 0.25, "position": "conv"},
            Fault(
                "patch_dropout",
                "0.25",
                "leaves gaps in the grid of patches, which position=conv is a convolution over",
                "patch_dropout=0.0",
            ),
        ),
        (
            {"patch_dropout": 0.99, "attention": "local", "class_token": False, "pool": "mean"},
            Fault(
                "patch_dropout",
                "0.99",
                "leaves one token, which attention=local keeps from itself",
                "patch_dropout=0.0",
            ),
        ),
        ({"drop_path": 1.0}, Fault("drop_path", "1.0", "must be >= 0 and < 1")),
        (
            {"drop_path": 0.1, "residual": False},
            Fault("drop_path", "0.1", "skips branches, around which residual=false leaves no way", "drop_path=0.0"),
        ),
        ({"mlp_ratio": 65.0}, Fault("mlp_ratio", "65.0", "must be > 0 and <= 64")),
        ({"final_norm": "false"}, Fault("final_norm", "false", "must be true or false")),
        ({"class_token": 2, "attention": "local"}, Fault("class_token", "2", "must be true or false")),
    ],
)
def test_each_fault_names_the_key_the_value_what_is_allowed_and_the_nearest(changes, fault):
    assert vit_faults(config(**changes)) == [fault]


RATES = (
    "embed_dropout",
    "attention_dropout",
    "projection_dropout",
    "mlp_dropout",
    "mlp_hidden_dropout",
    "patch_dropout",
    "drop_path",
)
OUT_OF_RANGE = {
    "image_size": (0, 4097),
    "patch_size": (0, 4097),
    "patch_stride": (0, 4097),
    "in_channels": (0, 1025),
    "num_classes": (1, 1_000_001),
    "dim": (0, 65_537),
    "depth": (0, 1001),
    "heads": (0, 1025),
    "registers": (-1, 1025),
    "rope_theta": (1.0, 2e9, math.nan),
    "norm_eps": (0.0, 1e-46, 1.5, math.nan),  # 1e-46 is 0 in float32
    "mlp_ratio": (0.0, 65.0, math.nan, math.inf),
    "layer_scale": (0.0, 11.0, math.nan),
} | dict.fromkeys(RATES, (-0.1, 1.0, math.nan, math.inf))
BASES = {
    "plain": {},
    "rope": {"position": "rope", "rope_theta": 30.0},
    "stem": STEM,
    "big_vision": BIG_VISION,
    "local": {"attention": "local", "image_size": 4, "registers": 2} | NO_PREFIX,
    "shifted": {"patch_embed": "shifted", "patch_stride": 3, "position": "conv", "pool": "map"},
}


def test_every_number_has_limits():
    assert OUT_OF_RANGE.keys() == {name for name, metadata in FIELDS.items() if "bounds" in metadata}
    numbers = {name for name, value in to_plain(config()).items() if type(value) in (int, float)}
    assert numbers | {"patch_stride", "rope_theta", "layer_scale", "mlp_hidden_dropout"} == OUT_OF_RANGE.keys()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("key", OUT_OF_RANGE)
def test_a_number_out_of_range_is_reported_alone_without_what_follows_from_it(base, key):
    assert vit_faults(config(**BASES[base])) == []
    for value in OUT_OF_RANGE[key]:
        (fault,) = vit_faults(config(**(BASES[base] | {key: value})))
        assert (fault.key, fault.given) == (key, str(value))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("key", CHOICES)
def test_an_unknown_choice_is_reported_alone_with_the_known_ones(base, key):
    found = vit_faults(config(**(BASES[base] | {key: "xyz"})))
    assert found == [Fault(key, "xyz", f"is not one of {', '.join(CHOICES[key])}")]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "key", ["mlp_ratio", "embed_dropout", "attention_dropout", "projection_dropout", "mlp_dropout", "drop_path"]
)
def test_rates_that_are_no_finite_numbers_are_refused(key, value):
    (fault,) = vit_faults(config(**{key: value}))
    assert (fault.key, fault.given) == (key, str(value))
    assert fault.problem.startswith("must be finite and ")


def test_all_faults_are_reported_together_under_their_prefix():
    made = config(
        patch_size=5,
        heads=5,
        dim=66,
        position="sincos2d",
        rope_theta=3.0,
        class_token=False,
        mlp_ratio=0.3,
        init="papers",
        drop_path=2.0,
    )
    found = {fault.key: fault for fault in vit_faults(made, "model.")}
    assert {key: fault.nearest for key, fault in found.items()} == {
        "model.patch_size": "model.patch_size=4",
        "model.heads": "model.heads=6",
        "model.dim": "model.dim=68",
        "model.rope_theta": "model.rope_theta=null",
        "model.pool": "model.pool=mean",
        "model.mlp_ratio": "model.mlp_ratio=0.303030303030303",
        "model.init": "paper",
        "model.drop_path": "",
    }
    assert "model.dim=66" in found["model.heads"].problem
    assert "model.position=sincos2d" in found["model.dim"].problem
    assert "model.class_token=false" in found["model.pool"].problem


def test_a_rule_reports_all_that_it_finds():
    stem = config(image_size=12, patch_size=12, patch_embed="conv_stem", patch_stride=6)
    assert [fault.key for fault in vit_faults(stem)] == ["patch_size", "patch_stride", "patch_embed"]
    assert [fault.key for fault in vit_faults(config(class_token=False, position="conv", depth=1))] == [
        "pool",
        "position",
    ]


def test_long_lists_of_what_is_allowed_are_shortened():
    (fault,) = vit_faults(config(dim=720, heads=7))
    assert fault.problem == "must divide the width, dim=720: 1, 2, 3, 4, 5, 6, ..., 180, 240, 360, 720"
    assert fault.nearest == "heads=6"


def test_a_configuration_survives_the_way_through_plain_values():
    original = config(position="sincos2d", drop_path=0.1)
    plain = to_plain(original)
    assert plain["position"] == "sincos2d"
    assert vit_config_from(plain) == original
    assert from_plain(ViTConfig, plain) == original


def test_names_and_types_of_another_version_are_refused():
    plain = to_plain(config())
    with pytest.raises(TypeError, match="no such field in ViTConfig: color, width"):
        vit_config_from(plain | {"width": 3, "color": 1})
    with pytest.raises(ConfigError, match="width"):
        from_plain(ViTConfig, plain | {"width": 3})
    with pytest.raises(ConfigError, match="dim") as error:
        from_plain(ViTConfig, plain | {"dim": "wide"})
    assert error.value.faults[0].key == "dim"


@pytest.mark.parametrize("key", ["mlp_ratio", "position", "image_size"])
def test_none_is_refused_where_a_value_is_needed(key):
    assert vit_faults(config(**{key: None})) == [Fault(key, "null", "must have a value")]


@pytest.mark.parametrize(("dim", "heads", "near"), [(66, 0, 68), (66, "3", 68), (66, 3, 72), (65_534, 7, 65_536)])
def test_a_suggested_width_is_one_that_the_heads_share_if_there_is_any(dim, heads, near):
    found = {fault.key: fault.nearest for fault in vit_faults(config(position="sincos2d", dim=dim, heads=heads))}
    assert found["dim"] == f"dim={near}"


@pytest.mark.parametrize(
    ("changes", "unread"),
    [
        ({"position": "relative", "depth": 1}, True),
        ({"position": "alibi2d", "depth": 1, "norm": "batchnorm"}, True),
        ({"position": "relative", "depth": 1, "norm": "my_lab.Norm"}, False),
        ({"position": "relative", "depth": 1, "pool": "mean"}, False),
        ({"position": "alibi2d", "depth": 2}, False),
        ({"position": "rope", "depth": 1}, False),
    ],
)
def test_positions_that_a_class_token_never_reads_are_not_trained_but_load(changes, unread):
    made = config(**changes)
    assert [fault.nearest for fault in unread_positions(made)] == ["model.pool=mean"] * unread
    assert "position" not in {fault.key for fault in vit_faults(made)}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("pool", ["mean"], "is not one of cls, mean, map"),
        ("class_token_init", [], "is not one of zeros, normal, uniform"),
        ("pretrained_new", "pool", "must be a list of position, class_token, "),
    ],
)
def test_a_list_is_given_where_several_words_are_taken_and_only_there(key, value, problem):
    fault, *_ = vit_faults(config(**{"pretrained": "weights.pth", key: value}))
    assert fault.key == key
    assert fault.problem.startswith(problem)
