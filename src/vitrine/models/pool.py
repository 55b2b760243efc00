"""Pooling of the tokens to what the head reads. ``POOLS`` maps the choices of ``pool=`` to constructors."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrine.config.model import ViTConfig
from vitrine.models.attention import attend, attention_weights
from vitrine.models.intermediates import NO_RECORDER, Recorder
from vitrine.models.layers import PackedLinear, build_norm
from vitrine.models.mlp import build_mlp
from vitrine.models.user_parts import user_module


class ClassTokenPool(nn.Module):
    """The class token (arXiv:2010.11929, section 3.1): ``cls``."""

    def forward(self, tokens: Tensor, record: Recorder = NO_RECORDER) -> Tensor:
        """(B, N, D) -> (B, D)."""
        return tokens[:, 0]


class MeanPool(nn.Module):
    """The mean over the patches (arXiv:2010.11929, appendix D.3): ``mean``.

    Args:
        prefix: tokens in front of the patches, which are left out.
    """

    def __init__(self, prefix: int = 0) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, tokens: Tensor, record: Recorder = NO_RECORDER) -> Tensor:
        """(B, N, D) -> (B, D)."""
        return tokens[:, self.prefix :].mean(dim=1)


class AttentionPool(nn.Module):
    """Multi-head attention pooling (arXiv:2106.04560, section 3.2): ``map``. A learned query, then an MLP.

    Prefix tokens are left out, as in timm's ``VisionTransformer``; parameter names are those of its
    ``AttentionPoolLatent``.

    Args:
        dim: width of a token, D.
        heads: number of attention heads; divides ``dim``.
        norm: normalises what the query attends to, (B, 1, D) -> (B, 1, D), before the MLP.
        mlp: maps (B, 1, D) to (B, 1, D), on a residual branch.
        prefix: tokens in front of the patches, which are left out.
        kernel: as in :func:`vitrine.models.attention.attend`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        norm: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module],
        prefix: int = 0,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        self.prefix, self.heads, self.kernel = prefix, heads, kernel
        self.latent = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.trunc_normal_(self.latent, std=dim**-0.5)
        self.q = nn.Linear(dim, dim)
        self.kv = PackedLinear(dim, dim, maps=2)
        self.proj = nn.Linear(dim, dim)
        self.norm = norm()
        self.mlp = mlp()

    def forward(self, tokens: Tensor, record: Recorder = NO_RECORDER) -> Tensor:
        """(B, N, D) -> (B, D)."""
        q = self.q(self.latent).expand(tokens.shape[0], -1, -1).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(tokens[:, self.prefix :]).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if record.active:
            record("weights", attention_weights(q, k))
        x = self.proj(attend(q, k, v, kernel=self.kernel).transpose(1, 2).flatten(2))
        return (x + self.mlp(self.norm(x)))[:, 0]

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay does not act on."""
        return {"latent"}


def _attention_pool(config: ViTConfig) -> AttentionPool:
    return AttentionPool(
        config.dim,
        config.heads,
        norm=lambda: build_norm(config, config.dim, (1,)),
        mlp=lambda: build_mlp(config, tokens=1),
        prefix=config.prefix,
        kernel=config.attention_kernel,
    )


POOLS: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "cls": lambda config: ClassTokenPool(),
    "mean": lambda config: MeanPool(config.prefix),
    "map": _attention_pool,
}


def build_pool(config: ViTConfig) -> nn.Module:
    """Return the pool that ``config.pool`` names, (B, N, D) -> (B, D)."""
    takes, gives = (2, config.tokens, config.dim), (2, config.dim)
    own = user_module(config, "pool", config, takes=takes, gives=gives)
    return POOLS[config.pool](config) if own is None else own
