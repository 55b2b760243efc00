"""Ideas for a faster training step on a CPU, each against the step that it changes: python benchmarks/timing/ideas.py.

An idea changes one thing about a step of `train.py`, compiled or not. Ideas that are taken are no longer here: they are
in the code, and benchmarks/timing/rules.py and step.py time them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from measure import format_ratio, in_turn, publish, ratio
from step import as_trained, step_of, training_step
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.distributed.hardware import choose_hardware
from vitrine.models import VisionTransformer
from vitrine.models.attention import Attention
from vitrine.models.mlp import Mlp
from vitrine.training.compile import compile_parts
from vitrine.training.losses import LOSSES
from vitrine.training.optim import build_optimizer

ROUNDS = 15
SIZE = ["data=mnist", "patch=4", "accelerator=cpu", "data.batch_size=128"]
MODELS = {"vit_nano": ["model=vit_nano", *SIZE], "vit_tiny": ["model=vit_tiny", *SIZE]}


@dataclass(frozen=True)
class Idea:
    """A change of the step.

    Attributes:
        name: what is changed.
        apply: changes the model in place.
        why_not: why it is not taken, whatever it gains.
        changes: the step that it changes, and is timed against.
    """

    name: str
    apply: Callable[[VisionTransformer], None]
    why_not: str
    changes: str = "as it is"


def lay_out_heads(model: VisionTransformer) -> None:
    """Copy queries, keys and values to where the products of attention read them in order."""
    for block in model.blocks:
        attention = block.attn
        assert isinstance(attention, Attention)
        project = attention.project
        attention.project = lambda x, project=project: project(x).contiguous()  # type: ignore[method-assign]


class Float32Softmax(torch.autograd.Function):
    """Softmax of bfloat16 by way of float32: equal to the last bit, as PyTorch's own sums in float32 too."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, scores: Tensor) -> Tensor:
        """(..., N) -> (..., N)."""
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(scores.dtype)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Gradient of the scores, (..., N)."""
        (weights,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)


def widen_softmax(model: VisionTransformer) -> None:
    """Convert scores to float32 before the softmax, and its result back."""
    for block in model.blocks:
        attention = block.attn
        assert isinstance(attention, Attention)

        def attend(x: Tensor, *, attention: Attention = attention, **_: object) -> Tensor:
            q, k, v = attention.project(x)
            weights = Float32Softmax.apply(q * attention.scale @ k.transpose(-2, -1))
            return attention.proj((weights @ v).transpose(1, 2).flatten(2))

        attention.forward = attend  # type: ignore[method-assign]


def keep_bfloat16(model: VisionTransformer) -> None:
    """Add the branches in bfloat16; normalisation sums in float32 as before."""
    embed = model.embed
    model.embed = lambda patches: embed(patches).bfloat16()  # type: ignore[method-assign]


class LinearGelu(torch.autograd.Function):
    """GELU of a linear map as one kernel; the backward pass computes the product again, as GELU's gradient needs it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(..., I), (O, I), (O,) -> (..., O)."""
        ctx.save_for_backward(x, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "none")

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Gradients of the input, the weight and the bias."""
        x, weight, bias = ctx.saved_tensors  # type: ignore[attr-defined]
        inner = torch.ops.aten.gelu_backward(gradient, F.linear(x, weight, bias)).flatten(0, -2)
        return (inner @ weight).view(x.shape), inner.T @ x.flatten(0, -2), inner.sum(0)


def fuse_gelu(model: VisionTransformer) -> None:
    """Apply GELU where its input is computed."""
    for block in model.blocks:
        mlp = block.mlp
        assert isinstance(mlp, Mlp)

        def fused(x: Tensor, mlp: Mlp = mlp) -> Tensor:
            half = torch.bfloat16
            return mlp.fc2(LinearGelu.apply(x.to(half), mlp.fc1.weight.to(half), mlp.fc1.bias.to(half)))

        mlp.forward = fused  # type: ignore[method-assign]


def compile_gelu(model: VisionTransformer) -> None:
    """Compile each block, GELU included."""
    for block in model.blocks:
        assert isinstance(block.mlp, Mlp)
        block.mlp.act = nn.GELU()
    compile_parts(model, "blocks")


def use_templates(model: VisionTransformer) -> None:
    """Compile each block, and let the compiler choose among matrix products of its own."""
    options = {"fallback_random": True, "max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
    for block in model.blocks:
        block.compile(dynamic=False, options=options)  # otherwise as compile_parts does


IDEAS = [
    Idea(
        "queries, keys and values copied to where the products read them in order",
        lay_out_heads,
        "it copies all queries, keys and values",
    ),
    Idea(
        "softmax by way of float32",
        widen_softmax,
        "a function of its own, for rows of fewer than 64 on a CPU, where PyTorch's own is slow",
    ),
    Idea("bias and GELU inside the product", fuse_gelu, "the backward pass needs the product again"),
    Idea("a residual stream in bfloat16", keep_bfloat16, "rounds what each block adds to 8 bits"),
    Idea("the compiler's own GELU", compile_gelu, "instead, compiled blocks call oneDNN's kernel", "compiled"),
    Idea(
        "the compiler's own matrix products", use_templates, "compiling times many kernels for each product", "compiled"
    ),
]


def master_weights(config: TrainConfig, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A step with linear maps stored in bfloat16 and copied once from the optimiser's float32 weights."""
    model = model_of(config)
    maps = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    half = [parameter.bfloat16().detach() for layer in maps for parameter in layer.parameters()]
    full = [parameter for layer in maps for parameter in layer.parameters()]
    optimizer = build_optimizer(config.optimizer, model)
    others = [parameter for parameter in model.parameters() if all(parameter is not one for one in full)]
    slots = [(layer, name) for layer in maps for name, _ in layer.named_parameters()]
    for tensor in half:
        tensor.requires_grad_()
    for (layer, name), tensor in zip(slots, half, strict=True):
        del layer._parameters[name]
        setattr(layer, name, tensor)
    for tensor in full:
        tensor.grad = torch.zeros_like(tensor)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = LOSSES[config.loss.name](model(images), labels)
        for tensor in [*half, *others]:
            tensor.grad = None
        loss.backward()
        torch._foreach_copy_([tensor.grad for tensor in full], [tensor.grad for tensor in half])
        torch.nn.utils.clip_grad_norm_([*full, *others], config.trainer.gradient_clip_val or 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(half, full)

    return step


def model_of(config: TrainConfig) -> VisionTransformer:
    """A new model, as :func:`training_step` has it."""
    return VisionTransformer(replace(config.model, attention_kernel=choose_hardware(config).attention_kernel)).train()


def changed_step(idea: Idea, config: TrainConfig, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A step as :func:`training_step` makes it, of a changed model."""
    model = model_of(config)
    optimizer = build_optimizer(config.optimizer, model)
    idea.apply(model)
    clip, criterion = config.trainer.gradient_clip_val, LOSSES[config.loss.name]
    return step_of(model, optimizer, images, labels, choose_hardware(config).precision, clip, criterion)


def main() -> None:
    """Time every idea on both models."""
    once = "weights copied to bfloat16 once a step, all together"
    changes = {idea.name: idea.changes for idea in IDEAS} | {once: "as it is"}
    rows = {name: [name, changed] for name, changed in changes.items()}
    rounds = {}
    for model, overrides in MODELS.items():
        config = compose(overrides)
        images, labels = torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,))
        torch.compiler.reset()  # the recompilation limit counts the model before
        steps = {"as it is": training_step(config, images, labels)}
        steps["compiled"] = training_step(config, images, labels, compiled="blocks")
        steps |= {idea.name: changed_step(idea, config, images, labels) for idea in IDEAS}
        steps[once] = master_weights(config, images, labels)
        times = in_turn(steps, rounds=ROUNDS, warm_up=2)
        rounds[model] = times
        for name, row in rows.items():
            row.append(format_ratio(ratio(times[changes[name]], times[name])))
            print(row, flush=True)
    reasons = {idea.name: idea.why_not for idea in IDEAS}
    reasons[once] = "checkpoints, averages and exports would need both copies"
    publish(
        "ideas",
        title="What was tried, and is not done",
        text="How many times as fast a step becomes by each idea alone: 128 images of 28x28 in patches of 4, bfloat16. "
        "The second column names the step that an idea changes and is timed against: as it is, or with compiled "
        "blocks. What an idea gains is in its ratio, and the last column is what there is to say beside it. Nor is "
        "bfloat16 taken for widths of 16 and 32 (the rules of `auto`, above): such models train within minutes, and "
        "keep float32's digits. From one day to another, ratios move by more than their intervals: at commits b3cf7f3 "
        "and c0dace4, the compiler's own GELU had 1x and 0.993x for `vit_nano`.",
        columns=["idea", "step", *(f"`{name}`" for name in MODELS), "against it, or instead"],
        rows=[[*row, reasons[name]] for name, row in rows.items()],
        claims={},
        rounds=rounds,
    )


if __name__ == "__main__":
    with as_trained():
        main()
