"""The one description of a Vision Transformer: flat, plain values only, so that a checkpoint can carry it as a dict."""

import dataclasses
from dataclasses import dataclass

from vitrine.config import limits
from vitrine.config.limits import choice, number
from vitrine.errors import Fault

POSITIONS = ("none", "learned", "sincos1d", "sincos2d")
POOLS = ("cls", "mean")
ATTENTION_KERNELS = ("auto", "sdpa", "explicit")
INITS = ("xavier", "paper", "trunc_normal", "torch")


@dataclass
class ViTConfig:
    """A Vision Transformer (arXiv:2010.11929). Sizes are in pixels, tokens or channels; rates lie in [0, 1).

    Attributes:
        image_size: height and width of the (square) images.
        patch_size: height and width of a patch; divides ``image_size``.
        in_channels: 1 for grey images, 3 for colour.
        num_classes: number of logits.
        dim: width of a token (D in the paper's table 1).
        depth: number of encoder blocks (L).
        heads: number of attention heads; divides ``dim``.
        mlp_ratio: hidden width of a block's MLP, as a multiple of ``dim``.
        position: how tokens know where they are (models/position.py).
        class_token: put a learned token in front of the patches (section 3.1).
        pool: what the head reads: the class token, or the mean over the patches (appendix D.3).
        attention_kernel: how attention is computed, never what: ``sdpa`` is PyTorch's fused kernel, ``explicit`` is
            matmul-softmax-matmul, ``auto`` takes the faster one for the device and precision.
        embed_dropout: dropout on the embedded tokens, positions added.
        attention_dropout: dropout on the attention weights.
        projection_dropout: dropout on the output of attention.
        mlp_dropout: dropout after each of the MLP's two layers.
        init: how weights start (models/init.py).
        drop_path: chance to skip a residual branch (stochastic depth, arXiv:1603.09382) in the last block; it grows
            linearly from 0 in the first.
    """

    image_size: int = number(ge=1, le=4096)
    patch_size: int = number(ge=1, le=4096)
    in_channels: int = number(ge=1, le=1024)
    num_classes: int = number(ge=2, le=1_000_000)
    dim: int = number(192, ge=1, le=65_536)
    depth: int = number(12, ge=1, le=1000)
    heads: int = number(3, ge=1, le=1024)
    mlp_ratio: float = number(4.0, gt=0, le=64)
    position: str = choice(POSITIONS, "learned")
    class_token: bool = True
    pool: str = choice(POOLS, "cls")
    attention_kernel: str = choice(ATTENTION_KERNELS, "auto")
    init: str = choice(INITS, "xavier")
    embed_dropout: float = number(0.0, ge=0, lt=1)
    attention_dropout: float = number(0.0, ge=0, lt=1)
    projection_dropout: float = number(0.0, ge=0, lt=1)
    mlp_dropout: float = number(0.0, ge=0, lt=1)
    drop_path: float = number(0.0, ge=0, lt=1)

    @property
    def grid(self) -> int:
        """Patches along one side of the image."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """Length of the sequence (N), the class token included."""
        return self.grid**2 + self.class_token


def vit_faults(config: ViTConfig, prefix: str = "") -> list[Fault]:
    """What keeps ``config`` from being built: values out of range, and values that don't go together."""
    found = limits.faults(config, prefix)
    used_below = {f"{prefix}{name}" for name in ("image_size", "patch_size", "dim", "heads", "mlp_ratio")}
    if any(fault.key in used_below for fault in found):
        return found  # arithmetic on these would only repeat what is said already

    def fault(name: str, problem: str, nearest: str = "") -> None:
        found.append(Fault(f"{prefix}{name}", str(getattr(config, name)), problem, nearest))

    if config.image_size % config.patch_size:
        sizes = _divisors(config.image_size)
        closest = min(sizes, key=lambda size: abs(size - config.patch_size))
        fault(
            "patch_size",
            f"must divide the image size, {config.image_size}: {_some(sizes)}",
            f"{prefix}patch_size={closest}",
        )
    if config.dim % config.heads:
        counts = _divisors(config.dim)
        closest = min(counts, key=lambda count: abs(count - config.heads))
        fault("heads", f"must divide the width, {prefix}dim={config.dim}: {_some(counts)}", f"{prefix}heads={closest}")
    if config.position == "sincos2d" and config.dim % 4:
        fault("dim", f"must be divisible by 4 for {prefix}position=sincos2d", f"{prefix}dim={-(-config.dim // 4) * 4}")
    if config.pool == "cls" and not config.class_token:
        fault("pool", f"reads the class token, but {prefix}class_token=false", f"{prefix}pool=mean")
    if round(config.dim * config.mlp_ratio) < 1:
        fault("mlp_ratio", f"leaves the MLP no hidden unit at {prefix}dim={config.dim}; must be >= {1 / config.dim:g}")
    return found


def vit_config_from(values: dict[str, object]) -> ViTConfig:
    """A ``ViTConfig`` from the plain dict that a checkpoint stores. Unknown names raise ``TypeError``."""
    names = {field.name for field in dataclasses.fields(ViTConfig)}
    if unknown := sorted(set(values) - names):
        raise TypeError(f"no such field in ViTConfig: {', '.join(unknown)}")
    return ViTConfig(**values)  # type: ignore[arg-type]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _some(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= 12 else [*numbers[:6], "...", *numbers[-4:]]
    return ", ".join(map(str, shown))
