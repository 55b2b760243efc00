"""Optimisers (PyTorch's, Muon with AdamW, a user's own), weight-decay groups, and learning-rate schedules."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitrine.config.parts import Part, PartError, build, faults_of, function, part_at
from vitrine.config.schema import OptimizerConfig, ScheduleConfig

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


def build_optimizer(config: OptimizerConfig, model: nn.Module, *, fused: bool = True) -> Optimizer:
    """Build the optimiser of all parameters of ``model``; ``fused`` runs each step as one kernel."""
    if (part := part_at(config, "name")) is not None:
        return user_optimizer(part, model, config)
    if config.name == "muon":
        return MuonAndAdamW(config, model, fused=fused)
    own = {"betas": tuple(config.betas)} if config.betas is not None else {"momentum": config.momentum}
    return OPTIMIZERS[config.name](parameter_groups(model, config), lr=config.lr, fused=fused, **own)


def user_optimizer(part: Part, model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Build the user's optimiser of all parameters of ``model``."""
    optimizer = build(part, parameter_groups(model, config), lr=config.lr)
    if not isinstance(optimizer, Optimizer):
        raise PartError(part.name, f"must return a torch.optim.Optimizer, not {type(optimizer).__name__}")
    return optimizer


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Split parameters into a group with weight decay and one without: biases, norms, and ``no_weight_decay()``."""
    if config.decay_all:
        return [{"params": list(model.parameters()), "weight_decay": config.weight_decay}]
    spared: set[str] = getattr(model, "no_weight_decay", set)()
    groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[parameter.ndim > 1 and name not in spared].append(parameter)
    return [
        {"params": groups[True], "weight_decay": config.weight_decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]


class MuonAndAdamW(Optimizer):
    """PyTorch's Muon for the matrices inside the blocks and its AdamW for all other parameters, as one optimiser.

    Lightning counts the steps of every optimiser it has. Muon and AdamW share this optimiser's groups and state, so
    that schedules and checkpoints see a single optimiser. The first group is Muon's.
    """

    def __init__(self, config: OptimizerConfig, model: nn.Module, *, fused: bool) -> None:
        assert config.momentum is not None  # the configuration is validated
        assert config.betas is not None
        assert config.adamw_lr is not None
        spared: set[str] = getattr(model, "no_weight_decay", set)()
        matrices = [
            parameter
            for name, parameter in model.named_parameters()
            if name.startswith("blocks.") and parameter.ndim == 2 and name not in spared
        ]
        self.muon = torch.optim.Muon(
            matrices,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        taken = set(map(id, matrices))
        groups = parameter_groups(model, config)
        for group in groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in taken]
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
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:1], self.param_groups[1:]
        self.muon.state = self.adamw.state = self.state


def build_schedule(config: ScheduleConfig, optimizer: Optimizer, steps: int) -> LambdaLR:
    """Build the schedule over ``steps`` optimiser steps; call its ``step()`` after each."""
    if (own := part_at(config, "name")) is not None:
        return LambdaLR(optimizer, partial(user_factor, name=own.name, schedule=function(own), steps=steps))
    return LambdaLR(optimizer, partial(learning_rate_factor, name=config.name, warmup=config.warmup, steps=steps))


def user_factor(step: int, *, name: str, schedule: Callable[[int, int], float], steps: int) -> float:
    """Factor of the learning rate at ``step`` (0-based) of ``steps`` by the user's schedule ``name``."""
    with faults_of(name, f"failed at step {step} of {steps}"):
        return float(schedule(min(step, steps - 1), steps))


def learning_rate_factor(step: int, *, name: str, warmup: float, steps: int) -> float:
    """Return the factor of the learning rate at ``step``, counted from 0, of ``steps``.

    Rises linearly to 1 over the first ``warmup`` share of the steps, in [0, 1]. Then stays at 1 (``constant``), or
    falls along a half cosine to 0 just after the last step (``cosine``, arXiv:1608.03983 without restarts).
    """
    warmup_steps = round(warmup * steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if name == "constant" or steps <= warmup_steps:
        return 1.0
    done = min(1.0, (step - warmup_steps) / (steps - warmup_steps))
    return 0.5 * (1 + math.cos(math.pi * done))
