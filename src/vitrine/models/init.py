"""Initial weights. ``INITS`` maps the choices of ``model.init`` to functions that initialise linear maps in place.

With each of them, norms start as the identity. What is not a linear map (class token, tables, registers,
frequencies, the query of a pool) is initialised by its own module.
"""

import math
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from vitrine.config.model import ViTConfig
from vitrine.config.parts import as_part_error, function, part_at
from vitrine.models.attention import Attention
from vitrine.models.layers import HeadwiseLinear, PackedLinear

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d  # of one and three dimensions in a user's parts


def xavier(model: nn.Module) -> None:
    """Xavier's uniform distribution for every linear map, biases zero, as MAE (arXiv:2111.06377, appendix A.1).

    Maps that share one matrix product, as query, key and value, are initialised separately. A convolution counts as the
    map from its receptive field to a token: its fan-out is its channels, which makes patches smaller than fixed
    positions, whose size is 1.
    """
    for matrix in matrices(model):
        nn.init.xavier_uniform_(matrix)
    zero_biases(model)


def paper(model: nn.Module) -> None:
    """As the paper's own code (github.com/google-research/vision_transformer, vit_jax/models_vit.py).

    Like ``xavier``, but convolutions from LeCun's normal distribution. Its zero head is ``zero_head``. Two details are
    left out: the code truncates that distribution, and draws the biases of MLPs from N(0, 1e-6).
    """
    xavier(model)
    for module in model.modules():
        if isinstance(module, Convolution):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))


def trunc_normal(model: nn.Module) -> None:
    """Every linear layer from N(0, 0.02), cut at two standard deviations, biases zero.

    DeiT (arXiv:2012.12877) draws from the same distribution, but timm's code for it cuts at +-2, which is nowhere: its
    weights have a standard deviation of 0.020, these of 0.0176. Convolutions keep PyTorch's default, as in timm.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | HeadwiseLinear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def torch_default(model: nn.Module) -> None:
    """PyTorch's default for each layer: uniform in +-1/sqrt(inputs), biases too."""


def torch_encoder(model: nn.Module) -> None:
    """As ``torch.nn.TransformerEncoderLayer``: like ``torch``, but attention as in ``nn.MultiheadAttention``.

    Xavier's uniform distribution for query, key and value as one matrix, each head's own in ``headwise`` attention, and
    zero biases in all of attention.
    """
    for module in model.modules():
        if not isinstance(module, Attention):
            continue
        for weight in [module.qkv.weight] if isinstance(module.qkv, PackedLinear) else matrices(module.qkv):
            nn.init.xavier_uniform_(weight)
        zero_biases(module)


def matrices(model: nn.Module) -> Iterator[Tensor]:
    """Yield every linear map in the model as a matrix (outputs, inputs) that shares its memory.

    Of a ``PackedLinear`` its maps, of a ``HeadwiseLinear`` those of each head, of a convolution (channels, values of a
    receptive field).
    """
    for module in model.modules():
        if isinstance(module, PackedLinear):
            yield from module.weight.chunk(module.maps)
        elif isinstance(module, nn.Linear):
            yield module.weight
        elif isinstance(module, HeadwiseLinear):
            yield from module.weight.flatten(0, 1)
        elif isinstance(module, Convolution):
            yield module.weight.view(len(module.weight), -1)


def zero_biases(model: nn.Module) -> None:
    """Set the bias of every linear layer and convolution to zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | HeadwiseLinear | Convolution) and module.bias is not None:
            nn.init.zeros_(module.bias)


INITS: dict[str, Callable[[nn.Module], None]] = {
    "xavier": xavier,
    "paper": paper,
    "trunc_normal": trunc_normal,
    "torch": torch_default,
    "torch_encoder": torch_encoder,
}


def initialise(model: nn.Module, config: ViTConfig) -> None:
    """Set the initial weights of a new VisionTransformer in place, as ``config`` says.

    Raises:
        PartError: a function of the user's for ``init`` cannot be used or fails.
    """
    own = part_at(config, "init")
    if own is None:
        INITS[config.init](model)
    else:
        own_init = function(own)
        with as_part_error(own.name, "failed"):
            own_init(model)
    if config.same_init_layers:
        first, *others = model.get_submodule("blocks").children()
        for block in others:
            block.load_state_dict(first.state_dict())
    if config.zero_head:
        for parameter in model.get_submodule("head").parameters():
            nn.init.zeros_(parameter)
