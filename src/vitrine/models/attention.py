"""Self-attention modules, ``ATTENTIONS`` by the choices of ``attention=``, and the kernels that compute attention.

The modules define what is computed. :func:`attend` defines how: its kernels differ by rounding, and in the random
numbers of attention dropout.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.models.intermediates import NO_RECORDER, Recorder
from vitrine.models.layers import Dropout, HeadwiseLinear, PackedLinear, apply_dropout, build_norm
from vitrine.models.pos_embed import NoRelation, Related
from vitrine.models.user_parts import user_attention

# 2**25 weights take 200 MB per block: 128 images of 256 tokens with 4 heads.
EXPLICIT_LIMIT = 2**25
# In heads this narrow, the fixed cost of sdpa for each image and head is more than its arithmetic on a CPU.
NARROW_HEAD = 8


class Attention(nn.Module):
    """Multi-head self-attention (arXiv:2010.11929, equations 5 to 8; arXiv:1706.03762, section 3.2.2): ``joint``.

    ``qkv`` stacks the weights of queries, keys and values, each with its heads stacked, as timm does.

    Args:
        dim: width of a token, D.
        heads: number of heads; divides ``dim``.
        qkv_bias: whether queries, keys and values have biases.
        qk_norm: constructor of the normalisation of queries and keys, by its width D/heads; ``None`` for none.
        relation: relative positions (models/pos_embed.py): maps queries and keys to those that are compared, and a
            bias; ``None`` for none.
        out_projection: whether a linear map mixes the heads' outputs.
        dropout: rate for attention weights, in [0, 1).
        projection_dropout: rate for the output, in [0, 1).
        kernel: as in :func:`attend`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        qkv_bias: bool = True,
        qk_norm: Callable[[int], nn.Module] | None = None,
        relation: nn.Module | None = None,
        out_projection: bool = True,
        dropout: float = 0.0,
        projection_dropout: float = 0.0,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        head_dim = dim // heads
        self.heads = heads
        self.kernel = kernel
        self.dropout = dropout
        self.scale = head_dim**-0.5
        self.qkv = self.qkv_projection(dim, qkv_bias)
        self.q_norm = nn.Identity() if qk_norm is None else qk_norm(head_dim)
        self.k_norm = nn.Identity() if qk_norm is None else qk_norm(head_dim)
        self.relation = NoRelation() if relation is None else relation
        self.proj = nn.Linear(dim, dim) if out_projection else nn.Identity()
        self.proj_drop = Dropout(projection_dropout)

    def forward(
        self, x: Tensor, record: Recorder = NO_RECORDER, indices: Tensor | None = None, num_queries: int | None = None
    ) -> Tensor:
        """Let tokens attend to each other.

        Args:
            x: (B, N, D).
            record: takes the attention weights.
            indices: (B, N) int64, those of the tokens in the whole sequence, of which patch dropout has left some out;
                ``None`` where the sequence is whole.
            num_queries: number of the first tokens that attend to all and are returned; ``None`` is every token.

        Returns:
            (B, N, D), or (B, num_queries, D).
        """
        q, k, v = self.project(x)
        q, k, bias = self.relate(self.q_norm(q), self.k_norm(k), indices)
        q, bias = q[:, :, :num_queries], None if bias is None else bias[..., :num_queries, :]
        if record.active:
            record("weights", attention_weights(q, k, bias, self.scale))
        rate = self.dropout if self.training else 0.0
        x = attend(q, k, v, bias=bias, scale=self.scale, dropout=rate, kernel=self.kernel)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return self.proj_drop(x)

    def qkv_projection(self, dim: int, bias: bool) -> nn.Module:
        """Return the linear maps from tokens to queries, keys and values."""
        return PackedLinear(dim, dim, maps=3, bias=bias)

    def project(self, x: Tensor) -> Tensor:
        """(B, N, D) -> queries, keys and values, (3, B, heads, N, D/heads)."""
        return self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def relate(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries and keys, (B, heads, N, D/heads), as they are compared, and the bias of their scores."""
        return self.relation(q, k, indices)


class HeadwiseAttention(Attention):
    """Attention whose heads compute queries, keys and values from their own slice of the channels: ``headwise``.

    :class:`Attention` with block-diagonal projections.
    """

    def qkv_projection(self, dim: int, bias: bool) -> nn.Module:
        """Return the linear maps to queries, keys and values, separate for each head."""
        return HeadwiseLinear(dim, self.heads, maps=3, bias=bias)

    def project(self, x: Tensor) -> Tensor:
        """(B, N, D) -> queries, keys and values, (3, B, heads, N, D/heads)."""
        return self.qkv(x)


class LocalAttention(Attention):
    """Locality self-attention (LSA, arXiv:2112.13492, section 3): ``local``.

    No token attends to itself, and each head learns its temperature.

    Args:
        dim, heads, **settings: as of :class:`Attention`.

    Attributes:
        temperature: (heads,), multiplies the scores; starts at the fixed scale of :class:`Attention`.
    """

    def __init__(self, dim: int, heads: int, **settings: object) -> None:
        super().__init__(dim, heads, **settings)  # type: ignore[arg-type]
        self.temperature = nn.Parameter(torch.full((heads,), self.scale))
        self.scale = 1.0

    def relate(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries times the temperature, keys, and a bias of minus infinity for a token and itself."""
        q, k, bias = super().relate(q, k, indices)
        q = q * self.temperature[:, None, None].to(q.dtype)  # in mixed precision, too, q keeps the type of k
        mask = self.temperature.new_full((q.shape[2],), -torch.inf).diag()
        return q, k, mask if bias is None else bias + mask


ATTENTIONS: dict[str, type[Attention]] = {"joint": Attention, "headwise": HeadwiseAttention, "local": LocalAttention}


def build_attention(config: ViTConfig, relation: nn.Module) -> nn.Module:
    """Return the attention that ``config.attention`` names, (B, N, D) -> (B, N, D).

    A user's own gets ``relation`` if its signature names it, and the kernel if it is an :class:`Attention`.
    """
    own = user_attention(config, relation)
    if own is not None:
        if isinstance(own, Attention) and own.kernel == "auto":
            own.kernel = config.attention_kernel
        return own
    return ATTENTIONS[config.attention](
        config.dim,
        config.heads,
        qkv_bias=config.qkv_bias,
        qk_norm=partial(build_norm, config, between=(config.heads, config.tokens)) if config.qk_norm else None,
        relation=relation,
        out_projection=config.out_projection,
        dropout=config.attention_dropout,
        projection_dropout=config.projection_dropout,
        kernel=config.attention_kernel,
    )


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
    """Return softmax(scale q k^T + bias) v, (B, heads, M, width).

    Args:
        q: queries, (B, heads, M, width).
        k: keys, (B, heads, N, width).
        v: values, likewise.
        bias: (B, heads, M, N), (heads, M, N) or (M, N), added to the scores; minus infinity masks.
        scale: ``None`` is 1 / sqrt(width).
        dropout: rate at which attention weights are zeroed, in [0, 1).
        kernel: ``sdpa`` is PyTorch's fused kernel; ``explicit`` is two matrix products with a softmax between them;
            ``auto`` is :func:`fastest_kernel`.
    """
    if kernel == "auto":
        kernel = fastest_kernel(q.device.type, q.dtype, q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
    if kernel == "sdpa":
        mask = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    weights = apply_dropout(attention_weights(q, k, bias, scale), dropout)
    return weights.to(v.dtype) @ v


def fastest_kernel(device: str, dtype: torch.dtype, weights: int, width: int | None = None) -> str:
    """Return ``sdpa``; on a CPU ``explicit`` for bfloat16, whose backward pass by sdpa is slow, and for narrow heads.

    ``benchmarks/timing/rules.py`` measures both.

    Args:
        device: ``cpu``, ``cuda`` or ``mps``.
        dtype: of queries, keys and values.
        weights: attention weights of a batch, one per image, head and pair of tokens. Explicit attention keeps them for
            the backward pass, in at most 6 bytes each per block; above ``EXPLICIT_LIMIT`` it is not used.
        width: of a head, in training. ``None`` skips the rule for narrow heads: a traced model must not depend on its
            batch size.
    """
    slow = dtype is torch.bfloat16 or (width is not None and width <= NARROW_HEAD)
    return "explicit" if device == "cpu" and slow and weights <= EXPLICIT_LIMIT else "sdpa"


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Return softmax(scale q k^T + bias), (B, heads, M, N); rows are queries and sum to 1. See :func:`attend`."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    return (scores if bias is None else scores + bias).softmax(dim=-1)
