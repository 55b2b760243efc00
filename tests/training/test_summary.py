"""The summary of a model's layers: parameters and FLOPs add up to those that run.json has."""

import pytest
from helpers.levels import sampled

from vitrine.cli.summary import main
from vitrine.models import build_model
from vitrine.training.flops import flops_per_image
from vitrine.training.summary import layers

CHOICES = ["pool=cls", "pool=map", "position=relative", "patch_embed=conv_stem", "attention=local", "mlp=swiglu"]


@pytest.mark.whole
@pytest.mark.parametrize("choice", sampled(CHOICES, every=4))
def test_layers_add_up_to_the_model(compose, choice):
    config = compose("model=vit_nano", choice).model
    found = layers(config, 1)
    assert found.parameters == sum(values.numel() for values in build_model(config).parameters())
    assert found.flops == flops_per_image(config)
    assert sum(layer.parameters for layer in found.layers) == found.parameters
    assert sum(layer.flops for layer in found.layers) <= found.flops


def test_shapes_are_those_of_the_forward_pass(compose):
    config = compose("model=vit_nano", "pool=cls", "depth=2").model
    found = {layer.name: layer for layer in layers(config, 4).layers}
    tokens = (1, config.tokens, config.dim)
    assert (found["blocks.0"].takes, found["blocks.0"].gives) == (tokens, tokens)
    assert (found["blocks.1"].takes, found["blocks.1"].gives) == (tokens, (1, 1, config.dim)), "the class token is read"
    assert found["blocks.0.attn.qkv"].gives == (1, config.tokens, 3 * config.dim)
    assert found["head"].gives == (1, 10)
    assert found["cls_token"].gives == (1, 1, config.dim)
    assert "blocks.0.attn.qkv" not in {layer.name for layer in layers(config, 3).layers}


def test_the_command_prints_the_layers_and_the_totals(capsys):
    main(["model=vit_nano", "depth=2", "--depth", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["layer", "type", "input", "output", "parameters", "FLOPs"]
    assert "blocks" in [line.split("\t")[0] for line in lines]
    assert lines[-3].startswith("parameters ")
    assert lines[-1] == "images           8x8x1, 10 classes"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["model=vit_nan"], "did you mean model=vit_nano?"), (["--deep", "2"], "unrecognized arguments: --deep")],
)
def test_a_wrong_request_is_refused(capsys, arguments, expected):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err
