"""Schedule-free optimisers: what is validated, tested and saved are the averaged weights."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from vitrine import compose, fit, load_run
from vitrine.runs import RunRecord

WORDS = ["model=vit_nano", "depth=1", "trainer.max_epochs=2", "data.batch_size=112", "optimizer=schedule_free"]


class Watch(Callback):
    """Keeps the head's weights in training and in validation."""

    def __init__(self):
        self.seen = {"train": [], "val": []}

    def on_train_batch_end(self, trainer, module, *_):
        self.seen["train"].append(module.model.head.weight.detach().clone())

    def on_validation_batch_end(self, trainer, module, *_):
        self.seen["val"].append(module.model.head.weight.detach().clone())


@pytest.mark.whole
def test_the_average_is_validated_saved_and_tested(tmp_path):
    watch = Watch()
    words = [*WORDS, "trainer.compile=nothing", "callbacks.monitor=last", f"paths.output_dir={tmp_path}"]
    record = RunRecord(fit(compose(words), callbacks=[watch]).run_dir)
    checkpoint = torch.load(record.best, weights_only=True)
    name, (state,) = "model.head.weight", checkpoint["optimizer_states"]
    now, kept = checkpoint["current_model_state"][name], checkpoint["state_dict"][name]
    torch.testing.assert_close(now, watch.seen["train"][-1], rtol=0, atol=1e-6)
    torch.testing.assert_close(kept, watch.seen["val"][-1], rtol=0, atol=1e-6)
    others = [entry["z"] for entry in state["state"].values() if entry["z"].shape == now.shape]
    assert any(torch.allclose(kept, now.lerp(z, 1 - 1 / 0.9), rtol=0, atol=1e-6) for z in others)
    assert (kept - now).abs().max() > 1e-5
    assert record.metrics["test/acc"] > 0.25, "chance is 0.1"
    assert torch.equal(load_run(record.path).model.head.weight, kept)


def test_others_of_its_authors_are_switched_likewise(tmp_path):
    words = [*WORDS[:-1], "optimizer=schedulefree.SGDScheduleFree", "schedule=constant", "trainer.compile=nothing"]
    run_dir = fit(compose([*words, "debug.limit_batches=2", f"paths.output_dir={tmp_path}"])).run_dir
    checkpoint = torch.load(RunRecord(run_dir).best, weights_only=True)
    kept, now = (checkpoint[state]["model.head.weight"] for state in ("state_dict", "current_model_state"))
    assert not torch.equal(kept, now)
