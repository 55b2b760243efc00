"""Checks of a model: values outside their limits, and values of several keys that exclude each other."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from vitrine.config import fields as limits
from vitrine.config.model import MAX_HEADS, POSITIONS_IN_ATTENTION, ROTARY_THETA, WIDEST, ViTConfig
from vitrine.config.parts import is_dotted, part_at, part_faults, takes
from vitrine.config.size import SIDES, height_width, plain_size, size_override
from vitrine.errors import Fault


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
        value = getattr(config, name)
        text = size_override(value) if isinstance(value, list) else str(value)
        found.append(Fault(f"{prefix}{name}", text, problem, nearest and f"{prefix}{nearest}"))

    for uses, check in _COMBINATIONS:
        if not broken & set(uses):  # a value outside its limits is reported once
            check(config, fault, prefix)
    return found


def unread_positions(config: ViTConfig) -> list[Fault]:
    """Return a fault for positions that the class token of a single block never reads.

    Such a model is not trained: it is position=none under another name. One that was trained can still be used.
    """
    own = any(map(is_dotted, (config.mlp, config.norm)))  # may carry something from patches to the class token
    if config.pool != "cls" or config.depth > 1 or config.position not in ("relative", "alibi2d") or own:
        return []
    problem = "acts between patches, whose outputs model.pool=cls of model.depth=1 does not read"
    needs = "needs model.depth >= 2, or another pool"
    return [Fault("model.position", config.position, f"{problem}; {needs}", "model.pool=mean")]


AddFault = Callable[..., None]


def _patches_cover_the_image(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    for side, size, patch, stride in _sides(config):
        its, image = (f"its {side}, {{}}, ", f"that of the image, {size}") if side else ("", f"the image size, {size}")
        if patch > size or (stride == patch and size % patch):
            sizes = _divisors(size)
            near = _with_side(config.patch_size, side, _near(patch, sizes))
            problem = f"{its.format(patch)}must divide {image}: {_some(sizes)}"
            fault("patch_size", problem, f"patch_size={near}")
        elif stride > patch:
            problem = f"leaves pixels out between patches of {patch}; must be <= {patch}"
            fault("patch_stride", f"{its.format(stride)}{problem}", "patch_stride=null")
        elif (size - patch) % stride:
            strides = [one for one in _divisors(size - patch) if one <= patch]
            near = _with_side(config.stride, side, _near(stride, strides))
            problem = f"leaves pixels over at the edge: must divide {size} - {patch}, image less patch"
            fault("patch_stride", f"{its.format(stride)}{problem}: {_some(strides)}", f"patch_stride={near}")


def _sides(config: ViTConfig) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, image, patch and stride of each side; once, without a name, where both are the same."""
    height, width = zip(config.image_hw, config.patch_hw, config.stride, strict=True)
    if height == width:
        yield ("", *height)
    else:
        yield (SIDES[0], *height)
        yield (SIDES[1], *width)


def _with_side(size: int | Sequence[int], side: str, pixels: int) -> str:
    """Return ``size`` as an override has it, with one side replaced; both if ``side`` has no name."""
    sides = [pixels if side in ("", name) else given for name, given in zip(SIDES, height_width(size), strict=True)]
    return size_override(plain_size(sides))


