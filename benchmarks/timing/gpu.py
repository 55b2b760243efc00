"""What a GPU computes, and how fast: python benchmarks/timing/gpu.py [PART ...].

``agreement``: how far its results are from the CPU's. ``step``: a training step of four models, compiled in each way,
against timm's equal models. ``muon``: what Muon adds to a step. ``recipes``: steps of CIFAR-10's recipes in train.py,
with one seed and with several on the GPU. ``epoch``: an epoch of CIFAR-10, and augmentation's share of it.
``--quick`` runs a small version of everything, also on a CPU, and writes nothing.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from input_path import ours
from measure import format_ratio, in_turn, markdown_table, milliseconds, publish, ratio, run_command, synchronize
from step import step_of, timm_model, training_step
from torch import Tensor

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.config.model import POSITIONS
from vitrine.data.image_dataset import Split
from vitrine.data.shards import shards_folder, write_shards
from vitrine.distributed.hardware import choose_hardware
from vitrine.models import VisionTransformer
from vitrine.training.flops import flops_per_image
from vitrine.training.peak_flops import datasheet_peak

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Model, image size, patch size, images a step.
MODELS = [("vit_tiny", 32, 4, 1024), ("vit_base", 224, 16, 128), ("vit_nano", 32, 4, 1024), ("vit_small", 32, 4, 512)]
COMPILED = ("nothing", "blocks", "model", "graphs")
TIMM, TIMM_COMPILED = "timm", "timm, compiled"
MUON_BATCHES = (128, 1024)
# Recipe, what is compiled, seeds at a time.
RECIPES = [
    ("cifar10/fast", "graphs", 1),
    ("cifar10/fast", "graphs", 3),
    ("cifar10/best", "graphs", 1),
    ("cifar10/stem", "graphs", 1),
    ("cifar10/fast", "model", 1),
]
AUGMENTATIONS = ("none", "standard", "strong")
COMPILING_AT_ONCE = 8  # processes

STEP_TEXT = (
    "Milliseconds for a training step in bfloat16 (forward, loss, backward, AdamW), by what is compiled "
    "(`trainer.compile`): nothing, each block, the model, the model as CUDA graphs. timm's models of the same size "
    "train in the same precision, eager and by `torch.compile` without CUDA graphs; only ours clip gradients. The "
    "ratios are timm's compiled step over ours. The last columns are the model FLOP/s of our fastest step, and their "
    "share of the dense peak in the card's datasheet."
)

Cells = Sequence[Any]


class Results:
    """Where a part puts its result: the page of speeds, or the terminal only."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.rounds = 6 if quick else 20
        self.begin = time.monotonic()

    def add(
        self,
        part: str,
        title: str,
        text: str,
        columns: Cells,
        rows: Sequence[Cells],
        claims: Mapping[str, str] | None = None,
        rounds: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    ) -> None:
        """Print the table with the time since the start, and unless it is a small version, publish it."""
        if self.quick:
            print("\n".join(["", title, *markdown_table(columns, rows)]))
        else:
            publish(
                f"gpu_{part}",
                title=f"On a GPU: {title}",
                text=text,
                columns=columns,
                rows=rows,
                claims=claims or {},
                rounds=rounds or {},
                script="gpu",
                device=torch.cuda.get_device_name(),
            )
        print(f"{part}: {time.monotonic() - self.begin:.0f} s since the start", flush=True)


def main() -> None:
    """Measure the parts that are asked for, in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--quick", action="store_true", help="a small version, also on a CPU; writes nothing")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    if DEVICE == "cpu" and not options.quick:
        raise SystemExit("no GPU found; --quick runs a small version on the CPU")
    results = Results(options.quick)
    for name in options.parts or PARTS:
        PARTS[name](results)


def agreement(results: Results) -> None:
    """For each positional scheme, the largest difference from the CPU of logits and of a gradient, in float32."""
    rows = []
    for position in POSITIONS:
        config = compose([f"position={position}", "model=vit_tiny", "depth=4", "trainer.precision=32-true"])
        torch.manual_seed(0)
        model = VisionTransformer(config.model).eval()
        images = torch.randn(8, config.model.in_channels, *config.model.image_hw)
        with choose_hardware(config).set_up():  # full float32 precision
            outputs = {place: logits_and_gradient(model.to(place), images.to(place)) for place in ("cpu", DEVICE)}
        differences = [float((a - b).abs().max()) for a, b in zip(outputs["cpu"], outputs[DEVICE], strict=True)]
        rows.append([f"`{position}`", *(f"{difference:.1e}" for difference in differences)])
    text = (
        "The largest difference between a GPU's results and the CPU's, both in float32, for 8 random images and four "
        "blocks of `vit_tiny`: of the logits, and of the gradient of the sum of their squares in the first MLP."
    )
    results.add("agreement", "the same results", text, ["position", "logits", "gradient"], rows)


def logits_and_gradient(model: VisionTransformer, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of their sum of squares in the first block's MLP weights; copies on the CPU."""
    model.zero_grad()
    logits = model(images)
    logits.square().sum().backward()
    gradient = model.blocks[0].mlp.fc1.weight.grad
    assert gradient is not None
    return logits.detach().cpu(), gradient.clone().cpu()  # a gradient moves with its model


