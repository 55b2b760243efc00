"""A positional scheme: learned projections of Fourier features of each patch's place (arXiv:2006.10739).

python train.py -m model=vit_nano position=examples.fourier.Fourier model.position_options.bands=3 seed=0,1,2
"""

import torch
from torch import Tensor, nn

from vitrine.config import ViTConfig


class Fourier(nn.Module):
    """Adds to each patch a linear map of sines and cosines of its row and column.

    Args:
        config: the model's sizes: ``grid``, rows and columns of patches, ``prefix`` tokens before them, width ``dim``.
        bands: frequencies along each axis: 1, 2, 4, ... half periods over the image.
    """

    features: Tensor

    def __init__(self, config: ViTConfig, bands: int = 4) -> None:
        super().__init__()
        self.prefix = config.prefix
        places = torch.cartesian_prod(*(torch.linspace(0, 1, side) for side in config.grid))  # (P, 2), raster order
        angles = torch.pi * places[:, :, None] * 2.0 ** torch.arange(bands)
        features = torch.cat([angles.sin(), angles.cos()], dim=2).flatten(1)
        self.register_buffer("features", features, persistent=False)
        self.proj = nn.Linear(4 * bands, config.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        prefix, patches = tokens[:, : self.prefix], tokens[:, self.prefix :]
        return torch.cat([prefix, patches + self.proj(self.features)], dim=1)
