import shutil

import pytest
import torch
from helpers.levels import quick, slow

from vitrine.config import model as vit
from vitrine.models import VisionTransformer

BUNDLES = {
    "mean": {"pool": "mean", "patch_embed": "linear", "norm": "rmsnorm", "norm_placement": "post", "mlp": "relu"},
    "map": {"pool": "map", "patch_embed": "conv_stem", "norm_placement": "sandwich", "mlp": "swiglu", "registers": 2},
    "narrow": {"patch_embed": "shifted", "mlp": "gelu_tanh", "qkv_bias": False, "qk_norm": True, "layer_scale": 0.1},
    "batch norm": {"norm": "batchnorm", "residual": False, "drop_path": 0.0},
    "overlapping": {"patch_stride": 2, "attention_kernel": "explicit", "class_token": False, "pool": "mean"},
    "bare": {"out_projection": False, "final_norm": False, "embed_norm": True, "attention_kernel": "sdpa"},
}
# Only some positions act in attention; the others are tried with one kind, and by hand with the rest.
PAIRS = [
    (position, attention)
    if attention == "joint" or position in vit.POSITIONS_IN_ATTENTION
    else slow(position, attention)
    for position in vit.POSITIONS
    for attention in vit.ATTENTIONS
]
each_pair = pytest.mark.parametrize(
    ("position", "attention"), quick(PAIRS, [("rope", attention) for attention in vit.ATTENTIONS])
)
each_bundle = pytest.mark.parametrize("bundle", quick(BUNDLES.values(), [BUNDLES["map"]]), ids=BUNDLES)
has_compiler = any(map(shutil.which, ("g++", "clang++")))


