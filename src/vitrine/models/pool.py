"""What the head reads of the tokens. ``POOLS`` maps the word of ``pool=`` to its module."""

import torch
from torch import Tensor, nn

from vitrine.config.model import ViTConfig
from vitrine.models.attention import attend, attention_weights
from vitrine.models.intermediates import IGNORE, Notes
from vitrine.models.layers import PackedLinear, norm
from vitrine.models.mlp import mlp
from vitrine.models.user_parts import user_module


class ClassTokenPool(nn.Module):
    """The class token (arXiv:2010.11929, section 3.1): ``cls``."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()

    def forward(self, tokens: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, D)."""
        return tokens[:, 0]


class MeanPool(nn.Module):
    """The mean over the patches, prefix left out (arXiv:2010.11929, appendix D.3): ``mean``."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.prefix = config.prefix

    def forward(self, tokens: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, D)."""
        return tokens[:, self.prefix :].mean(dim=1)


class AttentionPool(nn.Module):
    """What a learned query attends to among the patches, then an MLP (arXiv:2106.04560, section 3.2): ``map``.

    Prefix tokens are left out, as in timm's VisionTransformer; names as in its AttentionPoolLatent.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.prefix, self.heads, self.kernel = config.prefix, config.heads, config.attention_kernel
        self.latent = nn.Parameter(torch.empty(1, 1, config.dim))
        nn.init.trunc_normal_(self.latent, std=config.dim**-0.5)
        self.q = nn.Linear(config.dim, config.dim)
        self.kv = PackedLinear(config.dim, config.dim, maps=2)
        self.proj = nn.Linear(config.dim, config.dim)
        self.norm = norm(config, config.dim)
        self.mlp = mlp(config)

    def forward(self, tokens: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, D)."""
        q = self.q(self.latent).expand(tokens.shape[0], -1, -1).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(tokens[:, self.prefix :]).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if note.taken:
            note("weights", attention_weights(q, k))
        x = self.proj(attend(q, k, v, kernel=self.kernel).transpose(1, 2).flatten(1))
        return x + self.mlp(self.norm(x))


POOLS: dict[str, type[nn.Module]] = {"cls": ClassTokenPool, "mean": MeanPool, "map": AttentionPool}


def pool(config: ViTConfig) -> nn.Module:
    """The configured pool, (B, N, D) -> (B, D)."""
    takes, gives = (2, config.tokens, config.dim), (2, config.dim)
    own = user_module(config, "pool", config, takes=takes, gives=gives)
    return POOLS[config.pool](config) if own is None else own
