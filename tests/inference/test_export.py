"""Exports of a trained run: each format checked when it is made, and run where there is no vitrine."""

import errno
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from helpers.exporting import CONFIGURATIONS, trained_run, untrained_run
from helpers.levels import quick
from helpers.running import ROOT, own_file_systems, run_script
from helpers.user_parts import write_package
from PIL import Image

from vitrine import load_run
from vitrine.config.model import ViTConfig
from vitrine.data.datasets import load_dataset
from vitrine.data.preparation import Preparation
from vitrine.errors import DataError, DiskFull, RunError
from vitrine.inference.calibrate import calibrate, calibrate_export
from vitrine.inference.export import exporter, to_onnx
from vitrine.inference.export.checks import (
    BATCHES,
    AccuracyCost,
    Latency,
    Runtime,
    largest_differences,
    probe_pictures,
)
from vitrine.inference.export.exporter import ExportReport, export_run
from vitrine.inference.export.formats import ExportError, ExportRequest
from vitrine.inference.export.source import ExportSource, PictureClassifier, described
from vitrine.inference.load import LoadedRun
from vitrine.inference.predictor import Predictor
from vitrine.runs import RunRecord

PAGE = (ROOT / "docs" / "exporting.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^python scripts/export.py (.*?)\s*(?:#.*)?$", PAGE, re.MULTILINE)


@pytest.fixture
def run(tmp_path):
    return trained_run(tmp_path)


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch):
    monkeypatch.setattr("vitrine.inference.export.checks.ROUNDS", 3)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def probabilities(run, pictures):
    """As in training: the model of the run, on normalised pictures."""
    loaded = load_run(run)
    mean, std = (
        torch.tensor(values).reshape(1, -1, 1, 1) for values in (loaded.config.data.mean, loaded.config.data.std)
    )
    with torch.no_grad():
        return loaded.model((pictures / 255 - mean) / std).softmax(dim=1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The trained run's ONNX file, which gives features, too, and the report."""
    run = trained_run(tmp_path_factory.mktemp("exported"))
    return run, export_run(ExportRequest(run, "onnx", license="mit", features=True))


def test_an_exact_export_is_reported_as_equal(tmp_path):
    latency = Latency(64, 1.874, 0.0123)
    report = ExportReport(tmp_path, 1, "torch.export", {1: 0.0, 2: 0.0}, [latency], None, calibration=["2", "3"])
    checked = "batches of 1 and 2: equal to PyTorch in float32\ncalibrated temperature 2\n           3\n"
    assert checked in report.text
    assert "latency    batch of 64: 1.87 s, PyTorch 12.3 ms; " in report.text


def test_an_onnx_export_is_written_and_reported(exported):
    run, report = exported
    assert report.path == run / "exports" / "model.onnx"
    assert files(run / "exports") == ["model.onnx"]
    assert set(report.differences) == {1, 2, 7, 64} == set(BATCHES)
    assert max(report.differences.values()) < 1e-5
    assert "checked    in onnxruntime" in report.text
    assert "batches of 1, 2, 7 and 64: at most" in report.text
    assert "latency    batch of 64:" in report.text
    assert report.size == report.path.stat().st_size


def test_an_export_says_what_a_program_has_to_know_and_no_path_of_this_machine(exported):
    import onnxruntime

    _, report = exported
    assert str(ROOT).encode() not in report.path.read_bytes()
    session = onnxruntime.InferenceSession(report.path)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == [str(digit) for digit in range(10)]
    assert facts["input"] == "images: uint8 (B, 1, 8, 8), pixels in [0, 255]"
    assert facts["license"] == "mit"
    assert facts["run"] == "2026-11-22_19-27-16_single_9c9f"
    (picture,), (output, _) = session.get_inputs(), session.get_outputs()
    assert (picture.name, picture.type, picture.shape[1:]) == ("images", "tensor(uint8)", [1, 8, 8])
    assert isinstance(picture.shape[0], str), "the batch is dynamic"
    assert (output.name, output.type) == ("probabilities", "tensor(float)")


@pytest.mark.parametrize(
    ("ratio", "part"), [((1, 1), "square"), ((8, 12), "part whose height and width are as 8 to 12")]
)
def test_the_part_of_a_picture_that_arrays_are_made_of_is_named(ratio, part):
    preparation = Preparation((8, 12), 1, from_files=False, mean=(0.5,), std=(0.5,), ratio=ratio)
    upright = "turn the picture upright as its EXIF orientation says, keep the upper byte of 16-bit pixels"
    cropped = f"crop the largest central {part} (left and top margins rounded down)"
    resized = "resize it to the input size (bilinear, antialiased)"
    assert described(preparation) == f"{upright}, {cropped}, {resized}"
    from_files = replace(preparation, from_files=True, resize="squash")
    assert described(from_files).startswith(f"{upright}, scale both sides")
    cropped = described(replace(from_files, resize="crop", crop_pct=0.9))
    assert "covers the input size / 0.9, rounded down (bicubic" in cropped
    spread = "says, make 16-bit grey pixels (pixel - 100) * 256 // 1501, clipped to 0 and 255, scale both sides"
    assert spread in described(replace(from_files, levels=(100, 1600)))


def test_a_calibrated_export_gives_the_probabilities_of_a_calibrated_prediction(run):
    loaded, pictures = load_run(run), probe_pictures(7, (1, 8, 8))
    predictor = Predictor(loaded.model, loaded.config, "cpu", loaded.transform)
    scaling = calibrate(loaded, predictor, None)
    predictor.temperature = scaling.temperature
    source = ExportSource.load(ExportRequest(run, "onnx", calibrate=True, features=True))
    with torch.no_grad():
        source = exporter._calibrated(source, to_onnx, run / "unwritten.onnx")
        expected = predictor.probabilities(pictures)
        for given in (source.classifier(pictures)[0], source.classifier.logits(pictures).softmax(dim=1)):
            torch.testing.assert_close(given.double(), expected, rtol=0, atol=1e-5)
    assert abs(scaling.temperature - 1) > 0.01, "else the comparison shows nothing"
    assert float(source.facts["temperature"]) == pytest.approx(scaling.temperature, rel=1e-3)
    assert source.facts["calibration"] == "; ".join(scaling.lines)


def test_stored_test_logits_of_mixed_precision_are_not_those_of_an_export(run):
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"precision": "bf16-mixed"}))
    source = ExportSource.load(ExportRequest(run, "onnx"))
    assert len(calibrate_export(source.run, source.reference.logits, None, exact=True).lines) == 1


