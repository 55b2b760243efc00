"""Peak memory of whole commands, data set included: python benchmarks/memory.py [--data DIR].

DIR holds cifar10/ as pictures in class folders or as published; without it, the commands that need it are left out.
"""

import argparse
import shutil

from running import ROOT, take
from timing import publish

OUT = ROOT / "outputs" / "benchmarks" / "memory"
SHORT = ["trainer.max_epochs=1", "debug.limit_batches=20", f"paths.output_dir={OUT.relative_to(ROOT)}"]
CIFAR = ["data=cifar10", "data.batch_size=128"]
COMMANDS = {
    "model=vit_tiny": [],
    "model=vit_tiny data=cifar10 data.batch_size=128": CIFAR,
    "model=vit_tiny data=cifar10 data.batch_size=512": CIFAR,
    "model=vit_tiny data=cifar10 data.batch_size=512 trainer.accumulate_grad_batches=4": CIFAR,
}


def main() -> None:
    """Run each for twenty steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of CIFAR-10")
    data = parser.parse_args().data
    rows, claims = [], {}
    for command, needs in COMMANDS.items():
        if needs and data is None:
            continue
        took = take("train.py", *command.split(), *SHORT, *([f"data.root={data}"] if needs else []))
        if took.code:
            raise SystemExit(f"train.py {command} ended with code {took.code}")
        rows.append([f"`{command}`", f"{took.memory / 1e9:.2f} GB"])
        if needs == CIFAR and not claims:
            claims["peak memory, CIFAR-10, `vit_tiny`, batch 128"] = rows[-1][1]
    shutil.rmtree(OUT, ignore_errors=True)
    publish(
        "memory",
        title="Memory",
        text="The most memory that `python train.py ...` has held at once: Python, PyTorch, all images, and twenty "
        "steps of training. `trainer.accumulate_grad_batches` computes a batch in parts.",
        columns=["command", "peak"],
        rows=rows,
        claims=claims,
    )


if __name__ == "__main__":
    main()
