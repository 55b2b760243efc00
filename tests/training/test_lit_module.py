from types import SimpleNamespace

import pytest
import torch
from helpers.running import SMALL
from helpers.user_parts import enter_lab
from lightning.pytorch.callbacks import LambdaCallback

from vitrine import compose, fit
from vitrine.config.parts import PartError
from vitrine.errors import RunError
from vitrine.training.lit_module import Classifier

LAB = "lab_of_lit_module"


def test_a_loss_of_the_users_that_fails_is_one_line(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, LAB, losses="def broken(logits, targets):\n    raise ValueError('bad loss')\n")
    config = compose(["model=vit_nano", "depth=1", f"loss={LAB}.losses.broken"])
    module = Classifier(config, steps=1, images_per_step=2)
    with pytest.raises(PartError, match=r"failed: ValueError: bad loss \(.*losses.py, line 2\)$"):
        module.training_loss(torch.zeros(2, config.model.num_classes), torch.zeros(2, dtype=torch.long))


def test_losses_are_averaged_in_the_precision_of_the_training():
    config = compose(["model=vit_nano", "depth=1", "trainer.precision=64-true"])
    module = Classifier(config, steps=1, images_per_step=2).double()
    trainer = SimpleNamespace(strategy=SimpleNamespace(reduce=lambda values, reduce_op: values))
    module.trainer = trainer
    loss = torch.tensor(1.23456789012345, dtype=torch.float64)
    mean = module.metrics["val"].loss
    for _ in range(100):
        mean.update(loss, 7)
    assert float(mean.compute()) == pytest.approx(float(loss), abs=1e-12)
    module.on_load_checkpoint({"recent": [[float(loss), 0.5]], "state_dict": module.state_dict()})
    module.unlogged.append((loss, torch.tensor(0.5)))
    assert module.unlogged_steps().tolist() == [[float(loss), 0.5]] * 2


IGNORING = """
import torch


class Plain(torch.optim.SGD):
    def step(self, closure=None):
        return super().step()
"""


def test_an_optimizer_that_does_not_let_gradients_be_clipped_is_refused_in_its_first_step(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, LAB, optimizers=IGNORING)
    overrides = [*SMALL, f"optimizer={LAB}.optimizers.Plain", "debug.limit_batches=1", f"paths.output_dir={tmp_path}"]
    with pytest.raises(PartError, match=r"Plain ignores trainer.gradient_clip_val: its step must call closure\(\)"):
        fit(compose(overrides))


def add_weights(trainer, *_):
    trainer.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize("when", ["on_train_start", "on_train_batch_start"])
def test_weights_that_a_callback_adds_to_the_optimiser_are_refused_in_the_first_step(tmp_path, when):
    config = compose([*SMALL, "trainer.compile=nothing", "debug.limit_batches=1", f"paths.output_dir={tmp_path}"])
    with pytest.raises(RunError, match="a callback added weights to the optimiser, which has all of them"):
        fit(config, callbacks=[LambdaCallback(**{when: add_weights})])