def test_the_temperature_of_rounded_weights_is_fitted_on_what_is_exported(run, monkeypatch):
    """As if rounding had doubled the logits."""
    source, written = ExportSource.load(ExportRequest(run, "onnx", dtype="int8", calibrate=True)), []

    def doubled(pictures):
        return [(2 * source.reference.logits(pictures)).softmax(dim=1), pictures]  # with features

    monkeypatch.setattr(to_onnx, "write", lambda source, path: written.append(path))
    monkeypatch.setattr(to_onnx, "load", lambda path: Runtime("", doubled))
    with torch.no_grad():
        found = exporter._calibrated(source, to_onnx, run / "trial.onnx")
    exact = calibrate_export(source.run, source.reference.logits, None, exact=True)
    assert found.temperature == pytest.approx(2 * exact.temperature, rel=1e-3)
    assert written == [run / "trial.onnx"]
    assert len(found.calibration.lines) == 1, "the stored test logits are not those of rounded weights"


@pytest.mark.whole
def test_int8_is_calibrated_as_it_is_quantized(run):
    report = export_run(ExportRequest(run, "onnx", dtype="int8", calibrate=True))
    assert files(run / "exports") == ["model_int8.onnx"]
    assert max(report.differences.values()) < 0.2
    assert re.search(r"\ncalibrated temperature \d\.\d{3}, fitted on 144 validation images: NLL \S+ to ", report.text)


