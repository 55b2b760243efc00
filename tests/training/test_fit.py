"""What a training does, seen through its public face: compose, fit, load_run."""

import json
import os
import random
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers.levels import quick
from helpers.running import SMALL, only_run, write_image_folder
from lightning.pytorch.callbacks import Callback
from torch.nn import functional as F

from vitrine import compose, fit, load_run, resume
from vitrine.config import EvalConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.image_dataset import Split
from vitrine.errors import ConfigError, DataError, Interrupted, RunError, VitrineError
from vitrine.runs import RunRecord
from vitrine.training.evaluate import evaluate_run
from vitrine.training.lit_module import Classifier
from vitrine.training.losses import MeanLoss


@pytest.fixture(autouse=True)
def callers_random_state():
    """Whatever a test trains, and however that ends: what the caller draws next follows the caller's seed."""

    def state():
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return random.getstate(), str(np.random.get_state()), [one.tolist() for one in (torch.get_rng_state(), *cuda)]

    before = state()
    yield
    assert state() == before


class Watch(Callback):
    """Keeps what each step and epoch had."""

    def __init__(self):
        self.losses, self.lrs, self.labels, self.norms = [], [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        self.lrs.append(module.lr)
        self.labels.append(batch[1])

    def on_before_optimizer_step(self, trainer, module, optimizer):
        gradients = [parameter.grad.flatten() for parameter in module.parameters()]
        self.norms.append(float(torch.cat(gradients).norm()))


@pytest.fixture
def small(tmp_path):
    def make(*overrides):
        return compose([*SMALL, f"paths.output_dir={tmp_path}", *overrides])

    return make


def test_training_learns_and_the_run_can_be_used(small):
    result = fit(small("trainer.max_epochs=12", "data.batch_size=32", "optimizer.lr=2e-3", "trainer.precision=32-true"))

    assert result.metrics["test/acc"] > 0.8
    run = load_run(result.run_dir)
    assert run.metrics == result.metrics
    assert run.config.optimizer.lr == 2e-3
    assert not run.model.training
    data = ImageDataModule(run.config)
    mean, std = run.config.data.mean[0], run.config.data.std[0]
    with torch.no_grad():
        logits = run.model((data.test.images.float() / 255 - mean) / std)
    stored = np.load(result.run_dir / "predictions.npz")
    np.testing.assert_allclose(logits.numpy(), stored["logits"], atol=1e-5)
    np.testing.assert_array_equal(data.test.labels.numpy(), stored["labels"])


def test_equal_seeds_give_equal_runs_and_different_seeds_different_runs(small):
    """Also where blocks are computed twice, to save memory."""
    watches = {}
    for name, seed, twice in (("one", 0, False), ("again", 0, True), ("other", 1, False)):
        watches[name] = Watch()
        given = (f"seed={seed}", f"trainer.activation_checkpointing={twice}", "callbacks=[default,ema]")
        rates = ("model.mlp_dropout=0.1", "model.drop_path=0.2", "model.drop_path_shape=constant")
        fit(small(*given, *rates), callbacks=[watches[name]])
    assert watches["one"].losses == watches["again"].losses
    assert watches["one"].losses != watches["other"].losses


def test_the_validation_split_depends_on_its_own_seed_alone(small):
    hashes = {
        overrides: ImageDataModule(small(*overrides)).validation_hash
        for overrides in (("seed=0",), ("seed=1",), ("data.val_seed=1",), ("data.val_fraction=0.2",))
    }
    assert hashes["seed=0",] == hashes["seed=1",]
    assert len(set(hashes.values())) == 3


def test_the_schedule_is_followed_step_by_step(small):
    watch = Watch()
    fit(small("trainer.max_epochs=4", "optimizer.lr=1.0e-3", "schedule.warmup=0.25"), callbacks=[watch])
    steps = 20  # 4 epochs of 5 steps
    expected = [1e-3 * min((k + 1) / 5, 0.5 * (1 + np.cos(np.pi * max(0, k - 5) / 15))) for k in range(steps)]
    np.testing.assert_allclose(watch.lrs, expected, rtol=1e-6)


@pytest.mark.whole
@pytest.mark.parametrize("precision", quick(["32-true", "bf16-mixed"], ["32-true"]))
def test_gradients_are_clipped_to_the_given_norm(small, precision):
    watch = Watch()
    overrides = (
        "trainer.gradient_clip_val=0.01",
        f"trainer.precision={precision}",
        "debug.limit_batches=2",
        "optimizer=sgd",
        "optimizer.lr=1.0e-9",
    )
    clipped = []

    class AfterClipping(Watch):
        def on_train_batch_end(self, trainer, module, *rest):
            clipped.append(float(torch.cat([p.grad.flatten() for p in module.parameters()]).norm()))

    fit(small(*overrides), callbacks=[watch, AfterClipping()])
    assert min(watch.norms) > 0.011
    np.testing.assert_allclose(clipped, 0.01, rtol=1e-2)


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides", quick([[], ["augment.mixup=1"], ["callbacks=[default,ema]"]], [["augment.mixup=1"]])
)
def test_a_batch_in_parts_is_the_same_step(small, overrides):
    """In float32, where adding up in another order is all that differs. Parts of the last batch, of 14, are unequal."""
    watches, logged = {}, {}
    for parts in (1, 4):
        watches[parts] = Watch()
        given = (f"trainer.accumulate_grad_batches={parts}", "trainer.precision=32-true", "data.drop_last=false")
        rows = RunRecord(fit(small(*given, *overrides), callbacks=[watches[parts]]).run_dir).history()
        logged[parts] = [[row["train/loss"], row["train/acc"]] for row in rows if "train/loss" in row]
    assert len(watches[4].losses) == len(watches[1].losses) == 12
    np.testing.assert_allclose(logged[4], logged[1], rtol=1e-5)
    np.testing.assert_allclose(watches[4].losses, watches[1].losses, rtol=1e-5)
    np.testing.assert_allclose(watches[4].norms, watches[1].norms, rtol=1e-4)
    assert watches[4].lrs == watches[1].lrs


