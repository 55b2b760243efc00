"""The one description of a Vision Transformer: flat, plain values only, so that a checkpoint can carry it as a dict."""

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrine.config.fields import choice, choice_list, number, part, part_options, setting, size, store_sizes
from vitrine.config.parts import Interface
from vitrine.config.size import Size, height_width
from vitrine.config.trust import check_trust
from vitrine.text import did_you_mean, nearest

PATCH_EMBEDS = ("conv", "linear", "conv_stem", "shifted")
POSITIONS = (
    "none",
    "learned",
    "learned2d",
    "sincos1d",
    "sincos2d",
    "relative",
    "rope",
    "rope_mixed",
    "alibi2d",
    "conv",
)
LEARNED_TABLES = ("learned", "learned2d")  # of positions; model.position_init chooses their initial values
INTERPOLATED = (*LEARNED_TABLES, "relative")  # positions whose tables depend on the size of the images
POSITIONS_IN_ATTENTION = ("relative", "rope", "rope_mixed", "alibi2d")
ROTARY_THETA = {"rope": 100.0, "rope_mixed": 10.0}  # arXiv:2403.13298, section 3
SINCOS_FREQUENCIES = ("moco_v3", "big_vision")
POOLS = ("cls", "mean", "map")
NORMS = ("layernorm", "rmsnorm", "batchnorm")
NORM_PLACEMENTS = ("pre", "post", "sandwich")
ATTENTIONS = ("joint", "headwise", "local")
ATTENTION_KERNELS = ("auto", "sdpa", "explicit")
MLPS = ("gelu", "gelu_tanh", "relu", "swiglu")
DROP_PATH_SHAPES = ("linear", "constant")
NEW_PARTS = (  # what may start anew beside pretrained weights; the rest of a block is what they are
    *("position", "class_token", "registers", "pool"),
    *("embed_norm", "final_norm", "qk_norm", "layer_scale"),
)
BEST = Path("checkpoints", "best.ckpt")  # in a run folder
WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
IN_TIMMS_HUB = "timm's hub has most published weights, named such as vit_base_patch16_224.augreg_in21k_ft_in1k"
INITS = ("xavier", "paper", "trunc_normal", "torch", "torch_encoder")
CLASS_TOKEN_INITS = ("zeros", "normal", "uniform")
POSITION_INITS = ("small", "normal", "uniform")

MAX_CLASSES = 1_000_000
MAX_HEADS = 1024
WIDEST = 65_536  # channels
OF_ANY_MODEL = ("image_size", "patch_size", "in_channels", "num_classes", "name", "options")  # of a user's model, too


