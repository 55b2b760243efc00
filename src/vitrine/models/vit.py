"""The Vision Transformer (Dosovitskiy et al., arXiv:2010.11929), top to bottom in the order that data passes through.

Parameter names are those of timm's ``VisionTransformer`` (``cls_token``, ``pos_embed``, ``patch_embed.proj``,
``blocks.0.attn.qkv``, ``blocks.0.mlp.fc1``, ``norm``, ``head``), so that weights published under them load as they are.
Each part that can be chosen is in a file of its own, built from the name in the configuration.
"""

import dataclasses
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.config.model import ViTConfig
from vitrine.config.model_faults import vit_faults
from vitrine.config.parts import names_of
from vitrine.config.size import Size, format_size, plain_size, size_override
from vitrine.errors import ConfigError, Fault
from vitrine.models.attention import ATTENTIONS
from vitrine.models.block import BLOCKS, Block
from vitrine.models.init import initialise
from vitrine.models.intermediates import NO_RECORDER, Recorder
from vitrine.models.layers import Dropout, PatchDropout, build_norm
from vitrine.models.mlp import MLPS
from vitrine.models.patch_embed import build_patch_embed
from vitrine.models.pool import POOLS, build_pool
from vitrine.models.pos_embed import TABLES, ConvPosition, build_relations, no_table, per_token
from vitrine.models.resize import resize_weights
from vitrine.models.user_parts import user_module
from vitrine.text import did_you_mean, nearest

CLASS_TOKENS = {"zeros": torch.zeros, "normal": torch.randn, "uniform": torch.rand}


