"""What Muon adds to a training step: python benchmarks/timing/muon.py.

The same step with AdamW, with Muon, and with PyTorch's Muon, which orthogonalises one matrix after another.
"""

import torch
from measure import format_ratio, in_turn, milliseconds, publish, ratio
from step import as_trained, training_step

from vitrine import compose
from vitrine.training import optim
from vitrine.training.flops import flops_per_image

MODELS, ROUNDS = ("vit_nano", "vit_tiny"), 15
MUON_FLOPS = 17e9  # of a step of vit_tiny
COLUMNS = ["model", "AdamW", "Muon", "PyTorch's Muon", "Muon / AdamW", "PyTorch's Muon / AdamW"]


def main() -> None:
    """Time steps on a batch of digits, as ``python train.py`` trains."""
    rows, claims, rates, rounds = [], {}, {}, {}
    for name in MODELS:
        overrides = [f"model={name}", "accelerator=cpu"]
        config = compose(overrides)
        size, batch = config.data.image_size, config.data.batch_size
        images, labels = torch.randn(batch, 1, size, size), torch.randint(0, 10, (batch,))
        ours = compose([*overrides, "optimizer=muon"])
        steps = {"AdamW": training_step(config, images, labels), "Muon": training_step(ours, images, labels)}
        batched, optim.Muon = optim.Muon, torch.optim.Muon  # type: ignore[misc, assignment]
        steps["PyTorch's Muon"] = training_step(ours, images, labels)
        optim.Muon = batched  # type: ignore[misc]
        times = in_turn(steps, rounds=ROUNDS, warm_up=2)
        rounds[name] = times
        over = [ratio(times[other], times["AdamW"]) for other in ("Muon", "PyTorch's Muon")]
        rows.append([f"`{name}`", *(milliseconds(times[step]) for step in steps), *map(format_ratio, over)])
        claims[f"a step of `{name}` with Muon, against AdamW"] = format_ratio(over[0])
        step = milliseconds(times["AdamW"])
        work = 3 * batch * flops_per_image(config.model) / 1e6  # MFLOP of forward and backward pass
        rates[name] = (MUON_FLOPS / 1e6 / (milliseconds(times["Muon"]) - step), work / step)
    muon, rest = rates["vit_tiny"]
    publish(
        "muon",
        title="What Muon adds to a step",
        text="Milliseconds for a step on 64 digits, as `train.py` computes it. Muon's orthogonalisation takes as many "
        "operations whatever the batch is: for `vit_tiny` 17 GFLOP a step (24 with PyTorch's, one matrix after "
        "another), for 64 images of 16 tokens half as many as forward and backward pass together. On this machine "
        f"they run at {muon:.0f} GFLOP/s, and the rest of the step at {rest:.0f}. Larger batches and images make "
        "Muon's share small.",
        columns=COLUMNS,
        rows=rows,
        claims=claims,
        rounds=rounds,
    )


if __name__ == "__main__":
    with as_trained():
        main()
