"""Averages over weights, one step at a time, or of epochs; test_fit.py and test_resume.py train whole models."""

from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from helpers.running import SMALL
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.demos.boring_classes import BoringModel

from vitrine.training.ema import AverageBeforeValidation, ExponentialMovingAverage
from vitrine.training.trainer import _configured_callbacks


class Tiny(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=torch.cfloat))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]), persistent=False)


def averaging(module, device="cpu", decay=0.9):
    """The callback, set up as Lightning does it: before the model is moved to ``device``."""
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), global_step=0)
    callback = ExponentialMovingAverage(decay)
    callback.setup(trainer, module, "fit")
    module.to(device)
    callback.on_train_start(trainer, module)
    return callback, trainer


def step(callback, trainer, module):
    trainer.global_step += 1
    callback.on_train_batch_end(trainer, module, None, None, 0)


@pytest.mark.parametrize(("highest", "last"), [(0.2, 0.2), (0.999, 8 / 17)])
def test_each_step_updates_the_average_by_the_decay(highest, last):
    module = Tiny()
    module.tied = module.weight
    callback, trainer = averaging(module, decay=highest)
    expected = None
    for number in range(8):
        with torch.no_grad():
            module.weight += torch.tensor([1.0, -2.0, 0.5]) * number
            module.bias += (1 - 2j) * number
            module.count += 1
        step(callback, trainer, module)
        decay = min(highest, (1 + number) / (10 + number))
        now = module.weight.detach().clone()
        expected = now if expected is None else decay * expected + (1 - decay) * now
    callback.on_train_end(trainer, module)
    torch.testing.assert_close(module.weight.detach(), expected)
    torch.testing.assert_close(module.bias.detach(), expected[:1] * (1 - 2j), msg="complex values, too")
    assert decay == last
    assert module.count == 8, "a count is not averaged"
    assert module.mask.tolist() == [0.0, -torch.inf], "nor what never changes"


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_average_is_on_the_training_device_and_causes_no_wait(device):
    """The meta device has no values: reading one is an error."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    module = Tiny()
    callback, trainer = averaging(module, device)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step(callback, trainer, module)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    places = {}
    for one in (*callback._average_model.module.parameters(), *callback._average_model.module.buffers()):
        places[one.device.type] = places.get(one.device.type, 0) + 1
    assert places == {device: 4}
    assert int(callback._average_model.n_averaged) == 3


def test_an_average_of_epochs_is_validated_as_it_is_saved(tmp_path, compose):
    asked, trained, validated, saved = [], [], [], []

    class FromTheSecondEpoch(WeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            asked.extend(() if epoch_idx is None else (epoch_idx,))
            return epoch_idx is not None and epoch_idx >= 1

    class Watch(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            trained.append(module.layer.bias.detach().clone())

        def on_validation_batch_start(self, trainer, module, *_):
            validated.append(module.layer.bias.detach().clone())

        def on_train_epoch_end(self, trainer, module):
            trainer.save_checkpoint(tmp_path / "last.ckpt")
            saved.append(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]["layer.bias"])

    (fitting,) = (one for one in _configured_callbacks(compose(*SMALL)) if isinstance(one, AverageBeforeValidation))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=4,
        limit_train_batches=1,
        limit_val_batches=1,
        plugins=LightningEnvironment(),
        callbacks=[fitting, FromTheSecondEpoch(), Watch()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(BoringModel())
    assert asked == [0, 1, 2, 3]
    first, second, third, fourth = trained
    expected = [first, second, (second + third) / 2, (second + third + fourth) / 3]
    torch.testing.assert_close(validated, expected)
    torch.testing.assert_close(saved, expected)


def test_a_buffer_that_a_loss_replaces_is_averaged():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("center", torch.zeros(1))

    module = Tiny()
    module.training_criterion = Loss()
    callback, trainer = averaging(module, decay=0.5)
    step(callback, trainer, module)
    module.training_criterion.center = torch.ones(1)  # another tensor
    for _ in range(4):
        step(callback, trainer, module)
    assert callback._average_model.module.training_criterion.center.item() > 0.9
