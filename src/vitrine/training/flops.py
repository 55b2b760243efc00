"""Floating-point operations of a model: of a forward pass, and of training on an image."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, islice

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitrine.config import TrainConfig, ViTConfig
from vitrine.config.image_schedule import image_sides
from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import names_of
from vitrine.models import VisionTransformer, build_model
from vitrine.training.finetune import freeze, has_constant_features

# Depth times squared width of 24 M parameters, and tokens: up to these, operations are counted on the CPU. On the meta
# device, which takes no memory, PyTorch imports sympy, and computes shapes in Python: five times as long for vit_tiny.
SMALL_MODEL, SHORT_SEQUENCE = 2_000_000, 1024


def flops_per_image(config: ViTConfig, *, training: bool = False) -> int:
    """Floating-point operations of a forward pass on one image: matrix products only, a multiply-add counting as 2.

    With ``training``, of the patches that patch dropout keeps.
    """
    return _count_flops(config, training=training)[1].get_total_flops()


def _count_flops(config: ViTConfig, *, training: bool = False) -> tuple[nn.Module, FlopCounterMode]:
    """Return a model and the counted operations of its forward pass; see :func:`flops_per_image`."""
    short = config.tokens <= SHORT_SEQUENCE
    small = short and config.depth * config.dim**2 <= SMALL_MODEL
    device = "cpu" if small or names_of(config) else "meta"  # a user's code may compute with values
    if short or device == "meta":  # where attention maps take little memory
        config = replace(config, attention_kernel="explicit")  # PyTorch 2.11 does not count its fused kernel on CPUs
    failing = failing_in_one_line(config)  # of an image alone
    with failing, torch.device(device), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model = build_model(config).eval()
        if isinstance(model, VisionTransformer):
            model.patch_drop.train(training)
        images = torch.zeros(1, config.in_channels, *config.image_hw)
        with FlopCounterMode(display=False) as counter:
            model(images)
    return model, counter


def training_flops_per_image(config: TrainConfig, forward: int) -> int:
    """FLOPs of the forward and backward pass on one image.

    The backward pass counts as two forward passes through what is trained. Frozen layers take no backward pass, and no
    forward pass either where their features are computed once.

    Args:
        config: how the model is trained.
        forward: FLOPs of a forward pass on an image, without patch dropout.
    """
    if config.finetune.name == "full":
        return 3 * (flops_per_image(config.model, training=True) if config.model.patch_dropout else forward)
    model, counter = _count_flops(config.model)
    parts = freeze(model, config.finetune) or []
    names = [f"{type(model).__name__}.{name}" for name, module in model.named_modules() if module in parts]
    trained = sum(sum(counter.get_flop_counts().get(name, {}).values()) for name in names)
    return 3 * trained if has_constant_features(config) else forward + 2 * trained


def flops_by_epoch(config: TrainConfig, forward: int, of_teacher: int = 0) -> list[int]:
    """Return :func:`training_flops_per_image` in each epoch, which ``trainer.image_schedule`` lets differ.

    A teacher's forward pass, of ``of_teacher``, is added: training takes it.
    """
    trainer = config.trainer
    sides = image_sides(trainer.image_schedule, trainer.max_epochs)
    flops: dict[int | None, int] = {None: training_flops_per_image(config, forward)}
    for side in sides:
        if side is not None and side not in flops:
            flops[side] = 3 * flops_per_image(replace(config.model, image_size=side), training=True)
    return [flops[side] + of_teacher for side in sides]


def planned_flops(
    config: TrainConfig, forward: int, phases: Sequence[Sequence[int]], epochs_done: int, *, of_teacher: int = 0
) -> list[int]:
    """Return :func:`flops_by_epoch`; epochs that are done had the images that an earlier plan gave them.

    Args:
        config: how the model is trained.
        forward: FLOPs of a forward pass on an image, without patch dropout.
        phases: of the earlier plan, as :func:`flops_phases` returns them; empty without one.
        epochs_done: epochs of the earlier plan that are trained.
        of_teacher: FLOPs of a teacher's forward pass on an image.
    """
    earlier = list(islice((flops for flops, epochs in phases for _ in range(epochs)), epochs_done))
    return earlier + flops_by_epoch(config, forward, of_teacher)[len(earlier) :]


def flops_phases(by_epoch: Sequence[int]) -> list[list[int]]:
    """Return the pairs [FLOPs per image, epochs] of successive epochs with equal FLOPs."""
    return [[flops, len(list(epochs))] for flops, epochs in groupby(by_epoch)]
