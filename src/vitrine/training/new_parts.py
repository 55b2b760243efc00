"""Parts of a model that start anew, where the rest starts from pretrained weights (``model.pretrained_new``)."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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
ON_TOP = ("final_norm", "pool")  # what finetune=last_blocks trains beside blocks and head
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
    table = kept.get("pos_embed")
    if table is None or table.ndim != 3 or len(table) != 1 or not {"class_token", "registers"} & new:
        return kept
    tokens = [int(facts["class_token"]), facts["registers"]]
    patches = table.shape[1] - sum(tokens)
    if not of_vitrine and not _is_square(patches) and _is_square(table.shape[1]):
        return kept
    first, others, rest = table.split([*tokens, patches], dim=1)

    def rows(known: Tensor, count: int, part: str) -> Tensor:
        return table.new_zeros(1, count, table.shape[2]) if part in new else known

    own = [rows(first, config.class_token, "class_token"), rows(others, config.registers, "registers")]
    return kept | {"pos_embed": torch.cat([*own, rest], dim=1)}


def _is_square(count: int) -> bool:
    return count > 0 and math.isqrt(count) ** 2 == count


def check_trained(fresh: Sequence[str], parts: Sequence[str], config: FinetuneConfig) -> None:
    """Raise ConfigError where parts that start anew are not trained.

    Args:
        fresh: parameters that start anew.
        parts: ``model.pretrained_new``.
        config: what is trained.
    """
    if config.name == "full":
        return
    allowed = ON_TOP if config.name == "last_blocks" else ()
    frozen = [part for part in parts if part not in allowed and any(is_of(name, [part]) for name in fresh)]
    if frozen:
        problem = f"{listed(frozen)} would stay as initialised, since finetune={config.name} freezes it"
        raise ConfigError([Fault("model.pretrained_new", f"[{','.join(parts)}]", problem, "finetune=full")])