@pytest.mark.whole
def test_no_pass_takes_more_images_than_a_part_of_a_step_or_256(small, monkeypatch):
    counts, forward = {}, Classifier.forward

    def counted(self, images):
        counts.setdefault(self.training, []).append(len(images))
        return forward(self, images)

    monkeypatch.setattr(Classifier, "forward", counted)
    fit(small("data.batch_size=1280", "trainer.accumulate_grad_batches=128", "trainer.max_epochs=1"))
    assert max(counts[True]) == 10
    assert max(counts[False]) == 256


@pytest.mark.slow
def test_label_smoothing_raises_the_loss_of_a_confident_model(small):
    plain, smooth = Watch(), Watch()
    overrides = ("trainer.max_epochs=8", "data.batch_size=32", "optimizer.lr=3.0e-3")
    fit(small(*overrides), callbacks=[plain])
    fit(small(*overrides, "loss.label_smoothing=0.3"), callbacks=[smooth])
    assert plain.losses[-1] < 0.6 < 0.9 < smooth.losses[-1]


def test_the_best_epoch_on_validation_is_the_one_that_is_tested(small):
    run = load_run(fit(small("trainer.max_epochs=6", "optimizer.lr=0.05", "callbacks.monitor=val/loss")).run_dir)
    epochs = [row for row in run.record.history() if "val/loss" in row]
    best = min(reversed(epochs), key=lambda row: row["val/loss"])
    assert run.metrics["best_epoch"] == best["epoch"]
    assert run.metrics["val/loss"] == best["val/loss"]
    checkpoint = torch.load(run.record.best, weights_only=True)
    assert checkpoint["epoch"] + 1 == best["epoch"]


def test_splitting_off_validation_images_copies_no_pixels(small, monkeypatch):
    copied = Split.images.fget
    monkeypatch.setattr(
        Split, "images", property(lambda split: pytest.fail("copied") if split.rows is not None else copied(split))
    )
    data = ImageDataModule(small())
    assert data.train.stored is data.val.stored is data.dataset.train.stored
    assert data.dataset.nbytes == 1797 * 64
    assert fit(small()).metrics["test/acc"] >= 0


