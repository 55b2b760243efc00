import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vitrine.config.vit import ATTENTION_KERNELS, INITS, POOLS, POSITIONS, ViTConfig, vit_faults
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer

RATE = st.sampled_from([0.0, 0.1, 0.9])
CHOICES = {
    "in_channels": st.integers(1, 4),
    "num_classes": st.integers(2, 5),
    "depth": st.integers(1, 3),
    "mlp_ratio": st.floats(0.01, 3),
    "position": st.sampled_from(POSITIONS),
    "class_token": st.booleans(),
    "pool": st.sampled_from(POOLS),
    "attention_kernel": st.sampled_from(ATTENTION_KERNELS),
    "init": st.sampled_from(INITS),
    "embed_dropout": RATE,
    "attention_dropout": RATE,
    "projection_dropout": RATE,
    "mlp_dropout": RATE,
    "drop_path": RATE,
}
ANY = st.builds(
    ViTConfig,
    image_size=st.integers(0, 8),
    patch_size=st.integers(0, 8),
    dim=st.integers(0, 12),
    heads=st.integers(0, 4),
    **CHOICES,
)


@st.composite
def fitting(draw):
    """Sizes that divide as they must; the rest may still not go together."""
    patch, heads = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return draw(
        st.builds(
            ViTConfig,
            image_size=st.just(patch * draw(st.integers(1, 3))),
            patch_size=st.just(patch),
            dim=st.just(heads * draw(st.integers(1, 8))),
            heads=st.just(heads),
            **CHOICES,
        )
    )


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(config=fitting(), count=st.integers(1, 3))
def test_whatever_passes_the_checks_builds_and_has_finite_gradients(config, count):
    assume(not vit_faults(config))
    torch.manual_seed(0)
    model = VisionTransformer(config)
    logits = model(torch.randn(count, config.in_channels, config.image_size, config.image_size))
    assert logits.shape == (count, config.num_classes)
    torch.nn.functional.cross_entropy(logits, torch.zeros(count, dtype=torch.long)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(config=ANY)
def test_whatever_has_faults_is_refused_with_just_these(config):
    faults = vit_faults(config)
    assume(faults)
    with pytest.raises(ConfigError) as refusal:
        VisionTransformer(config)
    assert refusal.value.faults == faults