@dataclass
class ViTConfig:
    """A Vision Transformer (arXiv:2010.11929). Sizes are in pixels, tokens or channels; rates lie in [0, 1).

    Attributes:
        image_size: side of the images, or ``[height,width]``.
        patch_size: side of a patch, or ``[height,width]``.
        patch_stride: pixels from one patch to the next, or ``[down,right]``; smaller than ``patch_size``, patches
            overlap; null is ``patch_size``. Patches must cover the image to its last pixel.
        in_channels: 1 for grey images, 3 for colour.
        num_classes: number of logits.
        name: ``vit``; or the dotted name of a whole model of the user's (docs/own_parts.md), to which none of the keys
            below belongs.
        options: keyword arguments of that model. Likewise ``position_options`` and so on are those of a part of the
            user's that ``position`` and so on name.
        dim: width of a token (D in the paper's table 1).
        depth: number of encoder blocks (L).
        heads: number of attention heads; divides ``dim``.
        patch_embed: how a patch becomes a token (models/patch_embed.py).
        class_token: put a learned token in front of the patches (section 3.1).
        registers: register tokens (arXiv:2309.16588), between the class token and the patches.
        position: positional scheme (models/pos_embed.py).
        sincos_frequencies: frequencies of ``sincos2d``: those of MoCo v3, or those of big_vision, which end at 1/10000.
        rope_theta: base of the frequencies of ``rope`` and ``rope_mixed``; null is the paper's, 100 and 10.
        embed_norm: normalise the tokens before the first block.
        norm: the kind of every normalisation (models/layers.py).
        norm_eps: added to the variance, or mean square, in it.
        norm_placement: before attention and MLP, after their sum with the residual, or before and after each branch
            (models/block.py).
        final_norm: normalise the tokens after the last block.
        attention: which channels and tokens a head attends to, and the scale of scores (models/attention.py).
        attention_kernel: implementation of attention, with the same results: ``sdpa`` is PyTorch's fused kernel,
            ``explicit`` is matmul-softmax-matmul, ``auto`` takes the faster one for the device, precision and heads.
        qkv_bias: give queries, keys and values a bias.
        qk_norm: normalise queries and keys within each head (arXiv:2302.05442, section 2).
        out_projection: mix the heads' outputs by a linear map.
        mlp: activation of a block's MLP (models/mlp.py).
        mlp_ratio: hidden width of that MLP, as a multiple of ``dim``; their product is a whole number.
        residual: add each branch of a block to its input; if not, each branch replaces it.
        layer_scale: initial value of a learned factor per channel at the end of each branch (arXiv:2103.17239,
            section 2); null has none.
        pool: what the head reads: the class token, the mean over the patches (appendix D.3), or what a learned query
            attends to among them (models/pool.py).
        embed_dropout: dropout on the embedded tokens, positions added.
        attention_dropout: dropout on the attention weights.
        projection_dropout: dropout on the output of attention.
        mlp_dropout: dropout after each of the MLP's two layers.
        mlp_hidden_dropout: dropout after the first of them; null is ``mlp_dropout``.
        patch_dropout: share of the patches that training leaves out, drawn for each image (PatchDropout,
            arXiv:2208.07220); how many are kept is rounded down, to one at least. Prefix tokens stay.
        drop_path: probability of skipping a residual branch (stochastic depth, arXiv:1603.09382) in the last block.
        drop_path_shape: that probability grows linearly from 0 in the first block (0 if there is one block), or
            is the same in all.
        init: how weights start (models/init.py).
        same_init_layers: all blocks start with the weights of the first, as ``torch.nn.TransformerEncoder`` copies its
            layer; drop path aside.
        class_token_init: the class token starts at zeros, from N(0, 1), or from U(0, 1).
        position_init: learned positions start from N(0, 0.02), N(0, 1), or U(0, 1).
        zero_head: start the head at zero, so that all classes start with equal probability.
        pretrained: weights to start from instead: a name in timm's hub, a file, or the folder of a run, whose best
            epoch is meant (training/pretrained.py).
        pretrained_new: parts that start anew in place of those of the weights, which may have other ones, or none.
    """

    image_size: Size = size(of_weights=False)
    patch_size: Size = size(of_weights=False)
    in_channels: int = number(ge=1, le=1024, of_weights=False)
    num_classes: int = number(ge=2, le=MAX_CLASSES, of_weights=False)
    name: str = part(
        ("vit",),
        "vit",
        interface=Interface(keywords=("num_classes",), optional=("image_size", "in_channels")),
        rare=True,
    )
    options: dict[str, Any] = part_options()
    dim: int = number(192, ge=1, le=WIDEST)
    depth: int = number(12, ge=1, le=1000)
    heads: int = number(3, ge=1, le=MAX_HEADS)
    patch_embed: str = part(PATCH_EMBEDS, "conv", interface=Interface(("config",)))
    patch_embed_options: dict[str, Any] = part_options()
    patch_stride: Size | None = size(None, of_weights=False)
    class_token: bool = False
    registers: int = number(0, ge=0, le=1024)
    position: str = part(POSITIONS, "sincos2d", interface=Interface(("config",)))
    position_options: dict[str, Any] = part_options()
    sincos_frequencies: str = choice(SINCOS_FREQUENCIES, "moco_v3")
    rope_theta: float | None = number(None, gt=1, le=1e9)
    embed_norm: bool = False
    norm: str = part(NORMS, "layernorm", interface=Interface(("dim",), keywords=("eps",)))
    norm_options: dict[str, Any] = part_options()
    norm_eps: float = number(1e-6, ge=1e-12, le=1)
    norm_placement: str = choice(NORM_PLACEMENTS, "pre")
    final_norm: bool = True
    attention: str = part(ATTENTIONS, "joint", interface=Interface(("dim", "heads"), optional=("relation",)))
    attention_options: dict[str, Any] = part_options()
    attention_kernel: str = choice(ATTENTION_KERNELS, "auto", of_weights=False)
    qkv_bias: bool = True
    qk_norm: bool = False
    out_projection: bool = True
    mlp: str = part(MLPS, "gelu", interface=Interface(("dim", "hidden")))
    mlp_options: dict[str, Any] = part_options()
    mlp_ratio: float = number(4.0, gt=0, le=64)
    residual: bool = True
    layer_scale: float | None = number(None, gt=0, le=10)
    pool: str = part(POOLS, "mean", interface=Interface(("config",)))
    pool_options: dict[str, Any] = part_options()
    embed_dropout: float = number(0.0, ge=0, lt=1, of_weights=False)
    attention_dropout: float = number(0.0, ge=0, lt=1, of_weights=False)
    projection_dropout: float = number(0.0, ge=0, lt=1, of_weights=False)
    mlp_dropout: float = number(0.0, ge=0, lt=1, of_weights=False)
    mlp_hidden_dropout: float | None = number(None, ge=0, lt=1, of_weights=False)
    patch_dropout: float = number(0.0, ge=0, lt=1, of_weights=False)
    drop_path: float = number(0.1, ge=0, lt=1, of_weights=False)
    drop_path_shape: str = choice(DROP_PATH_SHAPES, "linear", of_weights=False)
    init: str = part(INITS, "xavier", interface=Interface(("model",), function=True), of_weights=False)
    init_options: dict[str, Any] = part_options(of_weights=False)
    same_init_layers: bool = setting(False, of_weights=False)
    class_token_init: str = choice(CLASS_TOKEN_INITS, "zeros", of_weights=False)
    position_init: str = choice(POSITION_INITS, "small", of_weights=False)
    zero_head: bool = setting(False, of_weights=False)
    pretrained: str | None = setting(None, path=True, of_weights=False)
    pretrained_new: list[str] = choice_list(NEW_PARTS, of_weights=False)

    def __post_init__(self) -> None:
        store_sizes(self)

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images, in pixels."""
        return height_width(self.image_size)

    @property
    def patch_hw(self) -> tuple[int, int]:
        """Height and width of a patch, in pixels."""
        return height_width(self.patch_size)

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels from one patch to the next below it, and to the next on its right."""
        return self.patch_hw if self.patch_stride is None else height_width(self.patch_stride)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        sides = zip(self.image_hw, self.patch_hw, self.stride, strict=True)
        rows, columns = ((image - patch) // stride + 1 for image, patch, stride in sides)
        return rows, columns

    @property
    def patches(self) -> int:
        """Number of patches (P), in raster order: left to right, then down."""
        return self.grid[0] * self.grid[1]

    @property
    def kept_patches(self) -> int:
        """Number of patches that training computes with: all but those that ``patch_dropout`` leaves out."""
        kept = self.patches * (1 - self.patch_dropout)
        return max(1, math.floor(round(kept, 6)))  # 0.1 of 100 is 10, and in floating point a little less

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches: the class token and registers."""
        return self.class_token + self.registers

    @property
    def tokens(self) -> int:
        """Length of the sequence (N): prefix and patches."""
        return self.prefix + self.patches

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.dim // self.heads

    @property
    def mlp_dim(self) -> int:
        """Hidden width of a block's MLP."""
        return round(self.dim * self.mlp_ratio)

    @property
    def uses_kernel(self) -> bool:
        """Whether ``attention_kernel`` alone says how attention is computed; one of the user's may do it in any way."""
        return self.name == "vit" and self.attention in ATTENTIONS

    @property
    def theta(self) -> float:
        """Base of the rotary frequencies."""
        return ROTARY_THETA[self.position] if self.rope_theta is None else self.rope_theta


def missing_weights(source: str) -> str:
    """Return why ``pretrained=source`` cannot be read, as far as can be checked without reading; "" if it can."""
    path = Path(source)
    try:
        if path.is_dir():
            has_weights = weights_file(source).is_file()
            return "" if has_weights else f"has no {BEST}: it is not a run, or no epoch of it has finished"
        if path.suffix in WEIGHT_FILES:
            return "" if path.is_file() else "there is no such file"
        if path.name != source:
            names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            near = nearest(path.name, names)
            is_hub_name = source.count("/") == 1 and not path.parent.exists()
            hint = f"; {IN_TIMMS_HUB}" if is_hub_name else did_you_mean(path.parent / near if near else "")
            return f"there is no such run or file{hint}"
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        return f"cannot be read: {error.strerror}"
    return "" if find_spec("timm") else "weights by name take timm: pip install -e '.[pretrained]'"


def weights_file(source: str) -> Path:
    """Return the file with the weights of a file or run folder."""
    path = Path(source)
    return path / BEST if path.is_dir() else path


def vit_config_from(
    values: dict[str, object], *, trust: Collection[str] = (), source: object = "the checkpoint"
) -> ViTConfig:
    """Return the ``ViTConfig`` of the plain dict that a checkpoint stores.

    Raises:
        TypeError: a name is unknown.
        RunError: it names parts of a user's outside ``trust``, as :func:`vitrine.config.trust.check_trust` says.
    """
    names = {field.name for field in dataclasses.fields(ViTConfig)}
    if unknown := sorted(set(values) - names):
        raise TypeError(f"no such field in ViTConfig: {', '.join(unknown)}")
    config = ViTConfig(**values)  # type: ignore[arg-type]
    check_trust(config, trust, source)
    return config
