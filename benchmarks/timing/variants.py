"""Cost of each model variant: training steps against timm's equal model, and against the plain ViT.

python benchmarks/timing/variants.py                # every device here; writes docs/variants.md and variants.json
python benchmarks/timing/variants.py --device cuda  # only this device; stored results of others stay
python benchmarks/timing/variants.py --table        # only writes the page
python benchmarks/timing/variants.py --quick        # a check: few rounds of small batches; writes nothing
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import ROOT, ROUNDS, TIMING, at_commit, measured_on, ratio, write_rounds
from timm.layers import RmsNorm, SwiGLUPacked
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as Vit
from torch import nn
from torch.nn import functional as F

from vitrine import compose
from vitrine.config.model import ATTENTIONS, MLPS, NORM_PLACEMENTS, NORMS, PATCH_EMBEDS, POSITIONS, ViTConfig
from vitrine.distributed.hardware import choose_hardware
from vitrine.models import VisionTransformer
from vitrine.runs.provenance import machine

JSON = TIMING / "variants.json"
PAGE = ROOT / "docs" / "variants.md"
WIDTH, HEADS, DEPTH, CLASSES = 192, 3, 3, 10
SIZES = {32: 4, 224: 16}  # image and patch
BATCH = {"cpu": {32: 16, 224: 6}, "cuda": {32: 2048, 224: 512}}
SECONDS = {"cpu": 100, "cuda": 40}  # for each size and precision
MIN_ROUNDS = 6  # fewer give no 95 % interval
PLAIN = "position=learned"
HEAD = f"""# The cost of each model variant

Time of a training step (forward, loss, backward, fused AdamW) as a ratio; below 1 is faster. Models have width {WIDTH},
{HEADS} heads and {DEPTH} blocks. Images are 32 pixels wide in patches of 4 (64 tokens and the class token), or 224
pixels wide in patches of 16 (196 tokens and the class token); precision is float32 or mixed bfloat16. All models take a
step in each round, in random order; a ratio is the median over rounds of the ratio within a round, with its 95 %
interval from order statistics. `pool=mean` and `pool=map` have no class token. `mlp=swiglu` uses an MLP ratio of 8/3,
which gives as many weights as a ratio of 4 in the others.
"""
TIMM = """
## Against timm's equal model

Both compute the same function of the same weights (tests/models/test_against_timm.py), except that BEiT, timm's
counterpart of `position=relative`, has no bias for keys. Where the head reads the class token alone, ours computes the
last of the {depth} blocks for it alone, and timm for all tokens; a deeper model gains less by that. Slowest first, by
the geometric mean of a row. The largest ratio is {slowest:.2f}.

"""
OURS = f"""
## Against `{PLAIN}`

vitrine's own models, with one choice changed. Slowest first within each group, by the geometric mean of a row.

