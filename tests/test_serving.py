"""The servers of examples/, started as a user starts them and asked by a real HTTP client."""

import base64
import io
import json
import runpy
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
import yaml
from helpers.pictures import bitmap_of_16_bits, colours_of_16_bits, write_test_images
from helpers.running import ROOT, descendants, wait_until_gone
from PIL import Image

from vitrine import load_run
from vitrine.cli.main import main
from vitrine.data.decode import FORMATS
from vitrine.inference.export.formats import ExportRequest
from vitrine.inference.export.source import ExportSource
from vitrine.inference.predictor import Prediction

pytestmark = pytest.mark.whole

RUN = next(ROOT.glob("tests/old_runs/runs/*single*"))


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    """A test image of digits."""
    return write_test_images(load_run(RUN), tmp_path_factory.mktemp("pictures"), most=1)[0]


@pytest.fixture(scope="module")
def huge():
    """The bytes of a picture of 13,000 x 13,000 pixels, which Pillow itself would decode."""
    file = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(file, "png")
    return file.getvalue()


def of_rare_format(picture):
    """The bytes of a picture in a format that Pillow reads and vitrine does not."""
    file = io.BytesIO()
    Image.open(picture).save(file, "PCX")
    return file.getvalue()


def of_floats():
    """The bytes of a picture whose pixels have no known range, in a format that vitrine decodes (PFM)."""
    return b"Pf\n8 8\n-1.0\n" + bytes(4 * 8 * 8)


@pytest.fixture
def serve(tmp_path):
    """Start an example on a free port; return the port once it accepts connections."""
    processes = []

    def start(name: str, model: str) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), model, str(port)]
        with (tmp_path / "log").open("w") as log:
            processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
        deadline = time.monotonic() + 200
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=10)
                return port
            except HTTPError as answer:
                if answer.code != 503:  # LitServe's while it loads the model
                    return port
            except URLError:
                pass
            assert processes[-1].poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)

    yield start
    for process in processes:
        workers = descendants(process.pid)
        process.terminate()
        process.wait(timeout=60)
        wait_until_gone(workers)


def ask(address: str, body: bytes) -> tuple[int | None, dict[str, object]]:
    """The status of an answer and its content; ``None`` if the server closed the connection before it was all sent."""
    request = Request(address, body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)
    except URLError as error:
        if isinstance(error.reason, (BrokenPipeError, ConnectionResetError)):
            return None, {}
        raise


def as_json(content: bytes) -> bytes:
    return json.dumps({"picture": base64.b64encode(content).decode()}).encode()


def test_litserve_serves_a_run(serve, picture, huge):
    pytest.importorskip("litserve")
    address = f"http://127.0.0.1:{serve('serve', str(RUN))}/predict"
    expected = load_run(RUN).predict(picture)
    code, answer = ask(address, as_json(picture.read_bytes()))
    assert (code, answer["class"]) == (200, expected.name)
    assert answer["probability"] == pytest.approx(expected.probability, abs=1e-6)
    for bad in (as_json(b"no picture"), as_json(b""), as_json(huge), b"{}", b'{"picture": 3}', b"[]"):
        assert ask(address, bad)[0] == 400
    assert ask(address, as_json(bytes(20_000_000)))[0] in (413, None)
    assert ask(address, as_json(picture.read_bytes())) == (200, answer), "it still answers"


def test_litserve_answers_with_all_labels_of_a_model_of_several():
    pytest.importorskip("litserve")
    api = runpy.run_path(str(ROOT / "examples" / "serve.py"))["Classifier"]()
    prediction = Prediction(["cat", "dog", "owl"], torch.tensor([0.75, 0.25, 0.5]))
    config = SimpleNamespace(data=SimpleNamespace(multi_label=True))
    api.run = SimpleNamespace(config=config, predict=lambda _: prediction)
    assert api.predict({"picture": ""}) == {"labels": {"cat": 0.75, "owl": 0.5}}


