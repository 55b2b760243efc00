"""``run.predict`` takes pictures in every form and gives what ``predict.py`` gives."""

import io
import re
import shlex
from dataclasses import replace
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
import torch
from helpers.exporting import untrained_run
from helpers.running import ROOT
from PIL import Image
from torch import nn

from vitrine import load_run
from vitrine.command.compose import points
from vitrine.errors import ConfigError, DataError, RunError
from vitrine.inference.load import LoadedRun
from vitrine.models import VisionTransformer

PAGE = (ROOT / "docs" / "predicting.md").read_text()


@pytest.fixture
def path(pictures):
    return min(pictures.rglob("*.png"))


def test_a_picture_gives_the_same_in_every_form(run, path):
    image = Image.open(path)
    pixels = np.asarray(image)
    expected = run.predict(path)
    forms = [str(path), io.BytesIO(path.read_bytes()), image, image.convert("RGB"), pixels, pixels[..., None]]
    with NamedTemporaryFile() as file:
        file.write(path.read_bytes())
        for form in [*forms, torch.from_numpy(pixels.copy())[None], file]:
            assert torch.equal(run.predict(form).probabilities, expected.probabilities)
    assert expected.probabilities.shape == (10,)
    assert float(expected.probabilities.sum()) == pytest.approx(1)
    assert [(expected.name, expected.probability)] == expected.top()
    assert expected.probability == float(expected.probabilities.max())
    assert repr(expected) == f"Prediction(name='{expected.name}', probability={expected.probability:.3f})"
    assert expected in {expected}
    assert [name for name, _ in expected.top(10)] == [
        run.classes[index] for index in expected.probabilities.argsort(descending=True)
    ]
    logits = run.model(run.transform(path)[None])
    torch.testing.assert_close(logits.double().softmax(dim=1)[0].detach(), expected.probabilities, atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [{"pool": "map"}, {"pool": "mean"}, {"pool": "cls", "class_token": True}])
