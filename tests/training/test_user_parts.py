"""A run in which every part is a user's own, each named on the command line."""

from dataclasses import astuple

import pytest
from helpers.running import SMALL
from helpers.user_parts import enter_lab

from vitrine import compose, fit, load_run
from vitrine.config.parts import PartError
from vitrine.errors import ConfigError
from vitrine.training.summary import layers

LAB = "lab_of_a_run"
PARTS = """
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn

CALLED = []


class Patches(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Conv2d(config.in_channels, config.dim, config.patch_size, config.patch_size)

    def forward(self, images):
        return self.proj(images).flatten(2).transpose(1, 2)


class Place(nn.Module):
    def __init__(self, config, scale=1.0):
        super().__init__()
        self.table = nn.Parameter(scale * torch.ones(config.tokens, config.dim))

    def forward(self, tokens):
        return tokens + self.table


class Attention(nn.MultiheadAttention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads, batch_first=True)

    def forward(self, tokens):
        return super().forward(tokens, tokens, tokens, need_weights=False)[0]


class Mlp(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, dim))


class Norm(nn.RMSNorm):
    pass


class Pool(nn.Module):
    def __init__(self, config):
        super().__init__()

    def forward(self, tokens):
        return tokens.amax(1)


def init(model, std=0.01):
    CALLED.append(f"init {std}")


def loss(logits, targets, scale=1.0):
    CALLED.append("loss")
    return scale * nn.functional.cross_entropy(logits, targets)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        CALLED.append("optimizer")
        return super().step(closure)


def schedule(step, total):
    CALLED.append("schedule")
    return 1 - step / (total + 1)


class Flip:
    num_draws = 1

    def __call__(self, images, draws):
        CALLED.append("augment")
        return images.flip(3)


class Watch(Callback):
    def on_train_start(self, trainer, module):
        CALLED.append("callbacks")


def hits(logits, labels, scale=1):
    CALLED.append("metrics")
    right = logits.argmax(dim=1).eq(labels)
    logits.zero_(), labels.zero_()
    return scale * right.float().mean()


class Log(CSVLogger):
    def __init__(self, folder="logs"):
        super().__init__(folder)

    def log_metrics(self, metrics, step=None):
        CALLED.append("logger")


def images(count=40):
    CALLED.append("data")
    labels = torch.arange(count) % 2
    pairs = (127 * labels)[:, None, None, None].expand(-1, 1, 8, 8).byte(), labels
    return {"train": pairs, "test": pairs, "classes": ["a", "b"]}


images.config = {"image_size": 8, "in_channels": 1, "num_classes": 2, "patch_size": 4}
"""
SIZES = """
sizes = set()


class Sizes:
    num_draws = 0

    def __call__(self, images, draws):
        sizes.add(len(images))
        return images
"""
MORE = """
import torch
from torch import nn


class Lost(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.values = torch.randn(config.dim)

    def forward(self, tokens):
        return tokens * self.values


class Alone(nn.Identity):
    def __init__(self, config):
        super().__init__()

    def forward(self, tokens):
        if len(tokens) == 1:
            raise ValueError("no such batch")
        return tokens
"""
NAMES = {
    "patch_embed": "Patches",
    "position": "Place",
    "attention": "Attention",
    "mlp": "Mlp",
    "norm": "Norm",
    "pool": "Pool",
    "model.init": "init",
    "loss": "loss",
    "optimizer": "Optimizer",
    "schedule": "schedule",
    "augment": "Flip",
    "callbacks": "[default,{}]",
    "logger": "Log",
    "data": "images",
}
LISTED = {"callbacks": "Watch"}
OPTIONS = ["model.position_options.scale=0.5", "model.init_options.std=0.02", "loss.options.scale=2.0"]
METRIC = [f"callbacks.metrics=[ece,{LAB}.parts.hits]", "callbacks.metrics_options.hits.scale=2"]


