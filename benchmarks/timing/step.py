"""A training step of `train.py` against timm's and vit-pytorch's equal models: python benchmarks/timing/step.py.

Theirs run in the usual plain PyTorch loop: float32, not compiled, a fused optimizer.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

import torch
from measure import format_ratio, in_turn, milliseconds, publish, ratio
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from vit_pytorch import ViT as VitPytorch

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.distributed.hardware import DTYPES, choose_hardware
from vitrine.models import VisionTransformer
from vitrine.training.compile import compile_parts
from vitrine.training.flops import flops_per_image
from vitrine.training.losses import LOSSES
from vitrine.training.optim import build_optimizer
from vitrine.training.peak_flops import matmul_peak

BATCH, ROUNDS = 128, 10
MODELS = ("vit_nano", "vit_tiny")


class Case(NamedTuple):
    """A section of the page, and how it differs from the other."""

    name: str
    where: str
    note: str


# By whether the processor has instructions for bfloat16.
CASES = {
    True: Case(
        "step",
        "",
        "Processors of one name differ in bfloat16: on two others, at commits d8088be and 7b5d494, timm's step of "
        "`vit_nano` took 1.9 and 1.66 times as long as ours, that of `vit_tiny` 2.52 and 1.86 times.",
    ),
    False: Case("step_float32", ", on a processor without bfloat16", "Here, all compute in float32."),
}
RATIOS = ("timm / ours", "vit-pytorch / ours")


def main() -> None:
    """Time both model sizes on images of MNIST's size in patches of 4."""
    rows, claims, rounds = [], {}, {}
    configs = [
        compose([f"model={name}", "data=mnist", "patch=4", "accelerator=cpu", f"data.batch_size={BATCH}"])
        for name in MODELS
    ]
    precisions = [choose_hardware(config).precision for config in configs]
    case = CASES["bf16-mixed" in precisions]
    for name, config, precision in zip(MODELS, configs, precisions, strict=True):
        images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
        theirs = {"timm": timm_model(config), "vit-pytorch": vit_pytorch_model(config)}
        steps = {"ours": training_step(config, images, labels)}
        steps |= {library: plain_step(model, images, labels) for library, model in theirs.items()}
        times = in_turn(steps, rounds=ROUNDS, warm_up=2)
        rounds[name] = times
        gains = [ratio(times[library], times["ours"]) for library in theirs]
        work = 3 * BATCH * flops_per_image(config.model) / min(times["ours"])  # FLOP/s, forward and backward
        share = work / matmul_peak("cpu", precision, torch.get_num_threads())
        shown = [*(milliseconds(times[name]) for name in steps), *map(format_ratio, gains), f"{share:.0%}"]
        rows.append([f"`{name}`", precision, *shown])
        claims[f"`{name}` training step, against timm's equal model in float32{case.where}"] = format_ratio(gains[0])
    publish(
        case.name,
        title=f"The training step{case.where}",
        text=f"Milliseconds for a step on {BATCH} images of 28x28 in patches of 4: forward, loss, backward, optimizer; "
        "ours also clips gradients. Ours uses the precision and attention kernel that `train.py` chooses here. timm's "
        "and vit-pytorch's models of the same width, depth and heads run in a plain float32 loop, in the same process "
        "settings as ours (denormals flushed to zero, allocator keeps freed memory). The last column is the model "
        f"FLOP/s of our fastest step relative to a large matrix product in the same precision. {case.note}",
        columns=["model", "our precision", "ours", "timm", "vit-pytorch", *RATIOS, "of a product's rate"],
        rows=rows,
        claims=claims,
        rounds=rounds,
        script="step",
    )


def as_trained() -> AbstractContextManager[None]:
    """Process settings of training on a CPU, as a context; enter it before any computation."""
    return choose_hardware(compose(["accelerator=cpu"])).set_up()


def training_step(config: TrainConfig, images: Tensor, labels: Tensor, compiled: str = "nothing") -> Callable[[], None]:
    """A step of our training on one batch of normalised images, without the trainer.

    Call it inside :func:`as_trained`, or on a GPU inside its own :meth:`Hardware.set_up`.
    """
    hardware = choose_hardware(config)
    model = VisionTransformer(replace(config.model, attention_kernel=hardware.attention_kernel))
    model.to(images.device).train()
    model.activation_checkpointing = config.trainer.activation_checkpointing
    if compiled != "nothing":
        compile_parts(model, compiled)
    optimizer = build_optimizer(config.optimizer, model)
    return step_of(
        model,
        optimizer,
        images,
        labels,
        precision=hardware.precision,
        clip=config.trainer.gradient_clip_val,
        criterion=LOSSES[config.loss.name],
    )


def plain_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A training step as tutorials write it: float32, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return step_of(model.to(images.device).train(), optimizer, images, labels)


def step_of(
    model: nn.Module,
    optimizer: Optimizer,
    images: Tensor,
    labels: Tensor,
    precision: str = "32-true",
    clip: float | None = None,
    criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> Callable[[], None]:
    """Forward, loss, backward and optimizer; gradients are clipped if a norm is given."""

    def step() -> None:
        with torch.autocast(images.device.type, DTYPES[precision], enabled=precision.endswith("mixed")):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    return step


def timm_model(config: TrainConfig) -> nn.Module:
    """Timm's model of the same size, with the same stochastic depth rate."""
    model = config.model
    return TimmViT(
        img_size=model.image_size,
        patch_size=model.patch_size,
        in_chans=model.in_channels,
        num_classes=model.num_classes,
        embed_dim=model.dim,
        depth=model.depth,
        num_heads=model.heads,
        class_token=model.class_token,
        global_pool="avg" if model.pool == "mean" else "token",
        fc_norm=False,
        drop_path_rate=model.drop_path,
    )


def vit_pytorch_model(config: TrainConfig) -> nn.Module:
    """vit-pytorch's model of the same size; it has no stochastic depth, and always a class token."""
    model = config.model
    return VitPytorch(
        image_size=model.image_size,
        patch_size=model.patch_size,
        channels=model.in_channels,
        num_classes=model.num_classes,
        dim=model.dim,
        depth=model.depth,
        heads=model.heads,
        dim_head=model.dim // model.heads,
        mlp_dim=4 * model.dim,
        pool="mean",
    )


if __name__ == "__main__":
    with as_trained():
        main()
