"""Seconds for an epoch of each tutorial that publishes a training, or of those named; the others' rows stay.

python benchmarks/timing/tutorial_epochs.py [NAME ..]. Run it alone on the machine. Steps are timed in turn, and scaled
to an epoch. per_sample.py times T2 in turn with the loops of its own guide. On a processor without bfloat16, leave
intuitive_cifar10 out: it takes minutes.
"""

import argparse
import json
from collections.abc import Callable
from statistics import median

import torch
from measure import JSON, at_commit, in_turn, measured_on, publish
from step import as_trained, training_step

from vitrine import compose
from vitrine.data.loader import batches_per_epoch

EXPERIMENTS = {"comsci_mnist": 60_000, "pulfer_mnist": 60_000, "notebook_mnist32": 60_000, "intuitive_cifar10": 50_000}
ROUNDS, SECONDS = 9, 2.0  # of each experiment in a round


def main() -> None:
    """Time the steps, and write the median epoch of each experiment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    names = parser.parse_args().names or list(EXPERIMENTS)
    if unknown := sorted(set(names) - set(EXPERIMENTS)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)}")
    steps: dict[str, Callable[[], None]] = {}
    scale, settings = {}, {}
    with as_trained():
        for name in names:
            config = compose([f"experiment=tutorials/{name}/faithful", "accelerator=cpu"])
            data, model = config.data, config.model
            images = torch.randn(data.batch_size, data.in_channels, data.image_size, data.image_size)
            labels = torch.randint(0, data.num_classes, (data.batch_size,))
            step = training_step(config, images, labels)
            ((first,),) = in_turn({name: step}, rounds=1).values()
            repeats = max(1, round(SECONDS / first))
            steps[name] = repeated(step, repeats)
            scale[name] = batches_per_epoch(EXPERIMENTS[name], data.batch_size, drop_last=data.drop_last) / repeats
            settings[name] = [f"{model.dim} wide, {model.depth} deep, {model.tokens} tokens", config.trainer.precision]
        times = in_turn(steps, rounds=ROUNDS)
    epochs = {name: [scale[name] * seconds for seconds in taken] for name, taken in times.items()}
    rows = {row[0]: row for row in json.loads(JSON.read_text())["tutorial_epochs"]["rows"]}
    measured = measured_on()
    for name, settled in settings.items():
        spread = f"{min(epochs[name]):.3g} to {max(epochs[name]):.3g}"
        where = f"{measured['machine']}{at_commit(measured)}"
        experiment = f"`experiment=tutorials/{name}/faithful`"
        rows[experiment] = [experiment, *settled, median(epochs[name]), spread, where]
    publish(
        "tutorial_epochs",
        title="The tutorials' epochs",
        text=f"Seconds for the training steps of an epoch, without data and evaluation: median of {ROUNDS} rounds, in "
        "turn with each other, and the fastest and slowest round. T2 by itself, beside its guide's loops, has [its own "
        "section](#a-tutorials-loops). T5 computes in bfloat16, for which some processors have no instructions. A row "
        "of an earlier commit was timed by another call; each round is kept of the last call's rows alone.",
        columns=["experiment", "network", "precision", "s", "range", "measured on"],
        rows=list(rows.values()),
        claims={},
        rounds={"epoch": epochs},
    )


def repeated(step: Callable[[], None], count: int) -> Callable[[], None]:
    """The step, ``count`` times."""

    def steps() -> None:
        for _ in range(count):
            step()

    return steps


if __name__ == "__main__":
    main()
