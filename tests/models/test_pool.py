import pytest
import torch
from torch import nn

from vitrine.models import VisionTransformer
from vitrine.models.pool import POOLS

PREFIXES = [(True, 0), (False, 0), (True, 2), (False, 2)]


@pytest.fixture
def pool(small, randomise):
    """A pool alone, with random weights."""

    def make(kind, **changes):
        return randomise(POOLS[kind](small(pool=kind, **changes)))

    return make


@pytest.mark.parametrize("registers", [0, 2])
def test_cls_reads_the_class_token(pool, noise, registers):
    tokens = noise(2, 17 + registers, 24)
    assert torch.equal(pool("cls", registers=registers)(tokens), tokens[:, 0])


@pytest.mark.parametrize(("class_token", "registers"), PREFIXES)
def test_mean_is_over_the_patches_only(pool, noise, class_token, registers):
    tokens = noise(2, class_token + registers + 16, 24)
    expected = sum(tokens[:, class_token + registers + patch] for patch in range(16)) / 16
    found = pool("mean", class_token=class_token, registers=registers)(tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "explicit"])
@pytest.mark.parametrize(("class_token", "registers"), PREFIXES)
@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_map_is_pytorchs_attention_of_a_learned_query_to_the_patches_then_an_mlp(
    pool, noise, mlp, class_token, registers, kernel
):
    ours = pool("map", mlp=mlp, class_token=class_token, registers=registers, attention_kernel=kernel)
    theirs = nn.MultiheadAttention(24, 3, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([ours.q.weight, ours.kv.weight]),
            "in_proj_bias": torch.cat([ours.q.bias, ours.kv.bias]),
            "out_proj.weight": ours.proj.weight,
            "out_proj.bias": ours.proj.bias,
        }
    )
    tokens = noise(2, class_token + registers + 16, 24)
    patches = tokens[:, class_token + registers :]
    read = theirs(ours.latent.expand(2, 1, 24), patches, patches)[0][:, 0]
    torch.testing.assert_close(ours(tokens), read + ours.mlp(ours.norm(read)), rtol=0, atol=1e-12)


def test_map_never_drops_anything(pool, noise):
    tokens = noise(2, 17, 24)
    one = pool("map", mlp_dropout=0.5, attention_dropout=0.5, projection_dropout=0.5)
    assert torch.equal(one.train()(tokens), one.eval()(tokens))


@pytest.mark.parametrize("kind", POOLS)
def test_the_head_reads_what_the_pool_gives(small, randomise, images_for, kind):
    config = small(pool=kind)
    model = randomise(VisionTransformer(config))
    found = model.intermediates(images_for(config))
    assert torch.equal(found["pooled"], model.attn_pool(found["features"]))
    torch.testing.assert_close(found["logits"], found["pooled"] @ model.head.weight.T + model.head.bias)