def _patch_embed_fits_the_patch(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    patch = min(config.patch_hw)
    if config.patch_embed == "shifted" and patch < 2:
        shown = size_override(config.patch_size)
        fault("patch_embed", f"shifts by half a patch, which {prefix}patch_size={shown} has not; must be >= 2")
    if config.patch_embed != "conv_stem":
        return
    halvings = round(math.log2(patch))
    if 2**halvings != patch or patch < 2 or not isinstance(config.patch_size, int):
        powers = [2**power for power in range(1, 13) if not any(side % 2**power for side in config.image_hw)]
        one = "a power of 2" if isinstance(config.patch_size, int) else "one number, a power of 2,"
        problem = f"must be {one} for {prefix}patch_embed=conv_stem, which halves the image at each step"
        near = f"patch_size={_near(patch, powers)}" if powers else "patch_embed=conv"
        fault("patch_size", f"{problem}: {_some(powers)}" if powers else problem, near)
    elif config.dim % 2 ** (halvings - 1):
        step = 2 ** (halvings - 1)
        problem = f"must be divisible by {step} for {prefix}patch_embed=conv_stem, whose channels double up to it"
        fault("dim", problem, f"dim={_wider(config, step)}")
    if config.stride != config.patch_hw:
        fault("patch_stride", f"is fixed by {prefix}patch_embed=conv_stem to the patch size", "patch_stride=null")
    if config.image_hw == config.patch_hw:
        fault("patch_embed", "needs more than one patch to normalise over", "patch_embed=conv")


def _heads_share_the_width(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    rotary = config.position in ROTARY_THETA
    counts = [one for one in _divisors(config.dim) if one <= MAX_HEADS and not (rotary and config.dim // one % 4)]
    if not counts:
        fault("dim", f"must be divisible by 4 for {prefix}position={config.position}", f"dim={_wider(config, 4)}")
    elif config.heads not in counts:
        fours = (
            f", into heads whose width {prefix}position={config.position} can rotate, a multiple of 4" if rotary else ""
        )
        problem = f"must divide the width, {prefix}dim={config.dim}{fours}: {_some(counts)}"
        fault("heads", problem, f"heads={_near(config.heads, counts)}")


def _position_fits_the_width(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.position == "sincos2d" and config.dim % 4:
        fault("dim", f"must be divisible by 4 for {prefix}position=sincos2d", f"dim={_wider(config, 4)}")
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
    if config.attention == "local" and config.image_hw == config.patch_hw and config.tokens < 2:
        fault("attention", "keeps a token from itself, but there is only one token", "attention=joint")


def _patches_can_be_left_out(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.patch_dropout == 0:
        return
    if config.position == "conv":
        problem = f"leaves gaps in the grid of patches, which {prefix}position=conv is a convolution over"
        fault("patch_dropout", problem, "patch_dropout=0.0")
    if config.attention == "local" and config.tokens > 1 == config.prefix + config.kept_patches:
        problem = f"leaves one token, which {prefix}attention=local keeps from itself"
        fault("patch_dropout", problem, "patch_dropout=0.0")


def _drop_path_has_a_way_around(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.drop_path > 0 and not config.residual:
        fault("drop_path", f"skips branches, around which {prefix}residual=false leaves no way", "drop_path=0.0")


def _mlp_has_whole_units(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    width = config.dim * config.mlp_ratio
    if config.mlp_dim < 1 or abs(width - config.mlp_dim) > 1e-6 * width:
        units = max(1, config.mlp_dim)
        problem = f"gives the MLP {width:.6g} hidden units at {prefix}dim={config.dim}; must give a whole number"
        fault("mlp_ratio", problem, f"mlp_ratio={units / config.dim:.16g}")


def _new_parts_have_others_beside_them(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    if config.pretrained_new and config.pretrained is None:
        fault("pretrained_new", f"is for {prefix}pretrained, which is null: all parts start anew", "pretrained_new=[]")


def _own_parts_are_given_what_is_set(config: ViTConfig, fault: AddFault, prefix: str) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for key, names in NOT_PASSED.items():
        for name in names if is_dotted(own := getattr(config, key)) else ():
            if getattr(config, name) != defaults[name]:
                problem = f"is not passed to {prefix}{key}={own}; make it an option of that part"
                fault(name, problem, f"{name}={str(defaults[name]).lower()}")
    own_attention = part_at(config, "attention")
    if own_attention and config.position in POSITIONS_IN_ATTENTION and not takes(own_attention, "relation"):
        problem = f"acts inside attention, and {prefix}attention={config.attention} takes no argument relation"
        fault("position", problem, "position=sincos2d")


_COMBINATIONS: tuple[tuple[tuple[str, ...], Callable[[ViTConfig, AddFault, str], None]], ...] = (
    (("image_size", "patch_size", "patch_stride"), _patches_cover_the_image),
    (("image_size", "patch_size", "patch_stride", "patch_embed", "dim"), _patch_embed_fits_the_patch),
    (("dim", "heads", "position"), _heads_share_the_width),
    (("dim", "position", "sincos_frequencies", "rope_theta"), _position_fits_the_width),
    (("pool", "position", "depth"), _head_has_something_to_read),
    (
        ("image_size", "patch_size", "patch_stride", "attention", "class_token", "registers"),
        _local_attention_has_other_tokens,
    ),
    (
        ("image_size", "patch_size", "patch_stride", "class_token", "registers", "patch_dropout"),
        _patches_can_be_left_out,
    ),
    (("drop_path",), _drop_path_has_a_way_around),
    (("dim", "mlp_ratio"), _mlp_has_whole_units),
    (("attention", "mlp", "position"), _own_parts_are_given_what_is_set),
    (("pretrained_new",), _new_parts_have_others_beside_them),
)

# Keys that the built-in parts of a key take, and user-defined parts do not.
NOT_PASSED = {
    "attention": ("attention_dropout", "projection_dropout", "qkv_bias", "qk_norm", "out_projection"),
    "mlp": ("mlp_dropout", "mlp_hidden_dropout"),
}


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _near(number: int, allowed: list[int]) -> int:
    return min(allowed, key=lambda candidate: abs(candidate - number))


def _wider(config: ViTConfig, step: int) -> int:
    """The next width that ``step`` divides, and the heads as well if they divide this one."""
    if isinstance(config.heads, int) and config.heads > 0 and config.dim % config.heads == 0:
        both = math.lcm(step, config.heads)
        if (width := _up(config.dim, both)) <= WIDEST:
            return width
    return _up(config.dim, step)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _some(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= 12 else [*numbers[:6], "...", *numbers[-4:]]
    return ", ".join(map(str, shown))