"""

Ratios = list[list[float] | None]  # median and interval in each setting, None where it was not measured

eva = partial(Eva, attn_type="rope", global_pool="token", use_abs_pos_emb=False, use_rot_pos_emb=True)
beit = partial(Beit, global_pool="token", use_abs_pos_emb=False, use_rel_pos_bias=True)
swiglu = partial(Vit, mlp_layer=SwiGLUPacked, act_layer="silu", mlp_ratio=16 / 3)  # of which half are gates
PAPER = {"position": "learned", "class_token": True, "pool": "cls", "drop_path": 0.0}  # as timm's plain model
MEAN = {"class_token": False, "pool": "mean"}
SINGLE_CHOICES = {  # where [1:], the first choice is the plain model's
    "position": POSITIONS,
    "attention": ATTENTIONS[1:],
    "norm": NORMS[1:],
    "norm_placement": NORM_PLACEMENTS[1:],
    "mlp": MLPS[1:],
    "patch_embed": PATCH_EMBEDS[1:],
}
# Changes to our configuration, and timm's equal model if there is one.
VARIANTS: dict[str, tuple[dict[str, Any], Callable[..., nn.Module] | None]] = {
    **{f"{group}={choice}": ({group: choice}, None) for group, choices in SINGLE_CHOICES.items() for choice in choices},
    PLAIN: ({}, Vit),
    "position=rope": ({"position": "rope"}, partial(eva, rope_type="cat", rope_temperature=100.0)),
    "position=rope_mixed": ({"position": "rope_mixed"}, partial(eva, rope_type="mixed", rope_temperature=10.0)),
    "position=relative": ({"position": "relative"}, beit),
    "norm=rmsnorm": ({"norm": "rmsnorm"}, partial(Vit, norm_layer=RmsNorm)),
    "mlp=swiglu": ({"mlp": "swiglu", "mlp_ratio": 8 / 3}, swiglu),
    "pool=mean": (MEAN, partial(Vit, class_token=False, global_pool="avg", fc_norm=False)),
    "pool=map": (MEAN | {"pool": "map"}, partial(Vit, class_token=False, global_pool="map", fc_norm=False)),
    "model.registers=4": ({"registers": 4}, partial(Vit, reg_tokens=4)),
    "model.layer_scale=0.1": ({"layer_scale": 0.1}, partial(Vit, init_values=0.1)),
    "model.qk_norm=true": ({"qk_norm": True}, partial(Vit, qk_norm=True)),
}


def main() -> None:
    """Measure, store, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=BATCH, help="default: all that are available")
    parser.add_argument("--table", action="store_true", help="measure nothing, only write the page")
    parser.add_argument("--quick", action="store_true", help="few rounds of small batches; write nothing")
    options = parser.parse_args()
    torch.set_flush_denormal(True)  # as training does
    results = json.loads(JSON.read_text()) if JSON.exists() and not options.quick else {}
    rounds: dict[str, dict[str, list[float]]] = {}
    here = [options.device] if options.device else ["cpu", "cuda"][: 1 + torch.cuda.is_available()]
    for device, size in product([] if options.table else here, SIZES):
        config = compose([f"model.dim={WIDTH}", f"accelerator={device.replace('cuda', 'gpu')}"])
        auto = choose_hardware(config).precision
        for precision in [auto] if device == "cuda" else sorted({"32-true", auto}):
            name = f"{device}, {'float32' if precision == '32-true' else 'bfloat16'}, {size} px"
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            results[name], rounds[name] = measure(device, size, precision, options.quick)
    if options.quick:
        print(page(results))
    else:
        JSON.write_text(json.dumps(results, indent=1) + "\n")
        for name, values in rounds.items():
            write_rounds(rounds_of(name), {name: values})
        PAGE.write_text(page(results))


def rounds_of(name: str) -> Path:
    """The file of a setting's rounds."""
    return ROUNDS / "variants" / f"{name.replace(', ', '-').replace(' ', '')}.csv"


