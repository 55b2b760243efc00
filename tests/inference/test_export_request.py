"""What ``vitrine export`` refuses before anything is loaded or written, each in one line."""

import json
import re
import shutil
import sys

import pytest
from helpers.exporting import STOPPED, TRAINED, trained_run

from vitrine.cli.main import main
from vitrine.errors import RunError
from vitrine.inference.export import formats
from vitrine.inference.export.formats import DTYPES, FORMATS, ExportError, ExportRequest
from vitrine.text import listed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("trained"))


def refusal(*arguments, **named):
    with pytest.raises(ExportError) as error:
        ExportRequest(*arguments, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("given", "near"), [("onx", "onnx"), ("ONNX", "onnx"), ("torchexport", "torch_export")])
def test_an_unknown_format_is_refused_with_the_nearest(given, near):
    message = refusal("RUN", given)
    assert message.startswith(f"there is no format {given}; the formats are onnx, torch_export, aoti, safetensors")
    assert message.endswith(f"did you mean {near}?")


def test_an_unknown_dtype_is_refused_with_the_nearest():
    assert refusal("RUN", "onnx", dtype="float16s").endswith("float32, float16 and int8; did you mean float16?")


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if "int8" not in kind.dtypes])
def test_int8_is_refused_where_there_is_none(name):
    assert refusal("RUN", name, dtype="int8").endswith("int8 takes --format onnx")


def test_a_run_that_has_not_finished_is_refused_with_how_to_resume_it():
    message = refusal(STOPPED, "onnx")
    assert "has not finished (its status is interrupted), so this is not its final model" in message
    assert message.endswith(f"resume={STOPPED}")


def test_a_repository_is_for_the_hubs_format(run):
    assert refusal(run, "onnx", hub="me/digits") == "--hub takes --format hf, not onnx"


def test_features_are_for_the_formats_that_hold_more_than_the_model(run):
    for name in ("safetensors", "hf"):
        message = f"--features takes --format onnx, torch_export and aoti, not {name}: in timm, "
        assert refusal(run, name, features=True).startswith(message)


def test_a_wrong_name_of_a_repository_and_a_missing_login_are_refused_first(run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert refusal(run, "hf", hub="me/digits") == "--hub: not logged in; run `hf auth login`, or set HF_TOKEN"
    assert refusal(run, "hf", hub="a/b/c").startswith("--hub a/b/c: Repo id must be in the form")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_mine")
    assert ExportRequest(run, "hf", hub="me/digits").hub == "me/digits"


def test_a_folder_of_data_is_for_the_types_that_read_it(run):
    problem = "--data-root takes --calibrate, or --dtype float16 or int8, which alone read the data set"
    assert refusal(run, "onnx", data_root="data") == problem
    for reads in ({"dtype": "int8"}, {"calibrate": True}):
        assert ExportRequest(run, "onnx", data_root="data", **reads).data_root == "data"


def test_several_labels_per_picture_are_not_calibrated(run):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("data:\n", "data:\n  multi_label: true\n"))
    problem = "--calibrate is for one label per picture, and this run's have several"
    assert refusal(run, "onnx", calibrate=True) == problem


def test_a_missing_package_is_named_with_the_extra_that_has_it(run, monkeypatch):
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "onnxscript" else sys)
    assert refusal(run, "onnx") == "--format onnx takes onnxscript: pip install -e '.[export]'"
    ExportRequest(run, "torch_export")


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in FORMATS for dtype in DTYPES])
def test_each_format_and_type_has_a_name_of_its_own(run, name, dtype):
    if dtype not in FORMATS[name].dtypes:
        return
    path = ExportRequest(run, name, dtype=dtype).path
    assert path.parent == run / "exports"
    assert (dtype in path.name) == (dtype != "float32")
    assert path.suffix == FORMATS[name].suffix


def test_no_two_formats_write_the_same_file():
    assert len({kind.file for kind in FORMATS.values()}) == len(FORMATS)


