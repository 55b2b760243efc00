"""Self-attention: tokens look at each other. ``ATTENTIONS`` maps the word of ``attention=`` to its module.

What is computed stands in the modules; how, in ``attend``, whose kernels differ by rounding, and
in which random numbers attention dropout takes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.models.intermediates import IGNORE, Notes
from vitrine.models.layers import Dropout, HeadwiseLinear, PackedLinear, drop, norm
from vitrine.models.pos_embed import Related
from vitrine.models.user_parts import user_module


class Attention(nn.Module):
    """Multi-head self-attention (arXiv:2010.11929, equations 5 to 8; arXiv:1706.03762, section 3.2.2): ``joint``.

    ``qkv`` holds the three projections one above the other, each with its heads one above the other, as timm does.

    Args:
        config: the model's.
        relation: where tokens stand to each other (models/pos_embed.py).
    """

    def __init__(self, config: ViTConfig, relation: nn.Module) -> None:
        super().__init__()
        self.heads = config.heads
        self.kernel = config.attention_kernel
        self.dropout = config.attention_dropout
        self.scale = config.head_dim**-0.5
        self.qkv = self.projection(config)
        self.q_norm = norm(config, config.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = norm(config, config.head_dim) if config.qk_norm else nn.Identity()
        self.relation = relation
        self.proj = nn.Linear(config.dim, config.dim) if config.out_projection else nn.Identity()
        self.proj_drop = Dropout(config.projection_dropout)

    def forward(self, x: Tensor, note: Notes = IGNORE) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        q, k, v = self.project(x)
        q, k, bias = self.relate(self.q_norm(q), self.k_norm(k))
        if note.taken:
            note("weights", attention_weights(q, k, bias, self.scale))
        dropout = self.dropout if self.training else 0.0
        x = attend(q, k, v, bias=bias, scale=self.scale, dropout=dropout, kernel=self.kernel)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return self.proj_drop(x)

    def projection(self, config: ViTConfig) -> nn.Module:
        """The linear maps to queries, keys and values."""
        return PackedLinear(config.dim, config.dim, maps=3, bias=config.qkv_bias)

    def project(self, x: Tensor) -> Tensor:
        """(B, N, D) -> queries, keys and values, (3, B, heads, N, D/heads)."""
        return self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def relate(self, q: Tensor, k: Tensor) -> Related:
        """Queries and keys as they are compared, and what is added to their scores."""
        return self.relation(q, k)


class HeadwiseAttention(Attention):
    """Each head makes queries, keys and values from its own slice of the channels: ``headwise``.

    :class:`Attention` with block-diagonal projections.
    """

    def projection(self, config: ViTConfig) -> nn.Module:
        """The linear maps to queries, keys and values, for each head by itself."""
        return HeadwiseLinear(config.dim, config.heads, maps=3, bias=config.qkv_bias)

    def project(self, x: Tensor) -> Tensor:
        """(B, N, D) -> queries, keys and values, (3, B, heads, N, D/heads)."""
        return self.qkv(x)


class LocalAttention(Attention):
    """Locality self-attention (LSA, arXiv:2112.13492, section 3): ``local``.

    No token looks at itself, and each head learns how sharply it looks.

    Attributes:
        temperature: (heads,), multiplies the scores; starts at what :class:`Attention` has fixed.
    """

    itself: Tensor

    def __init__(self, config: ViTConfig, relation: nn.Module) -> None:
        super().__init__(config, relation)
        self.temperature = nn.Parameter(torch.full((config.heads,), self.scale))
        self.scale = 1.0
        itself = torch.zeros(config.tokens, config.tokens).fill_diagonal_(-torch.inf)
        self.register_buffer("itself", itself, persistent=False)

    def relate(self, q: Tensor, k: Tensor) -> Related:
        """Queries, sharpened, and keys; minus infinity is added to the score of a token for itself."""
        q, k, bias = super().relate(q, k)
        q = q * self.temperature[:, None, None].to(q.dtype)  # in mixed precision too, queries stay what keys are
        return q, k, self.itself if bias is None else bias + self.itself


# 200 MB in each block: 128 images of 256 tokens with 4 heads.
MOST_WEIGHTS = 2**25

ATTENTIONS: dict[str, type[Attention]] = {"joint": Attention, "headwise": HeadwiseAttention, "local": LocalAttention}


def attention(config: ViTConfig, relation: nn.Module) -> nn.Module:
    """The configured attention, (B, N, D) -> (B, N, D); a user's own takes no ``relation`` and no ``note``."""
    shape = (2, config.tokens, config.dim)
    own = user_module(config, "attention", config.dim, config.heads, takes=shape, gives=shape)
    return ATTENTIONS[config.attention](config, relation) if own is None else own


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> Tensor:
    """softmax(scale q k^T + bias) v, for q, k, v of (B, heads, N, width) and bias of (heads, N, N) or (N, N).

    Args:
        q: queries.
        k: keys.
        v: values.
        bias: added to the scores; minus infinity masks.
        scale: ``None`` is 1 / sqrt(width).
        dropout: rate at which weights are zeroed, in [0, 1).
        kernel: ``sdpa`` is PyTorch's fused kernel; ``explicit`` two matrix products with a softmax between them.
            ``auto`` is :func:`fastest_kernel`.
    """
    if kernel == "auto":
        kernel = fastest_kernel(q.device.type, q.dtype, q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
    if kernel == "sdpa":
        mask = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    weights = drop(attention_weights(q, k, bias, scale), dropout)
    return weights.to(v.dtype) @ v


def fastest_kernel(device: str, dtype: torch.dtype, weights: int) -> str:
    """``sdpa``, but ``explicit`` for bfloat16 on a CPU, where sdpa's backward pass takes longer than all else.

    Not if there are many ``weights`` (one for each image, head and pair of tokens): explicit attention keeps them for
    the backward pass, in 6 bytes each, and so in every block.
    """
    return "explicit" if device == "cpu" and dtype is torch.bfloat16 and weights <= MOST_WEIGHTS else "sdpa"


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(scale q k^T + bias), (B, heads, N, N): each row is how one token looks at all. See :func:`attend`."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    return (scores if bias is None else scores + bias).softmax(dim=-1)