class Graphs:
    """A backend for torch.compile that runs what was captured as it stands, and counts how often something was."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph.forward


@pytest.fixture
def graphs():
    torch.compiler.reset()
    return Graphs()


def depth(position, attention):
    """Two blocks with joint attention, and where the position needs a second one; one elsewhere, which is faster."""
    return 2 if attention == "joint" or position in ("conv", "relative", "alibi2d") else 1


@pytest.fixture
def build(small, randomise):
    return lambda **changes: randomise(VisionTransformer(small(**changes)))


def step(run, model, images):
    """Logits and gradients, as they are when ``run`` computes the logits."""
    torch.manual_seed(0)  # for dropout
    model.zero_grad()
    logits = run(images)
    assert logits.abs().max() > 0.1
    logits.square().sum().backward()
    return {"logits": logits.detach()} | {name: one.grad for name, one in model.named_parameters()}


def assert_equal(found, expected, tolerance=1e-12):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        within = tolerance * value.abs().max().item()
        torch.testing.assert_close(found[name], value, rtol=0, atol=within, msg=lambda m, n=name: f"{n}: {m}")


def assert_one_graph(model, images, graphs):
    expected = step(model, model, images)
    compiled = torch.compile(model, fullgraph=True, backend=graphs)
    assert_equal(step(compiled, model, images), expected)
    step(compiled, model, images + 1)
    assert graphs.count == 1


def assert_exported(model, images):
    model.eval()
    batch = {"images": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(model, (images[:3],), dynamic_shapes=batch).module()
    for some in (images[:1], images[:3], images):
        torch.testing.assert_close(exported(some), model(some), rtol=0, atol=1e-12)


def test_every_choice_is_in_one_of_the_bundles(small):
    for name in ("pool", "patch_embed", "norm", "norm_placement", "mlp", "attention_kernel"):
        choices = {getattr(small(**bundle), name) for bundle in BUNDLES.values()} | {getattr(small(), name)}
        assert choices == set(getattr(vit, f"{name.upper()}S"))


@each_pair
@pytest.mark.whole
def test_positions_and_attentions_are_one_graph_together(build, images_for, graphs, position, attention):
    model = build(position=position, attention=attention, depth=depth(position, attention))
    assert_one_graph(model, images_for(model.config), graphs)


@each_pair
@pytest.mark.whole
def test_positions_and_attentions_are_exported_together_for_any_batch(build, images_for, position, attention):
    model = build(position=position, attention=attention, depth=depth(position, attention))
    assert_exported(model, images_for(model.config, 5))


@each_bundle
@pytest.mark.whole
def test_every_other_choice_is_one_graph(build, images_for, graphs, bundle):
    model = build(**bundle)
    assert_one_graph(model, images_for(model.config), graphs)


@each_bundle
@pytest.mark.whole
def test_every_other_choice_is_exported_for_any_batch(build, images_for, bundle):
    model = build(**bundle)
    assert_exported(model, images_for(model.config, 5))


@pytest.mark.whole
@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_training_with_every_dropout_is_one_graph_and_draws_the_same(build, images_for, graphs, kernel):
    rates = dict.fromkeys(("embed_dropout", "attention_dropout", "projection_dropout", "mlp_dropout"), 0.2)
    model = build(**rates, drop_path=0.5, drop_path_shape="constant", attention_kernel=kernel)
    assert_one_graph(model, images_for(model.config), graphs)


@pytest.mark.parametrize("position", quick(["learned", "relative", "rope", "rope_mixed"], ["rope_mixed"]))
@pytest.mark.whole
def test_training_on_a_part_of_the_patches_is_one_graph_and_draws_the_same(build, images_for, graphs, position):
    model = build(position=position, patch_dropout=0.4)
    assert_one_graph(model, images_for(model.config), graphs)


@pytest.mark.whole
@pytest.mark.parametrize("position", ["learned", "relative", "rope_mixed"])
def test_mixed_precision_is_one_graph(build, images_for, graphs, position):
    model = build(position=position).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert_one_graph(model, images_for(model.config).float(), graphs)


@pytest.mark.whole
def test_training_that_computes_blocks_twice_is_one_graph(build, images_for, graphs):
    model = build(drop_path=0.0)  # the compiler that runs nothing but what it captured draws other masks
    model.activation_checkpointing = True
    assert_one_graph(model, images_for(model.config), graphs)


@pytest.mark.whole
def test_batches_of_other_sizes_and_evaluation_take_one_more_graph_each(build, images_for, graphs):
    model = build(drop_path=0.1)
    compiled = torch.compile(model, fullgraph=True, backend=graphs)
    for count, needed in [(3, 1), (5, 2), (4, 2), (3, 2)]:
        compiled(images_for(model.config, count))
        assert graphs.count == needed
    for training, needed in [(False, 3), (True, 3), (False, 3)]:
        model.train(training)
        compiled(images_for(model.config))
        assert graphs.count == needed


@pytest.mark.whole
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "wrapped"])
def test_a_compiled_model_still_returns_its_attention_and_intermediates(build, images_for, graphs, in_place):
    model = build(position="relative", attention="local").eval()
    images = images_for(model.config)
    expected = model.intermediates(images) | {"maps": model.attention_maps(images)}
    compiled = model if in_place else torch.compile(model, fullgraph=True, backend=graphs)
    if in_place:
        model.compile(fullgraph=True, backend=graphs)
    logits = compiled(images)
    assert graphs.count == 1
    assert_equal(compiled.intermediates(images) | {"maps": compiled.attention_maps(images)}, expected)
    counted = graphs.count
    assert torch.equal(compiled(images), logits)
    assert graphs.count == counted


@pytest.mark.skipif(not has_compiler, reason="the full compiler needs one for C++")
@pytest.mark.parametrize(
    ("position", "attention"), [("rope_mixed", "joint"), slow("relative", "local"), slow("learned2d", "headwise")]
)
@pytest.mark.whole
def test_the_full_compiler_gives_the_same_logits_and_gradients(build, images_for, position, attention):
    torch.compiler.reset()
    model = build(position=position, attention=attention, pool="mean", depth=1).float()
    images = images_for(model.config).float()
    expected = step(model, model, images)
    assert_equal(step(torch.compile(model, fullgraph=True), model, images), expected, tolerance=1e-5)