def test_an_existing_target_is_kept_unless_it_may_be_replaced(run, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("precious")
    assert refusal(run, "onnx", to=path) == f"{path} exists; --overwrite replaces it, --to PATH writes another one"
    assert ExportRequest(run, "onnx", to=path, overwrite=True).path == path
    assert path.read_text() == "precious"


def test_a_target_of_another_kind_is_refused_even_if_it_may_be_replaced(run, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.png").touch()
    (tmp_path / "file").touch()
    assert f"name a file: --to {tmp_path}/model.onnx" in refusal(run, "onnx", to=tmp_path, overwrite=True)
    assert "ends in .pt2: --to model.pt.pt2" in refusal(run, "torch_export", to="model.pt")
    assert "photos holds me.png; only a folder of config.json, model.safetensors and README.md alone is" in refusal(
        run, "hf", to=tmp_path / "photos", overwrite=True
    )
    assert "is a file, but this format is a folder" in refusal(run, "hf", to=tmp_path / "file", overwrite=True)


@pytest.mark.parametrize("other", [".git/HEAD", "notes.txt", "README.md"])
def test_only_a_folder_of_an_earlier_export_and_nothing_else_is_replaced(run, tmp_path, other):
    folder = tmp_path / "digits"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    assert ExportRequest(run, "safetensors", to=folder, overwrite=True).path == folder
    (folder / other).parent.mkdir(exist_ok=True)
    (folder / other).touch()
    problem = "only a folder of config.json and model.safetensors alone is replaced; give --to another name"
    found = sorted(["config.json", "model.safetensors", other.partition("/")[0]])
    assert refusal(run, "safetensors", to=folder, overwrite=True) == f"{folder} holds {listed(found)}; {problem}"
    if other == "README.md":
        assert ExportRequest(run, "hf", to=folder, overwrite=True).path == folder
        (folder / "config.json").unlink()
        assert f"{folder} holds README.md and model.safetensors; " in refusal(run, "hf", to=folder, overwrite=True)


def test_an_export_does_not_leave_the_run_through_a_link(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "exports").symlink_to(tmp_path)
    problem = f"cannot write {copy / 'exports'}: it is a link that leads out of {copy}, to {tmp_path}"
    for to in (None, copy / "exports" / "model.onnx"):
        with pytest.raises(RunError, match=re.escape(problem)):
            ExportRequest(copy, "onnx", to=to)
    (copy / "exports").unlink()
    (copy / "inside").mkdir()
    (copy / "exports").symlink_to("inside")
    assert ExportRequest(copy, "onnx").path == copy / "exports" / "model.onnx"


@pytest.mark.parametrize("name", ["onnx", "hf"])
def test_a_target_that_cannot_be_looked_at_is_refused(run, tmp_path, name):
    path = tmp_path / ("x" * 300) / f"model{FORMATS[name].suffix}"
    assert refusal(run, name, to=path) == f"cannot write {path}: File name too long"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ([str(TRAINED), "--format", "onx"], 2, "there is no format onx"),
        ([str(TRAINED)], 2, "the following arguments are required: --format"),
        (["nowhere", "--format", "onnx"], 2, "nowhere is not a folder"),
        ([str(TRAINED), "--format", "onnx", "--trust", ""], 2, "has an empty prefix"),
    ],
)
def test_the_command_exits_with_2_for_a_wrong_request(arguments, code, problem, capsys):
    with pytest.raises(SystemExit) as end:
        main(["export", *arguments])
    assert end.value.code == code
    assert problem in capsys.readouterr().err


def test_a_damaged_record_is_refused(run, tmp_path):
    broken = shutil.copytree(run, tmp_path / "run")
    (broken / "run.json").write_text(json.dumps({"status": "finished"})[:-3])
    with pytest.raises(Exception, match=re.escape(f"cannot read {broken / 'run.json'}")):
        ExportRequest(broken, "onnx")
