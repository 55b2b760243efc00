"""What `auto` should choose on a CPU: precision by width, attention kernel by tokens, compiling.

python benchmarks/rules.py. The rules themselves stand in distributed/hardware.py, models/attention.py and
training/compile.py.
"""

import os
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from step import as_trained, training_step
from timing import in_turn, in_words, milliseconds, publish, ratio

from vitrine import compose

ROUNDS = 8
WAYS = {
    "float32, sdpa": ["trainer.precision=32-true", "model.attention_kernel=sdpa"],
    "float32, explicit": ["trainer.precision=32-true", "model.attention_kernel=explicit"],
    "bfloat16, sdpa": ["trainer.precision=bf16-mixed", "model.attention_kernel=sdpa"],
    "bfloat16, explicit": ["trainer.precision=bf16-mixed", "model.attention_kernel=explicit"],
}
# Width, blocks, heads, image, patch, images in a batch.
SIZES = [
    (16, 4, 2, 28, 4, 128),
    (32, 4, 2, 28, 4, 128),
    (64, 4, 4, 28, 4, 128),
    (128, 4, 4, 28, 7, 128),
    (192, 2, 3, 28, 2, 64),
    (192, 2, 3, 56, 2, 16),
    (192, 12, 3, 28, 4, 128),
]


def main() -> None:
    """Each size in each way, then compiled in the fastest."""
    rows = []
    for width, depth, heads, size, patch, batch in SIZES:
        words = ["model=vit_nano", "data=mnist", "accelerator=cpu", f"model.dim={width}", f"model.depth={depth}"]
        words += [f"model.heads={heads}", f"data.image_size={size}", f"model.patch_size={patch}"]
        words += [f"data.batch_size={batch}"]
        images, labels = torch.randn(batch, 1, size, size), torch.zeros(batch, dtype=torch.int64)
        ways = {name: training_step(compose([*words, *more]), images, labels) for name, more in WAYS.items()}
        times = in_turn(ways, rounds=ROUNDS, warm_up=2)
        best = min(times, key=lambda name: milliseconds(times[name]))
        gain, seconds = compiled([*words, *WAYS[best]], ways[best], images, labels)
        tokens = (size // patch) ** 2
        rows.append(
            [width, depth, tokens, batch, *(milliseconds(times[name]) for name in WAYS), gain, f"{seconds:.0f}"]
        )
        print(rows[-1], flush=True)
    publish(
        "rules",
        title="What `auto` goes by on a CPU",
        text="Milliseconds a step for each precision and attention kernel, then what compiling each block gains in the "
        "fastest of them, and how many seconds that takes. `auto` takes bfloat16 from a width of 64 on processors that "
        "multiply it, leaving narrower models, whose steps are short, in float32; explicit attention with bfloat16, "
        "unless its weights would be more than 2^25; compiling for trainings of over ten minutes, if a trial gains.",
        columns=["width", "blocks", "tokens", "images", *WAYS, "gain of compiling", "s to compile"],
        rows=rows,
        claims={},
    )


def compiled(
    words: list[str], plain: Callable[[], None], images: torch.Tensor, labels: torch.Tensor
) -> tuple[str, float]:
    """How much faster compiled blocks are, and the seconds of the first step, of which nothing is kept from before."""
    torch.compiler.reset()
    step = training_step(compose(words), images, labels, compiled="blocks")
    with TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        begin = time.perf_counter()
        step()
        seconds = time.perf_counter() - begin
    times = in_turn({"plain": plain, "compiled": step}, rounds=ROUNDS, warm_up=2)
    return in_words(ratio(times["plain"], times["compiled"])), seconds


if __name__ == "__main__":
    with as_trained():
        main()
