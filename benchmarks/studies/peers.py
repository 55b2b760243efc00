"""The same job in lightning-hydra-template, in timm's train.py and here: a sweep, Ctrl-C in it, the rest, a comparison.

python benchmarks/studies/peers.py --data DIR --template CHECKOUT --timm CHECKOUT --python PYTHON  # all, then writes
python benchmarks/studies/peers.py vitrine --data DIR                                              # only this one
python benchmarks/studies/peers.py --table                                               # only writes docs/peers.md

PYTHON is an interpreter whose environment has what the two checkouts require. Each tool trains the same twelve
configurations one after another with one thread. What a user types, files included, stands in TOOLS.
"""

import argparse
import csv
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from seeds import ROOT, STUDIES, markdown_table, write_between

OUT = ROOT / "outputs" / "peers"
JSON = STUDIES / "peers.json"
PAGE = ROOT / "docs" / "peers.md"
LINES_KEPT = 30  # of what each command printed
IMAGES = 6000  # of MNIST's 60,000 training images, for the two that have no option for it

VIT_YAML = """\
_target_: src.models.mnist_module.MNISTLitModule
optimizer: {_target_: torch.optim.AdamW, _partial_: true, lr: 1e-3, weight_decay: 0.05}
scheduler: null
net:
  _target_: timm.models.vision_transformer.VisionTransformer
  img_size: 28
  patch_size: 7
  in_chans: 1
  num_classes: 10
  embed_dim: 64
  depth: 2
  num_heads: 4
compile: false
"""
TEMPLATE_TABLE = """\
import pathlib, pandas, yaml

rows = []
for path in pathlib.Path("logs/train/multiruns").glob("*/*/csv/version_0/metrics.csv"):
    metrics = pandas.read_csv(path)
    if "test/acc" in metrics:  # else it was interrupted
        overrides = yaml.safe_load((path.parents[2] / ".hydra/overrides.yaml").read_text())
        rows.append(dict(item.split("=") for item in overrides) | {"acc": metrics["test/acc"].dropna().iloc[-1]})
table = pandas.DataFrame(rows).rename(columns={"model.optimizer.lr": "lr", "data.batch_size": "batch"})
table.to_csv("table.csv")
print(table.groupby(["lr", "batch"]).acc.agg(["mean", "std", "count"]))
"""
TIMM_SWEEP = """\
for lr in 1e-3 3e-3; do for batch in 64 128; do for seed in 1 2 3; do
  run=out/lr$lr-batch$batch-seed$seed
  [ -e $run/checkpoint-1.pth.tar ] && continue  # finished
  resume=$([ -e $run/last.pth.tar ] && echo "--resume $run/last.pth.tar")
  python train.py --device cpu --output out --experiment $(basename $run) --seed $seed $resume -j 1 --crop-pct 1 \\
    --dataset torch/mnist --data-dir data --input-size 1 28 28 --num-classes 10 --mean 0.1307 --std 0.3081 \\
    --model vit_tiny_patch16_224 --model-kwargs img_size=28 patch_size=7 embed_dim=64 depth=2 num_heads=4 \\
    --opt adamw --lr $lr --weight-decay 0.05 --warmup-epochs 0 --epochs 2 -b $batch --no-aug --smoothing 0
done; done; done
"""
TIMM_TABLE = """\
import pathlib, re, pandas

rows = []
for path in pathlib.Path("out").glob("*/summary.csv"):
    lr, batch, seed = re.fullmatch("lr(.*)-batch(.*)-seed(.*)", path.parent.name).groups()
    acc = pandas.to_numeric(pandas.read_csv(path).eval_top1, errors="coerce")  # a resumed run has a second header
    rows.append({"lr": lr, "batch": batch, "seed": seed, "acc": acc.max() / 100})
table = pandas.DataFrame(rows)
table.to_csv("table.csv")
print(table.groupby(["lr", "batch"]).acc.agg(["mean", "std", "count"]))
"""
TEMPLATE_SWEEP = (
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 python src/train.py -m model=vit logger=csv trainer.max_epochs=2 "
    "data.train_val_test_split=[5400,600,10000] model.optimizer.lr={lr} data.batch_size={batch} seed={seed}"
)
SWEEP = (
    "python train.py -m model=vit_nano depth=2 patch=7 data=mnist data.per_class=540 data.val_fraction=0.01 "
    "trainer.max_epochs=2 optimizer.lr=1e-3,3e-3 data.batch_size=64,128 seed=1,2,3"
)


