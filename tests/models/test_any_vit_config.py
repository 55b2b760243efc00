import ast
import dataclasses
import re
from collections import defaultdict

import pytest
import torch
from helpers.vit_configs import FIELDS, OPTIONS, SETTINGS, UNTIED, fitting
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vitrine.config.model import ViTConfig
from vitrine.config.model_faults import vit_faults
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer


def size(most):
    """Of squares and others."""
    return st.integers(0, most) | st.tuples(st.integers(0, most), st.integers(0, most))


SIZES = {
    "image_size": size(9),
    "patch_size": size(9),
    "patch_stride": st.none() | size(4),
    "dim": st.integers(0, 12),
    "heads": st.integers(0, 4),
    "mlp_ratio": st.floats(0, 3),
    "rope_theta": st.none() | st.floats(0, 1e3),
}
ANY = st.builds(ViTConfig, **SIZES, **UNTIED)


@st.composite
def spoiled(draw):
    """Sizes that went together before some were changed."""
    changes = draw(st.sets(st.sampled_from(list(SIZES)), min_size=1, max_size=2))
    return dataclasses.replace(draw(fitting()), **{name: draw(SIZES[name]) for name in sorted(changes)})


def test_these_tests_draw_every_field():
    assert SIZES.keys() | UNTIED.keys() == FIELDS.keys() - {"pretrained"}


@pytest.mark.whole
def test_whatever_passes_the_checks_builds_and_gives_every_parameter_a_finite_gradient():
    seen = defaultdict(set)

    @settings(SETTINGS, max_examples=400)
    @given(config=fitting(), count=st.integers(1, 3))
    def check(config, count):
        assume(not vit_faults(config))
        for name in FIELDS:
            seen[name].add(str(value) if isinstance(value := getattr(config, name), list) else value)
        torch.manual_seed(0)
        model = VisionTransformer(config)
        logits = model(torch.randn(count, config.in_channels, *config.image_hw))
        assert logits.shape == (count, config.num_classes)
        assert logits.isfinite().all()
        torch.nn.functional.cross_entropy(logits, torch.zeros(count, dtype=torch.long)).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name

    check()
    assert {name: seen[name] for name in OPTIONS} == {name: set(options) for name, options in OPTIONS.items()}
    assert all(len(values) > 1 for name, values in seen.items() if name not in ("name", "pretrained"))


@settings(SETTINGS, max_examples=200)
@given(config=spoiled() | ANY)
def test_whatever_has_faults_is_refused_with_just_these(config):
    faults = vit_faults(config)
    assume(faults)
    with pytest.raises(ConfigError) as refusal:
        VisionTransformer(config)
    assert refusal.value.faults == faults


def followed(config, suggestion):
    """``config`` with what a fault suggests."""
    name, word = suggestion.split("=")
    value = ast.literal_eval(word) if word[0] in "[0123456789" else None if word == "null" else word
    return dataclasses.replace(config, **{name: value})


def kinds(faults):
    """What is wrong, whatever the numbers."""
    return [(fault.key, re.sub(r"[\d., -]+(e-?\d+)?", " ", fault.problem)) for fault in faults]


@pytest.mark.whole
@settings(SETTINGS, max_examples=500)
@given(config=spoiled() | ANY)
def test_a_fault_is_gone_once_its_suggestion_is_followed(config):
    faults = vit_faults(config)
    assume(any(fault.nearest for fault in faults))
    for fault in faults:
        if fault.nearest:
            (kind,) = kinds([fault])
            assert kind not in kinds(vit_faults(followed(config, fault.nearest))), fault


@pytest.mark.whole
@settings(SETTINGS, max_examples=500)
@given(config=spoiled() | ANY)
def test_following_one_suggestion_after_the_other_ends(config):
    assume(vit_faults(config))
    for _ in range(12):
        suggestions = [fault.nearest for fault in vit_faults(config) if fault.nearest]
        if not suggestions:
            break
        config = followed(config, suggestions[0])
    assert not suggestions
