"""Checkpoints are written whole, and read without trusting them."""

import math
import os
import pickle
import zipfile
from collections import Counter, OrderedDict, deque
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.bombs import let_entries_overlap
from helpers.published import PUBLISHED
from lightning.pytorch.callbacks import Callback

from vitrine.config import ViTConfig
from vitrine.config.parts import PartError
from vitrine.errors import DiskFull, RunError
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord
from vitrine.training.checkpoints import AtomicCheckpointIO, Checkpoints
from vitrine.training.weights import DamagedCheckpoint, differences, load_weights, model_weights, read_checkpoint

CONFIG = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=3, dim=8, depth=1, heads=2, **PUBLISHED)


class Touch:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "last.ckpt"


@pytest.fixture
def model() -> VisionTransformer:
    return VisionTransformer(replace(CONFIG, init="torch"))


def checkpoint_of(model: VisionTransformer) -> dict[str, object]:
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    return {"state_dict": weights, "config": {"model": asdict(CONFIG)}, "epoch": 1, "recent": []}


# --- reading -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_as_written(path, model):
    AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), path)
    checkpoint = read_checkpoint(path)
    assert checkpoint["config"] == {"model": asdict(CONFIG)}
    torch.testing.assert_close(dict(model_weights(checkpoint)), model.state_dict(), rtol=0, atol=0)


def test_only_weights_of_the_model_are_returned():
    weights = {"model.head.bias": torch.ones(1), "mean": torch.ones(1), "loss.model.value": torch.ones(1)}
    assert list(model_weights({"state_dict": weights})) == ["head.bias"]


