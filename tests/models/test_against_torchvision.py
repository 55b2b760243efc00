from functools import partial

import pytest
import torch
import torchvision
from helpers.published import PUBLISHED
from helpers.renaming import renamed
from helpers.running import write_image_folder
from torch import nn
from torchvision.models.vision_transformer import ConvStemConfig

from vitrine import compose
from vitrine.config.model import ViTConfig
from vitrine.models import VisionTransformer

NAMES = (
    ("cls_token", "class_token"),
    ("pos_embed", "encoder.pos_embedding"),
    ("patch_embed.proj", "conv_proj"),
    ("blocks.", "encoder.layers.encoder_layer_"),
    ("norm1", "ln_1"),
    ("norm2", "ln_2"),
    ("attn.qkv.", "self_attention.in_proj_"),
    ("attn.proj", "self_attention.out_proj"),
    ("mlp.fc1", "mlp.0"),
    ("mlp.fc2", "mlp.3"),
    ("head.", "heads.head."),
)


def torchvision_names(tensors):
    last = {name: f"encoder.ln.{name.removeprefix('norm.')}" for name in tensors if name.startswith("norm.")}
    return renamed({last.get(name, name): value for name, value in tensors.items()}, NAMES)


def torchvision_vit(config, **changes):
    return torchvision.models.VisionTransformer(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.dim,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
        **changes,
    ).double()


def stem(*channels):
    return {"conv_stem_configs": [ConvStemConfig(out_channels=count, kernel_size=3, stride=2) for count in channels]}


VIT = {
    "plain": ({}, {}),
    "eps 1e-5": ({"norm_eps": 1e-5}, {"norm_layer": partial(nn.LayerNorm, eps=1e-5)}),
    "stem of two": ({"patch_embed": "conv_stem"}, stem(12, 24)),
    "stem of three": ({"patch_embed": "conv_stem", "patch_size": 8, "image_size": 24}, stem(6, 12, 24)),
    "stem of one": ({"patch_embed": "conv_stem", "patch_size": 2, "image_size": 8}, stem(24)),
}


@pytest.fixture(params=VIT)
def vits(request, small, randomise):
    changes, theirs = VIT[request.param]
    config = small(**changes)
    ours = randomise(VisionTransformer(config))
    generator = torch.Generator().manual_seed(4)
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data += 1
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    theirs = torchvision_vit(config, **theirs)
    theirs.load_state_dict(torchvision_names(ours.state_dict()))
    return config, ours, theirs


@pytest.mark.parametrize("training", [True, False])
def test_logits_gradients_and_statistics_are_those_of_torchvision(vits, images_for, assert_same, training):
    config, ours, theirs = vits
    assert_same(ours.train(training), theirs.train(training), images_for(config), torchvision_names)
    expected = theirs.state_dict()  # in training, the comparison was a step for batch normalisation
    for name, value in torchvision_names(ours.state_dict()).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)


def test_names_and_shapes_are_those_of_vit_b_16():
    sizes = {"image_size": 224, "patch_size": 16, "in_channels": 3, "num_classes": 1000}
    config = ViTConfig(**sizes, dim=768, depth=12, heads=12, **PUBLISHED)
    with torch.device("meta"):
        ours = torchvision_names(VisionTransformer(config).state_dict())
        theirs = torchvision.models.vit_b_16().state_dict()
    assert {name: value.shape for name, value in ours.items()} == {name: v.shape for name, v in theirs.items()}


@pytest.mark.whole
def test_vit_b_16_as_a_tutorial_prints_it_computes_what_torchvision_does_in_float32_at_full_size(tmp_path):
    write_image_folder(tmp_path, "train", "test")
    overrides = ["experiment=tutorials/vit_base_anatomy/faithful", f"data.root={tmp_path}", "model.num_classes=1000"]
    torch.manual_seed(0)
    ours = VisionTransformer(compose(overrides).model).eval()
    theirs = torchvision.models.vit_b_16(norm_layer=partial(nn.LayerNorm, eps=1e-5)).eval()
    theirs.load_state_dict(torchvision_names(ours.state_dict()))
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        logits, expected = ours(image), theirs(image)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=0, atol=3e-6)  # here 7e-7; eps 1e-6 would differ by 6e-6
