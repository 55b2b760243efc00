"""A run folder gives its model back."""

import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers.running import ROOT
from helpers.user_parts import enter_lab
from PIL import Image

from vitrine import compose, load_run
from vitrine.compare import load_results
from vitrine.config import EvalConfig
from vitrine.config.predict import PredictConfig
from vitrine.config.serialize import to_plain
from vitrine.config.source_code import code_hash
from vitrine.data.preparation import Preparation
from vitrine.errors import RunError, VitrineError
from vitrine.inference.export.formats import ExportRequest
from vitrine.inference.export.model_card import model_card
from vitrine.inference.export.source import ExportSource
from vitrine.inference.export.to_timm import timm_config
from vitrine.inference.inputs import Pictures
from vitrine.inference.predict import predict
from vitrine.models import VisionTransformer, build_model
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import epoch_path
from vitrine.training.evaluate import evaluate_run


@pytest.fixture(scope="module")
def config():
    return compose(["model=vit_nano", "depth=1", "model.init=torch", "model.mlp_dropout=0.5"])


@pytest.fixture
def model(config) -> VisionTransformer:
    return VisionTransformer(config.model)


@pytest.fixture
def record(tmp_path, config, model) -> RunRecord:
    record = RunRecord.create(tmp_path, "word")
    record.update(id=record.name, status="finished")
    record.write_config(to_plain(config))
    record.write_metrics({"test/acc": 0.75})
    save(record, model, asdict(config))
    return record


def save(record: RunRecord, model: VisionTransformer, config: dict[str, object]) -> None:
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": weights, "config": config}, record.best)


def test_the_model_has_the_weights_of_the_best_epoch_and_is_in_evaluation_mode(record, model):
    before = torch.get_rng_state()
    loaded = load_run(str(record.path)).model
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert not any(module.training for module in loaded.modules())
    images = torch.randn(5, 1, 8, 8)
    assert torch.equal(loaded(images), model.eval()(images))


def test_the_model_is_built_from_the_checkpoints_configuration(record, config):
    other = replace(config.model, dim=32, heads=2, position="learned")
    save(record, VisionTransformer(other), {"model": asdict(other)})
    assert load_run(record.path).model.config == other


def test_configuration_and_metrics_are_those_of_the_run(record, config):
    run = load_run(record.path)
    assert run.config == config
    assert run.metrics == {"test/acc": 0.75}
    assert run.record == record


def test_metrics_are_those_of_one_target(record):
    record.write_config(to_plain(compose(["data.targets=[digit,above5]"])))
    stored = {"test/acc": 0.7, "test/acc/above5": 0.8, "test/class_acc/above5": 0.9, "best_epoch": 3}
    record.write_metrics(stored)
    assert load_run(record.path).metrics == load_run(record.path, target="digit").metrics == stored
    assert load_run(record.path, target="above5").metrics == {"test/acc": 0.8}


def test_the_one_target_has_an_index_also_where_it_has_no_name(record):
    assert load_run(record.path).target_index == 0
    record.write_config(to_plain(compose(["data.targets=[digit,above5]"])))
    assert [load_run(record.path, target=name).target_index for name in ("", "digit", "above5")] == [0, 0, 1]