@pytest.mark.whole
def test_features_are_a_second_output_and_are_checked(run, monkeypatch):
    request = ExportRequest(run, "torch_export", features=True)
    report = export_run(request)
    facts = {"features": ""}
    module = torch.export.load(report.path, extra_files=facts).module()
    pictures = probe_pictures(3, (1, 8, 8))
    given, features = module(pictures)
    torch.testing.assert_close(given, probabilities(run, pictures))
    torch.testing.assert_close(features, load_run(run).features(pictures, accelerator="cpu"))
    assert facts["features"] == f"float32 (B, {features.shape[1]}), what the model's head reads; the second output"
    source = ExportSource.load(replace(request, overwrite=True))
    off = Runtime("off", lambda images: (module(images)[0], module(images)[1] + 0.01))
    with pytest.raises(ExportError, match=r"its probabilities and features differ from PyTorch's by \S+e-03 on"):
        exporter.check(source, off, report.path)
    monkeypatch.setattr(LoadedRun, "model", torch.nn.Flatten())
    with pytest.raises(RunError, match="has no features: its model is not a Vision Transformer of vitrine's"):
        export_run(replace(request, overwrite=True))


@pytest.mark.whole
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_smaller_types_are_reported_with_their_cost_in_accuracy(run, dtype):
    report = export_run(ExportRequest(run, "onnx", dtype=dtype))
    assert report.path == run / "exports" / f"model_{dtype}.onnx"
    assert report.cost.images == 144  # the validation split of run.json
    assert report.cost.pytorch == pytest.approx(load_run(run).metrics["val/acc"])
    assert 0 < max(report.differences.values()) < 0.1
    assert re.search(r"accuracy   0\.\d{4} on 144 validation images, PyTorch in float32 0\.\d{4}: [+-]", report.text)


@pytest.mark.whole
def test_quantized_weights_are_unsigned(run):
    """onnxruntime's products of uint8 and int8 overflow on processors without VNNI, so that a test may not notice."""
    graph = onnx.load(export_run(ExportRequest(run, "onnx", dtype="int8")).path).graph
    weights = {node.input[1] for node in graph.node if node.op_type == "MatMulInteger"}
    stored = {array.name: array.data_type for array in graph.initializer}
    assert {stored[name] for name in weights} == {onnx.TensorProto.UINT8}


@pytest.mark.whole
@pytest.mark.parametrize("kept", quick([True, False], [True]))
def test_the_cost_in_accuracy_is_measured_on_the_images_of_the_training_only(run, kept):
    record, config = RunRecord.open(run), load_run(run).config
    found = load_dataset(config.data, run, with_fingerprint=True).fingerprint
    if not kept:
        found["train"]["pixels"] = "0123456789abcdef"
    record.update(data_fingerprint=found)
    record.write_config(record.config | {"data": record.config["data"] | {"hold_out": False}})
    request = ExportRequest(run, "torch_export", dtype="float16")
    if kept:
        assert " on 144 validation images, on which the model was trained, PyTorch in" in export_run(request).text
        return
    with pytest.raises(DataError, match=rf"the data is not what {run} was trained on: train has other images; if they"):
        export_run(request)
    assert not (run / "exports").exists()


def test_the_cost_in_accuracy_has_an_interval_over_the_images():
    def cost(changed: int, images: int = 1000) -> AccuracyCost:
        labels = torch.zeros(images, dtype=torch.int64)
        return AccuracyCost.of((torch.arange(images) < changed).long(), labels, labels)

    found = cost(10)
    assert (found.exported, found.pytorch, found.changed, found.images) == (0.99, 1.0, 10, 1000)
    assert found.half_width == pytest.approx(1.96 * np.std([1] * 10 + [0] * 990, ddof=1) / 1000**0.5, rel=1e-3)
    widths = [cost(changed).half_width for changed in range(11)]
    assert widths == sorted(widths), "a change leaves no less room than none"
    assert widths[0] == pytest.approx(3.69 / 1000, rel=1e-3)
    assert cost(0, images=1).half_width == pytest.approx(3.69, rel=1e-3)


