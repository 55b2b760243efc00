"""Measurements on a GPU, within ten minutes: python benchmarks/timing/gpu.py. Prints tables and writes gpu.json.

Agreement of CPU and GPU; projected time of the CIFAR-10 recipes, with one seed and with several seeds on one GPU; time
and share of the peak FLOP/s of a step for each size, uncompiled, compiled, and as CUDA graphs; time of an epoch of
CIFAR-10, and augmentation's share of it. ``--quick`` runs a small version of everything, also on a CPU, and writes
nothing.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from input_path import ours
from measure import TIMING, in_turn, markdown_table, milliseconds, run_command, synchronize
from step import training_step
from torch import Tensor

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.config.model import POSITIONS
from vitrine.data.image_dataset import Split
from vitrine.data.shards import shards_folder, write_shards
from vitrine.distributed.hardware import choose
from vitrine.models import VisionTransformer
from vitrine.training.throughput import datasheet_peak, flops_per_image, matmul_peak

JSON = TIMING / "gpu.json"
SECONDS = 540.0  # parts that have not started by then are skipped
COMPILED = ("nothing", "blocks", "model", "graphs")
# Model, image size, patch size, batch size.
SIZES = [("vit_nano", 32, 4, 1024), ("vit_tiny", 32, 4, 1024), ("vit_small", 32, 4, 512), ("vit_base", 224, 16, 128)]
EPOCH = ("none", "standard", "strong")
RECIPES = [("cifar10/fast", 1), ("cifar10/fast", 3), ("cifar10/best", 1), ("cifar10/stem", 1)]  # seeds at a time


def main() -> None:
    """Measure everything, the most important parts first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, also on a CPU; writes nothing")
    quick = parser.parse_args().quick
    if not (torch.cuda.is_available() or quick):
        raise SystemExit("no GPU found; --quick runs a small version on the CPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    end = time.monotonic() + SECONDS
    results: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "CPU"}
    results["torch"] = torch.__version__
    parts: list[tuple[str, Callable[[], list[list[Any]]]]] = [("agreement", partial(agreement, device))]
    parts.append(("recipes", partial(recipes, device, end, quick)))
    for size in SIZES[:1] if quick else SIZES:
        parts.append((f"step of {size[0]}", partial(steps, device, *size, end, quick)))
    parts.insert(4, ("epoch of CIFAR-10", partial(epochs, device, quick)))
    for name, measure in parts:
        if time.monotonic() > end:
            print(f"out of time, skipped: {name}", flush=True)
            continue
        results[name] = measure()
        print(f"{SECONDS - (end - time.monotonic()):.0f} s: {name} {results[name]}", flush=True)
        if not quick:
            JSON.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(report(results)))


def agreement(device: str) -> list[list[Any]]:
    """For each positional scheme, the largest difference from the CPU of logits and of a gradient, in float32."""
    rows = []
    for position in POSITIONS:
        config = compose([f"position={position}", "model=vit_tiny", "depth=4", "trainer.precision=32-true"])
        torch.manual_seed(0)
        model = VisionTransformer(config.model).eval()
        images = torch.randn(8, config.model.in_channels, config.model.image_size, config.model.image_size)
        with choose(config).set_up():  # full float32 precision
            outputs = {place: logits_and_gradient(model.to(place), images.to(place)) for place in ("cpu", device)}
        differences = [float((a - b).abs().max()) for a, b in zip(outputs["cpu"], outputs[device], strict=True)]
        rows.append([position, *(f"{difference:.1e}" for difference in differences)])
    return rows