def test_a_run_is_read_from_another_working_directory_than_it_was_opened_in(record, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(record.path.parent)
    opened = load_run(record.name)
    assert [run.name for run in load_results(record.name).runs] == [record.name]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert opened.metrics == {"test/acc": 0.75}
    assert opened.model.config.depth == 1


def test_opening_a_run_reads_no_checkpoint(record):
    record.best.unlink()
    run = load_run(record.path)
    assert run.metrics == {"test/acc": 0.75}
    with pytest.raises(RunError, match=r"there is no checkpoint .*best\.ckpt"):
        _ = run.model


def test_edited_code_of_the_model_is_refused_unless_allowed(record, config, tmp_path, monkeypatch):
    losses, metrics = "def mean(logits, targets): return logits.mean()\n", "def half(logits, labels): return 0.5\n"
    enter_lab(tmp_path, monkeypatch, "lab_of_load", losses=losses, metrics=metrics)
    part, loss, metric = "lab_of_load.fourier.Fourier", "lab_of_load.losses.mean", "lab_of_load.metrics.half"
    own = replace(config, model=replace(config.model, position=part), loss=replace(config.loss, name=loss))
    own = replace(own, callbacks=replace(own.callbacks, metrics=["ece", metric]))
    record.write_config(to_plain(own))
    save(record, build_model(own.model), asdict(own))
    record.update(parts={name: code_hash(name) for name in (part, loss, metric)})
    (tmp_path / "lab_of_load" / "losses.py").write_text("def mean(logits, targets): return logits.sum()\n")
    given = {"trust": ["lab_of_load"]}
    asked = [
        lambda **more: load_run(record.path, **given, **more).model,
        lambda **more: evaluate_run(EvalConfig(run=str(record.path), accelerator="cpu", **given, **more)),
        lambda **more: ExportSource.load(ExportRequest(record.path, "torch_export", **given, **more)),
        lambda **more: predict(
            PredictConfig(run=str(record.path), input="7.png", **given, **more), Pictures.of("7.png")
        ),
    ]
    Image.new("L", (8, 8)).save("7.png")
    for ask in asked:
        ask()
    layers = tmp_path / "lab_of_load" / "layers.py"
    layers.write_text(layers.read_text().replace("0, 1", "0, 2"))
    edited, allowed = f"the code of {part} was edited since the run began", "it as it is now: allow_changed_code=true"
    for ask in asked:
        with pytest.raises(RunError, match=rf"{edited}\. To use {allowed}"):
            ask()
        ask(allow_changed_code=True)
    (stored := record.path / "parts").mkdir()
    with pytest.raises(RunError, match=f"{edited}; {stored} has it .*: PYTHONPATH={stored} .*; to use {allowed}"):
        asked[0]()
    layers.write_text(layers.read_text().replace("0, 2", "0, 1"))
    (tmp_path / "lab_of_load" / "metrics.py").write_text("def half(logits, labels): return 0.9\n")
    asked[0]()
    with pytest.raises(RunError, match=f"the code of {metric} was edited"):
        asked[1]()


@pytest.fixture
def kept(record, config):
    """The run with the checkpoint of its second epoch, whose model is another than that of the best."""
    record.best.rename(best := record.best.with_name("renamed"))
    save(record, VisionTransformer(config.model), asdict(config))
    record.best.rename(epoch_path(record, 2))
    best.rename(record.best)
    (record.path / "metrics.csv").write_text("epoch,step,seconds,val/acc\n1,5,1,0.25\n2,10,2,0.5\n")
    return record


def test_an_epoch_that_was_kept_is_loaded_with_its_metrics(kept):
    best, run = load_run(kept.path), load_run(kept.path, checkpoint=2)
    assert not torch.equal(run.model.head.weight, best.model.head.weight)
    stored = torch.load(epoch_path(kept, 2), weights_only=True)["state_dict"]
    assert torch.equal(run.model.head.weight, stored["model.head.weight"])
    assert (run.metrics, best.metrics) == ({"val/acc": 0.5}, {"test/acc": 0.75})
    (kept.path / "predictions.npz").touch()
    assert run.test_outputs is None, "they are those of the best"


def test_the_docs_program_averages_epochs(kept, monkeypatch, capsys):
    monkeypatch.chdir(kept.path)
    Image.new("L", (8, 8)).save("picture.png")
    shutil.copy(kept.best, epoch_path(kept, 1))
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "running.md").read_text(), re.DOTALL)
    exec(program.replace("outputs/runs/RUN", str(kept.path)).replace("(10, 20, 30)", "(1, 2)"), found := {})
    heads = [
        torch.load(epoch_path(kept, epoch), weights_only=True)["state_dict"]["model.head.weight"] for epoch in (1, 2)
    ]
    torch.testing.assert_close(found["runs"][0].model.head.weight, sum(heads) / 2)
    assert capsys.readouterr().out.startswith("Prediction(name=")


def test_an_epoch_that_was_kept_is_exported_under_its_own_name(kept):
    request = ExportRequest(kept.path, "onnx", checkpoint=2, dtype="int8")
    assert request.path.name == "model_epoch_2_int8.onnx"
    source = ExportSource.load(request)
    assert torch.equal(source.run.model.head.weight, load_run(kept.path, checkpoint=2).model.head.weight)
    assert source.facts["epoch"] == timm_config(source)["epoch"] == "2"
    card = model_card(source)
    assert "| accuracy on validation | 0.5000 |" in card
    assert "Epoch 2 was taken." in card


def test_an_epoch_that_was_not_kept_is_refused_with_those_that_were(kept, monkeypatch):
    monkeypatch.chdir(kept.path)
    Path("7.png").touch()
    epoch_path(kept, 9).touch()
    path = str(kept.path)
    for ask in (
        lambda epoch: load_run(path, checkpoint=epoch),
        lambda epoch: evaluate_run(EvalConfig(run=path, checkpoint=epoch)),
        lambda epoch: ExportRequest(path, "onnx", checkpoint=epoch),
        lambda epoch: predict(PredictConfig(run=path, input="7.png", checkpoint=epoch), Pictures.of("7.png")),
    ):
        with pytest.raises(
            RunError, match=r"has no checkpoint of epoch 3: kept are 2 and 9, beside the best; the nearest is 2"
        ):
            ask(3)
    for epoch in ("2", True):
        with pytest.raises(RunError, match=f"checkpoint is the number of an epoch, such as 10, not {epoch!r}"):
            load_run(path, checkpoint=epoch)
    for epoch in (2, 9):
        epoch_path(kept, epoch).unlink()
    with pytest.raises(RunError, match=r"epoch 2: none is kept but the best; callbacks\.keep_every=N keeps every Nth"):
        load_run(path, checkpoint=2)


def test_trust_is_no_word(record):
    for load in (lambda: load_run(record.path, trust="my_lab"), lambda: load_results([record.path], trust="my_lab")):
        with pytest.raises(VitrineError, match="trust='my_lab' must be a list of dotted names"):
            load()


