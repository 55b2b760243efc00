"""Initial weights. ``INITS`` maps the word of ``model.init`` to a function that sets those of linear layers.

Whatever the scheme, norms start at the identity, the class token at zero, and tables as models/position.py says.
"""

import math
from collections.abc import Callable

from torch import nn

from vitrine.models.attention import Attention


def xavier(model: nn.Module) -> None:
    """Xavier's uniform distribution for every linear map, biases zero, as MAE (arXiv:2111.06377, appendix A.1).

    Query, key and value count as maps of their own, and so does the patch embedding: its fan-out is the model's width,
    which leaves patches smaller than fixed positions of size 1.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.view(len(module.weight), -1))
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in module.qkv.weight.chunk(3):
                nn.init.xavier_uniform_(matrix)
    zero_biases(model)


def paper(model: nn.Module) -> None:
    """As the paper's own code (github.com/google-research/vision_transformer, vit_jax/models_vit.py).

    Like ``xavier``, but the patch embedding from LeCun's normal distribution, and the head zero, so that training
    starts from equal chances.
    """
    xavier(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    nn.init.zeros_(head.weight)


def trunc_normal(model: nn.Module) -> None:
    """Every linear layer from N(0, 0.02), cut at two standard deviations, biases zero, as DeiT (arXiv:2012.12877).

    The patch embedding stays as PyTorch draws it, bias too, as in timm.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            nn.init.zeros_(module.bias)


def torch(model: nn.Module) -> None:
    """What PyTorch gives each layer by itself: uniform in +-1/sqrt(inputs), biases too."""


def zero_biases(model: nn.Module) -> None:
    """Set the bias of every linear layer and convolution to zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)


INITS: dict[str, Callable[[nn.Module], None]] = {
    "xavier": xavier,
    "paper": paper,
    "trunc_normal": trunc_normal,
    "torch": torch,
}
