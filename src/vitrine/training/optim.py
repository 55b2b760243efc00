"""Optimisers (PyTorch's, Muon with AdamW, those of other libraries, a user's own) and weight-decay groups."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from vitrine.config.finetune import FinetuneConfig
from vitrine.config.parts import PartError, build, part_at
from vitrine.config.schema import OPTIMIZER_LIBRARIES, OptimizerConfig
from vitrine.models import VisionTransformer
from vitrine.training.finetune import groups_by_layer
from vitrine.training.muon import Muon

Groups = list[dict[str, Any]]

TRAIN_ALL = FinetuneConfig()


def lamb(groups: Groups, **settings: Any) -> Optimizer:
    """Timm's LAMB (arXiv:1904.00962); the trainer clips gradients, not LAMB."""
    from timm.optim.lamb import Lamb

    return Lamb(groups, max_grad_norm=None, **settings)


def lion(groups: Groups, **settings: Any) -> Optimizer:
    """Timm's Lion (arXiv:2302.06675)."""
    from timm.optim.lion import Lion

    return Lion(groups, **settings)


def schedule_free(groups: Groups, **settings: Any) -> Optimizer:
    """Schedule-free AdamW (arXiv:2405.15682) by its authors; see training/schedule_free.py."""
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(groups, **settings)


# All but muon. Other libraries than PyTorch are imported when they are needed.
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "lamb": lamb,
    "lion": lion,
    "schedule_free": schedule_free,
}
# Timm's LAMB scales steps by the norm of weights where there is weight decay; those of matrices, here, without it too.
OF_MATRICES: dict[str, dict[str, Any]] = {"lamb": {"always_adapt": True}}


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, finetune: FinetuneConfig = TRAIN_ALL, *, fused: bool = True
) -> Optimizer:
    """Build the optimiser of the parameters of ``model`` that take gradients.

    Args:
        config: the optimiser.
        model: the model, frozen already where it is.
        finetune: learning rates of its layers.
        fused: run each step as one kernel, unless there are complex parameters, for which PyTorch has none.
    """
    fused = fused and not any(one.is_complex() for one in model.parameters() if one.requires_grad)
    if (part := part_at(config, "name")) is not None:
        own = build(part, parameter_groups(model, config, finetune), lr=config.lr)
        if not isinstance(own, Optimizer):
            raise PartError(part.name, f"must return a torch.optim.Optimizer, not {type(own).__name__}")
        return own
    if config.name == "muon":
        return MuonAndAdamW(config, model, finetune, fused=fused)
    groups = parameter_groups(model, config, finetune)
    settings: dict[str, Any] = {} if config.name in OPTIMIZER_LIBRARIES else {"fused": fused}  # only PyTorch has it
    momentum = {"momentum": config.momentum, "nesterov": config.nesterov}  # of sgd
    settings |= momentum if config.betas is None else {"betas": tuple(config.betas)}
    return OPTIMIZERS[config.name](groups, lr=config.lr, **settings)


def parameter_groups(
    model: nn.Module,
    config: OptimizerConfig,
    finetune: FinetuneConfig = TRAIN_ALL,
    chosen: Callable[[str, nn.Parameter], bool] = lambda name, parameter: True,
) -> list[dict[str, Any]]:
    """Split parameters that take gradients into a group with weight decay and one without; by layer if rates differ.

    Biases, norms, and what ``model.no_weight_decay()`` names have no weight decay, unless ``config.decay_all``.
    """
    spared = not_matrices(model)
    trained = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and chosen(name, parameter)
    ]
    if finetune.by_layer:
        assert isinstance(model, VisionTransformer)  # the configuration is validated
        layers = groups_by_layer(trained, finetune, model.config.depth, config.lr)
    else:
        layers = iter([({}, trained)])
    groups = []
    for settings, members in layers:
        decay: list[nn.Parameter] = []
        no_decay: list[nn.Parameter] = []
        for name, parameter in members:
            matrix = parameter.ndim > 1 and name not in spared
            (decay if matrix or config.decay_all else no_decay).append(parameter)
        of_matrices = OF_MATRICES.get(config.name, {})
        groups.append({"params": decay, "weight_decay": config.weight_decay, **settings, **of_matrices})
        if not config.decay_all:
            groups.append({"params": no_decay, "weight_decay": 0.0, **settings})
    return groups


def not_matrices(model: nn.Module) -> set[str]:
    """Return the names of parameters that are no weight matrices, although they have more than one dimension."""
    names: set[str] = getattr(model, "no_weight_decay", set)()
    return names


class MuonAndAdamW(Optimizer):
    """Muon for the matrices inside the blocks and PyTorch's AdamW for all other parameters, as one optimiser.

    Lightning counts the steps of every optimiser it has. Muon and AdamW share this optimiser's groups and state, so
    that schedules and checkpoints see a single optimiser. The first groups are Muon's. In ``attention=headwise``, the
    matrices of queries, keys and values, one per head, are AdamW's.

    Elsewhere ``attn.qkv``, (3 D, D), is orthogonalised as one matrix. Muon's author found separate ones for queries,
    keys and values to be better (kellerjordan.github.io/posts/muon, "Empirical considerations").
    """

    def __init__(self, config: OptimizerConfig, model: nn.Module, finetune: FinetuneConfig, *, fused: bool) -> None:
        assert config.momentum is not None  # the configuration is validated
        assert config.betas is not None
        assert config.adamw_lr is not None
        spared = not_matrices(model)

        def is_muons(name: str, parameter: nn.Parameter) -> bool:
            is_matrix = parameter.ndim == 2 and name not in spared and not parameter.is_complex()
            return name.startswith("blocks.") and is_matrix

        matrices = parameter_groups(model, config, finetune, is_muons)
        self.muon = Muon(
            [group for group in matrices if group["params"]],
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        own = replace(config, lr=config.adamw_lr)
        groups = parameter_groups(model, own, finetune, lambda name, parameter: not is_muons(name, parameter))
        first, second = config.betas
        self.adamw = torch.optim.AdamW(groups, lr=config.adamw_lr, betas=(first, second), fused=fused)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step both; ``closure`` is called once before, as it clips the gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self.muon.step()
        self.adamw.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore groups and state from a checkpoint."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        count = len(self.muon.param_groups)
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        self.muon.state = self.adamw.state = self.state
