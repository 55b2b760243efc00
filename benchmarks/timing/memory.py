"""Peak memory of whole commands, data set included, and the time that activation checkpointing takes for it.

python benchmarks/timing/memory.py [--data DIR]. DIR holds CIFAR-10 as ``data.root=DIR`` expects it; without it, the
commands that need CIFAR-10 are skipped, and nothing is published.
"""

import argparse
import shutil
from dataclasses import replace

import torch
from measure import ROOT, format_ratio, in_turn, markdown_table, publish, ratio, run_command
from step import as_trained, training_step

from vitrine import compose

ROUNDS, STEPS = 8, 5
OUT = ROOT / "outputs" / "benchmarks" / "memory"
SHORT = ["trainer.max_epochs=1", f"debug.limit_batches={STEPS}", f"paths.output_dir={OUT.relative_to(ROOT)}"]
CIFAR = ["data=cifar10", "data.batch_size=128"]
COMMANDS = {
    "model=vit_tiny": [],
    "model=vit_tiny data=cifar10 data.batch_size=128": CIFAR,
    "model=vit_tiny data=cifar10 data.batch_size=512": CIFAR,
    "model=vit_tiny data=cifar10 data.batch_size=512 trainer.accumulate_grad_batches=4": CIFAR,
    "model=vit_tiny data=cifar10 data.batch_size=512 trainer.activation_checkpointing=true": CIFAR,
}


def main() -> None:
    """Run each command for five steps, then time a step with and without activation checkpointing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of CIFAR-10")
    data = parser.parse_args().data
    columns = ["command", "peak"]
    rows, claims, peaks = [], {}, {}
    for command, needs in COMMANDS.items():
        if needs and data is None:
            continue
        cost = run_command("train.py", *command.split(), *SHORT, *([f"data.root={data}"] if needs else []))
        if cost.code:
            raise SystemExit(f"train.py {command} ended with exit code {cost.code}")
        peaks[f"bytes of {command}"] = {"ours": [cost.memory]}
        rows.append([f"`{command}`", f"{cost.memory / 1e9:.2f} GB"])
        if needs == CIFAR and not claims:
            claims["peak memory, CIFAR-10, `vit_tiny`, batch 128"] = rows[-1][1]
    shutil.rmtree(OUT, ignore_errors=True)
    if data is None:
        print("\n".join(markdown_table(columns, rows)))
        return
    times = checkpointing_steps()
    slower = format_ratio(ratio(times["checkpointing"], times["without"]))
    claims["a step of `vit_tiny` with `trainer.activation_checkpointing`, against one without"] = slower
    publish(
        "memory",
        title="Memory",
        text=f"Peak resident memory of `python train.py ...`: Python, PyTorch, all images, and {STEPS} training steps. "
        "`trainer.accumulate_grad_batches` computes a batch in parts, `trainer.activation_checkpointing` each block "
        f"again in the backward pass: a step on 128 images of CIFAR-10 takes {slower} as long, the median of {ROUNDS} "
        "rounds. Memory is in bytes in the file of rounds.",
        columns=columns,
        rows=rows,
        claims=claims,
        rounds=peaks | {"step on 128 images": times},
    )


def checkpointing_steps() -> dict[str, list[float]]:
    """Seconds of a step of ``model=vit_tiny data=cifar10 data.batch_size=128`` without and with checkpointing."""
    without = compose(["model=vit_tiny", "data=cifar10", "accelerator=cpu"])
    checkpointing = replace(without, trainer=replace(without.trainer, activation_checkpointing=True))
    size = without.data.image_size
    images, labels = torch.randn(128, 3, size, size), torch.randint(0, 10, (128,))
    with as_trained():
        steps = {
            "without": training_step(without, images, labels),
            "checkpointing": training_step(checkpointing, images, labels),
        }
        return in_turn(steps, rounds=ROUNDS)


if __name__ == "__main__":
    main()
