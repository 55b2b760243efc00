"""What the run folders of reproductions.py say, joined with what its record already knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tutorials import Tutorial

from vitrine import load_run
from vitrine.inference.load import LoadedRun
from vitrine.text import plural

Results = Mapping[str, Mapping[str, Any]]  # of the variants of a tutorial, by name
History = list[dict[str, float]]


def variant_folder(tutorial: Path, variant: str) -> Path:
    """Folder of a variant's runs, inside the tutorial's folder."""
    return tutorial / "".join(letter if letter.isalnum() else "-" for letter in variant)


@dataclass(frozen=True)
class Trained:
    """A run, after so many epochs.

    Attributes:
        run: the run.
        epochs: number of epochs.
        metrics: ``test/acc`` in [0, 1] and ``test/loss`` in nats after them.
        curve: test accuracy in [0, 1] after each epoch; empty where it was measured once.
    """

    run: LoadedRun
    epochs: int
    metrics: Mapping[str, float]
    curve: list[float]

    @classmethod
    def of(cls, run: LoadedRun) -> "Trained | None":
        """A finished run; or one at a constant learning rate, which is a shorter run after every epoch that it tests.

        ``None`` if it is neither.
        """
        tested = tested_epochs(run.record.history())
        curve = [logged["test/acc"] for logged in tested]
        if run.record.status == "finished":
            return cls(run, run.record.facts["epochs"], run.metrics, curve)
        if run.config.schedule.name == "constant" and tested:
            return cls(run, len(tested), tested[-1], curve)
        return None


def collect(tutorial: Tutorial, folder: Path, known: Results) -> dict[str, dict[str, Any]]:
    """Results of a tutorial's runs, by variant and seed.

    The ``known`` results of a variant stay until as many runs have been trained for as many epochs; runs of other seeds
    by the same commit join them.

    Raises:
        SystemExit: runs of one variant were trained by different commits, by code that was not committed, or for
            different numbers of epochs.
    """
    results: dict[str, dict[str, Any]] = {}
    for variant in ("faithful", "corrected", *(quirk.change for quirk in tutorial.quirks)):
        trained = [one for one in longest(variant_folder(folder, variant)) if of_one_code(one.run)]
        before = known.get(variant)
        joins = before is not None and joinable(trained, before)
        if before and not joins and (not trained or extent(trained) < (before["epochs"], len(before["seeds"]))):
            results[variant] = dict(before)
            continue
        if not trained:
            continue
        records = [one.run.record for one in trained]
        if len(commits := {record.facts["code"].get("commit") for record in records}) > 1:
            raise SystemExit(f"{folder.name}, {variant}: runs of {len(commits)} commits; remove the outdated ones")
        if any(record.facts["code"].get("changed") for record in records):
            raise SystemExit(f"{folder.name}, {variant}: trained by code that was not committed; train it again")
        if len({one.epochs for one in trained}) > 1:
            raise SystemExit(f"{folder.name}, {variant}: runs of different length; remove the shorter ones")
        first = records[0].facts
        epochs = trained[0].epochs
        processor, cores = first["machine"]["processor"], plural(first["machine"]["cores"], "core")
        processes = f", {first['processes']} processes" if first.get("processes", 1) > 1 else ""
        results[variant] = {
            "seeds": [one.run.config.seed for one in trained],
            "test/acc": [one.metrics["test/acc"] for one in trained],
            "test/loss": [one.metrics["test/loss"] for one in trained],
            "best/acc": [max(one.curve) for one in trained if one.curve],
            "curves": [one.curve for one in trained if one.curve],
            "parameters": first["parameters"],
            "epochs": epochs,
            "training_loss": np.mean([epoch_losses(record.history())[:epochs] for record in records], axis=0).tolist(),
            "machine": f"{processor}, {cores}, torch {first['versions']['torch']}",
            "device": f"{first['device']}{processes}",
            "precision": first["precision"],
            "commit": commits.pop(),
        }
        if before is not None and joins:
            results[variant] = joined(before, results[variant])
    return results


def longest(folder: Path) -> list[Trained]:
    """The finished runs of a variant, or if it has none those under way that can be measured; sorted by seed."""
    found = [Trained.of(load_run(path.parent)) for path in folder.glob("seed-*/runs/*/run.json")]
    measurable = sorted((one for one in found if one), key=lambda one: one.run.config.seed)
    return [one for one in measurable if one.run.record.status == "finished"] or measurable


def of_one_code(run: LoadedRun) -> bool:
    """Whether a run was resumed by the code it began with, as far as that is recorded; prints that it was not."""
    facts = run.record.facts
    resumed = [again["code"] for again in facts.get("resumed", []) if "code" in again]
    if all(code.get("commit") == facts["code"].get("commit") and not code.get("changed") for code in resumed):
        return True
    print(f"{run.record.path} is left out: it was resumed by other code than that of the commit it began with")
    return False


def joinable(trained: Sequence[Trained], before: Mapping[str, Any]) -> bool:
    """Whether runs are of other seeds than those of a recorded result, and otherwise the same."""
    same = {(one.run.record.facts["code"].get("commit"), one.epochs) for one in trained}
    others = not {one.run.config.seed for one in trained} & set(before["seeds"])
    return others and same == {(before["commit"], before["epochs"])}


def joined(before: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded result with that of other seeds, by seed; machine and device are those of both."""
    counts = len(before["seeds"]), len(later["seeds"])
    order = np.argsort([*before["seeds"], *later["seeds"]])
    result = dict(later)
    for key in ("seeds", "test/acc", "test/loss", "best/acc", "curves"):
        values = [*before.get(key, ()), *later.get(key, ())]
        result[key] = [values[index] for index in order] if len(values) == len(order) else []
    losses = np.average([before["training_loss"], later["training_loss"]], axis=0, weights=counts)
    result["training_loss"] = losses.tolist()
    for key in ("machine", "device"):
        result[key] = "; ".join(dict.fromkeys((before[key], later[key])))
    return result


def extent(trained: Sequence[Trained]) -> tuple[int, int]:
    """Number of epochs of each run, and number of runs."""
    return trained[0].epochs, len(trained)


def tested_epochs(history: History) -> History:
    """The rows of a log that end an epoch with a test; none where a run was tested once."""
    return [logged for logged in history if "test/acc" in logged and "val/acc" in logged]


def epoch_losses(history: History) -> list[float]:
    """Mean training loss of each epoch, weighted by steps: a row of the log is the mean since the previous row."""
    sums: dict[int, tuple[float, float]] = {}
    before = 0.0
    for logged in history:
        if "train/loss" in logged:
            epoch, count = int(logged["epoch"]), logged["step"] - before
            loss, steps = sums.get(epoch, (0.0, 0.0))
            sums[epoch] = (loss + logged["train/loss"] * count, steps + count)
            before = logged["step"]
    return [loss / steps for loss, steps in sums.values()]
