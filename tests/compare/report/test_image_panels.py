"""Real runs of real models: where they look and how alike their positions are, in the page as the browser shows it."""

import base64
import io
import re
import shutil
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.running import write_image_folder
from PIL import Image

from vitrine import compose, fit, load_run
from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.report.image_panels import (
    NOT_OF_IMAGES,
    attention_maps,
    class_names,
    data_url,
    hard_images,
    image_url,
    position_gallery,
    tiles,
)
from vitrine.compare.report.image_panels import test_split as split_of
from vitrine.compare.report.page import sections, write_report
from vitrine.compare.report.style import RowStyles
from vitrine.config.model import MAX_CLASSES
from vitrine.config.schema import DataConfig
from vitrine.config.serialize import to_plain
from vitrine.data.preparation import Preparation
from vitrine.errors import DataError, RunError
from vitrine.models import attended_patches
from vitrine.runs import RunRecord


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two runs, of a scheme with a table of positions and of one without."""
    folder = tmp_path_factory.mktemp("real")
    overrides = ["model=vit_nano", "depth=1", "trainer.max_epochs=1", "data.batch_size=256", "accelerator=cpu"]
    for scheme in ("sincos2d", "rope"):
        fit(compose([*overrides, f"position={scheme}", f"paths.output_dir={folder}"]))
    return folder / "runs"


def pixels(source: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


@pytest.mark.whole
def test_the_page_of_real_runs_shows_images_attention_and_positions(real, browser, tmp_path):
    found = compare(load_results([real]))
    assert found.table.columns == ["model.position"]
    write_report(found, tmp_path / "report.html", ["sweep"])
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    loaded = "e => e.complete && e.naturalWidth > 0"
    assert page.locator("#hard img").count() == 24
    assert page.locator("#attention img").count() == 3 * 6, "the images, and one model of each row"
    assert page.locator("#positions img").count() == 1
    assert "Not shown: rope: has no position embeddings." in page.locator("#positions").inner_text()
    for part in ("hard", "attention", "positions"):
        page.locator(f"#{part} img").last.scroll_into_view_if_needed()
        assert all(page.locator(f"#{part} img").evaluate_all(f"all => all.map({loaded})"))
    context.close()


@pytest.mark.whole
def test_hard_images_are_those_of_the_data(real):
    found = compare(load_results([real]))
    shown = hard_images(found, found.predictions).rows[0][1]
    wrong = np.sum([~one.correct for one in found.predictions.values()], axis=0)
    counts = [int(re.search(r"wrong in (\d) of 2 runs", image.caption)[1]) for image in shown]
    assert counts == sorted(wrong, reverse=True)[: len(shown)]
    assert pixels(shown[0].source).shape == (8, 8, 3)


def test_attention_is_the_models_rollout(real):
    found = compare(load_results([real]))
    gallery = attention_maps(found, found.predictions)
    assert next(title for title, _ in gallery.rows) == "the image"
    row = next(one for one in found.table.rows if one.label == "rope")
    run = next(iter(row.runs.values()))
    shown = pixels(dict(gallery.rows)["rope"][0].source)
    grey = pixels(dict(gallery.rows)["the image"][0].source)[..., 0]
    loaded = load_run(run.folder)
    mean, std = loaded.config.data.mean[0], loaded.config.data.std[0]
    maps = attended_patches(loaded.model, (torch.tensor(grey)[None, None].float() / 255 - mean) / std)[0]
    assert shown.shape == (4, 4, 3)
    lightness = shown.astype(float) @ [0.2126, 0.7152, 0.0722]
    assert lightness.argmax() == maps.argmax()
    assert np.corrcoef(lightness.ravel(), maps.numpy().ravel())[0, 1] > 0.9


def test_position_embeddings_are_most_similar_to_themselves(real):
    found = compare(load_results([real]))
    (_, (shown,)) = position_gallery(found).rows[0]
    picture = pixels(shown.source)
    assert picture.shape == (4 * 5 - 1, 4 * 5 - 1, 4)
    places = picture[..., 1].astype(int)  # green grows along viridis
    for row in range(4):
        for column in range(4):
            tile = places[5 * row : 5 * row + 4, 5 * column : 5 * column + 4]
            assert tile.argmax() == 4 * row + column
    assert shown.caption.startswith("sincos2d: from ")


@pytest.mark.parametrize("count", [10**12, "many", None])
def test_classes_without_names_are_called_by_as_many_numbers_as_there_can_be(count):
    run = SimpleNamespace(facts={}, config={"data.num_classes": count})
    assert len(class_names(run)) == (MAX_CLASSES if count == 10**12 else 0)
    run.facts["classes"] = ["cat", "dog"]
    assert class_names(run) == ["cat", "dog"]


def test_tiles_have_gaps_and_use_the_full_colour_scale():
    picture = tiles(np.array([[1.0, 0.2], [0.2, 1.0]]).repeat(2, 0).repeat(2, 1), (2, 2))
    assert picture.shape == (5, 5, 4)
    assert (picture[2] == 0).all()
    assert (picture[:, 2] == 0).all()
    assert data_url(picture).startswith("data:image/webp;base64,")


@pytest.mark.parametrize(
    ("shape", "shown"), [((1, 8, 4), [0] * 3), ((2, 8, 4), [0] * 3), ((3, 8, 4), [0, 1, 2]), ((4, 4, 3), [0, 1, 2])]
)
def test_an_image_has_its_sides_and_its_colours_or_its_first_channel(shape, shown):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(pixels(image_url(image)), image[shown].transpose(1, 2, 0))


def test_a_missing_checkpoint_or_data_set_is_reported(real, tmp_path):
    copy = shutil.copytree(real, tmp_path / "copy")
    for folder in copy.glob("*/checkpoints"):
        shutil.rmtree(folder)
    found = compare(load_results([copy]))
    assert "its checkpoint is missing" in attention_maps(found, found.predictions).caption
    assert "its checkpoint is missing" in position_gallery(found).caption
    moved = shutil.copytree(real, tmp_path / "moved")
    for config in moved.glob("*/config.yaml"):
        config.write_text(config.read_text().replace("name: digits", "name: mnist").replace("root: data", "root: gone"))
    found = compare(load_results([moved]))
    caption = hard_images(found, found.predictions).caption
    assert (
        "The pixels are not available: gone/MNIST/raw/train-images-idx3-ubyte, which the run used, is not there"
        in caption
    )


def test_data_is_loaded_once_for_all_models_from_shards_too(real, tmp_path, monkeypatch):
    from vitrine.data import datasets as sources
    from vitrine.data.shards import shards_folder, write_shards

    digits = sources.digits(None)
    splits = {
        name: (getattr(digits, name).images.numpy(), getattr(digits, name).labels.numpy()) for name in ("train", "test")
    }
    write_shards(shards_folder(tmp_path / "data", "mnist"), "mnist", digits.classes, splits, 10**7)
    copy = shutil.copytree(real, tmp_path / "copy")
    for config in copy.glob("*/config.yaml"):
        root = f"root: {tmp_path / 'data'}"
        config.write_text(config.read_text().replace("name: digits", "name: mnist").replace("root: data", root))
    loaded = []
    load = sources.load_dataset
    monkeypatch.setattr(
        sources, "load_dataset", lambda *given, **settings: loaded.append(given) or load(*given, **settings)
    )
    found = compare(load_results([copy]))
    assert "not available" not in hard_images(found, found.predictions).caption
    assert len(attention_maps(found, found.predictions).rows) == 3
    assert len(loaded) == 1


def test_every_model_sees_the_images_as_its_own_run_prepared_them(compose, tmp_path):
    write_image_folder(tmp_path / "own", "train", "test", size=(31, 20))
    images = {}
    for given in ("crop", "squash", "pad", "pad data.mean=[0.9]"):
        config = compose("data=imagefolder", f"data.root={tmp_path / 'own'}", *f"data.resize={given}".split())
        record = RunRecord.at(tmp_path / given)
        record.update(status="finished")
        record.write_config(to_plain(config))
        ((found, _),) = split_of(SimpleNamespace(folder=record.path, trust=())).batches([torch.tensor([0])])
        decoder = Preparation.of(config.data).decoder
        assert np.array_equal(found[0], decoder.pixels(decoder.open(tmp_path / "own" / "test" / "a" / "0.png")))
        images[given] = found
    assert len({image.numpy().tobytes() for image in images.values()}) == 4
    assert {field.name for field in fields(DataConfig)} >= NOT_OF_IMAGES


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_an_incomplete_data_set_is_not_downloaded(tmp_path, name):
    from vitrine.data.datasets import load_dataset, missing_file

    config = compose([f"data={name}", f"data.root={tmp_path}"]).data
    files = []
    while (file := missing_file(config)) is not None:
        assert file not in files
        files.append(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    assert len(files) >= 3
    with pytest.raises(DataError, match="is damaged"):
        load_dataset(config, tmp_path)


def test_position_embeddings_need_no_predictions(real, tmp_path):
    copy = shutil.copytree(real, tmp_path / "copy")
    for predictions in copy.glob("*/predictions.npz"):
        predictions.unlink()
    found = compare(load_results([copy]))
    parts = {part.key: part for part in sections(found, RowStyles(found))}
    assert "hard" not in parts
    assert len(parts["positions"].gallery.rows) == 1


def test_models_whose_code_was_edited_are_shown_if_that_is_allowed(real, tmp_path, monkeypatch):
    def refuse(record, model):
        raise RunError("was edited")

    copy = shutil.copytree(real, tmp_path / "copy")
    monkeypatch.setattr("vitrine.training.weights.refuse_edited_model", refuse)
    refused, shown = (
        position_gallery(compare(load_results([copy], allow_changed_code=allowed))) for allowed in (False, True)
    )
    assert (refused.rows, "was edited" in refused.caption) == ([], True)
    assert len(shown.rows) == 1


@pytest.mark.whole
def test_a_page_of_a_hundred_classes_with_all_images_stays_small(tmp_path):
    from vitrine.data.shards import shards_folder, write_shards

    generator = np.random.default_rng(0)
    noise = lambda count: generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)  # noqa: E731 - compresses worst
    labels = np.arange(1000) % 100
    names = [f"a class called {number}" for number in range(100)]
    splits = {"train": (noise(1000), labels), "test": (noise(1000), labels)}
    write_shards(shards_folder(tmp_path, "cifar100"), "cifar100", names, splits, 10**8)
    overrides = [
        "data=cifar100",
        f"data.root={tmp_path}",
        "model=vit_nano",
        "patch=2",
        "depth=1",
        "position=learned",
        "model.drop_path=0.0",
    ]
    overrides += ["debug.limit_batches=1", "trainer.max_epochs=1", "accelerator=cpu", f"paths.output_dir={tmp_path}"]
    run = fit(compose(overrides)).run_dir
    for number in range(9):
        copy = shutil.copytree(run, tmp_path / "copies" / str(number))
        config = copy / "config.yaml"
        config.write_text(config.read_text().replace("drop_path: 0.0", f"drop_path: 0.{number}"))
        np.savez(copy / "predictions.npz", labels=labels, logits=generator.normal(size=(1000, 100)))
    found = compare(load_results([tmp_path / "copies"]))
    assert len(found.table.rows) == 9
    page = tmp_path / "report.html"
    write_report(found, page, ["runs"])
    text = page.read_text()
    assert [text.count(f'<ul class="images {part}">') for part in ("hard", "attention", "positions")] == [1, 7, 1]
    assert text.count("<img src=") == 24 + 6 * 7 + 6
    assert '"counts"' in text
    assert page.stat().st_size < 6_000_000