def step(results: Results) -> None:
    """Time a step of each model, compiled in each way, against timm's, in turn."""
    ways = COMPILED if DEVICE == "cuda" else COMPILED[:2]
    names = [*ways, TIMM, TIMM_COMPILED]
    models = [(*MODELS[0][:3], 8)] if results.quick else MODELS
    if not results.quick:
        compile_all([(*model, way) for model in models for way in names if way not in ("nothing", TIMM)])
    columns = ["model", "images", "a step", *names, *(f"timm / {way}" for way in ways[-2:])]
    columns += ["TFLOP/s", "of the datasheet's"]
    rows, claims, rounds = [], {}, {}
    for model in models:
        name, size, *_ = model
        torch.compiler.reset()
        with choose_hardware(model_config(*model)).set_up():
            times = in_turn({way: case_step(*model, way) for way in names}, rounds=results.rounds, warm_up=3)
        rounds[f"{name}, {size}"] = times
        rows.append(step_row(model, times, torch.cuda.get_device_name() if DEVICE == "cuda" else ""))
        claims |= step_claims(model, rows[-1])
        results.add("step", "a training step", STEP_TEXT, columns, rows, claims=claims, rounds=rounds)


def step_row(model: tuple[str, int, int, int], times: Mapping[str, Sequence[float]], card: str) -> list[Any]:
    """A row of the table of steps."""
    name, size, _, batch = model
    ways = [way for way in COMPILED if way in times]
    work = 3000 * flops_per_image(model_config(*model).model) * batch
    rate = work / min(milliseconds(times[way]) for way in ways)
    peak = datasheet_peak(card, "bf16-mixed")
    took = [f"{milliseconds(times[way]):.3g}" for way in times]
    over = [format_ratio(ratio(times[TIMM_COMPILED], times[way])) for way in ways[-2:]]
    return [
        f"`{name}`",
        f"{size}x{size}",
        batch,
        *took,
        *over,
        f"{rate / 1e12:.0f}",
        f"{rate / peak:.0%}" if peak else "",
    ]


def step_claims(model: tuple[str, int, int, int], row: Sequence[Any]) -> dict[str, str]:
    """What the page's first table says of a row: timm's compiled step over ours, as the model and as CUDA graphs."""
    what = f"`{model[0]}` step on a GPU, {model[1]}x{model[1]}, against timm's compiled"
    return {f"{what}, the model compiled": row[-4], f"{what}, ours as CUDA graphs, timm's without": row[-3]}


def compile_all(cases: Sequence[tuple[Any, ...]]) -> None:
    """Compile cases in processes side by side, so that this process finds their kernels in the compiler's cache."""
    with ProcessPoolExecutor(COMPILING_AT_ONCE, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_case, cases))


def compile_case(case: tuple[Any, ...]) -> None:
    """Compile one case by taking a step."""
    with choose_hardware(model_config(*case[:4])).set_up():
        case_step(*case)()
        synchronize()


def case_step(name: str, size: int, patch: int, batch: int, way: str, *changes: str) -> Callable[[], None]:
    """A step on random images: ours, compiled in a way, or timm's."""
    config = model_config(name, size, patch, batch, *changes)
    images = torch.randn(batch, 3, size, size, device=DEVICE)
    labels = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
    if way not in (TIMM, TIMM_COMPILED):
        return training_step(config, images, labels, way)
    model = timm_model(config).to(DEVICE).train()
    if way == TIMM_COMPILED:
        model.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return step_of(model, optimizer, images, labels, precision=choose_hardware(config).precision)


def model_config(name: str, size: int, patch: int, batch: int, *changes: str) -> TrainConfig:
    """The configuration of a model for RGB images of a size."""
    overrides = [f"model={name}", "data=cifar10", f"data.image_size={size}", f"model.patch_size={patch}"]
    return compose([*overrides, f"data.batch_size={batch}", *changes])


def muon(results: Results) -> None:
    """Time a compiled step of vit_tiny with AdamW and with Muon, in turn."""
    batches = (8,) if results.quick else MUON_BATCHES
    way = "nothing" if results.quick else "graphs"
    if not results.quick:
        compile_all([("vit_tiny", 32, 4, batch, way) for batch in batches])
    rows, claims, rounds = [], {}, {}
    for batch in batches:
        torch.compiler.reset()
        with choose_hardware(model_config("vit_tiny", 32, 4, batch)).set_up():
            steps = {
                "AdamW": case_step("vit_tiny", 32, 4, batch, way),
                "Muon": case_step("vit_tiny", 32, 4, batch, way, "optimizer=muon"),
            }
            times = in_turn(steps, rounds=results.rounds, warm_up=3)
        rounds[f"{batch} images"] = times
        over = format_ratio(ratio(times["Muon"], times["AdamW"]))
        rows.append([batch, *(f"{milliseconds(times[name]):.3g}" for name in steps), over])
        claims[f"a step of `vit_tiny` on {batch} images with Muon on a GPU, against AdamW"] = over
    text = (
        "Milliseconds for a step of `vit_tiny` on 32x32 images in patches of 4, in bfloat16, as CUDA graphs. "
        "Forward and backward pass grow with the batch; Muon's orthogonalisation does not."
    )
    results.add("muon", "Muon", text, ["images", "AdamW", "Muon", "Muon / AdamW"], rows, claims=claims, rounds=rounds)