def test_early_stopping_ends_a_run_that_no_longer_improves(small, capsys):
    overrides = ("callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1", "optimizer.lr=1.0e-12")
    run = load_run(fit(small(*overrides, "trainer.max_epochs=9", "callbacks.early_stopping.min_delta=1")).run_dir)
    assert run.record.history()[-1]["epoch"] == run.record.facts["epochs"] == 2
    assert run.record.facts["status"] == "finished"
    assert "stopped early after epoch 2: val/loss did not improve by 1 for 1 epoch\n" in capsys.readouterr().out
    assert run.record.facts["training_flops_per_image"] == 3 * run.record.facts["flops_per_image"]


def test_the_average_of_the_weights_is_what_is_tested(small):
    run = load_run(fit(small("callbacks=[default,ema]", "callbacks.ema.decay=0.9")).run_dir)
    checkpoint = torch.load(run.record.best, weights_only=True)
    averaged, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    assert not torch.equal(averaged["model.head.weight"], current["model.head.weight"])
    assert torch.equal(run.model.head.weight, averaged["model.head.weight"])


@pytest.mark.whole
def test_other_optimizers_positions_pools_and_precisions_than_the_default_train(small):
    for overrides in (
        ("optimizer=sgd", "position=none"),
        ("optimizer=adam", "position=sincos1d", "schedule=constant"),
        ("optimizer=lamb", "pool=cls", "position=learned", "augment=none"),
        ("optimizer=lion", "trainer.precision=64-true"),
    ):
        metrics = fit(small("debug=quick", *overrides)).metrics
        assert np.isfinite(metrics["test/loss"])


@pytest.mark.whole
def test_a_run_killed_as_soon_as_it_has_a_record_can_be_resumed(small, tmp_path):
    """A folder with a run.json is a run."""
    child = os.fork()
    if child == 0:

        def write(record, name, text):
            real(record, name, text)
            if name == "run.json":
                os.kill(os.getpid(), signal.SIGKILL)

        real, RunRecord.write = RunRecord.write, write
        fit(small())
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    folder = only_run(tmp_path)
    facts = json.loads((folder / "run.json").read_text())
    assert (facts["id"], facts["status"]) == (folder.name, "running")
    assert resume(folder).metrics["test/loss"] == fit(small()).metrics["test/loss"]


def test_a_failed_run_has_its_error_in_run_json(small, tmp_path):
    class Fails(Callback):
        def on_train_epoch_end(self, *_):
            raise RuntimeError("the cable was pulled")

    with pytest.raises(RuntimeError, match="cable"):
        fit(small(), callbacks=[Fails()])
    facts = json.loads((only_run(tmp_path) / "run.json").read_text())
    assert facts["status"] == "failed"
    assert facts["error"] == "RuntimeError: the cable was pulled"


def test_a_run_whose_pictures_cannot_be_drawn_keeps_its_result(small, monkeypatch, capsys):
    def refuse(*_):
        raise ValueError("no such font")

    monkeypatch.setattr("vitrine.training.plots.draw_confusion", refuse)
    result = fit(small("trainer.max_epochs=1", "debug.limit_batches=1"))
    record = RunRecord(result.run_dir)
    assert record.status == "finished"
    assert record.metrics["test/acc"] == result.metrics["test/acc"]
    assert {*record.pictures} == {"curves", "attention"}
    assert "confusion.png could not be drawn: no such font" in capsys.readouterr().err


def test_a_run_with_more_rows_than_metrics_csv_takes_finishes_also_without_its_curves(small, monkeypatch, capsys):
    def refuse(record: RunRecord) -> None:
        raise RunError("cannot read metrics.csv")

    monkeypatch.setattr("vitrine.training.plots.draw_curves", refuse)
    for module in ("record", "metrics_file"):
        monkeypatch.setattr(f"vitrine.runs.{module}.MAX_VALUES", 60)
    result = fit(small("trainer.log_every_n_steps=1"))
    record = RunRecord(result.run_dir)
    assert (record.status, "test/acc" in result.metrics) == ("finished", True)
    assert 0 < sum(map(len, record.history())) <= 60
    printed = capsys.readouterr().err
    assert "metrics.csv is nearly full" in printed
    assert "curves.png could not be drawn: cannot read metrics.csv" in printed


