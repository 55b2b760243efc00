"""Training on smaller images first: what is computed, with which weights, at which cost."""

import pytest
import torch
from helpers.levels import quick
from helpers.running import SMALL
from lightning.pytorch.callbacks import Callback
from torch.nn import functional as F

from vitrine import compose, fit, resume
from vitrine.models import build_model
from vitrine.runs import RunRecord
from vitrine.training.flops import flops_by_epoch, flops_per_image
from vitrine.training.smaller_images import SmallerImages

CHOICES = [
    "position=sincos2d",
    "position=learned",
    "position=learned2d",
    "position=relative",
    "position=rope_mixed",
    "position=conv",
    "patch_embed=conv_stem",
    "attention=local",
]


@pytest.mark.whole
@pytest.mark.parametrize("choice", quick(CHOICES, ["position=learned", "position=relative"]))
def test_the_resized_model_is_computed_and_the_models_own_weights_learn(choice):
    config = compose(["model=vit_nano", "depth=2", choice, "model.drop_path=0", "model.class_token=true"]).model
    torch.manual_seed(1)
    model = build_model(config).double()
    model.head.weight.data.normal_()
    model.activation_checkpointing = True  # then the backward pass needs the resized weights, too
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    drawn = torch.get_rng_state()
    smaller = SmallerImages(model, 4)
    logits = smaller(images)
    assert torch.equal(torch.get_rng_state(), drawn)
    (logits**2).sum().backward()
    moved = [name for name, value in model.named_buffers() if not torch.equal(value, statistics[name])]
    assert bool(moved) == ("stem" in choice), "running statistics are the model's"

    for name, value in model.named_buffers():
        value.copy_(statistics[name])
    small = F.interpolate(images, size=(4, 4), mode="bilinear", antialias=True)
    resized = model.resized(image_size=4)
    torch.testing.assert_close(logits, resized(small), rtol=0, atol=1e-12)
    (resized(small) ** 2).sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), resized.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0 or not other.grad.any(), name
        if parameter.shape == other.shape:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=0, atol=1e-9, msg=name)


class Tokens(Callback):
    """Keeps the number of tokens that each block gets from the start of training, in training and not."""

    def __init__(self):
        self.seen = {True: [], False: []}

    def on_train_start(self, *_):
        for counts in self.seen.values():
            counts.clear()  # FLOPs were counted

    def count(self, block, given):
        if type(block).__name__ == "Block":
            self.seen[block.training].append(given[0].shape[1])


@pytest.mark.whole
def test_epochs_have_the_images_and_the_flops_of_the_schedule(tmp_path, capsys):
    overrides = [*SMALL, "depth=1", "trainer.compile=nothing", "trainer.max_epochs=3", "debug.limit_batches=2"]
    overrides += ["trainer.image_schedule=[4,0.34,6,0.67]", "callbacks=[default,ema]", f"paths.output_dir={tmp_path}"]
    config = compose(overrides)
    tokens = Tokens()
    hook = torch.nn.modules.module.register_module_forward_pre_hook(tokens.count)
    try:
        record = RunRecord(fit(config, callbacks=[tokens]).run_dir)
    finally:
        hook.remove()
    assert tokens.seen[True] == [4, 4, 9, 9, 16, 16], "of patches of 2x2, in two steps of each epoch"
    assert set(tokens.seen[False]) == {16}
    forward = record.facts["flops_per_image"]
    each = flops_by_epoch(config, forward)
    assert each == sorted(each)
    assert each[-1] == 3 * forward
    small = compose([*overrides, "data.image_size=4", "trainer.image_schedule=null"])
    assert each[0] == 3 * flops_per_image(small.model)
    assert record.facts["training_flops_per_image"] == pytest.approx(sum(each) / 3, abs=1)
    rows = [row for row in record.history() if "mfu_measured" in row]
    peak = record.facts["speed"]["matmul_flops_per_second"]
    for row, flops in zip(rows, each, strict=True):
        assert row["mfu_measured"] == pytest.approx(flops * row["images_per_second"] / peak, abs=1e-4)
    printed = capsys.readouterr().out
    assert "4x4 in 1 epoch, then 6x6 in 1 epoch, then 8x8 in 1 epoch" in printed
    assert "in training, mean over the epochs" in printed

    resume(record.path, compose([f"resume={record.path}", "trainer.max_epochs=6"]))
    whole = sum(each) + each[1] + 2 * each[2]  # 6x6 in the fourth epoch; the first three are done
    assert record.facts["training_flops_per_image"] == pytest.approx(whole / 6, abs=1)
