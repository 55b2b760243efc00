"""The engine gives what PyTorch gives, in Chromium, over the whole space of configurations."""

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.levels import sampled
from helpers.vit_configs import FIELDS, OPTIONS, SETTINGS, fitting
from hypothesis import Phase, assume, given, settings

from vitrine.config.model import ViTConfig
from vitrine.config.model_faults import vit_faults
from vitrine.errors import RunError
from vitrine.inference.page.describe import describe, encode, weights_of
from vitrine.models import VisionTransformer, attended_patches

TOLERANCE = 1e-3  # of logits; attention is compared ten times as closely
MEAN, STD = [0.2, 0.4, 0.5, 0.3], [0.5, 0.3, 0.2, 0.6]
ANSWER = """(asked) => {
    const [config, chunks, image, patch] = JSON.parse(asked);
    const model = new VisionTransformer(config, chunks);
    return JSON.stringify({
        logits: [...model.forward(Uint8Array.from(image))],
        attention: model.attention.map((maps) => maps.map((map) => [...map])),
        pool: model.poolAttention.map((map) => [...map]),
        rollout: [...model.rollout()],
        read: model.maps(0).map((map) => [...map]),
        patch: model.maps(0, patch).map((map) => [...map]),
    });
}"""


@dataclass
class Case:
    """A model with random weights, an image, and what PyTorch computes."""

    model: VisionTransformer
    image: torch.Tensor
    expected: dict[str, np.ndarray]

    @classmethod
    def of(cls, config: ViTConfig) -> "Case":
        torch.manual_seed(0)
        model = VisionTransformer(config).eval()
        for values in [*model.parameters(), *(part for name, part in model.named_buffers() if "running" in name)]:
            values.data += 0.2 * torch.randn_like(values).abs() if values.ndim == 1 else 0.2 * torch.randn_like(values)
        image = torch.randint(256, (1, config.in_channels, *config.image_hw))
        return cls(model, image, expected(model, image))

    def description(self, dtype: str = "float32") -> list[object]:
        """What ANSWER is given."""
        channels = self.model.config.in_channels
        config = describe(self.model, MEAN[:channels], STD[:channels]) | {"dtype": dtype}
        image = self.image[0].permute(1, 2, 0).flatten().tolist()
        return [config, encode(weights_of(self.model), dtype), image, self.model.config.patches - 1]


@torch.no_grad()
def expected(model: VisionTransformer, image: torch.Tensor) -> dict[str, np.ndarray]:
    config = model.config
    mean, std = (torch.tensor(values[: config.in_channels]).view(-1, 1, 1) for values in (MEAN, STD))
    pixels = (image / 255 - mean) / std
    found = model.intermediates(pixels)
    maps = torch.stack([found[f"blocks.{index}.attn.weights"][0] for index in range(config.depth)])
    patches = maps[0, :, config.prefix :, config.prefix :]
    read = maps[0, :, 0, config.prefix :] if config.pool == "cls" else patches.mean(dim=1)
    pool = found["pool.weights"][0, :, 0] if config.pool == "map" else torch.empty(0)
    return {
        "logits": found["logits"][0].numpy(),
        "attention": maps.flatten(2).numpy(),
        "pool": pool.numpy(),
        "rollout": attended_patches(model, pixels).flatten().numpy(),
        "read": read.numpy(),
        "patch": patches[:, -1].numpy(),
    }


def asked(page, case: Case, dtype: str = "float32") -> dict[str, list[float]]:
    """The engine's answer; as JSON in both directions, since Playwright is slow with long lists."""
    return json.loads(page.evaluate(ANSWER, json.dumps(case.description(dtype))))


def differences(page, case: Case) -> dict[str, float]:
    """The largest difference between the engine and PyTorch, by result; of large results, as a share of the largest."""
    answer = asked(page, case)
    found = {}
    for name, values in case.expected.items():
        given = np.array(answer[name], dtype=float)
        assert given.shape == values.shape, name
        size = max(1.0, float(np.abs(values).max(initial=0)))  # norm=batchnorm bounds no value in evaluation
        found[name] = float(np.abs(given - values).max(initial=0)) / size if np.isfinite(given).all() else np.inf
    return found


def differs(found: dict[str, float]) -> bool:
    return any(value > TOLERANCE / (1 if name == "logits" else 10) for name, value in found.items())


