"""Evidence for the rules of `auto` on a CPU: precision by width, attention kernel by tokens, compilation.

python benchmarks/timing/rules.py. The rules themselves are in distributed/hardware.py, models/attention.py and
training/compile.py.
"""

import os
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from measure import format_ratio, in_turn, milliseconds, publish, ratio
from step import as_trained, training_step

from vitrine import compose

ROUNDS = 8
SETTINGS = {
    "float32, sdpa": ["trainer.precision=32-true", "model.attention_kernel=sdpa"],
    "float32, explicit": ["trainer.precision=32-true", "model.attention_kernel=explicit"],
    "bfloat16, sdpa": ["trainer.precision=bf16-mixed", "model.attention_kernel=sdpa"],
    "bfloat16, explicit": ["trainer.precision=bf16-mixed", "model.attention_kernel=explicit"],
}
# Width, blocks, heads, image, patch, images in a batch.
SIZES = [
    (8, 2, 2, 28, 4, 128),
    (16, 4, 2, 28, 4, 128),
    (32, 4, 2, 28, 4, 128),
    (64, 4, 16, 28, 4, 128),
    (64, 4, 8, 28, 4, 128),
    (64, 4, 4, 28, 4, 128),
    (128, 4, 4, 28, 7, 128),
    (192, 2, 3, 28, 2, 64),
    (192, 2, 3, 56, 2, 16),
    (192, 12, 3, 28, 4, 128),
]


def main() -> None:
    """Time each size with each setting, then compiled with the fastest."""
    rows, rounds = [], {}
    for width, depth, heads, size, patch, batch in SIZES:
        overrides = ["model=vit_nano", "data=mnist", "accelerator=cpu", f"model.dim={width}", f"model.depth={depth}"]
        overrides += [f"model.heads={heads}", f"data.image_size={size}", f"model.patch_size={patch}"]
        overrides += [f"data.batch_size={batch}"]
        images, labels = torch.randn(batch, 1, size, size), torch.zeros(batch, dtype=torch.int64)
        steps = {name: training_step(compose([*overrides, *more]), images, labels) for name, more in SETTINGS.items()}
        times = in_turn(steps, rounds=ROUNDS, warm_up=2)
        best = min(times, key=lambda name: milliseconds(times[name]))
        compiled, seconds = compiled_in_turn([*overrides, *SETTINGS[best]], steps[best], images, labels)
        gain = format_ratio(ratio(compiled["plain"], compiled["compiled"]))
        tokens = (size // patch) ** 2
        rounds[f"{width} wide, {heads} heads, {depth} blocks, {tokens} tokens, {batch} images"] = times | compiled
        measured = [*(milliseconds(times[name]) for name in SETTINGS), gain, f"{seconds:.0f}"]
        rows.append([width, heads, depth, tokens, batch, *measured])
        print(rows[-1], flush=True)
    publish(
        "rules",
        title="The rules of `auto` on a CPU",
        text="Milliseconds per step for each precision and attention kernel; then, for the fastest of them, the gain "
        "from compiling each block, and the seconds that compiling takes. `auto` chooses bfloat16 from a width of 64 "
        "on processors with bfloat16 instructions, and float32 for narrower models, whose steps are short; explicit "
        "attention with bfloat16, and in heads of at most 8 channels, unless its weights exceed 2^25 elements; and "
        "compilation for trainings of more than ten minutes, if a few trial steps get faster.",
        columns=["width", "heads", "blocks", "tokens", "images", *SETTINGS, "speed-up by compiling", "s to compile"],
        rows=rows,
        claims={},
        rounds=rounds,
    )


def compiled_in_turn(
    overrides: list[str], plain: Callable[[], None], images: torch.Tensor, labels: torch.Tensor
) -> tuple[dict[str, list[float]], float]:
    """Seconds of plain and compiled steps, and those of the first compiled step with an empty cache."""
    torch.compiler.reset()
    step = training_step(compose(overrides), images, labels, compiled="blocks")
    with TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        begin = time.perf_counter()
        step()
        seconds = time.perf_counter() - begin
    return in_turn({"plain": plain, "compiled": step}, rounds=ROUNDS, warm_up=2), seconds


if __name__ == "__main__":
    with as_trained():
        main()
