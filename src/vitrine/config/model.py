"""The one description of a Vision Transformer: flat, plain values only, so that a checkpoint can carry it as a dict."""

import dataclasses
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrine.config import fields as limits
from vitrine.config.fields import choice, number, part, part_options, setting
from vitrine.config.parts import Interface, check_trust, is_dotted, part_faults
from vitrine.errors import Fault
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
BEST = Path("checkpoints", "best.ckpt")  # in a run folder
WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
INITS = ("xavier", "paper", "trunc_normal", "torch", "torch_encoder")
CLASS_TOKEN_INITS = ("zeros", "normal", "uniform")
POSITION_INITS = ("small", "normal", "uniform")

MOST_HEADS = 1024
OF_ANY_MODEL = ("image_size", "patch_size", "in_channels", "num_classes", "name", "options")  # of a user's model, too


@dataclass
class ViTConfig:
    """A Vision Transformer (arXiv:2010.11929). Sizes are in pixels, tokens or channels; rates lie in [0, 1).

    Attributes:
        image_size: height and width of the (square) images.
        patch_size: height and width of a patch.
        patch_stride: pixels from one patch to the next; smaller than ``patch_size``, patches overlap; null is
            ``patch_size``. Patches must cover the image to its last pixel.
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
            ``explicit`` is matmul-softmax-matmul, ``auto`` takes the faster one for the device and precision.
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
        drop_path: probability of skipping a residual branch (stochastic depth, arXiv:1603.09382) in the last block.
        drop_path_shape: that probability grows linearly from 0 in the first block, or is the same in all.
        init: how weights start (models/init.py).
        same_init_layers: all blocks start with the weights of the first, as ``torch.nn.TransformerEncoder`` copies its
            layer; drop path aside.
        class_token_init: the class token starts at zeros, from N(0, 1), or from U(0, 1).
        position_init: learned positions start from N(0, 0.02), N(0, 1), or U(0, 1).
        zero_head: start the head at zero, so that all classes start with equal probability.
        pretrained: weights to start from instead: a name in timm's hub, a file, or the folder of a run, whose best
            epoch is meant (training/pretrained.py).
    """

    image_size: int = number(ge=1, le=4096)
    patch_size: int = number(ge=1, le=4096)
    in_channels: int = number(ge=1, le=1024)
    num_classes: int = number(ge=2, le=1_000_000)
    name: str = part(
        ("vit",),
        "vit",
        interface=Interface(keywords=("num_classes",), optional=("image_size", "in_channels")),
        rare=True,
    )
    options: dict[str, Any] = part_options()
    dim: int = number(192, ge=1, le=65_536)
    depth: int = number(12, ge=1, le=1000)
    heads: int = number(3, ge=1, le=MOST_HEADS)
    patch_embed: str = part(PATCH_EMBEDS, "conv", interface=Interface(("config",)))
    patch_embed_options: dict[str, Any] = part_options()
    patch_stride: int | None = number(None, ge=1, le=4096)
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
    attention: str = part(ATTENTIONS, "joint", interface=Interface(("dim", "heads")))
    attention_options: dict[str, Any] = part_options()
    attention_kernel: str = choice(ATTENTION_KERNELS, "auto")
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
    embed_dropout: float = number(0.0, ge=0, lt=1)
    attention_dropout: float = number(0.0, ge=0, lt=1)
    projection_dropout: float = number(0.0, ge=0, lt=1)
    mlp_dropout: float = number(0.0, ge=0, lt=1)
    mlp_hidden_dropout: float | None = number(None, ge=0, lt=1)
    drop_path: float = number(0.1, ge=0, lt=1)
    drop_path_shape: str = choice(DROP_PATH_SHAPES, "linear")
    init: str = part(INITS, "xavier", interface=Interface(("model",), function=True))
    init_options: dict[str, Any] = part_options()
    same_init_layers: bool = False
    class_token_init: str = choice(CLASS_TOKEN_INITS, "zeros")
    position_init: str = choice(POSITION_INITS, "small")
    zero_head: bool = False
    pretrained: str | None = setting(None, path=True)

    @property
    def stride(self) -> int:
        """Pixels from one patch to the next."""
        return self.patch_size if self.patch_stride is None else self.patch_stride

    @property
    def grid(self) -> int:
        """Patches along one side of the image."""
        return (self.image_size - self.patch_size) // self.stride + 1

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches: the class token and registers."""
        return self.class_token + self.registers

    @property
    def tokens(self) -> int:
        """Length of the sequence (N): prefix and patches."""
        return self.prefix + self.grid**2

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.dim // self.heads

    @property
    def mlp_dim(self) -> int:
        """Hidden width of a block's MLP."""
        return round(self.dim * self.mlp_ratio)

    @property
    def theta(self) -> float:
        """Base of the rotary frequencies."""
        return ROTARY_THETA[self.position] if self.rope_theta is None else self.rope_theta