@dataclass(frozen=True)
class Tool:
    """What a user types.

    Attributes:
        files: text of each file that is written first, by its path in the checkout.
        sweep: the command that is interrupted.
        epoch_done: appears when the fifth training has one of its two epochs behind it; then Ctrl-C is pressed.
        rest: the commands that finish the sweep.
        compare: the command that ends it.
    """

    files: Mapping[str, str]
    sweep: str
    epoch_done: str
    rest: Sequence[str]
    compare: str

    @property
    def lines(self) -> int:
        """Number of lines that a user types, those of files included but empty ones."""
        return sum(bool(line) for text in self.files.values() for line in text.splitlines()) + len(self.rest) + 2


TOOLS = {
    "lightning-hydra-template": Tool(
        files={"configs/model/vit.yaml": VIT_YAML, "table.py": TEMPLATE_TABLE},
        sweep=TEMPLATE_SWEEP.format(lr="1e-3,3e-3", batch="64,128", seed="1,2,3"),
        epoch_done="logs/train/multiruns/*/4/checkpoints/epoch_000.ckpt",
        rest=(
            TEMPLATE_SWEEP.format(lr="1e-3", batch="128", seed="2,3"),
            TEMPLATE_SWEEP.format(lr="3e-3", batch="64,128", seed="1,2,3"),
        ),
        compare="python table.py",
    ),
    "timm": Tool(
        files={"sweep.sh": TIMM_SWEEP, "table.py": TIMM_TABLE},
        sweep="bash sweep.sh",
        epoch_done="out/lr1e-3-batch128-seed2/last.pth.tar",
        rest=("bash sweep.sh",),
        compare="python table.py",
    ),
    "vitrine": Tool(
        files={},
        sweep=SWEEP,
        epoch_done="outputs/sweeps/*/*128*0.001*seed-2*/checkpoints/last.ckpt",
        rest=(SWEEP,),
        compare="python scripts/compare.py outputs/sweeps/*",
    ),
}


def main() -> None:
    """Run the job with each tool, then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TOOLS)}; default: all")
    parser.add_argument("--table", action="store_true", help="train nothing, only write")
    parser.add_argument("--data", type=Path, help="folder with MNIST/raw")
    parser.add_argument("--template", type=Path, help="checkout of lightning-hydra-template")
    parser.add_argument("--timm", type=Path, help="checkout of timm")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter of the two checkouts")
    options = parser.parse_args()
    names = [] if options.table else options.names or list(TOOLS)
    sources = {"lightning-hydra-template": options.template, "timm": options.timm, "vitrine": ROOT}
    if unknown := sorted(set(names) - set(TOOLS)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(TOOLS)}")
    if names and not (options.data and all(sources[name] for name in names)):
        parser.error("--data is needed, and the checkout of each peer")
    for name in names:
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        if name == "vitrine":
            folder.mkdir(parents=True)
            for entry in ("train.py", "scripts", "conf"):
                (folder / entry).symlink_to(ROOT / entry)
            (folder / "data").symlink_to(options.data.resolve())
            python = Path(sys.executable)
        else:
            shutil.copytree(sources[name], folder, ignore=shutil.ignore_patterns("logs", "out", "output"))
            write_part_of_mnist(options.data, folder / "data")
            python = options.python
        results = json.loads(JSON.read_text()) | {name: job(TOOLS[name], folder, python)}
        JSON.write_text(json.dumps({name: results[name] for name in TOOLS}, indent=2) + "\n")
    write_page(json.loads(JSON.read_text()))


def write_part_of_mnist(source: Path, target: Path) -> None:
    """Write the first images of MNIST's files to another folder, in the same layout."""
    raw = target / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split, count in (("train", IMAGES), ("t10k", 10_000)):
        for kind, head, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            content = (source / "MNIST" / "raw" / f"{split}-{kind}-ubyte").read_bytes()
            cut = content[:4] + struct.pack(">I", count) + content[8 : head + count * size]
            (raw / f"{split}-{kind}-ubyte").write_bytes(cut)


