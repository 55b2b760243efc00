"""Lightning's callbacks that cannot work in a run are refused before it begins, with what to use in their place."""

import pytest
from helpers.user_parts import enter_lab
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, WeightAveraging

from vitrine import fit
from vitrine.errors import ConfigError

SGD = "optimizer=schedulefree.SGDScheduleFree"
LIGHTNING = "lightning.pytorch.callbacks"
EMA = f"callbacks.parts=[{LIGHTNING}.EMAWeightAveraging]"


@pytest.mark.parametrize(
    ("name", "options", "use"),
    [
        ("ModelCheckpoint", "", "callbacks.monitor"),
        ("OnExceptionCheckpoint", "dirpath: x", "callbacks.monitor"),
        ("TQDMProgressBar", "", "progress bar"),
        ("RichProgressBar", "", "progress bar"),
        ("LearningRateFinder", "", "optimizer.lr=auto"),
        ("BatchSizeFinder", "", "data.batch_size"),
        ("GradientAccumulationScheduler", "scheduling: {1: 2}", "trainer.accumulate_grad_batches"),
        ("StochasticWeightAveraging", "swa_lrs: 0.001", "callbacks=[default,ema]"),
        ("BackboneFinetuning", "", "finetune=last_blocks"),
    ],
)
def test_what_cannot_work_names_what_does(refusal, name, options, use):
    (fault,) = refusal(
        f"callbacks.parts=[{LIGHTNING}.{name}]", *([f"callbacks.parts_options.{name}={{{options}}}"] if options else [])
    )
    assert (fault.key, fault.given) == ("callbacks.parts", f"{LIGHTNING}.{name}")
    assert use in fault.problem


@pytest.mark.parametrize(
    ("overrides", "by"),
    [
        (["callbacks=[default,ema]", EMA], "callbacks.ema"),
        ([EMA, "optimizer=schedule_free"], "optimizer=schedule_free"),
        ([EMA, SGD, "schedule=constant"], SGD),
        (
            [f"callbacks.parts=[{LIGHTNING}.WeightAveraging,{LIGHTNING}.EMAWeightAveraging]"],
            f"{LIGHTNING}.WeightAveraging",
        ),
    ],
)
def test_weights_are_averaged_once(refusal, overrides, by):
    """Of two averages in a checkpoint, one overwrote the other."""
    (fault,) = refusal(*overrides)
    assert (fault.key, fault.given) == ("callbacks.parts", f"{LIGHTNING}.EMAWeightAveraging")
    assert fault.problem == f"averages weights, which {by} does already; leave one of them out"


def test_callbacks_given_in_python_are_checked_before_anything_is_written(compose, tmp_path):
    class Own(ModelCheckpoint):
        pass

    callbacks = [Own(), WeightAveraging(), EMAWeightAveraging()]
    with pytest.raises(ConfigError) as refused:
        fit(compose("model=vit_nano"), callbacks=callbacks)
    assert [fault.given for fault in refused.value.faults] == ["Own", "EMAWeightAveraging"]
    with pytest.raises(ConfigError, match="an instance, not a class"):
        fit(compose("model=vit_nano"), callbacks=[Own])
    with pytest.raises(ConfigError, match=r"must be in a list, callbacks=\[\.\.\.\]"):
        fit(compose("model=vit_nano"), callbacks=Own())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["EarlyStopping", "LearningRateMonitor", "WeightAveraging"])
def test_others_of_lightnings_work(compose, name):
    options = ["callbacks.parts_options.EarlyStopping.monitor=val/loss"] if name == "EarlyStopping" else []
    compose(f"callbacks.parts=[{LIGHTNING}.{name}]", *options)


def test_a_fine_tuning_of_ones_own_may_add_no_weights_and_works(compose, tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, "lab_of_callbacks")
    own = "from lightning.pytorch.callbacks import BaseFinetuning\n\n\nclass Freeze(BaseFinetuning):\n    pass\n"
    (tmp_path / "lab_of_callbacks" / "freeze.py").write_text(own)
    compose("callbacks.parts=[lab_of_callbacks.freeze.Freeze]")
