"""One layer of the encoder: attention, then an MLP, each on a residual branch."""

from torch import Tensor, nn

from vitrine.config.vit import ViTConfig
from vitrine.models.attention import Attention


class Block(nn.Module):
    """Pre-norm encoder block (arXiv:2010.11929, equations 2 and 3).

    Args:
        config: the model's.
        drop_path: chance to skip a residual branch, for each image by itself.
    """

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=1e-6)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, eps=1e-6)
        self.mlp = Mlp(config)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them (arXiv:2010.11929, section 3.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        hidden = round(config.dim * config.mlp_ratio)
        self.fc1 = nn.Linear(config.dim, hidden)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(config.mlp_dropout)
        self.fc2 = nn.Linear(hidden, config.dim)
        self.drop2 = nn.Dropout(config.mlp_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = self.drop1(self.act(self.fc1(x)))
        return self.drop2(self.fc2(x))


class DropPath(nn.Module):
    """Stochastic depth (arXiv:1603.09382): zero a branch for some images, scale the others to keep the mean."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        if self.rate == 0.0 or not self.training:
            return x
        keep = x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.rate)
        return x * keep / (1 - self.rate)