class VisionTransformer(nn.Module):
    """An image classifier: patches, positions, encoder blocks, pool, head.

    Args:
        config: sizes and parts.

    Attributes:
        activation_checkpointing: whether training keeps the input of each block alone, and computes the rest again in
            the backward pass (arXiv:1604.06174): less memory, more time, the same gradient.

    Raises:
        ConfigError: it cannot be built from ``config``; with all faults.
        PartError: a part of the user's cannot be used.
    """

    cls_token: nn.Parameter | None
    reg_token: nn.Parameter | None
    pos_embed: nn.Parameter | Tensor | None
    pos_module: nn.Module | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if found := vit_faults(config):
            raise ConfigError(found)
        self.config = config
        self.activation_checkpointing = False

        self.patch_embed = build_patch_embed(config)
        token = CLASS_TOKENS[config.class_token_init](1, 1, config.dim)
        self.cls_token = nn.Parameter(token) if config.class_token else None
        registers = torch.randn(1, config.registers, config.dim) * 0.02
        self.reg_token = nn.Parameter(registers) if config.registers else None
        table = TABLES.get(config.position, no_table)(config)
        if isinstance(table, nn.Parameter):
            self.pos_embed = table
        else:
            self.register_buffer("pos_embed", table, persistent=False)  # fixed tables are computed, never loaded
        shape = (2, config.tokens, config.dim)
        self.pos_module = user_module(config, "position", config, takes=shape, gives=shape)
        self.norm_pre = build_norm(config, config.dim) if config.embed_norm else nn.Identity()
        self.pos_drop = Dropout(config.embed_dropout)
        self.patch_drop = PatchDropout(config.kept_patches, config.patches, config.prefix)

        parts = zip(drop_path_rates(config), build_relations(config), strict=True)
        self.blocks = nn.ModuleList(BLOCKS[config.norm_placement](config, rate, relation) for rate, relation in parts)
        is_conv = config.position == "conv"
        self.pos_conv = ConvPosition(config.dim, config.grid, config.prefix) if is_conv else nn.Identity()
        self.norm = build_norm(config, config.dim) if config.final_norm else nn.Identity()
        self.attn_pool = build_pool(config)  # timm's name for pool=map
        self.num_queries = last_block_queries(config)
        self.head = nn.Linear(config.dim, config.num_classes)
        initialise(self, config)

    def forward(self, images: Tensor, record: Recorder = NO_RECORDER) -> Tensor:
        """(B, C, H, W) normalised images -> (B, num_classes) logits."""
        return record("logits", self.head(self.pooled(images, record)))

    def pooled(self, images: Tensor, record: Recorder = NO_RECORDER) -> Tensor:
        """(B, C, H, W) normalised images -> (B, D): what the head reads."""
        x = self.forward_features(images, record, None if record.active else self.num_queries)
        # Reports show weights of the model's number of heads: pools of the user's, which may have others, record none.
        x = self.attn_pool(x, record.scope("pool")) if self.config.pool in POOLS else self.attn_pool(x)
        return record("pooled", x)

    def forward_features(
        self, images: Tensor, record: Recorder = NO_RECORDER, num_queries: int | None = None
    ) -> Tensor:
        """(B, C, H, W) -> (B, N, D): every token after the last norm; class token first, registers, then patches.

        With patch dropout, in training: those that are kept. With ``num_queries``: the first of them; the last block
        attends to the others without computing their outputs.
        """
        if images.shape[1:] != (self.config.in_channels, *self.config.image_hw):
            raise ValueError(self._shape_problem(images))
        x = record("patches", self.patch_embed(images)).to(images.dtype)  # from here on float32 in mixed precision
        x, indices = self.patch_drop(record("embedded", self.embed(x)))
        for index, block in enumerate(self.blocks):
            queries = num_queries if index == self.config.depth - 1 else None
            recomputed = self.activation_checkpointing and block.training and not record.active
            run = partial(checkpoint, block, use_reentrant=False) if recomputed else block
            x = run(x, record.scope(f"blocks.{index}"), indices, queries)
            if index == 0:
                x = self.pos_conv(x)
            x = record(f"blocks.{index}", x)
        return record("features", self.norm(x))

    def embed(self, patches: Tensor) -> Tensor:
        """Add prefix and positions: patches (B, P, D) -> tokens (B, N, D)."""
        prefix = [token for token in (self.cls_token, self.reg_token) if token is not None]
        tokens = [*(token.expand(patches.shape[0], -1, -1) for token in prefix), patches]
        x = torch.cat(tokens, dim=1)  # before positions: in a learned table each token has its own place
        if self.pos_embed is not None:
            x = x + self.position_table()
        if self.pos_module is not None:
            x = self.pos_module(x)
        return self.pos_drop(self.norm_pre(x))

    def position_table(self) -> Tensor:
        """Return the positions that are added to the tokens, (1, N, D).

        Raises:
            ValueError: the model adds no position table.
        """
        if self.pos_embed is None:
            raise ValueError(f"position={self.config.position} adds no table to the tokens")
        if self.config.position != "learned2d":
            return self.pos_embed
        return per_token(self.pos_embed, self.config.grid, self.config.prefix)

    def intermediates(self, images: Tensor, *names: str) -> dict[str, Tensor]:
        """Return intermediate results of a forward pass, by name; all of them if no name is given.

        ``patches`` (B, P, D); ``embedded``, ``blocks.0``, ``blocks.1``, ... and ``features`` (B, N, D);
        ``blocks.0.attn`` and ``blocks.0.mlp``, the outputs of the branches (B, N, D); ``blocks.0.attn.weights``
        (B, heads, N, N); ``pool.weights`` (B, heads, 1, P) with ``pool=map``; ``pooled`` (B, D); ``logits``.

        Raises:
            ValueError: there is no intermediate of that name.
        """
        stored: dict[str, Tensor] = {}
        self(images, Recorder(stored))
        for name in names:
            if name not in stored:
                raise ValueError(f"no intermediate is called {name}{did_you_mean(nearest(name, stored))}")
        return {name: stored[name] for name in names or stored}

    @property
    def records_attention(self) -> bool:
        """Whether the blocks record attention weights; a user's own attention may not."""
        return all("record" in block.attn_takes for block in self.blocks if isinstance(block, Block))

    def attention_maps(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> attention weights without dropout, (B, depth, heads, N, N); rows are queries and sum to 1.

        They do not depend on the kernel.

        Raises:
            ValueError: the attention is a part of the user's that records no weights.
        """
        if not self.records_attention:
            problem = f"attention={self.config.attention} records no weights"
            raise ValueError(f'{problem}; docs/own_parts.md, "Attention", shows how one does')
        names = [f"blocks.{index}.attn.weights" for index in range(self.config.depth)]
        return torch.stack(list(self.intermediates(images, *names).values()), dim=1)

    def resized(
        self, *, image_size: Size | None = None, patch_size: Size | None = None, patch_stride: Size | None = None
    ) -> "VisionTransformer":
        """Return this model for images or patches of another size, on the same device; ``None`` keeps a size.

        A size is the side of a square, or ``[height, width]``.
        Fixed positions are recomputed, learned ones interpolated, patch embeddings resized (models/resize.py).

        Raises:
            ConfigError: the sizes do not fit each other, or a part can't be resized.
        """
        config = dataclasses.replace(
            self.config,
            image_size=self.config.image_size if image_size is None else image_size,
            patch_size=self.config.patch_size if patch_size is None else patch_size,
            patch_stride=self.config.patch_stride if patch_stride is None else patch_stride,
        )
        other = self.without_weights(config)
        try:
            other.load_state_dict(resize_weights(self.state_dict(), self.config, config))
        except RuntimeError:  # resize_weights fits the built-in parts
            own = ", ".join(names_of(config))
            problem = f"{own} has weights of another shape for it, which cannot be resized"
            raise ConfigError([Fault("image_size", size_override(config.image_size), problem)]) from None
        return other

    def with_outputs(self, kept: slice) -> "VisionTransformer":
        """Return a model with the same weights and only the logits that ``kept`` selects."""
        head = {name: value[kept] for name, value in self.head.state_dict().items()}
        other = self.without_weights(dataclasses.replace(self.config, num_classes=len(head["bias"])))
        other.load_state_dict(self.state_dict() | {f"head.{name}": value for name, value in head.items()})
        return other

    def without_weights(self, config: ViTConfig) -> "VisionTransformer":
        """Return a model of ``config``, else like this one (device, dtype, mode), for weights to be put into.

        Its initial weights are of no use; drawing them leaves the caller's random numbers alone.
        """
        parameter = next(self.parameters())
        with torch.random.fork_rng(devices=[]):
            other = VisionTransformer(config)
        other.activation_checkpointing = self.activation_checkpointing
        return other.to(parameter.device, parameter.dtype).train(self.training)

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that are not weight matrices, although they have more than one dimension.

        Those of a part, built-in or the user's, are what its own ``no_weight_decay()`` names.
        """
        names = {name for name in ("cls_token", "reg_token", "pos_embed") if self._parameters.get(name) is not None}
        parts = ((path, part) for path, part in self.named_modules() if path and hasattr(part, "no_weight_decay"))
        return names.union(*({f"{path}.{name}" for name in part.no_weight_decay()} for path, part in parts))

    def _shape_problem(self, images: Tensor) -> str:
        channels, given = self.config.in_channels, tuple(images.shape[1:])
        hint = ""
        if given[:-2] == (channels,):
            hint = f"; model.resized(image_size={plain_size(given[-2:])}) takes other sizes"
        takes = f"{channels}x{format_size(self.config.image_size)}"
        return f"images are {'x'.join(map(str, given))}, this model takes {takes}{hint}"


def drop_path_rates(config: ViTConfig) -> list[float | None]:
    """Return the probability of skipping a residual branch in each block; ``None`` in all without stochastic depth.

    With it, that of the first block may be 0: blocks of equal modules compile to one graph.
    """
    if config.drop_path == 0:
        return [None] * config.depth
    if config.drop_path_shape == "constant":
        return [config.drop_path] * config.depth
    last = max(1, config.depth - 1)
    return [config.drop_path * index / last for index in range(config.depth)]


def last_block_queries(config: ViTConfig) -> int | None:
    """Return the number of the first tokens whose outputs of the last block the pool reads; ``None`` is all.

    One, the class token, if what follows attention treats each token alone.
    """
    alone = config.norm in ("layernorm", "rmsnorm") and config.mlp in MLPS and config.attention in ATTENTIONS
    return 1 if config.pool == "cls" and alone else None
