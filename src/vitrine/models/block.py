"""A block of the encoder: attention, then an MLP, each on a residual branch.

``BLOCKS`` maps the choices of ``norm_placement=`` to modules.
"""

from functools import partial

import torch
from torch import Tensor, nn

from vitrine.config.model import ViTConfig
from vitrine.models.attention import build_attention
from vitrine.models.intermediates import NO_RECORDER, Recorder
from vitrine.models.layers import build_norm
from vitrine.models.mlp import build_mlp
from vitrine.models.user_parts import forward_takes


class Block(nn.Module):
    """Pre-norm block (arXiv:2010.11929, equations 2 and 3): normalises the input of each branch: ``pre``.

    Args:
        config: the model's.
        drop_path: probability of skipping a residual branch, per image; ``None`` is without stochastic depth.
        relation: relative positions, for attention (models/pos_embed.py).
    """

    def __init__(self, config: ViTConfig, drop_path: float | None, relation: nn.Module) -> None:
        super().__init__()
        self.residual = config.residual
        self.norm1 = build_norm(config, config.dim)
        self.attn = build_attention(config, relation)
        self.attn_takes = tuple(filter(partial(forward_takes, self.attn), ("record", "indices", "num_queries")))
        self.ls1 = LayerScale(config.dim, config.layer_scale) if config.layer_scale is not None else nn.Identity()
        self.norm2 = build_norm(config, config.dim)
        hidden = config.mlp_dropout if config.mlp_hidden_dropout is None else config.mlp_hidden_dropout
        self.mlp = build_mlp(config, (hidden, config.mlp_dropout))
        self.ls2 = LayerScale(config.dim, config.layer_scale) if config.layer_scale is not None else nn.Identity()
        self.drop_path = nn.Identity() if drop_path is None else DropPath(drop_path)
        self.norm1_out: nn.Module = nn.Identity()
        self.norm2_out: nn.Module = nn.Identity()

    def forward(
        self, x: Tensor, record: Recorder = NO_RECORDER, indices: Tensor | None = None, num_queries: int | None = None
    ) -> Tensor:
        """(B, N, D) -> (B, N, D); ``indices`` and ``num_queries`` as of :meth:`Attention.forward`."""
        x = self.join(x[:, :num_queries], self.attention_branch(self.norm1(x), record, indices, num_queries))
        return self.join(x, self.mlp_branch(self.norm2(x), record))

    def join(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add a branch to the block's input, both (B, N, D); without residual connections, return the branch alone."""
        return x + self.drop_path(branch) if self.residual else branch

    def attention_branch(self, x: Tensor, record: Recorder, indices: Tensor | None, num_queries: int | None) -> Tensor:
        """(B, N, D) -> (B, N, D): attention, a norm if there is one, and layer scale, which a norm would undo."""
        known = {"record": record.scope("attn"), "indices": indices, "num_queries": num_queries}
        x = self.attn(x, **{name: known[name] for name in self.attn_takes})
        return record("attn", self.ls1(self.norm1_out(x)))

    def mlp_branch(self, x: Tensor, record: Recorder) -> Tensor:
        """(B, N, D) -> (B, N, D): MLP, a norm if there is one, and layer scale."""
        return record("mlp", self.ls2(self.norm2_out(self.mlp(x))))


class PostNormBlock(Block):
    """Post-norm block (arXiv:1706.03762, section 3.1): normalises the sum of branch and residual: ``post``."""

    def forward(
        self, x: Tensor, record: Recorder = NO_RECORDER, indices: Tensor | None = None, num_queries: int | None = None
    ) -> Tensor:
        """(B, N, D) -> (B, N, D); ``indices`` and ``num_queries`` as of :meth:`Attention.forward`."""
        x = self.norm1(self.join(x[:, :num_queries], self.attention_branch(x, record, indices, num_queries)))
        return self.norm2(self.join(x, self.mlp_branch(x, record)))


class SandwichBlock(Block):
    """Sandwich-norm block (CogView, arXiv:2105.13290, section 2.4): before and after each branch: ``sandwich``."""

    def __init__(self, config: ViTConfig, drop_path: float | None, relation: nn.Module) -> None:
        super().__init__(config, drop_path, relation)
        self.norm1_out = build_norm(config, config.dim)
        self.norm2_out = build_norm(config, config.dim)


BLOCKS: dict[str, type[Block]] = {"pre": Block, "post": PostNormBlock, "sandwich": SandwichBlock}


class LayerScale(nn.Module):
    """A learned factor per channel (arXiv:2103.17239, section 2).

    Args:
        dim: number of channels, D.
        initial: value of every factor at the start.
    """

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth (arXiv:1603.09382): zeroes a branch for some images, and scales the others to keep the mean.

    Args:
        rate: probability of zeroing, in [0, 1).

    Attributes:
        keep: 1 - rate. A tensor, so that blocks which differ in it compile to one graph.
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
