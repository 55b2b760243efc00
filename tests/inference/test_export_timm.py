"""What timm can express gives timm's logits; the rest is refused with the reason. And the folder for the hub."""

import base64
import json
import re
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import timm
import torch
import yaml
from helpers.exporting import TRAINED, trained_run, untrained_run
from helpers.levels import sampled
from helpers.running import run_script
from PIL import Image
from safetensors.torch import load_file

from vitrine import compose, load_run
from vitrine.config.serialize import to_plain
from vitrine.data.preparation import Preparation
from vitrine.inference.export import to_hub, to_timm
from vitrine.inference.export.exporter import export_run
from vitrine.inference.export.formats import ExportError, ExportRequest
from vitrine.inference.export.model_card import AccuracyOnTest, model_card
from vitrine.inference.export.source import ExportSource
from vitrine.inference.page.page import write_page
from vitrine.models import build_model
from vitrine.runs import RunRecord

EXPRESSIBLE = {
    "sincos2d": {},
    "none": {"position": "none", "mlp": "relu", "patch_embed": "linear"},
    "learned, class token": {"position": "learned", "class_token": True, "pool": "cls", "registers": 2},
    "learned2d, rmsnorm": {"position": "learned2d", "norm": "rmsnorm", "qk_norm": True, "registers": 1},
    "sincos1d, map": {"position": "sincos1d", "pool": "map", "mlp": "gelu_tanh", "class_token": True},
    "norm before the blocks": {"embed_norm": True, "registers": 2, "final_norm": False},
    "no position, norm before the blocks": {"position": "none", "embed_norm": True, "qkv_bias": False},
    "swiglu": {"mlp": "swiglu", "mlp_ratio": 2.0, "in_channels": 3},
    "swiglu, layer scale": {"mlp": "swiglu", "mlp_ratio": 1.0, "layer_scale": 0.5, "norm": "rmsnorm"},
    "layer scale": {"layer_scale": 0.5, "depth": 2},
    "rope": {"position": "rope"},
    "rope, class token": {"position": "rope", "class_token": True, "pool": "cls", "registers": 1, "layer_scale": 0.5},
    "rope, norm before the blocks": {"position": "rope", "embed_norm": True, "rope_theta": 50.0, "class_token": True},
    "rope_mixed": {"position": "rope_mixed", "depth": 2, "pool": "map", "qk_norm": True},
    "rope_mixed, no final norm": {"position": "rope_mixed", "final_norm": False, "patch_embed": "linear"},
}
INEXPRESSIBLE = [
    ({"position": "alibi2d"}, "it has no position=alibi2d"),
    ({"position": "conv"}, "it has no position=conv"),
    ({"position": "relative"}, "it has no position=relative"),
    ({"patch_embed": "shifted"}, "it has no patch_embed=shifted"),
    ({"patch_embed": "conv_stem"}, "it has no patch_embed=conv_stem"),
    ({"patch_stride": 1}, "its patches do not overlap, patch_stride=1 lets them"),
    ({"attention": "local"}, "it has no attention=local"),
    ({"attention": "headwise"}, "it has no attention=headwise"),
    ({"out_projection": False}, "it always has an out_projection"),
    ({"norm_placement": "post"}, "it has no norm_placement=post"),
    ({"residual": False, "drop_path": 0.0}, "it has no model.residual=false"),
    ({"norm": "batchnorm"}, "it has no norm=batchnorm"),
    ({"norm_eps": 1e-3}, "its norm_eps is 1e-06, not 0.001"),
    ({"mlp": "swiglu", "mlp_ratio": 2.0, "pool": "map"}, "its pool=map has no mlp=swiglu"),
    ({"position": "rope", "norm": "rmsnorm"}, "its position=rope has no norm=rmsnorm"),
    ({"position": "rope", "mlp": "relu"}, "its position=rope has no mlp=relu"),
]


def source(run, **options):
    return ExportSource.load(ExportRequest(run, "safetensors", **options))


def test_several_parts_of_the_users_are_named_together():
    config = replace(compose(["model=vit_nano"]).model, position="lab.A", mlp="lab.B")
    assert to_timm.inexpressible(config) == ["lab.A and lab.B are code of your own"]