def vit_faults(config: ViTConfig, prefix: str = "") -> list[Fault]:
    """Return all faults of a model: values outside their limits, and values that exclude each other."""
    found = limits.faults(config, prefix) + part_faults(config, prefix)
    if is_dotted(config.name):
        if config.pretrained is not None:
            problem = f"belongs to Vision Transformers, not to model={config.name}"
            found.append(Fault(f"{prefix}pretrained", config.pretrained, problem))
        return found
    broken = {fault.key.removeprefix(prefix) for fault in found}

    def fault(name: str, problem: str, nearest: str = "") -> None:
        found.append(Fault(f"{prefix}{name}", str(getattr(config, name)), problem, nearest and f"{prefix}{nearest}"))

    for uses, check in _COMBINATIONS:
        if not broken & set(uses):  # a value outside its limits is reported once
            check(config, fault, prefix)
    return found


AddFault = Callable[..., None]


def _patches_cover_the_image(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    size, patch = config.image_size, config.patch_size
    if patch > size or (config.stride == patch and size % patch):
        sizes = _divisors(size)
        fault("patch_size", f"must divide the image size, {size}: {_some(sizes)}", f"patch_size={_near(patch, sizes)}")
    elif config.stride > patch:
        fault("patch_stride", f"leaves pixels out between patches of {patch}; must be <= {patch}", "patch_stride=null")
    elif (size - patch) % config.stride:
        strides = [one for one in _divisors(size - patch) if one <= patch]
        problem = f"leaves pixels over at the edge: must divide {size} - {patch}, image less patch: {_some(strides)}"
        fault("patch_stride", problem, f"patch_stride={_near(config.stride, strides)}")


def _patch_embed_fits_the_patch(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    patch = config.patch_size
    if config.patch_embed == "shifted" and patch < 2:
        fault("patch_embed", f"shifts by half a patch, which {prefix}patch_size={patch} has not; must be >= 2")
    if config.patch_embed != "conv_stem":
        return
    halvings = round(math.log2(patch))
    if 2**halvings != patch or patch < 2:
        powers = [2**power for power in range(1, 13) if config.image_size % 2**power == 0]
        problem = f"must be a power of 2 for {prefix}patch_embed=conv_stem, which halves the image at each step"
        near = f"patch_size={_near(patch, powers)}" if powers else "patch_embed=conv"
        fault("patch_size", f"{problem}: {_some(powers)}" if powers else problem, near)
    elif config.dim % 2 ** (halvings - 1):
        step = 2 ** (halvings - 1)
        problem = f"must be divisible by {step} for {prefix}patch_embed=conv_stem, whose channels double up to it"
        fault("dim", problem, f"dim={_up(config.dim, step)}")
    if config.stride != patch:
        fault("patch_stride", f"is fixed by {prefix}patch_embed=conv_stem to the patch size", "patch_stride=null")
    if config.image_size == patch:
        fault("patch_embed", "needs more than one patch to normalise over", "patch_embed=conv")


def _heads_share_the_width(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    rotary = config.position in ROTARY_THETA
    counts = [one for one in _divisors(config.dim) if one <= MOST_HEADS and not (rotary and config.dim // one % 4)]
    if not counts:
        fault("dim", f"must be divisible by 4 for {prefix}position={config.position}", f"dim={_up(config.dim, 4)}")
    elif config.heads not in counts:
        fours = (
            f", into heads whose width {prefix}position={config.position} can rotate, a multiple of 4" if rotary else ""
        )
        problem = f"must divide the width, {prefix}dim={config.dim}{fours}: {_some(counts)}"
        fault("heads", problem, f"heads={_near(config.heads, counts)}")


def _position_fits_the_width(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.position == "sincos2d" and config.dim % 4:
        fault("dim", f"must be divisible by 4 for {prefix}position=sincos2d", f"dim={_up(config.dim, 4)}")
    elif config.position == "sincos2d" and config.sincos_frequencies == "big_vision" and config.dim < 8:
        fault("dim", f"must be >= 8 for {prefix}sincos_frequencies=big_vision", "dim=8")
    if config.rope_theta is not None and config.position not in ROTARY_THETA:
        problem = f"belongs to rope and rope_mixed, not to {prefix}position={config.position}"
        fault("rope_theta", problem, "rope_theta=null")


def _head_has_something_to_read(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.pool == "cls" and not config.class_token:
        fault("pool", f"reads the class token, but {prefix}class_token=false; or mean, map", "pool=mean")
    if config.pool == "cls" and config.position == "conv" and config.depth == 1:
        problem = f"acts after the first block, from where {prefix}pool=cls of {prefix}depth=1 reads nothing"
        fault("position", f"{problem}; needs {prefix}depth >= 2, or another pool", "pool=mean")


def _local_attention_has_other_tokens(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.attention == "local" and config.image_size == config.patch_size and config.tokens < 2:
        fault("attention", "keeps a token from itself, but there is only one token", "attention=joint")


def _drop_path_has_a_way_around(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.drop_path > 0 and not config.residual:
        fault("drop_path", f"skips branches, around which {prefix}residual=false leaves no way", "drop_path=0.0")


def _mlp_has_whole_units(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    width = config.dim * config.mlp_ratio
    if config.mlp_dim < 1 or abs(width - config.mlp_dim) > 1e-6 * width:
        units = max(1, config.mlp_dim)
        problem = f"gives the MLP {width:.6g} hidden units at {prefix}dim={config.dim}; must give a whole number"
        fault("mlp_ratio", problem, f"mlp_ratio={units / config.dim:.16g}")


def _own_parts_are_given_what_is_set(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for key, names in _NOT_PASSED.items():
        for name in names if is_dotted(own := getattr(config, key)) else ():
            if getattr(config, name) != defaults[name]:
                problem = f"is not passed to {prefix}{key}={own}; make it an option of that part"
                fault(name, problem, f"{name}={str(defaults[name]).lower()}")
    if is_dotted(config.attention) and config.position in POSITIONS_IN_ATTENTION:
        problem = f"acts inside attention, which {prefix}attention={config.attention} replaces"
        fault("position", problem, "position=sincos2d")


_COMBINATIONS: tuple[tuple[tuple[str, ...], Callable[[ViTConfig, AddFault, str], None]], ...] = (
    (("image_size", "patch_size", "patch_stride"), _patches_cover_the_image),
    (("image_size", "patch_size", "patch_stride", "patch_embed", "dim"), _patch_embed_fits_the_patch),
    (("dim", "heads", "position"), _heads_share_the_width),
    (("dim", "position", "sincos_frequencies", "rope_theta"), _position_fits_the_width),
    (("pool", "position", "depth"), _head_has_something_to_read),
    (("image_size", "patch_size", "patch_stride", "attention", "registers"), _local_attention_has_other_tokens),
    (("drop_path",), _drop_path_has_a_way_around),
    (("dim", "mlp_ratio"), _mlp_has_whole_units),
    (("attention", "mlp", "position"), _own_parts_are_given_what_is_set),
)

# Keys that the built-in parts of a key take, and a part of the user's does not.
_NOT_PASSED = {
    "attention": ("attention_dropout", "projection_dropout", "qkv_bias", "qk_norm", "out_projection"),
    "mlp": ("mlp_dropout", "mlp_hidden_dropout"),
}


def missing_weights(source: str) -> str:
    """Return why ``pretrained=source`` cannot be read, as far as can be checked without reading; "" if it can."""
    path = Path(source)
    if path.is_dir():
        return "" if weights_file(source).is_file() else f"has no {BEST}: it is no run, or one without a finished epoch"
    if path.suffix in WEIGHT_FILES:
        return "" if path.is_file() else "there is no such file"
    if path.name != source:
        names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, names)
        return f"there is no such run or file{did_you_mean(path.parent / near if near else '')}"
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
        RunError: it names parts of a user's outside ``trust``, as :func:`vitrine.config.parts.check_trust` says.
    """
    names = {field.name for field in dataclasses.fields(ViTConfig)}
    if unknown := sorted(set(values) - names):
        raise TypeError(f"no such field in ViTConfig: {', '.join(unknown)}")
    config = ViTConfig(**values)  # type: ignore[arg-type]
    check_trust(config, trust, source)
    return config


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _near(number: int, allowed: list[int]) -> int:
    return min(allowed, key=lambda candidate: abs(candidate - number))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _some(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= 12 else [*numbers[:6], "...", *numbers[-4:]]
    return ", ".join(map(str, shown))
