"""Parts of a model that start anew, where the rest starts from pretrained weights (``model.pretrained_new``)."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.config import ViTConfig
from vitrine.config.finetune import FinetuneConfig
from vitrine.errors import ConfigError, Fault
from vitrine.text import listed

# The parameters of each part, by timm's names; some schemes of positions and pools have none.
PARAMETERS = {
    "position": re.compile(r"pos_embed$|pos_conv\.|pos_module\.|blocks\.\d+\.attn\.relation\."),
    "class_token": re.compile(r"cls_token$"),
    "registers": re.compile(r"reg_token$"),
    "pool": re.compile(r"attn_pool\."),
    "embed_norm": re.compile(r"norm_pre\."),
    "final_norm": re.compile(r"norm\."),
    "qk_norm": re.compile(r"blocks\.\d+\.attn\.[qk]_norm\."),
    "layer_scale": re.compile(r"blocks\.\d+\.ls[12]\.gamma$"),
}
PREFIX_BIAS = re.compile(r"blocks\.\d+\.attn\.relation\.prefix$")  # of position=relative, for prefix tokens
FURTHER_KEYS = {"position": ("position_options", "sincos_frequencies", "rope_theta"), "pool": ("pool_options",)}


def is_of(name: str, parts: Collection[str]) -> bool:
    """Whether a parameter belongs to one of ``parts``."""
    return any(PARAMETERS[part].match(name) for part in parts)


def keys_of(parts: Collection[str]) -> set[str]:
    """Return the keys of a model that belong to ``parts``."""
    return {key for part in parts for key in (part, *FURTHER_KEYS.get(part, ()))}


def kept_weights(
    weights: Mapping[str, Tensor], facts: Mapping[str, Any], config: ViTConfig, *, of_vitrine: bool
) -> dict[str, Tensor]:
    """Return the weights without those of parts that start anew.

    A learned position table, (1, N, D), gets a row of zeros for each prefix token that is new, and loses those of
    tokens that are no more.

    Args:
        weights: by timm's names.
        facts: fields of the model that they were trained in.
        config: the model that starts from them.
        of_vitrine: whether they are a run's, whose table has rows for all tokens; published ones may lack the prefix's.
    """
    new = {*config.pretrained_new}
    kept = {name: value for name, value in weights.items() if not is_of(name, new)}
    if not {"class_token", "registers"} & new:
        return kept
    if not config.prefix:
        kept = {name: value for name, value in kept.items() if not PREFIX_BIAS.match(name)}
    table = kept.get("pos_embed")
    if table is None or table.ndim != 3 or len(table) != 1:  # position=learned2d has rows for patches alone
        return kept
    tokens = [int(facts["class_token"]), facts["registers"]]
    patches = table.shape[1] - sum(tokens)
    if patches < 1 or (not of_vitrine and lacks_prefix(table.shape[1], sum(tokens), config)):
        return kept
    first, others, rest = table.split([*tokens, patches], dim=1)

    def rows(known: Tensor, count: int, part: str) -> Tensor:
        return table.new_zeros(1, count, table.shape[2]) if part in new else known

    own = [rows(first, config.class_token, "class_token"), rows(others, config.registers, "registers")]
    return kept | {"pos_embed": torch.cat([*own, rest], dim=1)}


def lacks_prefix(rows: int, prefix: int, config: ViTConfig) -> bool:
    """Whether a published table of ``rows`` positions has none for the ``prefix`` tokens in front of the patches."""
    return grid_of(rows - prefix, config) is None and grid_of(rows, config) is not None


def grid_of(patches: int, config: ViTConfig) -> tuple[int, int] | None:
    """Return rows and columns of ``patches`` patches: those of ``config``, else a square's, else ``None``."""
    if patches == config.patches:
        return config.grid
    side = math.isqrt(max(0, patches))
    return (side, side) if side > 0 and side * side == patches else None


def fresh_parameters(model: nn.Module, weights: Collection[str], parts: Collection[str]) -> list[str]:
    """Return the names of the model's parameters that start anew, the head's aside.

    Args:
        model: the model.
        weights: names of those that do not.
        parts: ``model.pretrained_new``.
    """
    of_tokens = {"class_token", "registers"} & {*parts}
    return [
        name
        for name in model.state_dict()
        if is_of(name, parts) or (of_tokens and PREFIX_BIAS.match(name) and name not in weights)
    ]


def check_parts(
    config: ViTConfig, facts: Mapping[str, Any], weights: Collection[str], parameters: Collection[str]
) -> None:
    """Raise ConfigError where ``model.pretrained_new`` names a part twice, or one that is the same without parameters.

    Args:
        config: the model.
        facts: fields of the model that the weights were trained in; a tuple has alternatives.
        weights: names of the weights.
        parameters: names of the model's parameters.
    """
    parts, given = config.pretrained_new, f"[{','.join(config.pretrained_new)}]"
    if twice := sorted({part for part in parts if parts.count(part) > 1}):
        raise ConfigError([Fault("model.pretrained_new", given, f"names {listed(twice)} twice")])
    for part in parts:
        theirs, ours = facts.get(part), getattr(config, part)
        is_same = ours in theirs if isinstance(theirs, tuple) else ours == theirs
        if is_same and not any(is_of(name, [part]) for name in (*weights, *parameters)):
            problem = f"names {part}, of which neither the weights nor the model have any parameters"
            near = f"model.pretrained_new=[{','.join(other for other in parts if other != part)}]"
            raise ConfigError([Fault("model.pretrained_new", given, problem, near)])


def check_trained(fresh: Sequence[str], model: ViTConfig, finetune: FinetuneConfig) -> None:
    """Raise ConfigError where parameters that start anew are not trained.

    Args:
        fresh: their names.
        model: the model.
        finetune: what is trained.
    """
    if finetune.name == "full":
        return
    trained = ["head."]
    if finetune.name == "last_blocks":
        assert finetune.blocks is not None  # the configuration is validated
        trained += [
            "norm.",
            "attn_pool.",
            *(f"blocks.{model.depth - block}." for block in range(1, finetune.blocks + 1)),
        ]
    if frozen := [name for name in fresh if not name.startswith(tuple(trained))]:
        them = "it" if len(frozen) == 1 else "them"
        problem = f"{listed(frozen, 3)} would stay as initialised, since finetune={finetune.name} freezes {them}"
        given = f"[{','.join(model.pretrained_new)}]"
        raise ConfigError([Fault("model.pretrained_new", given, problem, "finetune=full")])
