"""The MLP of an encoder block, applied to each token. ``MLPS`` maps the choices of ``mlp=`` to constructors."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config import ViTConfig
from vitrine.models.layers import Dropout, PackedLinear
from vitrine.models.user_parts import user_module


@torch.library.custom_op("vitrine::gelu", mutates_args=(), device_types="cpu")
def opaque_gelu(x: Tensor) -> Tensor:
    """PyTorch's GELU, which torch.compile calls as it is, and does not write anew."""
    return torch.ops.aten.gelu(x)


@torch.library.custom_op("vitrine::gelu_backward", mutates_args=(), device_types="cpu")
def _opaque_gelu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(gradient, x)


opaque_gelu.register_fake(torch.empty_like)
_opaque_gelu_backward.register_fake(lambda gradient, x: torch.empty_like(x))
opaque_gelu.register_autograd(
    lambda ctx, gradient: _opaque_gelu_backward(gradient, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Gelu(nn.Module):
    """GELU (arXiv:1606.08415), in compiled bfloat16 on a CPU by PyTorch's own kernel.

    Inductor would compute it in float32 among its neighbours, and be slower (benchmarks/timing/ideas.py).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        own = compiled and x.dtype is torch.bfloat16 and x.device.type == "cpu"
        return opaque_gelu(x) if own else F.gelu(x)


class Mlp(nn.Module):
    """Two linear layers with an activation between them (arXiv:2010.11929, section 3.1).

    Args:
        dim: width of a token, D.
        hidden: width of the hidden layer.
        dropout: rates after the first and the second layer, in [0, 1).
        activation: constructor of the activation.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        dropout: tuple[float, float] = (0.0, 0.0),
        activation: Callable[[], nn.Module] = Gelu,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = activation()
        self.drop1 = Dropout(dropout[0])
        self.fc2 = nn.Linear(hidden, dim)
        self.drop2 = Dropout(dropout[1])

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = self.drop1(self.act(self.fc1(x)))
        return self.drop2(self.fc2(x))


class SwiGlu(nn.Module):
    """SwiGLU (arXiv:2002.05202, section 2), with biases: hidden units gated by the SiLU of as many others.

    It has three maps where :class:`Mlp` has two: a hidden width of 8/3 D costs what 4 D costs there. ``fc1`` stacks
    the gate above the values, as timm's ``SwiGLUPacked``.

    Args:
        dim: width of a token, D.
        hidden: width of the hidden layer.
        dropout: rates after the gated units and after the last layer, in [0, 1).
    """

    def __init__(self, dim: int, hidden: int, dropout: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.fc1 = PackedLinear(dim, hidden, maps=2)
        self.drop1 = Dropout(dropout[0])
        self.fc2 = nn.Linear(hidden, dim)
        self.drop2 = Dropout(dropout[1])

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        gate, x = self.fc1(x).chunk(2, dim=-1)
        x = self.drop1(F.silu(gate) * x)
        return self.drop2(self.fc2(x))


MLPS: dict[str, Callable[[int, int, tuple[float, float]], nn.Module]] = {
    "gelu": partial(Mlp, activation=Gelu),
    "gelu_tanh": partial(Mlp, activation=partial(nn.GELU, approximate="tanh")),
    "relu": partial(Mlp, activation=nn.ReLU),
    "swiglu": SwiGlu,
}


def build_mlp(config: ViTConfig, dropout: tuple[float, float] = (0.0, 0.0), tokens: int | None = None) -> nn.Module:
    """Return the MLP that ``config.mlp`` names, (B, N, D) -> (B, N, D); a user's own gets no dropout rates.

    N is ``tokens``; ``None`` is the model's.
    """
    shape = (2, tokens or config.tokens, config.dim)
    own = user_module(config, "mlp", config.dim, config.mlp_dim, takes=shape, gives=shape)
    return MLPS[config.mlp](config.dim, config.mlp_dim, dropout) if own is None else own
