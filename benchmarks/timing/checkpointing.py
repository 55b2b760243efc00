"""What activation checkpointing saves and costs in a training step: python benchmarks/timing/checkpointing.py."""

from collections.abc import Callable
from dataclasses import replace

import torch
from measure import format_ratio, in_turn, milliseconds, publish, ratio
from step import as_trained, training_step
from torch.profiler import ProfilerActivity, profile

from vitrine import compose

BATCH, ROUNDS = 128, 12


def main() -> None:
    """Time steps, then follow the memory of one."""
    without = compose(["model=vit_tiny", "data=cifar10", "accelerator=cpu"])
    checkpointing = replace(without, trainer=replace(without.trainer, activation_checkpointing=True))
    size = without.data.image_size
    images, labels = torch.randn(BATCH, 3, size, size), torch.randint(0, 10, (BATCH,))
    with as_trained():
        steps = {
            "without": training_step(without, images, labels),
            "checkpointing": training_step(checkpointing, images, labels),
        }
        times = in_turn(steps, rounds=ROUNDS)
        peaks = {name: peak_of_tensors(step) for name, step in steps.items()}
    slower = format_ratio(ratio(times["checkpointing"], times["without"]))
    claim = f"{slower}, with {peaks['checkpointing'] / peaks['without']:.2f} of the memory of tensors"
    publish(
        "checkpointing",
        title="Activation checkpointing",
        text=f"A step of `vit_tiny` on {BATCH} images of CIFAR-10 with and without "
        "`trainer.activation_checkpointing=true`, on the CPU. Memory is the most that a step's tensors hold at one "
        "time, beside weights and the optimizer's state. The C library keeps more for a process: see the peaks of "
        "whole commands.",
        columns=["step", "milliseconds", "tensors"],
        rows=[[name, milliseconds(times[name]), f"{peaks[name] / 1e6:.0f} MB"] for name in steps],
        claims={"a step of `vit_tiny` with activation checkpointing, against one without": claim},
        rounds={"vit_tiny": times},
    )


def peak_of_tensors(step: Callable[[], None]) -> int:
    """Return the bytes that ``step`` allocates and has not freed, where they are most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    assert recorded.profiler is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


if __name__ == "__main__":
    main()