@pytest.fixture
def overrides(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, LAB, parts=PARTS)
    parts = {
        key: name.format(f"{LAB}.parts.{LISTED[key]}") if key in LISTED else f"{LAB}.parts.{name}"
        for key, name in NAMES.items()
    }
    return [*SMALL, *(f"{key}={name}" for key, name in parts.items()), *OPTIONS, *METRIC]


def test_every_part_of_a_run_can_be_the_users(overrides, tmp_path, capsys):
    chosen = [*overrides, "callbacks.monitor=val/hits", "debug=quick", "accelerator=cpu"]
    metrics, run_dir = astuple(fit(compose([*chosen, f"paths.output_dir={tmp_path}"])))
    assert {"val/hits": 2 * metrics["val/acc"], "test/hits": 2 * metrics["test/acc"]}.items() <= metrics.items()
    assert f", hits {metrics['test/hits']:.4f}" in capsys.readouterr().out
    from lab_of_a_run import parts

    called = {"init 0.02", "loss", "optimizer", "schedule", "augment", "callbacks", "logger", "data", "metrics"}
    assert set(parts.CALLED) == called
    kinds = {type(module).__name__ for module in load_run(run_dir, trust=[LAB]).model.modules()}
    assert {"Patches", "Place", "Attention", "Mlp", "Norm", "Pool"} <= kinds
    assert (run_dir / "parts" / LAB / "parts.py").read_text() == (tmp_path / LAB / "parts.py").read_text()


def test_an_augmentation_of_ones_own_is_given_one_batch_at_a_time(tmp_path, monkeypatch):
    """Also on a GPU, where the built-in ones take several."""
    enter_lab(tmp_path, monkeypatch, LAB, sized=SIZES)
    monkeypatch.setattr("vitrine.data.datamodule.batches_at_once", lambda *_: 3)
    overrides = [*SMALL, f"augment={LAB}.sized.Sizes", "trainer.max_epochs=1", f"paths.output_dir={tmp_path}"]
    fit(compose(overrides))
    from lab_of_a_run import sized

    assert sized.sizes == {256}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Lost", "computes with random values that no checkpoint holds"),
        ("Alone", r"failed: ValueError: no such batch \(.*more.py, line \d+\)$"),
    ],
)
def test_a_part_that_cannot_be_saved_or_takes_no_single_image_is_refused_in_one_line(
    tmp_path, monkeypatch, name, problem
):
    enter_lab(tmp_path, monkeypatch, LAB, more=MORE)
    config = compose([*SMALL, f"position={LAB}.more.{name}", f"paths.output_dir={tmp_path}"])
    with pytest.raises(PartError, match=f"^{LAB}.more.{name} {problem}"):
        fit(config)
    if name == "Alone":
        with pytest.raises(PartError, match=f"^{LAB}.more.Alone {problem}"):
            layers(config.model, 1)


def test_signatures_that_do_not_fit_are_refused_together(overrides, tmp_path):
    (tmp_path / LAB / "wrong.py").write_text("def nothing(): ...\ndef needy(*, bands): ...\n")
    only_options = ["augment", "callbacks", "logger", "data"]  # which are called with nothing else
    wrong = [f"{key}={LAB}.wrong.{'needy' if key in only_options else 'nothing'}" for key in NAMES]
    with pytest.raises(ConfigError) as caught:
        compose(["model=vit_nano", *wrong])
    found = {fault.key: fault.problem for fault in caught.value.faults}
    called = [key for key in NAMES if key not in only_options]
    refused = {key for key, problem in found.items() if "must be callable as nothing(" in problem}
    sections = ("loss", "optimizer", "schedule")
    assert refused == {f"{key}.name" if key in sections else f"model.{key.removeprefix('model.')}" for key in called}
    needed = {key for key, problem in found.items() if f"is needed by {LAB}.wrong.needy" in problem}
    assert needed == {f"{key}.parts_options.needy.bands" for key in only_options[:3]} | {"data.options.bands"}
