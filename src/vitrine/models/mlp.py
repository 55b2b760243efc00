"""The MLP of an encoder block: each token by itself. ``MLPS`` maps the word of ``mlp=`` to what builds it.

It is built from the width of a token, the hidden width, and the rates of dropout after its first and its second layer.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config import ViTConfig
from vitrine.models.layers import Dropout, PackedLinear
from vitrine.models.user_parts import user_module


class Mlp(nn.Module):
    """Two linear layers with an activation between them (arXiv:2010.11929, section 3.1)."""

    def __init__(
        self, dim: int, hidden: int, dropout: tuple[float, float], activation: Callable[[], nn.Module]
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
    """Hidden units gated by the SiLU of as many others (arXiv:2002.05202, section 2, with biases).

    Three maps where :class:`Mlp` has two: a hidden width of 8/3 of the token's costs what 4 costs there. ``fc1`` holds
    the gate above the values, as timm's SwiGLUPacked.
    """

    def __init__(self, dim: int, hidden: int, dropout: tuple[float, float]) -> None:
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
    "gelu": partial(Mlp, activation=nn.GELU),
    "gelu_tanh": partial(Mlp, activation=partial(nn.GELU, approximate="tanh")),
    "relu": partial(Mlp, activation=nn.ReLU),
    "swiglu": SwiGlu,
}


def mlp(config: ViTConfig, dropout: tuple[float, float] = (0.0, 0.0)) -> nn.Module:
    """The configured MLP, (B, N, D) -> (B, N, D), with rates of dropout after its first and its second layer."""
    shape = (2, config.tokens, config.dim)
    if (own := user_module(config, "mlp", config.dim, config.mlp_dim, takes=shape, gives=shape)) is not None:
        return own
    return MLPS[config.mlp](config.dim, config.mlp_dim, dropout)