def test_features_are_what_the_head_reads(model, path, tmp_path):
    run = load_run(untrained_run(tmp_path / "run", **model))
    features = run.features([path] * 300, accelerator="cpu")
    assert (features.shape, features.dtype) == ((300, 12), torch.float32)
    with torch.inference_mode():
        logits = run.model.head(features)
    expected = run.predict(path, accelerator="cpu").probabilities
    torch.testing.assert_close(logits.double().softmax(dim=1)[-1], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(run.features(path, accelerator="cpu"), features[0])
    assert run.features([]).shape == (0, 12)


@pytest.mark.parametrize("changed", [False, True])
def test_a_model_of_the_users_has_no_features(changed, run, path, predict, monkeypatch):
    vit = type("Changed", (VisionTransformer,), {})
    monkeypatch.setattr(LoadedRun, "model", vit(run.config.model) if changed else nn.Flatten())
    with pytest.raises(RunError, match="has no features: its model is not a Vision Transformer of vitrine's"):
        run.features(path)
    code, _, err = predict(f"run={run.record.path}", f"input={path}", "output=x.csv", "features=x.npz")
    assert (code, err) == (
        1,
        f"vitrine: {run.record.path} has no features: its model is not a Vision Transformer of vitrine's\n",
    )


def test_features_of_a_vision_transformer_that_a_function_of_the_users_returns_have_its_size(run, path, monkeypatch):
    wider = replace(run.config.model, dim=48, heads=3)
    monkeypatch.setattr(LoadedRun, "model", VisionTransformer(wider).eval())
    assert run.features([path], accelerator="cpu").shape == (1, run.feature_size) == (1, 48)


def test_a_batch_that_does_not_fit_in_memory_is_computed_in_parts(run, path, monkeypatch):
    expected = run.features([path] * 7, accelerator="cpu")
    pooled, sizes = VisionTransformer.pooled, []

    def limited(model, images, *others):
        sizes.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError
        return pooled(model, images, *others)

    monkeypatch.setattr(VisionTransformer, "pooled", limited)
    torch.testing.assert_close(run.features([path] * 7, accelerator="cpu"), expected)
    assert len(run.predict([path] * 3, accelerator="cpu")) == 3
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def test_each_rank_of_a_program_predicts_alone(run, path, monkeypatch):
    expected = run.predict(path).probabilities
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    again = load_run(run.record.path)
    assert torch.equal(again.predict(path).probabilities, expected)


def test_an_unknown_accelerator_is_refused_with_the_choices(run, path):
    with pytest.raises(ConfigError, match=r"(?s)accelerator=gpus.*must be one of auto, cpu, gpu.*did you mean gpu\?"):
        run.predict(path, accelerator="gpus")


def test_a_list_or_a_stack_gives_a_list(run, pictures):
    paths = sorted(pictures.rglob("*.png"))[:300]
    found = run.predict(paths)
    stack = torch.stack([run.transform.pixels(path) for path in paths])
    for batch in (stack, stack.permute(0, 2, 3, 1).numpy(), list(stack)):
        assert [one.top(3) for one in run.predict(batch)] == [one.top(3) for one in found]
    assert run.predict([]) == []


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "the tensor (3, 8, 8) has 3 channels, the model's"),
        (
            np.zeros((5, 8, 9), np.uint8),
            "the array (5, 8, 9) has 9 channels, the model's pictures have 1; "
            "one picture is (H, W) or (H, W, C) as array, a batch (B, H, W, C)",
        ),
        (torch.zeros(8, 8, dtype=torch.uint8), r"a picture is (C, H, W) as tensor, not (8, 8)"),
        (torch.zeros(1, 0, 8, dtype=torch.uint8), r"not (1, 0, 8)"),
        (torch.zeros(1, 8, 8), "a picture is of uint8, from 0 to 255, not float32"),
        (np.zeros((8, 8)), "uint8, not an array of float64"),
        (3, "a picture is a path, a Pillow image, or an array or tensor of uint8, not int"),
        ("missing.png", "there is no file missing.png"),
        ("https://a.b/c.png", "https://a.b/c.png is a URL; pictures are read from files only"),
        (io.BytesIO(b"no picture"), "the picture cannot be decoded as an image: cannot identify image file"),
    ],
)
def test_what_is_no_picture_of_the_model_is_refused(run, picture, expected):
    for given in (picture, [picture]):
        with pytest.raises(DataError, match=re.escape(expected)) as error:
            run.predict(given)
        assert " at 0x" not in str(error.value)
        if isinstance(given, io.BytesIO):
            given.seek(0)


def test_the_python_of_the_page_runs(run, pictures, path, predict, tmp_path, monkeypatch, capfd):
    neighbours, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for name in ("7.png", "8.png"):
        (tmp_path / name).write_bytes(path.read_bytes())
    exec(code.replace("outputs/runs/RUN", str(run.record.path)), {})
    assert capfd.readouterr().out.startswith(run.predict(path).name)
    (tmp_path / "train").mkdir()
    for digit, label in {"3": "cat", "7": "dog"}.items():  # no classes of the run
        (tmp_path / "train" / label).symlink_to(pictures / digit)
    assert predict(f"run={run.record.path}", "input=train", "output=train.csv", "features=train.npz")[0] == 0
    (tmp_path / "test.npz").symlink_to("train.npz")
    exec(neighbours, {})
    assert 0.5 < float(capfd.readouterr().out) <= 1


def test_the_commands_of_the_page_can_be_typed():
    lines = re.findall(r"python predict\.py (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    commands = [shlex.split(line) for line in lines]
    assert len(commands) == 7
    configs = [points("predict", command, multirun=False)[0].config for command in commands]
    assert [config.runs for config in configs[2:4]] == [["outputs/runs/RUN"], ["RUN", "RUN"]]
    assert [config.input for config in configs] == ["DIR", "7.png", "DIR/**/*.png", "list.csv", "-", "train", "test"]
