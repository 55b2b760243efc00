"""Files of a run folder that do not fit together: an error of one line from every command that uses its model."""

import json
import re

import numpy as np
import pytest
import yaml

from vitrine.cli.main import main


def configured(**sections):
    """Change sections of config.yaml."""

    def change(run):
        path = run / "config.yaml"
        config = yaml.safe_load(path.read_text())
        for name, values in sections.items():
            config[name] = {**config[name], **values} if isinstance(values, dict) else values
        path.write_text(yaml.safe_dump(config))

    return change


def predicted(logits=lambda logits: logits, labels=lambda labels: labels):
    """Change the arrays of predictions.npz."""

    def change(run):
        path = run / "predictions.npz"
        with np.load(path) as stored:
            arrays = {"logits": logits(stored["logits"]), "labels": labels(stored["labels"])}
        np.savez(path, **arrays)

    return change


def without_images(run):
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"images": None}))


@pytest.fixture
def refused(run, tmp_path, capsys):
    """Runs commands on a changed run; returns the line of each that fails."""
    (tmp_path / "list.csv").write_text("path\nnothing.png\n")
    commands = {
        "predict": ["predict", f"run={run.record.path}", f"input={tmp_path}/list.csv", "accelerator=cpu", "workers=0"],
        "calibrate": ["predict", f"run={run.record.path}", f"input={tmp_path}/list.csv", "calibrate=true"],
        "page": ["page", str(run.record.path)],
        "report": ["report", str(run.record.path)],
        "safetensors": ["export", str(run.record.path), "--format", "safetensors"],
        "hf": ["export", str(run.record.path), "--format", "hf"],
    }

    def call(change, *names):
        change(run.record.path)
        lines = {}
        for name in names:
            try:
                main(commands[name])
            except SystemExit as end:
                assert end.code  # noqa: PT017 - of the exit
                lines[name] = " ".join(capsys.readouterr().err.split())
        return lines

    return call


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (configured(model={"image_size": 16}, data={"image_size": 16}), r"image_size=\(8, 8\), not \(16, 16\)"),
        (configured(model={"in_channels": 3}, data={"in_channels": 3}), "in_channels=1, not 3"),
        (configured(model={"num_classes": 12}), "num_classes=10, not 12"),
        (configured(data={"targets": ["a", "b"]}), "has 2 targets, and the number of classes of 0"),
        (configured(data=[]), "list is not a subclass of DataConfig.*"),
        (configured(data=None), "'data' is not Optional"),
    ],
    ids=["size", "channels", "classes", "targets", "list", "null"],
)
def test_a_model_of_another_configuration_is_refused(refused, change, problem):
    lines = refused(change, "predict", "page", "safetensors")
    assert set(lines) == {"predict", "page", "safetensors"}
    assert all(re.fullmatch(rf"vitrine: .*{problem}", line) for line in lines.values())


@pytest.mark.parametrize(
    "change",
    [
        predicted(labels=lambda labels: labels[:5]),
        predicted(labels=lambda labels: labels + 5),
        predicted(labels=lambda labels: labels.astype(np.float32)),
        predicted(labels=lambda labels: np.zeros((len(labels), 10), np.uint8)),
        predicted(logits=lambda logits: logits[:, 0]),
        predicted(lambda logits: logits[:0], lambda labels: labels[:0]),
    ],
    ids=["short", "outside", "floats", "several", "flat", "empty"],
)
def test_predictions_that_do_not_match_are_refused(refused, change):
    lines = refused(change, "calibrate", "hf")
    assert set(lines) == {"calibrate", "hf"}
    assert all("the predictions of" in line and "are damaged: labels" in line for line in lines.values())


@pytest.mark.whole
@pytest.mark.parametrize(
    "change", [configured(data={"targets": ["a", "b"]}), without_images], ids=["targets", "images"]
)
def test_a_report_has_what_can_be_shown(refused, change):
    assert refused(change, "report") == {}
