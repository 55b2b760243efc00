"""Self-attention: tokens look at each other. What is computed stands in the equations; how, in ``kernel``."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.vit import ViTConfig


class Attention(nn.Module):
    """Multi-head self-attention (arXiv:2010.11929, equations 5 to 8; arXiv:1706.03762, section 3.2.2).

    ``qkv`` holds the three projections one above the other, each with its heads one above the other, as timm does.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kernel = config.attention_kernel
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.proj = nn.Linear(config.dim, config.dim)
        self.proj_drop = nn.Dropout(config.projection_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, heads, N, D/heads)
        x = attend(q, k, v, dropout=self.dropout if self.training else 0.0, kernel=self.kernel)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return self.proj_drop(x)


def attend(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, kernel: str = "auto") -> Tensor:
    """softmax(q k^T / sqrt(width)) v, each of (B, heads, N, width).

    ``sdpa`` is PyTorch's fused kernel; ``explicit`` two matrix products with a softmax between them. They differ by
    rounding only. ``auto`` is sdpa but for bfloat16 on a CPU, where that kernel's backward pass takes longer
    than the rest of the step.
    """
    if kernel == "auto":
        kernel = "explicit" if q.device.type == "cpu" and q.dtype is torch.bfloat16 else "sdpa"
    if kernel == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    weights = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    weights = F.dropout(weights.softmax(dim=-1), dropout)
    return weights.to(v.dtype) @ v