def test_an_mlp_or_a_pool_without_a_name_in_timm_is_inexpressible():
    config = replace(compose(["model=vit_nano"]).model, mlp="new", pool="other")
    assert to_timm.inexpressible(config) == ["it has no mlp=new", "it has no pool=other"]


@pytest.mark.whole
@pytest.mark.parametrize("model", sampled(list(EXPRESSIBLE.values()), every=7), ids=list(EXPRESSIBLE))
@torch.no_grad()
def test_timm_reads_the_folder_and_gives_the_same_logits(tmp_path, model):
    made = source(untrained_run(tmp_path / "run", **model))
    to_timm.write(made, tmp_path / "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    images = torch.randn(5, *made.picture_shape)
    ours = made.reference.model(images)
    assert ours.std() > 0.1
    torch.testing.assert_close(theirs(images), ours, rtol=0, atol=1e-5)
    features = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    torch.testing.assert_close(features, made.reference.model.pooled(images), rtol=0, atol=1e-5)
    assert theirs.pretrained_cfg["label_names"] == made.run.classes


@pytest.mark.whole
@pytest.mark.parametrize(("model", "reason"), INEXPRESSIBLE, ids=[reason for _, reason in INEXPRESSIBLE])
def test_what_timm_cannot_express_is_refused_with_the_reason(tmp_path, model, reason):
    with pytest.raises(ExportError, match=re.escape(f"timm can't express this model: {reason}. --format onnx,")):
        to_timm.write(source(untrained_run(tmp_path / "run", **model)), tmp_path / "timm")
    assert not (tmp_path / "timm").exists()


def test_all_reasons_are_given_at_once(tmp_path):
    run = untrained_run(tmp_path / "run", attention="local", norm_placement="post")
    with pytest.raises(ExportError, match="it has no attention=local; it has no norm_placement=post"):
        export_run(ExportRequest(run, "safetensors"))


@torch.no_grad()
def test_the_check_notices_a_wrong_weight(tmp_path, monkeypatch):
    run = trained_run(tmp_path)
    write = to_timm.weights_for
    monkeypatch.setattr(to_timm, "weights_for", lambda model: write(model) | {"head.bias": torch.zeros(10)})
    with pytest.raises(ExportError, match="its logits differ from PyTorch's by"):
        export_run(ExportRequest(run, "safetensors"))
    assert not (run / "exports").exists()


def test_timm_prepares_pictures_as_training_did(tmp_path):
    """Pictures of the size of the data set, by timm's own transform."""
    made = source(trained_run(tmp_path))
    to_timm.write(made, tmp_path / "timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == (1, 8, 8)
    transform = timm.data.create_transform(**config, is_training=False)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    data = load_run(TRAINED).config.data
    ours = (torch.from_numpy(pixels)[None].float() / 255 - data.mean[0]) / data.std[0]
    torch.testing.assert_close(transform(Image.fromarray(pixels)), ours)
    vars(made.run)["transform"] = replace(made.run.transform, crop_pct=0.9)
    assert to_timm.timm_config(made)["pretrained_cfg"]["crop_pct"] == 0.9


@pytest.mark.parametrize(("size", "ratio"), [((8, 12), (1, 1)), ((8, 12), (8, 12)), (8, (1, 1))])
def test_timm_cuts_and_stretches_arrays_as_training_did(size, ratio):
    """Pictures that have the ratio of the data set's arrays."""
    ours = Preparation(size, 1, from_files=False, mean=(0.5,), std=(0.5,), ratio=ratio)
    shape = (1, *ours.decoder.shape[1:])
    config = {"input_size": shape, "interpolation": "bilinear", "crop_pct": 1.0, "mean": (0.5,), "std": (0.5,)}
    theirs = timm.data.create_transform(**config, crop_mode=to_timm.crop_mode(ours), is_training=False)
    pixels = np.random.default_rng(0).integers(0, 256, [12 * side for side in ratio], dtype=np.uint8)
    torch.testing.assert_close(theirs(Image.fromarray(pixels)), ours(pixels), rtol=0, atol=2 / 255 / 0.5)


@pytest.mark.parametrize("several", [False, True])
def test_the_folder_says_whether_its_logits_take_a_softmax_or_a_sigmoid(tmp_path, several):
    loaded = source(untrained_run(tmp_path / "run"))
    loaded.run.config.data.multi_label = several
    labels = "multi_label" if several else "single_label"
    assert to_timm.timm_config(loaded)["problem_type"] == f"{labels}_classification"


def test_float16_halves_the_weights_and_reports_the_cost(tmp_path):
    run = trained_run(tmp_path)
    full, half = (export_run(ExportRequest(run, "safetensors", dtype=dtype)) for dtype in ("float32", "float16"))
    weights = [report.path / "model.safetensors" for report in (full, half)]
    assert weights[1].stat().st_size < 0.75 * weights[0].stat().st_size
    assert half.cost.images == 144
    assert max(half.differences.values()) < 0.02


def test_a_calibrated_folder_has_the_temperature_in_its_head_and_on_its_card(tmp_path):
    run = trained_run(tmp_path)
    heads = []
    for calibrate in (False, True):
        report = export_run(ExportRequest(run, "hf", to=tmp_path / f"hf{calibrate}", calibrate=calibrate))
        heads.append(load_file(report.path / "model.safetensors")["head.weight"])
    config = json.loads((report.path / "config.json").read_text())
    torch.testing.assert_close(heads[1] * float(config["temperature"]), heads[0])
    card = (report.path / "README.md").read_text()
    assert f"| temperature, inside the head | {config['calibration']} |\n| model |" in card


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    run = trained_run(tmp_path_factory.mktemp("hub"))
    export_run(ExportRequest(run, "hf", license="mit"))
    return (run / "exports" / "hf" / "README.md").read_text()


@pytest.mark.parametrize("name", ["digits", "lab.Pictures"])
@pytest.mark.parametrize("shape", [(20, 60), (61, 20)])
def test_the_program_of_the_card_classifies_pictures_of_any_ratio_as_predict_does(
    tmp_path, monkeypatch, capsys, name, shape
):
    """Of arrays that were square, and stretched to 16 x 8; and of those of a data set that were 16 x 8."""
    made = source(untrained_run(tmp_path / "run", image_size=(16, 8)))
    made.run.config.data.name = name
    to_hub.write(made, tmp_path / "hf")
    (program,) = re.findall(r"```python\n(.*?)```", (tmp_path / "hf" / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    pixels = np.linspace(0, 255, shape[0] * shape[1]).reshape(shape).round().astype(np.uint8)
    Image.fromarray(pixels).save("picture.png")
    exec(program.replace("hf-hub:NAME", "local-dir:hf"), {})
    best, probability = capsys.readouterr().out.split()
    expected = made.run.predict("picture.png", accelerator="cpu")
    assert (best, float(probability)) == (expected.name, pytest.approx(expected.probability, abs=0.01))


def test_the_card_has_the_metadata_that_the_hub_reads(card):
    head = yaml.safe_load(card.split("---")[1])
    assert (head["license"], head["library_name"], head["pipeline_tag"]) == ("mit", "timm", "image-classification")
    (result,) = head["model-index"][0]["results"]
    accuracy = AccuracyOnTest.of(load_run(TRAINED))
    assert result["metrics"] == [{"type": "accuracy", "value": round(accuracy.value, 4)}]
    assert result["dataset"]["name"] == "digits"


def test_the_card_tells_the_accuracy_with_its_interval_the_data_and_the_command(card):
    metrics, facts = load_run(TRAINED).metrics, RunRecord.open(TRAINED).facts
    found = re.search(r"\| test accuracy \| (\S+) \(95 % interval (\S+) to (\S+)\), 360 images, one training \|", card)
    value, low, high = map(float, found.groups())
    assert value == pytest.approx(metrics["test/acc"], abs=1e-4)
    assert low < value < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(value * (1 - value) / 360), rel=0.05)
    assert "`digits`: 1,293 training, 144 validation and 360 test images." in card
    assert facts["command"] in card
    assert "| parameters | 1,018 |" in card
    assert "Classes: `0`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8` and `9`." in card
    assert "The epoch was selected on the validation images. The test images selected nothing." in card


def test_without_test_images_the_card_says_that_the_accuracy_was_selected_on(tmp_path):
    run = untrained_run(tmp_path / "run")
    export_run(ExportRequest(run, "hf"))
    text = (run / "exports" / "hf" / "README.md").read_text()
    assert "| accuracy on validation, on which the epoch was selected | 0.5000 |" in text
    assert "The epoch was selected on the validation images. The licence" in text
    assert "license: unknown" in text
    assert "model-index" not in text


def test_a_card_takes_the_accuracy_of_the_best_file_that_is_there(tmp_path):
    run = trained_run(tmp_path)
    with_predictions = model_card(source(run))
    (run / "predictions.npz").unlink()
    assert model_card(source(run)) == with_predictions
    (run / "metrics.json").unlink()
    assert "| accuracy | not recorded |" in model_card(source(run))


LAST = {"callbacks": {"monitor": "last"}}
IN_TRAINING = {"data": {"hold_out": False}}
BOTH = "on which the epoch was selected and the model was trained"
SELECTED = "The epoch was selected on the validation images."
TRAINED_ON = "The model was trained on the validation images, too."


@pytest.mark.parametrize(
    ("changed", "facts", "row", "sentences"),
    [
        (LAST, {}, "validation", "The last epoch was taken."),
        (IN_TRAINING, {}, f"validation, {BOTH}", f"{SELECTED} {TRAINED_ON}"),
        (IN_TRAINING, {"data_fingerprint": {"val": {}}}, "validation, on which the epoch was selected", SELECTED),
        (
            LAST | IN_TRAINING,
            {},
            "validation, on which the model was trained",
            f"The last epoch was taken. {TRAINED_ON}",
        ),
    ],
)
def test_the_card_says_what_the_validation_images_were_used_for(tmp_path, changed, facts, row, sentences):
    record = RunRecord.open(untrained_run(tmp_path / "run"))
    config = record.config
    record.write_config(config | {name: config[name] | values for name, values in changed.items()})
    record.update(**facts)
    text = model_card(source(record.path))
    assert f"| accuracy on {row} | 0.5000 |" in text
    assert f" {sentences} The licence" in text


def test_the_card_says_that_the_test_images_were_measured_after_each_epoch(tmp_path):
    record = RunRecord.open(trained_run(tmp_path))
    record.write_config(record.config | {"callbacks": record.config["callbacks"] | {"test_curve": True}})
    assert "The test images selected nothing; they were measured after each epoch." in model_card(source(record.path))


def test_any_name_of_a_class_is_one_piece_of_code_in_the_card(tmp_path):
    run = untrained_run(tmp_path / "run")
    names = ["<script>alert(1)</script>", "a, b", "two\nlines", "| a |", "`x`", "b``c", "*", "caf\udce9", "9", "10"]
    RunRecord.open(run).update(classes=names)
    text = model_card(source(run))
    shown = "`<script>alert(1)</script>`, `a, b`, `two lines`, `| a |`, `` `x` ``, ``` b``c ```, `*`, `caf\\xe9`"
    assert f"\nClasses: {shown}, `9` and `10`.\n" in text
    text.encode()


def test_names_of_a_run_and_of_its_data_are_code_in_the_card(tmp_path):
    injected = "[free](x.org)"
    loaded = source(untrained_run(tmp_path / f"run {injected}\n# x"))
    loaded.run.config.data.name = f"digits`\n\n{injected}"
    text = model_card(loaded)
    assert f"\n# `run {injected} # x`\n" in text
    assert f"\n`` digits` {injected} ``: 9 training" in text


@pytest.fixture
def of_two_targets(tmp_path):
    """A run that answers two questions, and its model."""
    given = ["model=vit_nano", "depth=1", "data.targets=[digit,above5]"]
    config = compose(given)
    record = RunRecord.at(tmp_path / "run")
    record.update(status="finished", classes=list("0123456789"), targets={"above5": ["no", "yes"]})
    record.write_config(to_plain(config))
    record.write_metrics({"val/acc": 0.5, "val/acc/above5": 0.75})
    model = build_model(config.model)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": weights, "config": to_plain(config)}, record.best)
    return record, model


def test_the_card_of_a_second_target_has_its_accuracy_and_its_model(of_two_targets):
    record, model = of_two_targets
    text = model_card(ExportSource.load(ExportRequest(record.path, "safetensors", target="above5")))
    assert "| accuracy on validation, on which the epoch was selected | 0.7500 |" in text
    count = sum(values.numel() for values in model.with_outputs(slice(10, 12)).parameters())
    assert f"| parameters | {count:,} |" in text
    assert "sorts pictures into 2 classes of the target `above5`, trained" in text


def test_exports_and_pages_of_each_target_are_files_that_name_it(of_two_targets):
    record, _ = of_two_targets
    for target, name in {"": "digit", "above5": "above5"}.items():
        report = export_run(ExportRequest(record.path, "safetensors", target=target))
        assert json.loads((report.path / "config.json").read_text())["target"] == name
        assert source(record.path, target=target, overwrite=True).facts["target"] == name
        assert f"<h1>digits, {name}, ViT" in write_page(record.path, target=target).path.read_text()
    assert {path.name for path in (record.path / "exports").iterdir()} == {"timm", "timm_above5"}
    assert {path.name for path in record.path.glob("*.html")} == {"page.html", "page_above5.html"}
    assert ExportRequest(record.path, "onnx", target="../a b", dtype="int8").path.name == "model__a_b_int8.onnx"


@pytest.fixture
def hub():
    """A local server with the part of the hub's interface that an upload needs; every file is stored as it comes."""

    class Hub(BaseHTTPRequestHandler):
        files: dict[str, bytes] = {}  # noqa: RUF012
        seen: list[str] = []  # noqa: RUF012

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            self.seen.append(f"{self.path} {self.headers['Authorization']}")
            if self.headers["Authorization"] != "Bearer hf_mine":
                self.answer(401, {"error": "Invalid credentials"})
            elif self.path == "/api/repos/create":
                asked = json.loads(body)
                assert asked.get("visibility") == "private" or asked.get("private")
                self.answer(200, {"url": f"{address}/{asked.get('organization', 'me')}/{asked['name']}"})
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
                self.answer(200, {"files": files})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                self.answer(200, {"commitUrl": f"{address}/me/digits/commit/1", "commitOid": "1"})
            else:
                self.answer(200, {"errors": [], "warnings": []})

        def do_GET(self):
            self.answer(200, {"id": "me/digits", "sha": "1", "siblings": []})

        def answer(self, code, content):
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield address, Hub
    server.shutdown()


def push(run, address, token, tmp_path):
    return run_script(
        "scripts/export.py",
        *(str(run), "--format", "hf", "--hub", "me/digits", "--overwrite"),
        cwd=tmp_path,
        env={"HF_ENDPOINT": address, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "hf"), "HF_XET_DISABLE": "1"},
    )


@pytest.mark.whole
def test_an_export_is_pushed_with_the_users_own_token_only(tmp_path, hub):
    run = trained_run(tmp_path)
    address, server = hub
    without_token = push(run, address, "", tmp_path)
    folder = run / "exports" / "hf"
    assert without_token.returncode == 2
    assert without_token.stderr == "vitrine: --hub: not logged in; run `hf auth login`, or set HF_TOKEN\n"
    assert server.seen == []
    assert not folder.exists()

    done = push(run, address, "hf_mine", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"pushed     {address}/me/digits\n")
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert server.files == written
    assert set(written) == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.whole
def test_a_refused_token_is_one_line_and_the_folder_stays(tmp_path, hub, monkeypatch):
    run = trained_run(tmp_path)
    done = push(run, hub[0], "hf_other", tmp_path)
    assert done.returncode == 1
    problem = "is written, but was not pushed to me/digits; the same command with --overwrite tries again"
    assert re.fullmatch(rf"vitrine: .*/exports/hf {problem}: .*401.*\n", done.stderr)
    assert (run / "exports" / "hf" / "model.safetensors").is_file()