def recipes(results: Results) -> None:
    """For each recipe: ms per step, seconds of start-up and of compiling, and minutes of all its training steps.

    The minutes leave out validation, checkpoints and the test. The real command trains two short epochs on random
    images, compiled as the whole training would be.
    """
    quick, rows = results.quick, []
    with tempfile.TemporaryDirectory() as folder:
        count = 600 if quick else 50_000
        images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        labels = np.arange(count) % 10
        splits = {"train": (images, labels), "test": (images[:500], labels[:500])}
        write_shards(shards_folder(folder, "cifar10"), "cifar10", [str(label) for label in range(10)], splits, 10**9)
        for number, (recipe, compiled, seeds) in enumerate([("cifar10/fast", "nothing", 1)] if quick else RECIPES):
            place = Path(folder) / str(number)
            overrides = [f"experiment={recipe}", "trainer.max_epochs=2", "hydra/launcher=process"]
            overrides += [
                f"seed={','.join(map(str, range(seeds)))}",
                f"data.root={folder}",
                f"paths.output_dir={place}",
            ]
            overrides += [f"trainer.compile={compiled}", f"launcher.workers={seeds}"]
            overrides += ["debug.limit_batches=2", "accelerator=cpu"] if quick else ["debug.limit_batches=300"]
            if code := run_command("train.py", "-m", *overrides).code:
                raise SystemExit(f"train.py -m {' '.join(overrides)} ended with exit code {code}")
            runs = [json.loads(path.read_text()) for path in place.glob("**/run.json")]
            assert len(runs) == seeds, runs
            config = compose([f"experiment={recipe}", "accelerator=cpu"])
            took = statistics.mean(config.data.batch_size / run["speed"]["images_per_second"] for run in runs)
            starting, compiling = (
                max(run["speed"][key] for run in runs) for key in ("startup_seconds", "compile_seconds")
            )
            whole = 45_000 // config.data.batch_size * config.trainer.max_epochs * took
            minutes = (starting + compiling + whole) / 60
            times = [f"{1000 * took:.3g}", f"{starting:.3g}", f"{compiling:.3g}"]
            rows.append([f"`{recipe}`", compiled, seeds, *times, f"{minutes:.3g}", f"{minutes / seeds:.3g}"])
            print(rows[-1], flush=True)
    text = (
        "The real command, `python train.py -m experiment=RECIPE seed=...`, on random images: milliseconds a step with "
        "augmentation and all, seconds of start-up and of compiling, and the minutes that all of the recipe's steps "
        "would take with both, without validation and checkpoints. Seeds at a time share the GPU "
        "(`hydra/launcher=process launcher.workers=3`)."
    )
    times = ["ms a step", "start-up, s", "compiling, s", "minutes", "minutes a seed"]
    columns = ["recipe", "compiled", "seeds at a time", *times]
    results.add("recipes", "CIFAR-10's recipes", text, columns, rows)


def epoch(results: Results) -> None:
    """For each augmentation: seconds of an epoch of vit_tiny on 50,000 random images, and its own share of it."""
    rows = []
    count, batch = (256, 64) if results.quick else (50_000, 512)
    split = Split(
        torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8).to(DEVICE),
        torch.randint(0, 10, (count,)).to(DEVICE),
    )
    for augment in AUGMENTATIONS:
        config = compose(["model=vit_tiny", "data=cifar10", f"augment={augment}", f"data.batch_size={batch}"])
        loader = ours(config, split)
        train = training_step(config, *next(iter(loader)))

        def seconds(train: Callable[[], None] | None, loader: Any = loader) -> float:
            synchronize()
            begin = time.perf_counter()
            for _ in loader:
                if train is not None:
                    train()
            synchronize()
            return time.perf_counter() - begin

        with choose_hardware(config).set_up():
            train()
            alone, whole = (statistics.median(seconds(work) for _ in range(2)) for work in (None, train))
        rows.append([f"`{augment}`", f"{whole:.3g}", f"{alone:.3g}"])
    text = (
        "Seconds for an epoch of `vit_tiny` on 50,000 images of 32x32 that lie on the GPU, 512 a step, nothing "
        "compiled; and for its augmentation alone."
    )
    results.add("epoch", "an epoch", text, ["augment", "an epoch", "augmentation alone"], rows)


PARTS: dict[str, Callable[[Results], None]] = {
    "agreement": agreement,
    "step": step,
    "muon": muon,
    "recipes": recipes,
    "epoch": epoch,
}


if __name__ == "__main__":
    main()
