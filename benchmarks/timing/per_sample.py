"""The per-sample loops of tutorial T2 against our batched ViT: python benchmarks/timing/per_sample.py.

The loops are our own code, after the tutorial's description: patches cut one by one in Python, attention for one image
and one head at a time. Steps are scaled to an epoch of 60,000 images.
"""

from collections.abc import Callable

import torch
from measure import format_ratio, in_turn, publish, ratio
from step import training_step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from vitrine import compose
from vitrine.distributed.hardware import choose_hardware

BATCH, ROUNDS, STEPS, STEPS_OF_EPOCH = 128, 21, 10, 60_000 / 128
TOKENS, WIDTH, HEADS, BLOCKS, PATCH = 49, 8, 2, 2, 4


class LoopedAttention(nn.Module):
    """Attention computed for one image and one head at a time."""

    def __init__(self) -> None:
        super().__init__()
        share = WIDTH // HEADS
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(share, share) for _ in range(HEADS)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        images = []
        for tokens in x:
            heads = []
            for head, part in enumerate(tokens.chunk(HEADS, dim=1)):
                q, k, v = self.q[head](part), self.k[head](part), self.v[head](part)
                heads.append((q @ k.T / (WIDTH // HEADS) ** 0.5).softmax(dim=1) @ v)
            images.append(torch.hstack(heads))
        return torch.stack(images)


class LoopedBlock(nn.Module):
    """Pre-norm attention and MLP, each on a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = LoopedAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LoopedViT(nn.Module):
    """The tutorial's network, 1,642 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.class_token = nn.Parameter(torch.rand(1, WIDTH))
        self.blocks = nn.Sequential(*(LoopedBlock() for _ in range(BLOCKS)))
        self.head = nn.Sequential(nn.Linear(WIDTH, 10), nn.Softmax(dim=-1))
        self.positions = positions()

    def forward(self, images: Tensor) -> Tensor:
        """(B, 1, 28, 28) -> (B, 10)."""
        patches = torch.zeros(len(images), TOKENS, PATCH * PATCH)
        for number, image in enumerate(images):
            for row in range(7):
                for column in range(7):
                    rows, columns = (slice(PATCH * place, PATCH * (place + 1)) for place in (row, column))
                    patches[number, 7 * row + column] = image[:, rows, columns].flatten()
        tokens = self.embed(patches)
        tokens = torch.stack([torch.vstack([self.class_token, patch_tokens]) for patch_tokens in tokens])
        return self.head(self.blocks(tokens + self.positions)[:, 0])


def positions() -> Tensor:
    """The sine/cosine table, computed entry by entry: (TOKENS + 1, WIDTH)."""
    table = torch.ones(TOKENS + 1, WIDTH)
    for place in range(TOKENS + 1):
        for column in range(WIDTH):
            angle = torch.tensor(place / 10000 ** ((column - column % 2) / WIDTH))
            table[place, column] = angle.sin() if column % 2 == 0 else angle.cos()
    return table


def main() -> None:
    """Time the steps of both."""
    images, labels = torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    model = LoopedViT()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    def looped() -> None:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    config = compose(["experiment=tutorials/pulfer_mnist/faithful", "accelerator=cpu"])
    step, hardware = training_step(config, images, labels), choose_hardware(config)

    def ours() -> None:
        with hardware.set_up():  # the loops run without our process settings, as in their guide
            for _ in range(STEPS):
                step()

    times = in_turn({"ours": ours, "looped": looped}, rounds=ROUNDS)
    times["ours"] = [seconds / STEPS for seconds in times["ours"]]
    gain = ratio(times["looped"], times["ours"])
    epochs = [STEPS_OF_EPOCH * sorted(times[name])[ROUNDS // 2] for name in ("looped", "ours")]
    claim = "`experiment=tutorials/pulfer_mnist/faithful`, epoch against its own per-sample loops"
    publish(
        "per_sample",
        title="A tutorial's loops",
        text="Seconds for an epoch of the 1,642-parameter ViT of `experiment=tutorials/pulfer_mnist/faithful`: as its "
        "guide writes it (Python loops over images, heads and patches), and as it is trained here. Scaled from "
        f"steps of {BATCH} images. The guide reports 76, 76, 82, 85 and 85 s for its five epochs on its author's "
        f"machine. The largest parts of our step are {largest(step)}: with 8 channels, the fixed cost of each kernel "
        "outweighs its arithmetic.",
        columns=["the guide's loops, s", "ours, s", "ratio"],
        rows=[[*epochs, format_ratio(gain)]],
        claims={claim: format_ratio(gain)},
        rounds={"step": times},
    )


def largest(step: Callable[[], None]) -> str:
    """The five operations with the largest share of a step's time, as text."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(ROUNDS):
            step()
    events = profiled.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    events = sorted(events, key=lambda event: -event.self_cpu_time_total)[:5]
    return ", ".join(f"`{event.key}` ({event.self_cpu_time_total / total:.0%})" for event in events)


if __name__ == "__main__":
    main()