class LogByLightning(Callback):
    """Logs as Lightning's own callbacks do."""

    def on_train_batch_end(self, trainer, module, *_):
        module.log("my/step", trainer.global_step, on_step=True, on_epoch=False, batch_size=1)

    def on_validation_epoch_end(self, trainer, module):
        module.log("my/validation", trainer.global_step)

    def on_train_epoch_end(self, trainer, module):
        module.log("my/epoch", trainer.current_epoch + 1)


def test_what_lightnings_log_is_given_has_the_epoch_and_step_of_other_rows(small):
    result = fit(small("trainer.log_every_n_steps=4"), callbacks=[LogByLightning()])
    rows = RunRecord(result.run_dir).history()
    at = {
        name: [(row["epoch"], row["step"]) for row in rows if name in row]
        for name in ("val/acc", "my/validation", "my/epoch", "my/step")
    }
    assert at["my/validation"] == at["my/epoch"] == at["val/acc"] == [(1, 5), (2, 10)]
    assert at["my/step"] == [(1, 4), (2, 8)]
    assert all(row["my/step"] == row["step"] for row in rows if "my/step" in row)


def test_a_second_ctrl_c_interrupts_and_signal_handlers_are_restored(small, tmp_path):
    class Presses(Callback):
        def on_train_batch_start(self, *_):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"; resume with: resume\('"):
        fit(small(), callbacks=[Presses()])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "interrupted"


def test_a_checkpoint_that_cannot_be_written_fails_the_run(small, tmp_path):
    class Vandal(Callback):
        def on_train_epoch_start(self, trainer, module):
            folder = only_run(tmp_path) / "checkpoints"
            folder.rmdir()
            folder.write_text("a file where the folder was")

    with pytest.raises(RunError, match="cannot write"):
        fit(small(), callbacks=[Vandal()])
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "failed"


