"""A folder of pictures, 24 pixels wide and 16 high: trained, tested at another size, predicted, exported."""

import numpy as np
import pytest
from helpers.running import write_image_folder
from PIL import Image

import vitrine
from vitrine import fit, load_run
from vitrine.cli.export import main as export
from vitrine.cli.predict import main as predict
from vitrine.config import EvalConfig
from vitrine.training.evaluate import evaluate_run

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("drawn")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run, and of its pictures."""
    folder = tmp_path_factory.mktemp("wide")
    write_image_folder(folder / "pictures", "train", "test", size=(44, 30))
    overrides = ["model=vit_nano", "depth=1", "data=imagefolder", f"data.root={folder / 'pictures'}"]
    overrides += ["data.image_size=[16,24]", "model.patch_size=[4,8]", "position=learned2d", "augment=strong"]
    overrides += ["data.batch_size=8", "debug.limit_batches=2", "trainer.max_epochs=1", "trainer.compile=nothing"]
    config = vitrine.compose([*overrides, f"paths.output_dir={folder}", f"paths.cache_dir={folder / 'cache'}"])
    return fit(config).run_dir, folder / "pictures"


def test_it_is_trained_and_named_by_its_sizes(finished):
    run = load_run(finished[0])
    assert run.config.data.image_size == run.config.model.image_size == [16, 24]
    assert run.model.config.grid == (4, 3)
    assert "-p4x8-" in finished[0].name
    assert Image.open(finished[0] / "attention.png").size[0] > 0


def test_it_is_tested_at_another_size(finished):
    found = evaluate_run(EvalConfig(run=str(finished[0]), image_size=[32, 24], patch_size=[8, 4], accelerator="cpu"))
    assert np.isfinite(found["test/loss"])


def test_pictures_are_predicted_and_their_attention_drawn(finished, tmp_path):
    run, pictures = finished
    predict([f"run={run}", f"input={pictures / 'test' / 'a'}", f"attention={tmp_path}", f"output={tmp_path / 'p.csv'}"])
    width, height = Image.open(next(tmp_path.rglob("*.png"))).size
    assert (width, height) == (2 * (336 + 8) + 14 + 44, 224)
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 21


def test_an_export_gives_the_probabilities_of_pytorch(finished, tmp_path, capsys):
    export([str(finished[0]), "--format", "onnx", "--to", str(tmp_path / "wide.onnx")])
    checked = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("checked"))
    assert float(checked.partition("at most ")[2].split()[0]) < 1e-5
