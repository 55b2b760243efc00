"""What callbacks do at the end of an epoch."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from vitrine.config.schema import EarlyStoppingConfig
from vitrine.errors import Pruned
from vitrine.training.callbacks import EarlyStopping, Pruning


@pytest.mark.parametrize(("epoch", "stopped_early", "pruned"), [(2, False, True), (2, True, False), (9, False, False)])
def test_a_run_is_pruned_unless_the_epoch_is_its_last_anyway(epoch, stopped_early, pruned):
    trainer = SimpleNamespace(current_epoch=epoch - 1, max_epochs=9, should_stop=stopped_early, callback_metrics={})
    trainer.strategy, trainer.is_global_zero = SimpleNamespace(broadcast=bool), True
    stop = SimpleNamespace(agreed=lambda trainer, trained: None)
    with pytest.raises(Pruned) if pruned else nullcontext():
        Pruning(lambda epoch, metrics: True, stop).on_train_epoch_end(trainer, None)


def test_a_metric_that_was_never_defined_is_not_said_not_to_improve():
    stopping = EarlyStopping(EarlyStoppingConfig(monitor="val/auroc", patience=2))
    assert stopping.reason(2) == ""
    stopping.wait_count = 2
    assert stopping.reason(2) == "stopped early after epoch 2: val/auroc was NaN or infinite in every epoch"
