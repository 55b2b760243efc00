"""One layer of the encoder: attention, then an MLP, each on a residual branch.

``BLOCKS`` maps the word of ``norm_placement=`` to the block that normalises there.
"""

import torch
from torch import Tensor, nn

from vitrine.config.model import ViTConfig
from vitrine.models.attention import Attention, attention
from vitrine.models.intermediates import IGNORE, Notes
from vitrine.models.layers import norm
from vitrine.models.mlp import mlp


class Block(nn.Module):
    """Normalises what goes into a branch (arXiv:2010.11929, equations 2 and 3): ``pre``.

    Args:
        config: the model's.
        drop_path: chance to skip a residual branch, for each image by itself.
        relation: where tokens stand to each other, for attention.
    """

    def __init__(self, config: ViTConfig, drop_path: float, relation: nn.Module) -> None:
        super().__init__()
        self.norm1 = norm(config, config.dim)
        self.attn = attention(config, relation)
        self.ls1 = LayerScale(config.dim, config.layer_scale) if config.layer_scale is not None else nn.Identity()
        self.norm2 = norm(config, config.dim)
        hidden = config.mlp_dropout if config.mlp_hidden_dropout is None else config.mlp_hidden_dropout
        self.mlp = mlp(config, (hidden, config.mlp_dropout))
        self.ls2 = LayerScale(config.dim, config.layer_scale) if config.layer_scale is not None else nn.Identity()
        self.drop_path = DropPath(drop_path) if config.drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = x + self.drop_path(self.attention_branch(self.norm1(x), note))
        return x + self.drop_path(self.mlp_branch(self.norm2(x), note))

    def attention_branch(self, x: Tensor, note: Notes) -> Tensor:
        """What attention adds."""
        x = self.attn(x, note.under("attn")) if isinstance(self.attn, Attention) else self.attn(x)
        return note("attn", self.ls1(x))

    def mlp_branch(self, x: Tensor, note: Notes) -> Tensor:
        """What the MLP adds."""
        return note("mlp", self.ls2(self.mlp(x)))


class PostNormBlock(Block):
    """Normalises the sum of branch and residual, as the first Transformer (arXiv:1706.03762, section 3.1): ``post``."""

    def forward(self, x: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = self.norm1(x + self.drop_path(self.attention_branch(x, note)))
        return self.norm2(x + self.drop_path(self.mlp_branch(x, note)))


class SandwichBlock(Block):
    """Normalises what goes into a branch and what comes out (CogView, arXiv:2105.13290, section 2.4): ``sandwich``."""

    def __init__(self, config: ViTConfig, drop_path: float, relation: nn.Module) -> None:
        super().__init__(config, drop_path, relation)
        self.norm1_out = norm(config, config.dim)
        self.norm2_out = norm(config, config.dim)

    def forward(self, x: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = x + self.drop_path(self.norm1_out(self.attention_branch(self.norm1(x), note)))
        return x + self.drop_path(self.norm2_out(self.mlp_branch(self.norm2(x), note)))


BLOCKS: dict[str, type[Block]] = {"pre": Block, "post": PostNormBlock, "sandwich": SandwichBlock}


class LayerScale(nn.Module):
    """A learned factor per channel, small at first (arXiv:2103.17239, section 2)."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth (arXiv:1603.09382): zero a branch for some images, scale the others to keep the mean.

    Attributes:
        keep: share of the images that keep the branch. A tensor, so that blocks which differ in it are one graph.
    """

    keep: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor(1 - rate), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        if not self.training:
            return x
        kept = torch.bernoulli(self.keep.expand(x.shape[0], 1, 1))
        return x * (kept / self.keep).to(x.dtype)
