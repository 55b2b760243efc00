"""``vitrine predict`` with runs that answer several questions: which column of a CSV file they are measured by."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.exporting import randomised
from PIL import Image

from vitrine import compose, load_run
from vitrine.config.serialize import to_plain
from vitrine.models import build_model
from vitrine.runs import RunRecord


@pytest.fixture
def answering(tmp_path):
    """Makes a run of a CSV file that answers these targets, each with yes or no."""

    def make(*targets: str):
        config = compose(["model=vit_nano", "depth=1", "patch=4"])
        config.data = replace(config.data, name="csv", targets=[*targets], target_classes=[2] * len(targets))
        config.data.num_classes = 2
        config.model = replace(config.model, num_classes=2 * max(1, len(targets)))
        record = RunRecord.at(tmp_path / ("_".join(targets) or "plain"))
        classes = ["no", "yes"]
        record.update(status="finished", classes=classes, targets=dict.fromkeys(targets, classes))
        record.write_config(to_plain(config))
        weights = randomised(build_model(config.model)).state_dict()
        torch.save(
            {"state_dict": {f"model.{name}": value for name, value in weights.items()}, "config": to_plain(config)},
            record.best,
        )
        return record.path

    return make


@pytest.fixture
def table(tmp_path):
    """Lists 20 pictures with answers to both questions, and names in the column ``label`` that are no answers."""
    generator = np.random.default_rng(0)
    lines = ["path,label,big,above,split"]
    for number in range(20):
        Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / f"{number}.png")
        big, above = (["no", "yes"][value] for value in generator.integers(0, 2, 2))
        lines.append(f"{number}.png,a cat,{big},{above},{'test' if number < 8 else 'train'}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return tmp_path / "list.csv"


@pytest.mark.parametrize(("given", "column"), [([], "big"), (["target=above"], "above")])
def test_a_target_is_measured_by_its_own_column_for_each_split(given, column, predict, answering, table):
    run = answering("big", "above")
    code, out, err = predict(f"run={run}", f"input={table}", *given)
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    found = load_run(run, target=column).predict([table.parent / row["path"] for row in rows], accelerator="cpu")
    for split, count in {"test": 8, "train": 12}.items():
        of = [(one, row[column]) for one, row in zip(found, rows, strict=True) if row["split"] == split]
        right = np.mean([one.name == answer for one, answer in of])
        nll = -np.mean([np.log(dict(one.top(2))[answer]) for one, answer in of])
        accuracy = f"{right:.4f} of {count} labelled pictures, column {column}"
        assert re.search(rf"^accuracy of {split} +{accuracy}\nNLL of {split} +{nll:.4f}$", out, re.MULTILINE)


def test_runs_that_answer_different_questions_are_no_ensemble(predict, answering, table):
    runs = f"run=[{answering('big', 'above')},{answering('above', 'big')}]"
    code, out, err = predict(runs, f"input={table}")
    assert (code, out) == (1, "")
    assert "above_big answers above, " in err
    assert "big_above big; an ensemble needs the same target; target=NAME names one that all have" in err
    plain, above = answering(), answering("above")  # the first learned the column label
    for some in (f"run=[{plain},{above}]", f"run=[{above},{plain}]"):
        code, out, err = predict(some, f"input={table}")
        assert (code, out) == (1, "")
        assert "answers label" in err or "plain label" in err
    assert predict(runs, f"input={table}", "target=above")[0] == 0
