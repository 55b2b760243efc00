"""Peak memory of whole commands, data set included: python benchmarks/timing/memory.py [--data DIR].

DIR holds CIFAR-10 as ``data.root=DIR`` expects it; without it, the commands that need CIFAR-10 are skipped, and nothing
is published.
"""

import argparse
import shutil

from measure import ROOT, markdown_table, publish, run_command

from vitrine import compose
from vitrine.distributed.hardware import choose_hardware

STEPS = 5
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
    """Run each command for five steps."""
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
    precision = choose_hardware(compose(["model=vit_tiny", "accelerator=cpu"])).precision
    publish(
        "memory",
        title="Memory",
        text=f"Peak resident memory of `python train.py ...`: Python, PyTorch, all images, and {STEPS} training steps "
        f"with `trainer.precision={precision}`. "
        "`trainer.accumulate_grad_batches` computes a batch in parts, `trainer.activation_checkpointing` each block "
        "again in the backward pass.",
        columns=columns,
        rows=rows,
        claims=claims,
        rounds=peaks,
    )


if __name__ == "__main__":
    main()