def logits_and_gradient(model: VisionTransformer, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of their sum of squares in the first block's MLP weights; both on the CPU."""
    model.zero_grad()
    logits = model(images)
    logits.square().sum().backward()
    gradient = model.blocks[0].mlp.fc1.weight.grad
    assert gradient is not None
    return logits.detach().cpu(), gradient.cpu()


def recipes(device: str, end: float, quick: bool) -> list[list[Any]]:
    """For each recipe: ms per step, seconds of start-up and of compiling, and minutes of all its training steps.

    The minutes leave out validation, checkpoints and the test. The real command trains two short epochs on random
    images, compiled as the whole training would be.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        count = 600 if quick else 50_000
        images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        labels = np.arange(count) % 10
        splits = {"train": (images, labels), "test": (images[:500], labels[:500])}
        write_shards(shards_folder(folder, "cifar10"), "cifar10", [str(label) for label in range(10)], splits, 10**9)
        for recipe, seeds in RECIPES[:2] if quick else RECIPES:
            if time.monotonic() > end:
                break
            place = Path(folder) / f"{recipe}-{seeds}"
            overrides = [f"experiment={recipe}", "trainer.max_epochs=2", "hydra/launcher=process"]
            overrides += [
                f"seed={','.join(map(str, range(seeds)))}",
                f"data.root={folder}",
                f"paths.output_dir={place}",
            ]
            if device == "cuda":
                overrides += ["trainer.compile=model", "debug.limit_batches=300", f"launcher.per_gpu={seeds}"]
            else:
                overrides += ["accelerator=cpu", "debug.limit_batches=2", "launcher.workers=1"]
            if code := run_command("train.py", "-m", *overrides).code:
                raise SystemExit(f"train.py -m {' '.join(overrides)} ended with exit code {code}")
            runs = [json.loads(path.read_text()) for path in place.glob("**/run.json")]
            config = compose([f"experiment={recipe}", "accelerator=cpu"])
            took = statistics.mean(config.data.batch_size / run["speed"]["images_per_second"] for run in runs)
            starting, compiling = (
                max(run["speed"][key] for run in runs) for key in ("startup_seconds", "compile_seconds")
            )
            whole = 45_000 // config.data.batch_size * config.trainer.max_epochs * took
            minutes = (starting + compiling + whole) / 60
            rows.append([recipe, seeds, 1000 * took, starting, compiling, minutes, minutes / seeds])
    return rows


def steps(device: str, name: str, size: int, patch: int, batch: int, end: float, quick: bool) -> list[list[Any]]:
    """For each compile mode: ms per step, images per second, shares of peak FLOP/s, seconds of the first step."""
    rows = []
    batch = 16 if quick else batch
    config = model_config(name, size, patch, batch)
    precision = choose(config).precision
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    here, promised = matmul_peak(device, precision, torch.get_num_threads()), None
    if device == "cuda":
        promised = datasheet_peak(torch.cuda.get_device_name(), precision)
    for compiled in COMPILED[: 2 if device == "cpu" else None]:
        if time.monotonic() > end:
            break
        torch.compiler.reset()
        with choose(config).set_up():
            begin = time.perf_counter()
            step = training_step(config, images, labels, compiled)
            step()
            synchronize()
            first = time.perf_counter() - begin
            took = milliseconds(in_turn({"step": step}, rounds=3 if quick else 30, warm_up=3)["step"])
        rate = 3 * flops_per_image(config.model) * batch / took * 1000
        shares = [f"{rate / peak:.1%}" if peak else "" for peak in (here, promised)]
        rows.append([name, batch, compiled, took, f"{batch / took * 1000:,.0f}", f"{rate / 1e12:.1f}", *shares, first])
    return rows


def model_config(name: str, size: int, patch: int, batch: int) -> TrainConfig:
    """The configuration of a model for RGB images of a size."""
    overrides = [f"model={name}", "data=cifar10", f"data.image_size={size}", f"model.patch_size={patch}"]
    return compose([*overrides, f"data.batch_size={batch}"])


def epochs(device: str, quick: bool) -> list[list[Any]]:
    """For each augmentation: seconds of an epoch of vit_tiny on 50,000 random images, and its own share of it."""
    rows = []
    count, batch = (256, 64) if quick else (50_000, 512)
    split = Split(
        torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8).to(device),
        torch.randint(0, 10, (count,)).to(device),
    )
    for augment in EPOCH:
        config = compose(["model=vit_tiny", "data=cifar10", f"augment={augment}", f"data.batch_size={batch}"])
        loader = ours(config, split)
        step = training_step(config, *next(iter(loader)))
        step()

        def epoch(step: Callable[[], None] | None, loader: Any = loader) -> float:
            synchronize()
            begin = time.perf_counter()
            for _ in loader:
                if step is not None:
                    step()
            synchronize()
            return time.perf_counter() - begin

        with choose(config).set_up():
            alone, whole = (statistics.median(epoch(work) for _ in range(2)) for work in (None, step))
        rows.append([augment, whole, f"{alone / whole:.1%}"])
    return rows


def report(results: dict[str, Any]) -> list[str]:
    """The results as Markdown tables."""
    lines = [f"{results['device']}, torch {results['torch']}"]
    titles = {
        "agreement": ["position", "logits, GPU - CPU", "gradient"],
        "recipes": [
            "recipe",
            "seeds at a time",
            "ms a step",
            "start-up, s",
            "compiling, s",
            "min of all steps",
            "min per seed",
        ],
        "epoch of CIFAR-10": ["augment", "s an epoch, vit_tiny", "augmentation alone"],
        "step": [
            "model",
            "images",
            "compiled",
            "ms",
            "images/s",
            "TFLOP/s",
            "of matmul peak",
            "of datasheet peak",
            "first step, s",
        ],
    }
    for name, rows in results.items():
        if isinstance(rows, list):
            lines += ["", name, *markdown_table(titles.get(name, titles["step"]), rows)]
    return lines


if __name__ == "__main__":
    main()
