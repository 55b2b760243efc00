"""Configurations of Vision Transformers over the whole space of choices, for property-based tests."""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st

from vitrine.config.model import ROTARY_THETA, ViTConfig

# Options belong to a user's own parts (tests/models/test_user_parts.py), and pretrained_new to weights
# (tests/training/test_new_parts.py); the configurations here have built-in parts and start from none.
FIELDS = {field.name: field for field in dataclasses.fields(ViTConfig) if not field.name.endswith(("options", "_new"))}
OPTIONS = {name: field.metadata["options"] for name, field in FIELDS.items() if "options" in field.metadata}
RATE = st.sampled_from([0.0, 0.1, 0.5])
UNTIED = {name: st.sampled_from(options) for name, options in OPTIONS.items()} | {
    "in_channels": st.integers(1, 4),
    "num_classes": st.integers(2, 5),
    "depth": st.integers(1, 2),
    "class_token": st.booleans(),
    "registers": st.integers(0, 3),
    "embed_norm": st.booleans(),
    "norm_eps": st.sampled_from([1e-6, 1e-3, 1.0]),
    "final_norm": st.booleans(),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "out_projection": st.booleans(),
    "residual": st.booleans(),
    "layer_scale": st.none() | st.sampled_from([1e-5, 0.1, 1.0]),
    "embed_dropout": RATE,
    "attention_dropout": RATE,
    "projection_dropout": RATE,
    "mlp_dropout": RATE,
    "mlp_hidden_dropout": st.none() | RATE,
    "patch_dropout": RATE,
    "drop_path": RATE,
    "zero_head": st.booleans(),
    "same_init_layers": st.booleans(),
}
SETTINGS = settings(deadline=None, derandomize=True, database=None)


@st.composite
def fitting(draw):
    """Sizes that go together; the rest does, most of the time."""
    untied = {name: draw(values) for name, values in UNTIED.items()}
    untied["drop_path"] *= untied["residual"]
    untied["patch_dropout"] *= untied["position"] != "conv"
    stem, position = untied["patch_embed"] == "conv_stem", untied["position"]
    patch = draw(st.sampled_from([2, 4, 8] if stem else [1, 2, 3, 4, 5]))
    stride = None if stem else draw(st.none() | st.integers(1, patch))
    heads = draw(st.integers(1, 3))
    dim = heads * draw(st.sampled_from([4, 8] if stem or "rope" in position or "2d" in position else [1, 3, 4]))
    patches = [patch, patch if stem else draw(st.sampled_from([patch, 2 * patch]))]  # some are not square
    image = [side + (stride or side) * draw(st.integers(stem, 2)) for side in patches]
    return ViTConfig(
        image_size=image,
        patch_size=patches,
        patch_stride=stride,
        dim=dim,
        heads=heads,
        mlp_ratio=draw(st.integers(1, 3 * dim)) / dim,
        rope_theta=draw(st.none() | st.floats(1.1, 1e9)) if position in ROTARY_THETA else None,
        **untied,
    )