def job(tool: Tool, folder: Path, python: Path) -> dict[str, Any]:
    """The four steps in a checkout: what they cost, and what the last one printed."""
    for path, text in tool.files.items():
        (folder / path).write_text(text)
    steps = [_run(tool.sweep, folder, python, tool.epoch_done)]
    steps += [_run(line, folder, python) for line in (*tool.rest, tool.compare)]
    accuracies = folder / "table.csv"
    runs = list(csv.DictReader(accuracies.open())) if accuracies.exists() else _our_runs(folder)
    keys = ("lr", "batch", "seed", "acc")
    return {"steps": steps, "runs": [{key: float(run[key]) for key in keys} for run in runs]}


def _run(line: str, folder: Path, python: Path, until: str | None = None) -> dict[str, Any]:
    """Run a line in bash; if ``until`` is given, press Ctrl-C when a file of that pattern appears."""
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    log = folder / "printed.txt"
    with log.open("w") as printed:
        process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        pressed = None
        while process.poll() is None:
            if until and pressed is None and any(folder.glob(until)):
                time.sleep(2)
                pressed = time.perf_counter()
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.2)
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    step = {"line": line, "exit": process.returncode, "seconds": round(end - start, 1), "cpu_seconds": round(cpu, 1)}
    if pressed is not None:
        step["seconds_after_ctrl_c"] = round(end - pressed, 1)
    print(json.dumps(step), flush=True)
    return {**step, "printed": _last_lines(log.read_text(), folder)}


def _last_lines(printed: str, folder: Path) -> list[str]:
    """The last lines that a command printed, without colours and paths of this machine."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed).replace(f"{folder}/", "")
    return [line.rstrip() for line in plain.splitlines()[-LINES_KEPT:]]


def _our_runs(folder: Path) -> list[dict[str, Any]]:
    runs = []
    for path in sorted(folder.glob("outputs/sweeps/*/*/metrics.json")):
        facts, config = json.loads(path.read_text()), yaml.safe_load((path.parent / "config.yaml").read_text())
        runs.append(
            {
                "lr": config["optimizer"]["lr"],
                "batch": config["data"]["batch_size"],
                "seed": config["seed"],
                "acc": facts["test/acc"],
            }
        )
    return runs


def write_page(results: Mapping[str, Any]) -> None:
    """Fill the marked parts of docs/peers.md: the commands, their cost, and the output of each comparison."""
    rows = []
    for name, result in results.items():
        *training, compare = result["steps"]
        wall, cpu = (sum(step[key] for step in training) for key in ("seconds", "cpu_seconds"))
        pressed = training[0]["seconds_after_ctrl_c"]
        rows.append([name, TOOLS[name].lines, f"{cpu:.0f} s", f"{wall:.0f} s", f"{pressed:.0f} s"])
        write_between(PAGE, f"{name}_typed", _typed(TOOLS[name]))
        write_between(PAGE, f"{name}_printed", ["```text", *_table(compare["printed"]), "```"])
    columns = ["tool", "lines typed", "processor time", "time", "from Ctrl-C to the prompt"]
    write_between(PAGE, "costs", markdown_table(columns, rows))


def _typed(tool: Tool) -> list[str]:
    lines = []
    for path, text in tool.files.items():
        language = {".py": "python", ".yaml": "yaml", ".sh": "sh"}[Path(path).suffix]
        lines += [f"`{path}`:", "", f"```{language}", *text.splitlines(), "```", ""]
    shell = "sh" if lines else "bash"  # what is in bash is composed by the tests of the pages
    return [*lines, f"```{shell}", tool.sweep, "# Ctrl-C", *tool.rest, tool.compare, "```"]


def _table(printed: Sequence[str]) -> list[str]:
    """The lines of a comparison that stand for all rows: not those about test images and commands, nor caveats."""
    left_out = ("- on the same", "- to measure", "- of 3", "!")
    return [line.rstrip() for line in printed if line and not line.startswith(left_out)]


if __name__ == "__main__":
    main()