@pytest.mark.whole
def test_an_export_that_differs_from_pytorch_is_refused_and_nothing_is_left(run, monkeypatch):
    """A wrong normalisation: a standard deviation that is a tenth of a percent off."""

    def other(source):
        reference = source.reference
        return PictureClassifier(reference.model, reference.mean, 1.001 * reference.std).eval()

    monkeypatch.setattr(ExportSource, "classifier", property(other))
    before = files(run)
    with pytest.raises(ExportError, match=r"not exact: its probabilities differ from PyTorch's by \S+ on a batch of"):
        export_run(ExportRequest(run, "onnx"))
    assert files(run) == before


@pytest.mark.whole
def test_an_existing_export_survives_one_that_fails(run, monkeypatch):
    target = run / "exports" / "model.onnx"
    target.parent.mkdir()
    target.write_text("earlier")
    monkeypatch.setattr(exporter, "MAX_DIFFERENCE", 0.0)
    with pytest.raises(ExportError, match="not exact"):
        export_run(ExportRequest(run, "onnx", overwrite=True))
    assert (files(target.parent), target.read_text()) == (["model.onnx"], "earlier")
    monkeypatch.undo()
    export_run(ExportRequest(run, "onnx", overwrite=True))
    assert target.stat().st_size > 1000


def test_a_damaged_checkpoint_is_refused_and_nothing_is_written(run):
    checkpoint = run / "checkpoints" / "best.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    before = files(run)
    with pytest.raises(RunError, match=r"best\.ckpt is damaged"):
        export_run(ExportRequest(run, "onnx"))
    assert files(run) == before


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_reported_as_such(run, monkeypatch, error):
    def write(source, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(to_onnx, "write", write)
    before = files(run)
    with pytest.raises(DiskFull, match=r"the disk is full: cannot write .*model\.onnx; "):
        export_run(ExportRequest(run, "onnx"))
    assert files(run) == before


FULL_DISK = """
import sys
from pathlib import Path
from vitrine.errors import VitrineError
from vitrine.inference.export.exporter import export_run
from vitrine.inference.export.formats import FORMATS, ExportRequest

for name in ("onnx", "torch_export", "safetensors", "hf"):
    try:
        export_run(ExportRequest(sys.argv[1], name, to=f"disk/model{FORMATS[name].suffix}"))
    except VitrineError as error:
        print(error)
    print(*Path("disk").rglob("*"))
"""


@pytest.mark.whole
@pytest.mark.skipif(not own_file_systems(), reason="this user may mount no small file system to fill")
def test_on_a_full_disk_no_format_leaves_anything(run, tmp_path):
    """A file system of one page is full at once; PyTorch's own writer of archives would abort the process there."""
    (tmp_path / "disk").mkdir()
    script = 'mount -t tmpfs -o size=4k tmpfs disk && exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-c", FULL_DISK, str(run)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for problem, left in zip(lines[::2], lines[1::2], strict=True):
        assert problem.startswith("the disk is full: cannot write disk/")
        assert left == ""


@pytest.mark.whole
def test_a_part_of_the_users_is_exported_if_trusted_and_refused_by_timm(tmp_path, monkeypatch):
    write_package(tmp_path, "lab_to_export")
    monkeypatch.syspath_prepend(tmp_path)
    run = untrained_run(tmp_path / "run", position="lab_to_export.fourier.Fourier")
    with pytest.raises(RunError, match="lab_to_export"):
        export_run(ExportRequest(run, "onnx"))
    trust = ["lab_to_export"]
    assert max(export_run(ExportRequest(run, "onnx", trust=trust)).differences.values()) < 1e-5
    with pytest.raises(ExportError, match=r"lab_to_export\.fourier\.Fourier is code of your own"):
        export_run(ExportRequest(run, "safetensors", trust=trust))


@pytest.mark.whole
def test_data_that_has_moved_is_asked_for(run):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("name: digits", "name: mnist"))
    with pytest.raises(DataError, match=r"compared with float32 on the validation images: .*--data-root DIR"):
        export_run(ExportRequest(run, "onnx", dtype="float16", data_root=str(run / "nothing")))
    assert not (run / "exports").exists()


