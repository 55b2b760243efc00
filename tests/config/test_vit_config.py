import math

import pytest

from vitrine.config.plain import from_plain, to_plain
from vitrine.config.vit import ViTConfig, vit_config_from, vit_faults
from vitrine.errors import ConfigError, Fault


def config(**changes):
    sizes = {"image_size": 28, "patch_size": 4, "in_channels": 1, "num_classes": 10, "dim": 64, "depth": 4, "heads": 4}
    return ViTConfig(**(sizes | changes))


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("position", ["none", "learned", "sincos1d", "sincos2d"])
def test_what_goes_together_has_no_fault(position, pool):
    assert vit_faults(config(position=position, pool=pool, class_token=pool == "cls")) == []
    assert vit_faults(config(position=position, pool=pool)) == []


def test_the_sequence_counts_the_class_token():
    assert (config().grid, config().tokens, config(class_token=False).tokens) == (7, 50, 49)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"patch_size": 5},
            Fault("patch_size", "5", "must divide the image size, 28: 1, 2, 4, 7, 14, 28", "patch_size=4"),
        ),
        (
            {"patch_size": 30},
            Fault("patch_size", "30", "must divide the image size, 28: 1, 2, 4, 7, 14, 28", "patch_size=28"),
        ),
        ({"heads": 5}, Fault("heads", "5", "must divide the width, dim=64: 1, 2, 4, 8, 16, 32, 64", "heads=4")),
        (
            {"dim": 66, "heads": 3, "position": "sincos2d"},
            Fault("dim", "66", "must be divisible by 4 for position=sincos2d", "dim=68"),
        ),
        ({"class_token": False}, Fault("pool", "cls", "reads the class token, but class_token=false", "pool=mean")),
        (
            {"mlp_ratio": 0.001},
            Fault("mlp_ratio", "0.001", "leaves the MLP no hidden unit at dim=64; must be >= 0.015625"),
        ),
        (
            {"position": "sincos"},
            Fault("position", "sincos", "is not one of none, learned, sincos1d, sincos2d", "sincos2d"),
        ),
        ({"pool": "means"}, Fault("pool", "means", "is not one of cls, mean", "mean")),
        ({"init": "papers"}, Fault("init", "papers", "is not one of xavier, paper, trunc_normal, torch", "paper")),
        (
            {"attention_kernel": "flash"},
            Fault("attention_kernel", "flash", "is not one of auto, sdpa, explicit"),
        ),
        ({"num_classes": 1}, Fault("num_classes", "1", "must be >= 2 and <= 1000000")),
        ({"depth": 0}, Fault("depth", "0", "must be >= 1 and <= 1000")),
        ({"drop_path": 1.0}, Fault("drop_path", "1.0", "must be >= 0 and < 1")),
        ({"mlp_ratio": 65.0}, Fault("mlp_ratio", "65.0", "must be > 0 and <= 64")),
    ],
)
def test_each_fault_names_the_key_the_value_what_is_allowed_and_the_nearest(changes, fault):
    assert vit_faults(config(**changes)) == [fault]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "key", ["mlp_ratio", "embed_dropout", "attention_dropout", "projection_dropout", "mlp_dropout", "drop_path"]
)
def test_rates_that_are_no_finite_numbers_are_refused(key, value):
    (fault,) = vit_faults(config(**{key: value}))
    assert (fault.key, fault.given) == (key, str(value))
    assert fault.problem.startswith("must be finite and ")


def test_all_faults_are_told_at_once_under_their_prefix():
    found = vit_faults(config(patch_size=5, heads=5, dim=66, position="sincos2d", class_token=False), "model.")
    assert [fault.key for fault in found] == ["model.patch_size", "model.heads", "model.dim", "model.pool"]
    assert [fault.nearest for fault in found] == [
        "model.patch_size=4",
        "model.heads=6",
        "model.dim=68",
        "model.pool=mean",
    ]
    assert "model.dim=66" in found[1].problem


@pytest.mark.parametrize("key", ["image_size", "patch_size", "dim", "heads"])
def test_a_size_out_of_range_is_told_alone_without_dividing_by_it(key):
    assert [fault.key for fault in vit_faults(config(**{key: 0}))] == [key]


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