def test_an_invalid_configuration_writes_nothing(small, tmp_path):
    config = small()
    config.model.heads = 5
    with pytest.raises(ConfigError, match=r"model\.heads=5"):
        fit(config)
    write_image_folder(tmp_path / "pictures")
    (tmp_path / "pictures" / "train" / "b" / "7.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"b/7\.png"):
        fit(small("data=imagefolder", f"data.root={tmp_path / 'pictures'}", "data.image_size=8", "patch=2"))
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize("given", [["model=vit_nano"], {"model": "vit_nano"}])
def test_only_a_composed_configuration_is_trained(given):
    problem = rf"must be what compose returns, fit\(compose\(\[\.\.\.\]\)\), not {type(given).__name__}$"
    with pytest.raises(ConfigError, match=problem):
        fit(given)
    with pytest.raises(ConfigError, match=rf"compose\(\['resume=RUN', \.\.\.\]\) returns, not {type(given).__name__}$"):
        resume("RUN", given)


def test_what_no_new_run_can_have_is_refused_before_anything_is_written(small, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)fit, which begins a new run.*did you mean resume\('RUN', config\)\?"):
        fit(replace(small(), resume="RUN"))
    with pytest.raises(ConfigError, match=r"facts\.answers=\{1\}\n.*not builtins\.set$"):
        fit(small(), facts={"answers": [{1}]})
    for facts in ({"status": "x"}, {1: "x"}, ["a"]):
        with pytest.raises(ConfigError, match=r"must be a dict of entries of run\.json by name, but for status"):
            fit(small(), facts=facts)
    for call in (partial(fit, small()), partial(resume, "RUN")):
        with pytest.raises(VitrineError, match=r"trust='my' must be a list of dotted names"):
            call(trust="my")
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.whole
def test_figures_give_a_class_that_no_font_can_draw_by_number(small, tmp_path, monkeypatch, capsys):
    classes = []
    monkeypatch.setattr("vitrine.training.plots.draw_attention", lambda *given: classes.extend(given[-1]))
    write_image_folder(tmp_path / "pictures", classes=("cat", "\U0010fffd"))
    overrides = ["data=imagefolder", f"data.root={tmp_path / 'pictures'}", "data.image_size=8", "patch=4"]
    fit(small(*overrides, "trainer.max_epochs=1", "debug.limit_batches=1"))
    assert classes == ["cat", "no. 1"]
    assert capsys.readouterr().err.count("figures give 1 class by number: Matplotlib finds no font with") == 1


@pytest.mark.whole
def test_mnist_trains_on_the_real_images(small, shared_data):
    result = fit(small("data=mnist", f"data.root={shared_data}", "debug=quick", "patch=7"))
    facts = load_run(result.run_dir).record.facts
    assert facts["images"] == {"train": 54_000, "val": 6_000, "test": 10_000}


@pytest.mark.whole
def test_a_loss_on_the_softmaxs_output_cannot_fall_below_its_floor(small):
    result = fit(
        small("loss=softmax_cross_entropy", "trainer.max_epochs=12", "optimizer.lr=2e-3", "trainer.precision=32-true")
    )
    floor = np.log(np.e + 9) - 1
    losses = [row["train/loss"] for row in load_run(result.run_dir).record.history() if "train/loss" in row]
    assert floor < min(losses) < losses[0]
    assert floor < result.metrics["test/loss"] < np.log(10) + 0.1
    stored = np.load(result.run_dir / "predictions.npz")
    logits = torch.from_numpy(stored["logits"])
    expected = torch.nn.functional.cross_entropy(logits.softmax(dim=1), torch.from_numpy(stored["labels"])).item()
    assert result.metrics["test/loss"] == pytest.approx(expected, abs=1e-5)


def test_monitor_last_tests_the_last_epoch(small):
    result = fit(small("callbacks.monitor=last", "trainer.max_epochs=3", "optimizer.lr=10"))
    rows = [row for row in load_run(result.run_dir).record.history() if "val/acc" in row]
    assert result.metrics["best_epoch"] == 3
    assert result.metrics["val/loss"] == pytest.approx(rows[-1]["val/loss"])


@pytest.mark.whole
def test_a_test_curve_is_measured_and_changes_nothing_else(small):
    plain = fit(small("trainer.max_epochs=2"))
    curve = fit(small("trainer.max_epochs=2", "callbacks.test_curve=true"))
    assert curve.metrics["test/acc"] == plain.metrics["test/acc"]
    assert curve.metrics["val/loss"] == plain.metrics["val/loss"]
    rows = [row for row in load_run(curve.run_dir).record.history() if "test/acc" in row]
    assert [row["epoch"] for row in rows] == [1, 2]
    chosen = rows[int(curve.metrics["best_epoch"]) - 1]
    assert chosen["test/acc"] == pytest.approx(curve.metrics["test/acc"])
    assert chosen["test/loss"] == pytest.approx(curve.metrics["test/loss"], abs=1e-5)


def test_without_hold_out_validation_images_are_trained_on_too(small):
    kept, all_of_them = ImageDataModule(small()), ImageDataModule(small("data.hold_out=false"))
    assert len(all_of_them.train) == len(kept.train) + len(kept.val)
    assert torch.equal(all_of_them.val.images, kept.val.images)


class Logits(Callback):
    """Keeps what the model said to each batch of the first epoch, and the batch."""

    def __init__(self):
        self.batches = []

    def on_train_start(self, trainer, module):
        module.model.register_forward_hook(self.keep)

    def keep(self, model, args, logits):
        if model.training:
            self.logits = logits.detach()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches.append((self.logits, batch[1], float(outputs["loss"])))


@pytest.mark.whole
@pytest.mark.parametrize("loss", ["cross_entropy", "softmax_cross_entropy"])
def test_mixed_images_have_soft_targets_by_share_of_each_class(small, loss):
    """Their loss is the mean of both labels' by what is in them; they are right where the heavier class is found."""
    watch = Logits()
    overrides = ("augment.mixup=0.8", "augment.cutmix=1.0", f"loss={loss}", "loss.label_smoothing=0.1")
    overrides += ("trainer.max_epochs=1", "trainer.log_every_n_steps=5", "trainer.precision=32-true")
    result = fit(small(*overrides), callbacks=[watch])
    assert len(watch.batches) == 5
    right = 0
    for logits, targets, reached in watch.batches:
        assert ((targets > 0).sum(dim=1) <= 2).all()
        assert (targets.max(dim=1).values < 1).sum() > 100
        chances = (logits.softmax(dim=1) if loss.startswith("softmax") else logits).log_softmax(dim=1)
        smooth = 0.9 * targets + 0.01
        assert reached == pytest.approx(-(smooth * chances).sum(dim=1).mean().item(), abs=1e-5)
        right += (logits.argmax(dim=1) == targets.argmax(dim=1)).float().mean().item() / 5
    (row,) = [row for row in load_run(result.run_dir).record.history() if "train/acc" in row]
    assert row["train/acc"] == pytest.approx(right, abs=1e-6)


@pytest.mark.whole
def test_a_share_of_the_images_is_mixed(small):
    watch = Logits()
    overrides = ("augment.cutmix=1.0", "augment.mix_share=0.25", "trainer.max_epochs=1")
    fit(small(*overrides), callbacks=[watch])
    targets = torch.cat([targets for _, targets, _ in watch.batches])
    # A mixed image keeps a target of its own where its rectangle is empty, and where both have the same class.
    assert 0.1 < (targets.max(dim=1).values < 1).float().mean() < 0.25


@pytest.mark.whole
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_batches_that_are_augmented_together_train_the_same(small, monkeypatch, share):
    """As on a GPU."""
    overrides = ("augment=strong", f"augment.mix_share={share}")
    alone, together = Watch(), Watch()
    fit(small(*overrides), callbacks=[alone])
    monkeypatch.setattr("vitrine.data.datamodule.batches_at_once", lambda *_: 3)
    fit(small(*overrides), callbacks=[together])
    assert len(alone.losses) == 10
    assert together.losses == alone.losses


class Types(Callback):
    """Keeps of what type the logits are from which the loss is worked out."""

    def __init__(self):
        self.found = set()

    def on_train_start(self, trainer, module):
        module.register_forward_hook(lambda _, args, logits: self.found.add(logits.dtype))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("precision", "dtype"),
    quick([("64-true", torch.float64), ("bf16-mixed", torch.float32)], [("64-true", torch.float64)]),
)
def test_mixed_images_train_in_half_precision_and_with_unused_classes(small, precision, dtype):
    overrides = ("debug=quick", "augment=strong", "model.num_classes=12", f"trainer.precision={precision}")
    types = Types()
    assert np.isfinite(fit(small(*overrides), callbacks=[types]).metrics["test/loss"])
    assert types.found == {dtype}


