"""The Vision Transformer (Dosovitskiy et al., arXiv:2010.11929), top to bottom in the order that data passes through.

Parameter names are those of timm's ``VisionTransformer`` (``cls_token``, ``pos_embed``, ``patch_embed.proj``,
``blocks.0.attn.qkv``, ``blocks.0.mlp.fc1``, ``norm``, ``head``), so that weights published under them load as they are.
"""

import torch
from torch import Tensor, nn

from vitrine.config.vit import ViTConfig, vit_faults
from vitrine.errors import ConfigError
from vitrine.models.block import Block
from vitrine.models.init import INITS
from vitrine.models.patch import ConvPatchEmbed
from vitrine.models.position import TABLES


class VisionTransformer(nn.Module):
    """An image classifier: patches, positions, encoder blocks, one head.

    Args:
        config: what to build. Raises ``ConfigError`` with every reason why it can't be built.
    """

    cls_token: nn.Parameter | None
    pos_embed: nn.Parameter | Tensor | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if found := vit_faults(config):
            raise ConfigError(found)
        self.config = config

        self.patch_embed = ConvPatchEmbed(config.in_channels, config.dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.dim)) if config.class_token else None
        table = TABLES[config.position](config)
        if isinstance(table, nn.Parameter):
            self.pos_embed = table
        else:
            self.register_buffer("pos_embed", table, persistent=False)  # fixed tables are made anew, never loaded
        self.pos_drop = nn.Dropout(config.embed_dropout)
        last = max(1, config.depth - 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * index / last) for index in range(config.depth))
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        self.head = nn.Linear(config.dim, config.num_classes)
        INITS[config.init](self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) normalised images -> (B, num_classes) logits."""
        return self.head(self.pool(self.forward_features(images)))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D): every token after the last norm, the class token first if there is one."""
        x = self.patch_embed(images)
        if self.cls_token is not None:  # before positions are added: in a learned table it has a place of its own
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        if self.pos_embed is not None:
            x = x + self.pos_embed
        x = self.pos_drop(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """(B, N, D) -> (B, D): the class token, or the mean over the patches."""
        if self.config.pool == "cls":
            return tokens[:, 0]
        return tokens[:, int(self.config.class_token) :].mean(dim=1)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are no matrices, although they have more than one dimension."""
        return {"cls_token", "pos_embed"}