@pytest.fixture
def noise(tmp_path):
    """Pictures that are not the model's size, of 8 and of 16 bits."""
    pixels = np.random.default_rng(0).integers(0, 2**16, (20, 24)).astype(np.uint16)
    pictures = {"8.png": (pixels >> 8).astype(np.uint8), "16.png": pixels // 16, "odd.png": pixels[:, :22]}
    for name, values in pictures.items():
        Image.fromarray(values).save(tmp_path / name)
    return [tmp_path / name for name in pictures]


def test_onnxruntime_serves_an_export_without_vitrine(serve, picture, noise, huge, tmp_path):
    pytest.importorskip("onnxruntime")
    run = shutil.copytree(RUN, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] |= {"name": "imagefolder", "resize": "crop"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    main(["export", str(run), "--format", "onnx", "--to", str(tmp_path / "model.onnx")])
    port = serve("serve_onnx", str(tmp_path / "model.onnx"))
    address = f"http://127.0.0.1:{port}"
    for path in [*noise, picture]:
        expected = load_run(run).predict(path)
        code, answer = ask(address, path.read_bytes())
        assert (code, answer["class"]) == (200, expected.name)
        assert answer["probability"] == pytest.approx(expected.probability, abs=1e-4)
    for bad in (b"no picture", b"", huge, of_rare_format(picture), of_floats()):
        assert ask(address, bad)[0] == 400
    assert "exceeds limit of 25000000 pixels" in ask(address, huge)[1]["error"]
    assert ask(address, b"no picture") == (400, {"error": "cannot identify image file"})
    assert ask(address, bytes(20_000_001))[0] in (400, None)
    with socket.create_connection(("127.0.0.1", port)) as client:  # and leave it open, as if there was more to come
        client.settimeout(20)
        client.sendall(b"POST / HTTP/1.0\r\nContent-Length: -1\r\n\r\n")
        assert b" 400 " in client.recv(100)
    assert ask(address, picture.read_bytes()) == (200, answer), "it still answers"


@pytest.mark.quick
@pytest.mark.parametrize(
    "settings",
    [
        {"name": "imagefolder", "resize": "crop"},
        {"name": "imagefolder", "crop_pct": 0.9},
        {"name": "imagefolder", "resize": "pad"},
        {"name": "imagefolder", "resize": "squash", "levels": [0, 4095]},
        {"name": "digits", "image_size": (16, 8)},
        {"name": "mylab.Pictures", "image_size": (16, 8), "multi_label": True},
    ],
    ids=lambda settings: settings.get("resize", settings["name"]),
)
@pytest.mark.parametrize("shape", [(20, 60), (31, 9), (8, 8)])
def test_the_onnx_program_prepares_pictures_as_training_did(settings, shape, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    source = ExportSource(ExportRequest(RUN, "torch_export"), load_run(RUN))
    for name, value in settings.items():
        setattr(source.run.config.data, name, value)
    session = SimpleNamespace(
        get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=source.facts),
        get_inputs=lambda: [SimpleNamespace(shape=("batch", *source.picture_shape))],
    )
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda _: session)
    monkeypatch.setattr(sys, "argv", ["serve_onnx.py", "model.onnx"])
    program = {}
    exec((ROOT / "examples" / "serve_onnx.py").read_text().partition("class _Handler")[0], program)
    path = tmp_path / "picture.png"
    kind = np.uint16 if "levels" in settings else np.uint8
    Image.fromarray(np.random.default_rng(0).integers(0, 5000 if kind is np.uint16 else 256, shape, dtype=kind)).save(
        path
    )
    expected = source.run.transform.pixels(path).numpy().astype(int)
    exact = settings["name"] == "imagefolder"
    assert np.abs(program["prepared"](path.read_bytes()) - expected).max() <= (0 if exact else 1)
    if "levels" in settings:
        with pytest.raises(ValueError, match="its colours are of 16 bits, of which Pillow reads 8"):
            program["prepared"](colours_of_16_bits())
        program["prepared"](bitmap_of_16_bits())
    program["CHANNELS"], unmarked = 4, io.BytesIO()
    Image.new("RGBX", (8, 8)).save(unmarked, "TIFF")
    with pytest.raises(ValueError, match="its fourth band is not marked as transparency"):
        program["prepared"](unmarked.getvalue())
    found = program["answer"](np.array([0.25, 0.75, 0.5, *[0.0] * 7]))
    several = "multi_label" in settings
    assert found == ({"labels": {"1": 0.75, "2": 0.5}} if several else {"class": "1", "probability": 0.75})


@pytest.mark.quick
def test_the_onnx_program_decodes_the_formats_that_vitrine_decodes():
    assert f"FORMATS = {FORMATS}".replace("'", '"') in (ROOT / "examples" / "serve_onnx.py").read_text()


@pytest.mark.quick
def test_the_onnx_program_imports_neither_vitrine_nor_torch():
    text = (ROOT / "examples" / "serve_onnx.py").read_text()
    assert "import vitrine" not in text
    assert "from vitrine" not in text
    assert "import torch" not in text
