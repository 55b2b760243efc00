"""A training whose loss becomes NaN or infinite is stopped and says so, and no such weight is saved."""

import json
import math

import pytest
import torch
from helpers.levels import slow
from helpers.running import SMALL, only_run
from lightning.pytorch.callbacks import Callback

from vitrine import compose, fit
from vitrine.errors import Diverged
from vitrine.runs import RunRecord
from vitrine.training.lit_module import Classifier
from vitrine.training.weights import model_weights, read_checkpoint

DIVERGES = ["optimizer=sgd", "optimizer.lr=100", "trainer.gradient_clip_val=null", "trainer.precision=32-true"]


class Poison(Callback):
    """Makes a weight NaN after a step, and then does what it is given."""

    def __init__(self, step, then=lambda trainer: None):
        self.step, self.then = step, then

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == self.step:
            with torch.no_grad():
                next(module.model.parameters()).view(-1)[0] = math.nan
            self.then(trainer)


@pytest.fixture
def diverged(tmp_path):
    """Trains until it diverges; returns the error and the run folder."""

    def train(*overrides, callbacks=()):
        with pytest.raises(Diverged) as error:
            fit(compose([*SMALL, f"paths.output_dir={tmp_path}", *overrides]), callbacks=callbacks)
        return error.value, RunRecord(only_run(tmp_path))

    return train


def is_finite(path):
    return all(weight.isfinite().all() for weight in model_weights(read_checkpoint(path)).values())


def test_the_first_non_finite_loss_stops_the_run_and_is_recorded(diverged):
    error, record = diverged(*DIVERGES, "data.batch_size=64")
    assert record.facts["status"] == record.status == "diverged"
    assert record.facts["diverged"] == error.facts
    assert record.facts["error"] == error.reason
    assert error.what in ("the training loss is NaN", "the training loss is infinite")
    assert 1 < error.step < 20
    assert math.isfinite(error.last_finite_loss)
    assert not record.best.exists()
    assert all(math.isfinite(value) for row in record.history() for value in row.values())


@pytest.mark.whole
@pytest.mark.parametrize(
    "stopping", [[], ["callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=9"]]
)
def test_continue_trains_all_epochs(tmp_path, stopping):
    overrides = [*SMALL, *DIVERGES, "trainer.on_divergence=continue", f"paths.output_dir={tmp_path}", *stopping]
    result = fit(compose(overrides))
    assert math.isnan(result.metrics["val/loss"])
    record = RunRecord(result.run_dir)
    assert (record.status, record.facts["diverged"]) == ("finished", None)
    assert record.history()[-1]["epoch"] == record.config["trainer"]["max_epochs"]


def test_a_non_finite_validation_leaves_the_checkpoints_of_the_epoch_before(diverged):
    error, record = diverged(callbacks=[Poison(10)])  # the last step of the second epoch
    assert (error.what, error.step) == ("the validation loss is NaN", 10)
    assert read_checkpoint(record.last)["global_step"] == 5
    assert is_finite(record.last)
    assert is_finite(record.best)


def test_non_finite_weights_are_not_saved_even_where_no_loss_shows_them(diverged):
    save = Poison(2, lambda trainer: trainer.save_checkpoint("never.ckpt"))
    error, record = diverged(callbacks=[save])
    assert (error.what, error.step) == ("a weight is NaN or infinite", 2)
    assert not record.last.exists()


def test_complex_weights_are_checked_too():
    module = Classifier(compose(SMALL), 10, 256)
    with pytest.raises(Diverged, match="a weight is NaN"):
        module.on_save_checkpoint({"state_dict": {"filter": torch.tensor([1j, complex(0, math.nan)])}})


@pytest.mark.parametrize(
    ("losses", "last_step", "found"),
    [
        ([0.5, math.nan, math.nan, 0.1], 8, (6, 0.5)),
        ([0.5, 0.4, 0.3, math.inf], 8, (8, 0.3)),
        ([math.nan], 1, (1, None)),
    ],
)
def test_losses_read_later_name_the_step_in_which_they_became_non_finite(losses, last_step, found):
    """As on a GPU, where a row of losses is read when it is logged; also where a step is computed in parts."""
    module = Classifier(compose([*SMALL, "trainer.accumulate_grad_batches=2"]), 10, 256)
    with pytest.raises(Diverged) as error:
        module.check_losses(losses, last_step)
    assert (error.value.step, error.value.last_finite_loss) == found


@pytest.mark.whole
@pytest.mark.parametrize("ranks", [1, slow(2)])
def test_the_command_exits_with_3_and_one_line(train, tmp_path, ranks):
    overrides = [] if ranks == 1 else ["accelerator=cpu_ddp", "trainer.log_every_n_steps=1"]
    done = train(*SMALL, *DIVERGES, *overrides, "data.batch_size=64")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("vitrine: diverged at step ")
    assert "after a training loss of" in line
    assert "trainer.on_divergence=continue" in line
    facts = json.loads((only_run(tmp_path) / "run.json").read_text())
    assert facts["status"] == "diverged"
    assert f"diverged at step {facts['diverged']['step']}: {facts['diverged']['what']}" in line