@pytest.fixture(scope="module")
def cases():
    """Models of every choice, in combinations drawn at random."""
    configs = []

    @settings(SETTINGS, max_examples=160, phases=[Phase.generate])
    @given(config=fitting())
    def draw(config):
        assume(not vit_faults(config))
        configs.append(config)

    draw()
    seen = defaultdict(set)
    for config in configs:
        for name in FIELDS:
            seen[name].add(str(value) if isinstance(value := getattr(config, name), list) else value)
    assert {name: seen[name] for name in OPTIONS} == {name: set(options) for name, options in OPTIONS.items()}
    assert all(len(values) > 1 for name, values in seen.items() if name not in ("name", "pretrained"))
    heads = {"position": "alibi2d", "dim": 12, "heads": 3, "depth": 1}  # whose biases differ; few are drawn
    configs.append(ViTConfig(image_size=[8, 12], patch_size=[2, 4], in_channels=1, num_classes=5, **heads))
    return [Case.of(config) for config in configs]


@pytest.mark.whole
def test_the_engine_gives_the_logits_and_attention_of_pytorch_for_every_choice(cases, scripted):
    page = scripted("engine.js")
    wrong = [(found, case.model.config) for case in cases if differs(found := differences(page, case))]
    assert wrong == []


MISTAKES = [
    ("temperatures[head] : width ** -0.5", "temperatures[head] : width ** -0.25"),
    ("temperatures ? temperatures[head] : width", "temperatures ? width ** -0.5 : width"),
    ("(score) => score * width ** -0.5", "(score) => score"),
    ("x[place] * cos - x[place + 1] * sin", "x[place] * cos + x[place + 1] * sin"),
    ("query >= prefix ? 1 : key >= prefix ? 0 : 2", "query >= prefix ? 0 : key >= prefix ? 1 : 2"),
    ("down + rows - 1", "rows - 1 - down"),
    ("this.config.slopes[head]", "this.config.slopes[0]"),
    ("+ this.config.norm_eps", ""),
    ('norm_placement === "post"', 'norm_placement === "none"'),
    ('"norm1_out"', '"norm2_out"'),
    ("v + 0.044715", "v + 0.05"),
    ("(value * gate[index]) / (1", "(gate[index] * gate[index]) / (1"),
    ("[-high, wide], [high, -wide]", "[high, -wide], [-high, wide]"),
    ("variance[channel] + eps", "variance[channel] ** 2"),
    ("weights[token * (tokens + 1)] = -Infinity", ""),
    ("share * (1 - attended)", "share / 3"),
    ("this.config.residual ? add(branch, y) : branch", "add(branch, y)"),
    ('pool !== "cls"', "true"),
    ("if (index === 0) x", "if (index === 1) x"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("line", "mistake"), sampled(MISTAKES, every=24), ids=lambda text: text or "left out")
def test_a_mistake_in_the_engine_is_noticed(cases, scripted, line, mistake):
    page = scripted("engine.js", replacing=(line, mistake))
    assert any(differs(differences(page, case)) for case in cases)
    page.close()


def test_every_number_of_half_precision_is_read_exactly(scripted):
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    bits = np.flatnonzero(np.isfinite(numbers))
    code = "(bits) => JSON.stringify([...fromFloat16(Uint16Array.from(JSON.parse(bits)).buffer)])"
    read = json.loads(scripted("engine.js").evaluate(code, json.dumps(bits.tolist())))
    assert np.array_equal(np.array(read), numbers[bits].astype(float))


def test_half_precision_gives_the_logits_of_rounded_weights(cases, scripted):
    page = scripted("engine.js")
    for case in cases[::8]:
        if case.model.config.patch_embed == "conv_stem":
            continue  # its statistics are rounded too
        rounded = VisionTransformer(case.model.config).eval()
        rounded.load_state_dict({name: values.half().float() for name, values in case.model.state_dict().items()})
        logits = asked(page, case, "float16")["logits"]
        assert logits == pytest.approx(expected(rounded, case.image)["logits"], abs=5e-3)


def test_large_weights_are_sent_in_several_texts(monkeypatch, scripted):
    monkeypatch.setattr("vitrine.inference.page.describe.CHUNK", 3 * 2**7)
    case = Case.of(ViTConfig(image_size=8, patch_size=2, in_channels=1, num_classes=10, dim=12, depth=1))
    chunks = case.description()[1]
    assert len(chunks) > 10
    assert len({len(chunk) for chunk, _ in pairwise(chunks)}) == 1
    assert not differs(differences(scripted("engine.js"), case))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (1e5, "float16", r"head\.bias has values up to 1e\+05, float16 up to 65504; use --dtype float32"),
        (float("nan"), "float32", r"head\.bias has weights that are NaN or infinite: the run has diverged"),
    ],
)
def test_weights_that_cannot_be_written_are_refused(value, dtype, message):
    with pytest.raises(RunError, match=message):
        encode({"head.bias": torch.tensor([1.0, value])}, dtype)