def test_a_model_that_takes_one_picture_at_a_time_is_refused():
    def one(pictures):
        if len(pictures) != 1:
            raise ValueError("batch must be 1")
        return pictures.flatten(1).float()

    with pytest.raises(ExportError, match="fails on a batch of 2: batch must be 1"):
        largest_differences(one, lambda pictures: pictures.flatten(1).float(), (1, 2, 2))


@pytest.mark.parametrize("broken", [lambda x: x[:, :1], lambda x: x / 0])
def test_another_shape_and_values_that_are_not_finite_are_refused(broken):
    with pytest.raises(ExportError, match="on a batch of 1"):
        largest_differences(lambda x: broken(x.flatten(1).float()), lambda x: x.flatten(1).float(), (1, 2, 2))


def test_large_outputs_may_differ_by_what_float32_rounds_them():
    def off(factor):
        outputs = [lambda x, by=by: (x.flatten(1) / 255, x.flatten(1) / 255 * 500 * by) for by in (factor, 1)]
        return max(largest_differences(*outputs, (1, 2, 2)).values())

    assert off(1 + 1e-6) < exporter.MAX_DIFFERENCE / 10
    assert off(1.001) == pytest.approx(1e-3, rel=1e-3)


def test_the_configurations_have_every_choice_of_every_part():
    fields = ViTConfig.__dataclass_fields__
    for part in ("position", "attention", "norm", "norm_placement", "mlp", "pool", "patch_embed"):
        chosen = {configuration.get(part, fields[part].default) for configuration in CONFIGURATIONS}
        assert chosen == set(fields[part].metadata["options"]), part


@pytest.mark.whole
@pytest.mark.parametrize("model", CONFIGURATIONS, ids=lambda model: model["position"])
def test_any_configuration_gives_the_same_in_onnxruntime(tmp_path, model):
    report = export_run(ExportRequest(untrained_run(tmp_path / "run", **model), "onnx", features=True))
    outputs = onnx.load(report.path).graph.output
    assert [output.name for output in outputs] == ["probabilities", "features"]
    assert max(report.differences.values()) < 2e-6


# What a fresh process must not have: vitrine, and for onnxruntime PyTorch, too.
WITHOUT = "import sys\nsys.modules |= dict.fromkeys({names!r})\n"


def fresh(code, folder, *without):
    """Run a program where there is no vitrine, nor the other packages; return what it prints."""
    prelude = WITHOUT.format(names=["vitrine", *without])
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example_with(text):
    """The program of the docs that contains ``text``."""
    (program,) = [program for program in PYTHON if text in program]
    return program