def measure(device: str, size: int, precision: str, quick: bool) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Time a step of every variant and its counterpart in each round, in random order.

    Returns:
        What the rounds come to, and the seconds of each round.
    """
    batch = 2 if quick else BATCH[device][size]
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    steps = {name: [Step(model.to(device), precision) for model in models(name, size)] for name in VARIANTS}
    for step in 2 * list(chain.from_iterable(steps.values())):
        step(images, labels)
    times: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    end, shuffled = time.perf_counter() + SECONDS[device] * (not quick), random.Random(0)
    while len(times[PLAIN]) < MIN_ROUNDS or time.perf_counter() < end:
        for name in shuffled.sample(list(VARIANTS), len(VARIANTS)):
            pair = steps[name][:: shuffled.choice([1, -1])]
            took = {step: step(images, labels) for step in pair}
            times[name].append([took[step] for step in steps[name]])
    plain = [ours for ours, *_ in times[PLAIN]]
    rounds = {
        f"{side}{name}": list(values)
        for name, each in times.items()
        for side, values in zip(("", "timm's equal of "), zip(*each, strict=True), strict=False)
    }
    found = {
        "device": torch.cuda.get_device_name() if device == "cuda" else machine()["processor"],
        "cores": machine()["cores"],
        "torch": torch.__version__,
        "batch": batch,
        "rounds": len(plain),
        "seconds": {name: np.median(each, axis=0).round(6).tolist() for name, each in times.items()},
        "against timm": {name: ratio(*zip(*each, strict=True)) for name, each in times.items() if len(each[0]) == 2},
        "against plain": {name: ratio([ours for ours, *_ in each], plain) for name, each in times.items()},
        **measured_on(),
    }
    return found, rounds


def models(name: str, size: int) -> list[nn.Module]:
    """Our model, and timm's if there is one."""
    changes, theirs = VARIANTS[name]
    sizes = {"image_size": size, "patch_size": SIZES[size], "in_channels": 3, "num_classes": CLASSES}
    sizes |= PAPER
    ours = VisionTransformer(ViTConfig(**(sizes | {"dim": WIDTH, "depth": DEPTH, "heads": HEADS} | changes)))
    if theirs is None:
        return [ours]
    sizes = {"img_size": size, "patch_size": SIZES[size], "num_classes": CLASSES}
    return [ours, theirs(**sizes, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS)]


class Step:
    """A training step of a model; calling it returns its seconds."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        self.model, self.mixed = model.train(), precision == "bf16-mixed"
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Take a step on (B, 3, H, W) images; returns the seconds of forward, loss, backward and optimizer."""
        wait = torch.cuda.synchronize if images.is_cuda else lambda: None
        wait()
        start = time.perf_counter()
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.mixed):
            loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        wait()
        return time.perf_counter() - start


def page(results: dict[str, Any]) -> str:
    """Text of docs/variants.md."""
    timm, ours = (ratios_to(reference, results) for reference in ("against timm", "against plain"))
    del ours[PLAIN]
    group = list(dict.fromkeys(name.split("=")[0] for name in VARIANTS)).index
    by_group = sorted(ours, key=lambda name: (group(name.split("=")[0]), -mean(ours[name])))
    slowest = max(found[0] for ratios in timm.values() for found in ratios if found)
    parts = [
        HEAD,
        TIMM.format(depth=DEPTH, slowest=slowest),
        table(results, timm, sorted(timm, key=lambda name: -mean(timm[name]))),
    ]
    parts += [OURS, table(results, ours, by_group), "\n## Machines\n\n"]
    for name, result in results.items():
        parts.append(
            f"- {name}: {result['device']}, {result['cores']} cores, torch {result['torch']}{at_commit(result)}; "
        )
        each = f", in `{path.relative_to(ROOT)}`" if (path := rounds_of(name)).exists() else ""
        parts.append(f"{result['rounds']} rounds with a batch size of {result['batch']}{each}\n")
    parts.append("\nWritten by `python benchmarks/timing/variants.py`; medians in benchmarks/timing/variants.json.\n")
    return "".join(parts)


def ratios_to(reference: str, results: dict[str, Any]) -> dict[str, Ratios]:
    """Ratios of each variant that was measured in some setting: one for each setting."""
    found = {name: [result[reference].get(name) for result in results.values()] for name in VARIANTS}
    return {name: ratios for name, ratios in found.items() if any(ratios)}


def mean(ratios: Ratios) -> float:
    """Geometric mean of the medians of ratios."""
    return statistics.geometric_mean(found[0] for found in ratios if found)


def table(results: dict[str, Any], ratios: dict[str, Ratios], order: list[str]) -> str:
    """A Markdown table with a row for each variant and a column for each setting."""
    lines = [f"| variant | {' | '.join(results)} |", "|---|" + "---|" * len(results)]
    for name in order:
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(*found) if found else "not measured" for found in ratios[name]]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