def test_another_version_of_installed_code_is_not_refused(record):
    config = compose(["model=vit_nano", "depth=1", "norm=torch.nn.RMSNorm"])
    save(record, build_model(config.model), asdict(config))
    record.write_config(to_plain(config))
    record.update(parts={"torch.nn.RMSNorm": "torch 1.0"})
    assert load_run(record.path, trust=["torch"]).model.config == config.model


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is not a folder"):
        load_run(tmp_path / "nothing")


def test_weights_that_do_not_fit_are_refused(record, model, config):
    save(record, model, {"model": asdict(replace(config.model, depth=2))})
    with pytest.raises(RunError, match=r"best\.ckpt does not fit the model: blocks\.1\.norm1\.weight is missing"):
        _ = load_run(record.path).model


def test_a_model_larger_than_its_weights_is_refused_before_it_takes_memory(record, model, config):
    save(record, model, {"model": asdict(replace(config.model, dim=65_536, heads=64))})
    with pytest.raises(RunError, match=r"does not fit the model: .* is .*, the model's is .*65536"):
        _ = load_run(record.path).model


def test_weights_that_are_views_of_one_value_are_refused(record, model, config):
    """The model of the right shapes could be of any size, the file one of kilobytes."""
    views = {name: torch.zeros(1).expand(value.shape) for name, value in model.state_dict().items()}
    torch.save({"state_dict": {f"model.{name}": v for name, v in views.items()}, "config": asdict(config)}, record.best)
    with pytest.raises(RunError, match="its weights share memory"):
        _ = load_run(record.path).model


def test_weights_without_values_are_refused(record, model, config):
    """Those of the device "meta" take no room in a file, and can be of any size."""
    bare = {f"model.{name}": value.to("meta") for name, value in model.state_dict().items()}
    torch.save({"state_dict": bare, "config": asdict(config)}, record.best)
    with pytest.raises(RunError, match="its state_dict does not hold weights by name"):
        _ = load_run(record.path).model


@pytest.mark.parametrize("position", ["sincos2d", "alibi2d"])
def test_a_model_with_tables_larger_than_its_file_is_refused_before_it_takes_memory(record, config, position):
    large = replace(config.model, position=position, image_size=1024, patch_size=1, patch_stride=None, pool="mean")
    large = replace(large, class_token=False, dim=1152 if position == "sincos2d" else config.model.dim)
    with torch.device("meta"):
        described = VisionTransformer(large).state_dict()
    weights = {f"model.{name}": torch.zeros(value.shape) for name, value in described.items()}
    torch.save({"state_dict": weights, "config": {"model": asdict(large)}}, record.best)
    with pytest.raises(RunError, match=r"with tables of [\d,]+ GiB for its positions, more than 4 GiB"):
        _ = load_run(record.path).model


@pytest.mark.parametrize("change", [{"rotary": True}, {"position": "rotary"}, {"heads": 5}])
def test_a_model_that_this_version_does_not_know_is_refused(record, model, config, change):
    save(record, model, {"model": asdict(config.model) | change})
    with pytest.raises(RunError, match="contains a model that this version of vitrine does not know"):
        _ = load_run(record.path).model


def test_a_checkpoint_that_describes_no_model_is_refused(record, model):
    save(record, model, {})
    with pytest.raises(RunError, match=r"best\.ckpt is not a checkpoint of vitrine: its config has no model"):
        _ = load_run(record.path).model


def test_a_checkpoint_whose_configuration_unfolds_without_bound_is_refused(record, model, config):
    values: list = ["x"] * 10
    for _ in range(9):
        values = [values] * 10
    save(record, model, {"model": asdict(config.model) | {"dim": values}})
    with pytest.raises(RunError, match=r"of its config, it holds more than [\d,]+ values"):
        _ = load_run(record.path).model


@pytest.mark.parametrize(("facts", "from_files"), [({"sizes": "1f"}, True), ({"pixels": "2e"}, False)])
def test_pictures_are_prepared_as_in_training_whatever_data_is_here_now(record, config, tmp_path, facts, from_files):
    """CIFAR-10 may be image files or arrays, which are resized in different ways."""
    (tmp_path / "data" / "cifar10" / "train").mkdir(parents=True)
    values = {"name": "cifar10", "root": str(tmp_path / "data"), "in_channels": 3}
    values |= {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
    model = replace(config.model, in_channels=3)
    record.write_config(to_plain(replace(config, model=model, data=replace(config.data, **values))))
    record.update(data_fingerprint={"train": facts})
    run = load_run(record.path)
    assert run.transform.from_files is from_files
    assert Preparation.of(run.config.data).from_files, "what is here now"


def test_packed_image_files_are_still_prepared_as_files(record, config):
    record.write_config(to_plain(replace(config, data=replace(config.data, name="imagefolder"))))
    record.update(data_fingerprint={"train": {"pixels": "2e"}})
    assert load_run(record.path).transform.from_files