@pytest.fixture
def picture(tmp_path):
    """As a camera writes it that was held upright: rotated, with an EXIF orientation that says so."""
    pixels = probe_pictures(1, (1, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6
    rotated = Image.fromarray(pixels[0, 0].numpy()).transpose(Image.Transpose.ROTATE_90)
    rotated.save(tmp_path / "picture.png", exif=exif)
    return pixels


def answer(run, picture):
    """What the docs' programs print: the most probable class and its probability."""
    best = probabilities(run, picture)[0].max(dim=0)
    return load_run(run).record.facts["classes"][best.indices], float(best.values)


BATCHES_IN_ONNXRUNTIME = """
for count in (1, 2, 7, 64):
    (values,) = session.run(["probabilities"], {"images": np.load(f"{count}.npy")})
    np.save(f"{count}_out.npy", values)
"""


def test_the_docs_program_for_onnxruntime_runs_without_vitrine_and_torch(exported, picture, tmp_path):
    run, report = exported
    shutil.copy(report.path, tmp_path)
    for count in BATCHES:
        np.save(tmp_path / f"{count}.npy", probe_pictures(count, (1, 8, 8)).numpy())
    printed = fresh(
        example_with("onnxruntime") + BATCHES_IN_ONNXRUNTIME, tmp_path, "torch", "onnx", "onnxscript", "timm", "scipy"
    )
    name, probability = printed.split()
    assert (name, float(probability)) == (answer(run, picture)[0], pytest.approx(answer(run, picture)[1], abs=1e-6))
    for count in BATCHES:
        expected = probabilities(run, probe_pictures(count, (1, 8, 8))).numpy()
        np.testing.assert_allclose(np.load(tmp_path / f"{count}_out.npy"), expected, rtol=0, atol=1e-6)


@pytest.mark.whole
def test_the_docs_programs_for_torch_and_timm_run_without_vitrine(run, picture, tmp_path):
    """One process for all three: first PyTorch without timm, with features, then timm."""
    for name, to in (("torch_export", "model.pt2"), ("safetensors", "m"), ("hf", "hf")):
        report = export_run(ExportRequest(run, name, to=tmp_path / to, features=name == "torch_export"))
        assert max(report.differences.values()) < 1e-5
    torch_alone, timm_alone = example_with("torch.export.load"), example_with("local-dir:m")
    torch_alone = torch_alone.replace("probabilities = model", "probabilities, features = model")
    card = re.search(r"```python\n(.*?)```", (tmp_path / "hf" / "README.md").read_text(), re.DOTALL)[1]
    code = f"{torch_alone}\ndel sys.modules['timm']\n{timm_alone}\n{card.replace('hf-hub:NAME', 'local-dir:hf')}"
    lines = fresh(code, tmp_path, "timm", "onnx", "onnxruntime", "lightning").splitlines()
    assert len(lines) == 3
    name, probability = answer(run, picture)
    for line in lines:
        assert line.split()[0] == name
        assert float(line.split()[1]) == pytest.approx(probability, abs=1e-5)


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("g++") is None, reason="this machine has no C++ compiler")
def test_a_compiled_export_runs_without_vitrine(run, picture, tmp_path):
    report = export_run(ExportRequest(run, "aoti", to=tmp_path / "model_aoti.pt2"))
    assert max(report.differences.values()) < 1e-5
    printed = fresh(example_with("aoti_load_package"), tmp_path, "timm", "onnx", "onnxruntime", "lightning").split()
    assert printed[0] == answer(run, picture)[0]
    assert float(printed[1]) == pytest.approx(answer(run, picture)[1], abs=1e-5)


def test_without_a_compiler_aoti_is_refused(run, monkeypatch):
    monkeypatch.setattr(
        "vitrine.inference.export.to_aoti.missing_for", lambda device: "this machine has no C++ compiler"
    )
    with pytest.raises(ExportError, match=r"this machine has no C\+\+ compiler; --format torch_export needs none"):
        export_run(ExportRequest(run, "aoti"))


@pytest.mark.whole
def test_the_command_of_the_docs_exports_and_a_second_time_is_refused(run, tmp_path):
    arguments = [str(run) if word == "outputs/runs/RUN" else word for word in shlex.split(COMMANDS[0])]
    done = run_script("scripts/export.py", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"written    {run}/exports/model.onnx, ")
    again = run_script("scripts/export.py", *arguments, cwd=tmp_path)
    assert again.returncode == 2
    assert (
        again.stderr
        == f"vitrine: {run}/exports/model.onnx exists; --overwrite replaces it, --to PATH writes another one\n"
    )


def test_the_commands_of_the_docs_are_requests_that_pass_the_checks(run, monkeypatch):
    from vitrine.cli.export import request

    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_mine")

    assert len(COMMANDS) >= 5
    for command in COMMANDS:
        arguments = [str(run) if word == "outputs/runs/RUN" else word for word in shlex.split(command)]
        assert request(arguments).record.path == run