def test_a_nan_batch_makes_the_mean_loss_nan():
    loss = MeanLoss()
    loss.update(torch.tensor(2.0), 3)
    loss.update(torch.tensor(1.0), 1)
    assert float(loss.compute()) == 1.75
    loss.update(torch.tensor(float("nan")), 5)
    assert loss.compute().isnan()
    loss.reset()
    loss.update(torch.tensor(0.5), 2)
    assert float(loss.compute()) == 0.5


@pytest.mark.parametrize(("heads", "fused"), [(8, False), (2, True)])
def test_the_attention_kernel_that_was_chosen_is_the_one_that_trains(tmp_path, monkeypatch, heads, fused):
    calls, fused_attention = [], F.scaled_dot_product_attention

    def counted(*tensors, **settings):
        calls.append(tensors[0].requires_grad)
        return fused_attention(*tensors, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    overrides = [*SMALL, "accelerator=cpu", "model.dim=32", f"model.heads={heads}", "trainer.precision=32-true"]
    result = fit(compose([*overrides, "trainer.max_epochs=1", f"paths.output_dir={tmp_path}"]))
    assert RunRecord(result.run_dir).facts["attention_kernel"] == ("sdpa" if fused else "explicit")
    assert any(calls) is fused


@pytest.mark.whole
def test_an_evaluation_decodes_a_first_training_image_and_no_more(tmp_path):
    write_image_folder(tmp_path / "images", "train", "test")
    overrides = [*SMALL, "data=imagefolder", f"data.root={tmp_path / 'images'}", f"paths.output_dir={tmp_path / 'out'}"]
    result = fit(compose([*overrides, "trainer.max_epochs=1", "data.image_size=16", "patch=4"]))
    for image in sorted((tmp_path / "images" / "train").rglob("*.png"))[1:]:
        image.write_bytes(b"0" * image.stat().st_size)
    assert evaluate_run(EvalConfig(run=str(result.run_dir), image_size=24))["test/loss"] > 0