def test_a_pickled_object_is_refused_and_its_code_does_not_run(path, tmp_path, model):
    trace = tmp_path / "the-code-ran"
    torch.save({**checkpoint_of(model), "extra": Touch(trace)}, path)
    with pytest.raises(RunError, match="contains pickled objects, which could run any code; refused"):
        read_checkpoint(path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # so the refusal was of something that does run


def test_a_bare_pickle_is_refused_and_its_code_does_not_run(path, tmp_path):
    trace = tmp_path / "the-code-ran"
    path.write_bytes(pickle.dumps(Touch(trace)))
    with pytest.raises(RunError, match="not a checkpoint"):
        read_checkpoint(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()


def test_a_checkpoint_that_is_not_there_is_a_run_error(path):
    with pytest.raises(RunError, match=r"there is no checkpoint .*last\.ckpt: .* before its first epoch was saved"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"This is text, no checkpoint.\n" * 9, bytes(5000), b"PK\x03\x04" + bytes(3000), pickle.dumps({"a": 1})],
    ids=["empty", "text", "zeros", "half-a-zip-head", "pickle"],
)
def test_a_file_that_is_no_checkpoint_is_a_run_error(path, data):
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"last\.ckpt is damaged, or not a checkpoint: ") as caught:
        read_checkpoint(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_is_a_run_error(tmp_path):
    with pytest.raises(RunError, match="is damaged, or not a checkpoint"):
        read_checkpoint(tmp_path)


def test_a_pipe_is_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(DamagedCheckpoint, match="it is not a file"):
        read_checkpoint(path)


def test_a_compressed_checkpoint_is_refused(path, model):
    """A file of kilobytes could otherwise hold gigabytes of zeros."""
    torch.save(checkpoint_of(model), path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(DamagedCheckpoint, match="it is compressed"):
        read_checkpoint(path)


def test_a_checkpoint_whose_entries_share_bytes_is_refused(path, model):
    """A file of megabytes could otherwise hold gigabytes."""
    torch.save(checkpoint_of(model), path)
    let_entries_overlap(path)
    with pytest.raises(DamagedCheckpoint, match="its entries overlap"):
        read_checkpoint(path)


@pytest.mark.parametrize("value", [3, "text", torch.eye(2).to_sparse()], ids=["number", "text", "sparse"])
def test_weights_that_are_no_dense_tensors_are_refused(path, model, value):
    checkpoint = checkpoint_of(model)
    checkpoint["state_dict"]["model.head.bias"] = value
    torch.save(checkpoint, path)
    with pytest.raises(DamagedCheckpoint, match="its state_dict does not hold weights by name"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_checkpoint_is_a_run_error(path, model, share):
    torch.save(checkpoint_of(model), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(RunError, match=r"last\.ckpt is damaged"):
        read_checkpoint(path)


def test_a_checkpoint_with_one_bit_changed_is_refused_or_the_same(path, model):
    """Padding may change; a weight may not."""
    torch.save(checkpoint_of(model), path)
    data, whole = path.read_bytes(), read_checkpoint(path)
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for place in torch.randint(len(data), (300,), generator=generator).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        try:
            checkpoint = read_checkpoint(path)
        except RunError:
            refused += 1
        else:
            assert checkpoint["config"] == whole["config"]
            torch.testing.assert_close(checkpoint["state_dict"], whole["state_dict"], rtol=0, atol=0)
    assert refused > 50


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {}}, {"config": {}}, {"weights": torch.ones(1)}])
def test_a_checkpoint_of_something_else_is_a_run_error(path, content):
    torch.save(content, path)
    with pytest.raises(RunError, match="is not a checkpoint of vitrine: it has no state_dict and config"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("checkpoint", "problem"),
    [
        ({"state_dict": [1], "config": {"model": {}}}, "its state_dict does not hold weights by name"),
        ({"state_dict": {5: torch.zeros(1)}, "config": {"model": {}}}, "its state_dict does not hold weights by name"),
        ({"state_dict": {}, "config": "x"}, "its config has no model"),
        ({"state_dict": {}, "config": {"model": "x"}}, "its config has no model"),
    ],
)
def test_a_checkpoint_of_another_form_is_refused(tmp_path, checkpoint, problem):
    torch.save(checkpoint, tmp_path / "best.ckpt")
    with pytest.raises(RunError, match=problem):
        read_checkpoint(tmp_path / "best.ckpt")


# --- loading weights ---------------------------------------------------------------------------------------------


def test_weights_that_fit_are_loaded(model):
    other = VisionTransformer(replace(CONFIG, init="torch"))
    assert not torch.equal(other.head.weight, model.head.weight)
    load_weights(other, model.state_dict(), "there")
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_weight_that_is_missing_is_named(model):
    weights = {name: value for name, value in model.state_dict().items() if name != "norm.bias"}
    with pytest.raises(RunError, match=r"^there does not fit the model: norm\.bias is missing$"):
        load_weights(model, weights, "there")


def test_an_unexpected_weight_is_named(model):
    weights = {**model.state_dict(), "norm.extra": torch.ones(1)}
    with pytest.raises(RunError, match=r"^there does not fit the model: norm\.extra is not in the model$"):
        load_weights(model, weights, "there")


def test_a_weight_of_another_shape_is_named_with_both(model):
    weights = {**model.state_dict(), "head.weight": torch.ones(5, 8), "head.bias": torch.ones(())}
    with pytest.raises(RunError) as caught:
        load_weights(model, weights, "there")
    assert str(caught.value).endswith("head.weight is 5x8, the model's is 3x8; head.bias is a scalar, the model's is 3")


def test_of_many_problems_three_are_named_and_the_rest_counted(model):
    before = model.head.weight.clone()
    with pytest.raises(RunError) as caught:
        load_weights(model, {"head.weight": torch.full((3, 8), 7.0)}, "there")
    missing = len(model.state_dict()) - 1
    assert str(caught.value).count(" is missing") == 3
    assert str(caught.value).endswith(f" and {missing - 3} more")
    assert torch.equal(model.head.weight, before)  # nothing was copied


def test_differences_are_listed_field_by_field():
    stored = asdict(CONFIG)
    assert differences(stored, CONFIG) == []
    assert differences(stored, replace(CONFIG, dim=16, position="none")) == [
        "dim=8, not 16",
        "position=learned, not none",
    ]
    del stored["depth"], stored["registers"]  # as if stored before there were such fields: their defaults then
    assert differences(stored, CONFIG) == ["depth=12, not 1"]
    assert differences(stored, replace(CONFIG, depth=12)) == []


# --- choosing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "reached", "best"),
    [
        ("val/acc", [0.5, 0.7, 0.7, 0.6], 3),
        ("val/loss", [0.5, 0.3, 0.3, 0.4], 3),
        ("val/loss", [0.5, 0.3, math.nan], 2),
        ("val/loss", [math.nan, 0.5, 0.6], 2),
        ("val/loss", [math.nan, math.nan], 1),
        ("last", [0.5, 0.7, 0.6], 3),
    ],
)
def test_the_best_epoch_is_the_later_of_equals_and_never_a_nan(tmp_path, monitor, reached, best):
    (tmp_path / "checkpoints").mkdir()
    checkpoints = Checkpoints(RunRecord(tmp_path), monitor)
    for epoch, value in enumerate(reached):
        trainer = SimpleNamespace(
            callback_metrics={"val/acc": value, "val/loss": value},
            current_epoch=epoch,
            is_global_zero=True,
            save_checkpoint=lambda path: path.touch(),
        )
        checkpoints.on_train_epoch_end(trainer, None)
    assert checkpoints.best["best_epoch"] == best


def test_every_nth_epoch_is_kept_and_written_before_the_last(tmp_path):
    """A run that is killed in between trains the epoch again; the other way round, it would lack its checkpoint."""
    (tmp_path / "checkpoints").mkdir()
    written = []
    checkpoints = Checkpoints(RunRecord(tmp_path), "last", keep_every=2)
    for epoch in range(5):
        trainer = SimpleNamespace(
            callback_metrics={},
            current_epoch=epoch,
            is_global_zero=True,
            save_checkpoint=lambda path: (path.touch(), written.append(path.stem)),
        )
        checkpoints.on_train_epoch_end(trainer, None)
    assert written == ["last", "epoch_2", "last", "last", "epoch_4", "last", "last"]


# --- writing -----------------------------------------------------------------------------------------------------


def test_only_the_last_checkpoint_becomes_the_previous(path, model):
    kept = path.with_name("epoch_2.ckpt")
    for target in (path, kept, kept):  # of a run that was killed and trains the epoch again
        AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), target)
    assert sorted(one.name for one in path.parent.iterdir()) == ["epoch_2.ckpt", "last.ckpt"]
    AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), path)
    assert path.with_name("previous.ckpt").exists()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(path, model):
    io = AtomicCheckpointIO()
    io.save_checkpoint(checkpoint_of(model), path)
    whole = path.read_bytes()

    class Unwritable:
        def __reduce__(self):
            raise OSError(28, "No space left on device")

    with pytest.raises(DiskFull, match=r"the disk is full: cannot write .*last\.ckpt; .* left on that disk"):
        io.save_checkpoint({**checkpoint_of(model), "epoch": 2, "extra": Unwritable()}, path)
    assert path.read_bytes() == whole
    assert [one.name for one in path.parent.iterdir()] == ["last.ckpt"]


class Remembers(Callback):
    """A callback of a user's, with any object as its state."""

    def __init__(self, value) -> None:
        self.value = value

    def state_dict(self):
        return {"best": [self.value]}


@pytest.mark.parametrize("value", [np.float64(1), deque([1]), Path("best"), lambda: 1], ids=lambda value: type(value))
def test_a_callback_whose_state_could_not_be_read_again_is_refused_before_anything_is_written(path, model, value):
    """Before training, and at a save, where the checkpoint before stays."""
    AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), path)
    kind = rf"{type(value).__module__}.{type(value).__name__}"
    with pytest.raises(PartError, match=rf"^Remembers holds a {kind}, which cannot be restored"):
        AtomicCheckpointIO().save_checkpoint(
            {**checkpoint_of(model), "callbacks": {"Remembers": {"best": value}}}, path
        )
    assert read_checkpoint(path)["epoch"] == 1
    with pytest.raises(PartError, match=rf"^[\w.]+\.Remembers holds a {kind}"):
        Checkpoints(RunRecord(path.parent), "last").on_train_start(SimpleNamespace(callbacks=[Remembers(value)]), None)
    with pytest.raises(PartError, match=rf"^the checkpoint's entry optimizer_states holds a {kind}"):
        AtomicCheckpointIO().save_checkpoint({**checkpoint_of(model), "optimizer_states": [{0: value}]}, path)


def test_what_can_be_read_again_is_saved(path, model):
    state = {(1, "a"): [torch.ones(1), None, 1j], "b": ({1}, OrderedDict(c=b"d"), Counter("e"), torch.Size([1]))}
    AtomicCheckpointIO().save_checkpoint({**checkpoint_of(model), "callbacks": {"Own": state}}, path)
    assert read_checkpoint(path)["callbacks"]["Own"] == state


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_reported_as_such_and_leaves_the_old_checkpoint(path, model, monkeypatch):
    """PyTorch itself reports a failed write as ``unexpected pos 64 vs 0``."""
    io = AtomicCheckpointIO()
    io.save_checkpoint(checkpoint_of(model), path)
    whole = path.read_bytes()
    save = torch.save
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("torch.save", lambda value, _: save(value, full))
        with pytest.raises(DiskFull, match=r"the disk is full: cannot write .*last\.ckpt"):
            io.save_checkpoint({**checkpoint_of(model), "epoch": 2}, path)
    assert path.read_bytes() == whole
    assert [one.name for one in path.parent.iterdir()] == ["last.ckpt"]


def test_a_missing_folder_is_a_run_error(tmp_path, model):
    with pytest.raises(RunError, match=r"cannot write .*gone"):
        AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), tmp_path / "gone" / "last.ckpt")
