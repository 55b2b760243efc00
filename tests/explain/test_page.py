"""The page of a run in a real browser, and what it says of models of every kind."""

import json
import re
import shlex
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.levels import sampled
from helpers.running import ROOT, write_image_folder
from PIL import Image

from vitrine import load_run
from vitrine.cli import page
from vitrine.cli.report import main
from vitrine.compare.load import load_results
from vitrine.data.datasets import load_dataset
from vitrine.errors import RunError
from vitrine.explain import explorer, learned_sections, observed
from vitrine.explain.explorer import BUDGET, details
from vitrine.explain.observed import observe
from vitrine.explain.page import run_sections, write_run_page
from vitrine.explain.results import curve_section, prediction_sections, wrong_section
from vitrine.explain.run_images import RunImages
from vitrine.inference.run_data import validation_images
from vitrine.models import attended_patches

SECTIONS = ["curves", "confusion", "classes", "calibration", "wrong", "patches", "filters", "positions"]
SECTIONS += ["attention", "rollout", "distance", "likeness"]

# Pairs of texts of a figure that overlap by more than a pixel either way, and texts outside the window.
COLLISIONS = """() => {
  const found = [];
  for (const drawing of document.querySelectorAll("svg")) {
    const texts = [...drawing.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => {
      const { left, right, top, bottom } = text.getBoundingClientRect();
      return { left, right, top, bottom, name: text.textContent, turned: /rotate\\(-?45/.test(text.outerHTML) };
    });
    for (const [index, one] of boxes.entries()) {
      if (one.left < -0.5 || one.right > document.documentElement.clientWidth + 0.5) found.push(`${one.name} is cut`);
      for (const other of boxes.slice(index + 1)) {
        if (one.turned || other.turned) continue;
        const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (wide > 1 && high > 3) found.push(`${one.name} over ${other.name}`);
      }
    }
  }
  return found;
}"""


@pytest.fixture(autouse=True, scope="module")
def fewer_images():
    """Averages over eight images suffice here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed, "MAX_MEASURED", 8)
        yield


@pytest.fixture(scope="module")
def written(record):
    return write_run_page(record.path).path


@pytest.fixture(scope="module")
def opened(written, browser):
    """The page, opened once, with the errors and requests that it has made beside its own."""
    page, troubles = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: troubles.append(request.url) if request.url.startswith(("http", "ws")) else None)
    page.goto(written.as_uri())
    yield page
    assert troubles == []
    page.close()


def test_the_page_has_every_section_and_is_small(opened, written):
    links = opened.locator("nav a").evaluate_all("all => all.map(link => link.getAttribute('href').slice(1))")
    assert links == SECTIONS
    assert all(opened.locator(f"#{name}").count() == 1 for name in links)
    assert written.stat().st_size < 1_500_000
    assert "test accuracy" in opened.locator(".facts").inner_text()


def test_every_figure_has_an_alternative_text_and_ids_are_unique(opened):
    drawings = opened.locator(".drawn svg")
    assert drawings.count() >= 14
    assert all(
        len(text) > 20 for text in drawings.evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    )
    ids = opened.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    broken = """() => [...document.querySelectorAll("use")].filter((use) =>
        !document.getElementById((use.getAttribute("href") ?? use.getAttribute("xlink:href")).slice(1))).length"""
    assert opened.evaluate(broken) == 0


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_lies_over_another_or_outside(opened, width, scheme):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate(COLLISIONS) == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    ink = opened.locator("#curves svg text").first.evaluate("text => getComputedStyle(text).fill")
    assert ink == {"light": "rgb(28, 33, 39)", "dark": "rgb(231, 234, 238)"}[scheme]
    opened.set_viewport_size({"width": 1280, "height": 900})


def test_the_maps_are_the_models_attention(opened, record):
    """For the patch chosen by keyboard, in a block and for a head, the canvas is bright where the model attends."""
    run = load_run(record.path)
    opened.locator("#block").fill("1")
    opened.locator("#picture").focus()
    opened.keyboard.press("Escape")
    opened.keyboard.press("ArrowRight")  # the middle
    opened.keyboard.press("ArrowUp")
    assert "the patch in row 2, column 3" in opened.locator("#seen").inner_text()
    index = 1 * 4 + 2
    pixels = opened.evaluate("""() => {
      const canvas = document.createElement("canvas"), image = images[chosen].element;
      canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
      canvas.getContext("2d").drawImage(image, 0, 0);
      return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
    }""")
    image = torch.tensor(pixels, dtype=torch.uint8).view(8, 8, 4)[..., 0][None]
    expected = run.model.attention_maps(run.transform.normalised(image)[None])[0, 0, :, 1 + index, 1:]
    shown = opened.evaluate("headMaps().map(map => map.values)")
    assert len(shown) == len(expected) + 1
    assert np.array(shown[:-1]) == pytest.approx(expected.detach().numpy(), abs=0.008)
    assert np.array(shown[-1]) == pytest.approx(expected.mean(dim=0).detach().numpy(), abs=0.008)
    brightest = opened.locator("#heads canvas").first.get_attribute("aria-label")
    most = int(expected[0].argmax())
    assert f"most at row {most // 4 + 1}, column {most % 4 + 1}" in brightest
    similar = opened.evaluate("throughMaps()[1].values")
    assert similar[index] == 1
    most = int(np.delete(similar, index).argmax())
    row, column = divmod(most + (most >= index), 4)
    label = opened.locator("#through canvas").last.get_attribute("aria-label")
    assert label.startswith("similarity")
    assert label.endswith(f"most at row {row + 1}, column {column + 1}")
    frame = opened.locator("#through canvas").last.evaluate("""(canvas) =>
      Array.from(canvas.getContext("2d").getImageData(2 * ACROSS, CELL, ACROSS, CELL).data)""")
    brightness = np.reshape(frame, (-1, 4))[:, :3].mean(axis=1)
    assert brightness.min() < 60, "black beside the white, which alone would not be seen on yellow"
    scale = opened.evaluate("""() => {
      const real = headMaps;
      headMaps = () => real().map((map) => ({...map, values: map.values.map((_, index) => Number(index === 0))}));
      show();
      headMaps = real;
      const text = document.getElementById("most").textContent;
      show();
      return text;
    }""")
    assert scale == "100 % of the attention"


def test_the_chosen_image_is_seen_in_forced_colours(opened):
    opened.emulate_media(forced_colors="active")
    borders = opened.locator(".choices img").evaluate_all("all => all.map(one => getComputedStyle(one).borderColor)")
    assert borders.count(borders[0]) == 1
    assert opened.locator("#bar").evaluate("bar => getComputedStyle(bar).backgroundImage").startswith("linear-gradient")
    opened.emulate_media(forced_colors="none")


def test_without_javascript_there_are_no_empty_maps(written, browser):
    page = browser.new_page(java_script_enabled=False)
    page.goto(written.as_uri())
    assert page.locator("noscript p").is_visible()
    assert page.locator("#curves svg").first.is_visible()
    assert page.locator(".explorer:visible, #theme:visible").count() == 0
    page.close()


def test_a_patch_is_chosen_by_a_click_and_everything_by_the_keyboard(opened):
    box = opened.locator("#picture").bounding_box()
    opened.locator("#picture").click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.1})
    assert "the patch in row 1, column 4" in opened.locator("#seen").inner_text()
    assert opened.locator("#through canvas").count() == 2
    opened.locator("#picture").press("Escape")
    assert "Attention of the class token" in opened.locator("#seen").inner_text()
    assert re.search(r"rollout, .*0 % \(dark\) to [\d.]+ % \(light\)", opened.locator("#through").inner_text())
    opened.locator("#explorer input[type=radio]").first.focus()
    before = opened.locator("#seen").inner_text()
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.id") == "picture"
    opened.keyboard.press("Tab")
    opened.keyboard.press("ArrowLeft")
    assert opened.locator("#block").get_attribute("aria-valuetext") == "block 1 of 2"
    assert opened.locator("#seen").inner_text() != before


@pytest.mark.whole
def test_the_first_query_is_what_the_head_reads(write_run, tmp_path):
    for pool in ("cls", "mean", "map"):
        run = load_run(write_run(tmp_path, f"pool={pool}", "model.registers=2").path)
        image = torch.randn(1, 8, 8)
        found = observe(run.model, image)
        assert found.rollout[0].view(4, 4) == pytest.approx(attended_patches(run.model, image[None])[0], abs=1e-6)
        maps = run.model.attention_maps(image[None])[0]
        expected = maps[:, :, 0, 3:] if pool == "cls" else maps[:, :, 2:, 2:].mean(dim=2)
        assert found.attention[:, :, 0] == pytest.approx(expected.detach(), abs=1e-6)
        assert (found.pool is None) == (pool != "map")


KINDS = [
    "position=rope_mixed pool=map",
    "position=relative patch_embed=shifted model.registers=3",
    "position=alibi2d patch_embed=conv_stem pool=cls",
    "position=rope patch_embed=linear",
    "position=none attention=local",
    "position=conv model.patch_stride=1",
    "position=sincos1d norm_placement=post",
    "position=learned2d",
    "position=learned2d data.image_size=[8,16] model.patch_size=[2,8] model.patch_stride=[2,4]",
]


@pytest.mark.parametrize("kind", sampled(KINDS, every=len(KINDS)))
@pytest.mark.whole
def test_every_kind_of_model_has_a_page(write_run, tmp_path, kind):
    parts = {part.key: part for part in run_sections(write_run(tmp_path, *kind.split()))}
    assert list(parts) == SECTIONS
    added, without = ("position=sincos", "position=learned"), ("position=none", "position=conv")
    figures = ["position_table", "positions"] if kind.startswith(added) else ["positions"]
    assert [one.key for one in parts["positions"].figures] == ([] if kind.startswith(without) else figures)
    assert bool(parts["filters"].figures) == ("conv_stem" not in kind)
    assert parts["attention"].explorer is not None
    assert all(part.figures or part.text for part in parts.values())


@pytest.mark.parametrize(
    ("depth", "heads", "patches", "detail", "images"),
    [(6, 3, 16, "heads", 8), (12, 12, 64, "heads", 3), (12, 12, 196, "mean", 2), (12, 12, 1024, "image", 8)],
)
def test_large_models_have_less_detail(depth, heads, patches, detail, images):
    assert details(depth, heads, patches) == (detail, images)


@pytest.mark.whole
def test_the_bytes_of_the_maps_stay_within_the_budget(write_run, tmp_path, monkeypatch):
    monkeypatch.setattr(explorer, "BUDGET", 4000)
    record = write_run(tmp_path, "pool=cls")
    (part,) = (part for part in run_sections(record) if part.explorer)
    assert part.explorer["detail"] == "mean"
    size = sum(
        len(text)
        for image in part.explorer["images"]
        for name, text in image.items()
        if name not in ("source", "caption")
    )
    assert size < 4000 * 4 / 3 + 100
    assert BUDGET > 4000


@pytest.mark.whole
def test_a_hundred_classes_with_long_names_and_markup_stay_readable(write_run, tmp_path, browser):
    evil = "</script><script>document.title='changed'</script><img src=x onerror=alert(1)> $x^{$ \x1b[31m 猫"
    generator = np.random.default_rng(0)
    names = [f"{index} {evil}" for index in range(100)]
    labels = np.arange(2000) % 100
    logits = generator.normal(size=(2000, 100)) + 3 * np.eye(100)[labels]
    record = write_run(tmp_path, "model.num_classes=100", classes=names, logits=logits, labels=labels)
    path = write_run_page(record.path).path
    assert path.stat().st_size < 5_000_000
    page, troubles = browser.new_page(viewport={"width": 400, "height": 900}), []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(path.as_uri())
    assert page.title() == record.name
    assert page.evaluate(COLLISIONS) == []
    assert troubles == []
    assert "there are 10 classes, not 100" in page.locator("#wrong").inner_text()
    page.close()


@pytest.mark.whole
def test_figures_are_written_for_paper(record, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vitrine.explain.page.learned_sections", lambda *given: [])
    page = tmp_path / "page.html"
    main([str(record.path), "--to", str(page), "--figures", "png,pdf,svg"])
    printed = capsys.readouterr().out
    files = sorted((tmp_path / "figures").iterdir())
    names = {file.stem for file in files}
    assert f"{len(files)} files in {tmp_path / 'figures'}" in printed
    assert len(files) == 3 * len(names)
    assert names == {
        "curve_loss",
        "curve_acc",
        "lr_range",
        "confusion",
        "confusion_normalised",
        "classes",
        "reliability",
        "wrong_worst",
        "wrong_confident",
    }
    for name in names:
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        drawn = ElementTree.parse(tmp_path / "figures" / f"{name}.svg")
        assert drawn.findall(".//{*}text"), "text stays text"
        assert np.asarray(Image.open(tmp_path / "figures" / f"{name}.png").convert("RGB")).min() < 100
    assert not (record.path / "figures").exists()


def without(name):
    def remove(record):
        path = record.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def moved_data(record):
    config = record.path / "config.yaml"
    config.write_text(config.read_text().replace("name: digits", "name: mnist").replace("root: data", "root: gone"))


def changed_data(record):
    found = load_dataset(load_run(record.path).config.data, record.path, with_fingerprint=True).fingerprint
    found["test"]["pixels"] = "0123456789abcdef"
    record.update(data_fingerprint=found)


def huge_outputs(record):
    np.savez(record.path / "predictions.npz", logits=np.zeros((2, 300_000), np.float32), labels=np.array([0, 299_999]))
    facts = json.loads((record.path / "run.json").read_text())
    (record.path / "run.json").write_text(json.dumps(facts | {"classes": None}))


def foreign_part(record):
    config = record.path / "config.yaml"
    config.write_text(re.sub(r"position: \w+", "position: evil.module.Part", config.read_text()))
    checkpoint = torch.load(record.best, weights_only=True)
    checkpoint["config"]["model"]["position"] = "evil.module.Part"
    torch.save(checkpoint, record.best)


MISSING = [
    (without("checkpoints"), {"learned": "There is no model to show: .*best.ckpt"}),
    (without("predictions.npz"), {"predictions": "The run is finished and has no predictions"}),
    (without("metrics.csv"), {"curves": "No step has been logged yet"}),
    (
        moved_data,
        {
            "attention": "no images to look at: gone/MNIST.*is not there",
            "wrong": "pixels are not available: gone/MNIST",
        },
    ),
    (
        changed_data,
        {
            "attention": "no images to look at: the data is not what .* was trained on: test has other images",
            "wrong": "pixels are not available: the data is not what .* was trained on: test has other images",
        },
    ),
    (huge_outputs, {"confusion": "A matrix of 300,000 classes is too large"}),
    (foreign_part, {"learned": "There is no model to show: .*evil"}),
]


@pytest.mark.parametrize(("change", "expected"), MISSING)
@pytest.mark.whole
def test_what_is_missing_or_foreign_is_said_in_its_place(record, tmp_path, monkeypatch, change, expected):
    copy = type(record)(shutil.copytree(record.path, tmp_path / "copy"))
    change(copy)
    if not {"learned", "attention"} & set(expected):
        monkeypatch.setattr("vitrine.explain.page.learned_sections", lambda *given: [])
    parts = {part.key: part for part in run_sections(copy)}
    for section, text in expected.items():
        assert re.search(text, parts[section].text)
        assert not parts[section].figures


@pytest.fixture(scope="module")
def moved(write_run, tmp_path_factory):
    """A run on pictures in class folders, of which it gets some wrong, and the folder that they have moved to."""
    folder = tmp_path_factory.mktemp("pictures")
    write_image_folder(folder / "before", "train", "test")
    labels = np.arange(40) // 20
    logits = np.eye(2)[np.where(np.arange(40) % 20 == 3, 1 - labels, labels)]
    data = ["data=imagefolder", f"data.root={folder / 'before'}", "data.image_size=8", "patch=4"]
    record = write_run(folder, *data, classes=["a", "b"], logits=logits, labels=labels)
    record.update(images={"train": 36, "val": 4, "test": 40})
    return record, (folder / "before").rename(folder / "now")


@pytest.mark.parametrize("command", [main, page.main])
def test_pictures_that_have_moved_are_read_where_the_user_says(moved, tmp_path, monkeypatch, capsys, command):
    record, folder = moved
    monkeypatch.setattr("vitrine.explain.page.prediction_sections", lambda *given: [wrong_section(*given)])
    monkeypatch.setattr("vitrine.explain.page.learned_sections", lambda *given: [])
    path, missing = tmp_path / "x.html", "is not there from this folder; --data-root DIR names the folder that holds it"
    for given, is_missing in ([], True), (["--data-root", str(folder)], False):
        command([str(record.path), "--to", str(path), *given])
        assert (missing in path.read_text() + capsys.readouterr().out) is is_missing
    if command is main:
        assert all(f">test/{name}/11.png<" in path.read_text() for name in "ab"), "the files of wrong images"
    with pytest.raises(SystemExit, match="1"):
        command([str(record.path), "--to", str(path), "--data-root", "elsewhere"])
    assert capsys.readouterr().err == "vitrine: elsewhere is not a folder\n"


def test_validation_images_are_shown_where_there_are_no_test_images(write_run, tmp_path, monkeypatch):
    write_image_folder(tmp_path / "data")
    data = ["data=imagefolder", f"data.root={tmp_path / 'data'}", "data.image_size=8", "patch=4"]
    record = write_run(tmp_path, *data, classes=["a", "b"], logits=np.eye(2), labels=np.arange(2))
    (record.path / "predictions.npz").unlink()
    record.update(images={"train": 36, "val": 4, "test": 0})

    def first_learned_section(images, *given):
        model = images.run.model
        return [learned_sections.patch_section(model.config, learned_sections._look(images, model, *given))]

    monkeypatch.setattr("vitrine.explain.page.learned_sections", first_learned_section)
    _, confusion, *others = run_sections(record)
    assert confusion.title == "Confusion (validation images)"
    note = "The data set has no test images: these are validation images, on which the epoch was selected. "
    assert confusion.text.startswith(note)
    run = load_run(record.path)
    ((pixels, labels),) = validation_images(run)[0].batches([torch.arange(4)])
    predicted = run.model(run.transform.normalised(pixels)).argmax(dim=1)
    assert confusion.figures[0].numbers[1:] == [
        [name, *(str(int(((labels == true) & (predicted == guess)).sum())) for guess in (0, 1))]
        for true, name in enumerate("ab")
    ]
    said = [text for part in others for text in (part.text, *(one.caption for one in part.figures))]
    assert sum("validation image" in text for text in said) == 3
    assert not any("test image" in text for text in said)


@pytest.mark.parametrize("hold_out", [True, False])
def test_curves_of_validation_images_that_are_trained_on_are_labelled_so(record, tmp_path, hold_out):
    copy = type(record)(shutil.copytree(record.path, tmp_path / "copy"))
    copy.write_config({**copy.config, "data": copy.config["data"] | {"hold_out": hold_out}})
    for drawn in curve_section(copy).figures[:2]:
        labels = [line.get_label() for line in drawn.figure.axes[0].lines]
        assert ("validation (trained on)" in labels) is not hold_out
        assert ("training images here" in drawn.caption) is not hold_out
        assert ("which are trained on" in drawn.alt) is not hold_out
        assert [line[0] for line in drawn.numbers] == ["epoch", "1", "2", "3"]
    assert drawn.numbers[:2] == [["epoch", "training", "validation"], ["1", "0.9", "0.5"]]


@pytest.mark.whole
def test_a_range_test_is_drawn_and_a_damaged_one_named(record, tmp_path, monkeypatch):
    copy = type(record)(shutil.copytree(record.path, tmp_path / "copy"))
    monkeypatch.setattr("vitrine.explain.page.learned_sections", lambda *given: [])
    curves = run_sections(copy)[0]
    drawn = curves.figures[-1]
    assert (drawn.key, len(drawn.numbers), curves.text) == ("lr_range", 31, "")
    assert f"{copy.facts['lr_range']['found']:g} was found" in drawn.alt
    (copy.path / "lr_range.csv").write_text("lr,loss\n1e-3\n")
    curves = run_sections(copy)[0]
    assert [one.key for one in curves.figures] == ["curve_loss", "curve_acc"]
    assert curves.text.startswith("lr_range.csv is damaged: ")


def test_figures_with_a_character_that_no_font_has_are_reported(record, tmp_path, monkeypatch, capsys):
    copy = type(record)(shutil.copytree(record.path, tmp_path / "copy"))
    copy.update(classes=["cat", "\U0010fffd"])
    monkeypatch.setattr("vitrine.explain.page.run_sections", lambda *_, **__: [])
    for free in ([], ["svg"]):
        write_run_page(copy.path, formats=free)
        assert capsys.readouterr().err == ""
    write_run_page(copy.path, formats=["png"])
    assert f"files in {copy.path / 'figures'} have boxes" in capsys.readouterr().err


def test_the_model_is_loaded_as_the_command_allows(record, monkeypatch):
    loaded = Mock(side_effect=SystemExit(9))
    monkeypatch.setattr("vitrine.explain.page.LoadedRun", loaded)
    with pytest.raises(SystemExit):
        main([str(record.path), "--trust", "my_lab", "--allow-changed-code"])
    loaded.assert_called_once_with(record, ("my_lab",), allow_changed_code=True)


def test_figures_do_not_leave_the_run_through_a_link(record, tmp_path, monkeypatch):
    copy, outside = shutil.copytree(record.path, tmp_path / "copy"), tmp_path / "mine"
    outside.mkdir()
    (copy / "figures").symlink_to(outside)
    monkeypatch.setattr("vitrine.explain.page.run_sections", lambda record, *_, **__: [curve_section(record)])
    with pytest.raises(RunError, match=r"figures: it is a link that leads out of .*copy, to .*mine$"):
        write_run_page(copy, formats=["png"])
    assert not list(outside.iterdir())
    (outside / "figures").symlink_to(tmp_path)  # the user's own
    assert write_run_page(copy, outside / "page.html", formats=["png"]).figures


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["nowhere"], 1, "nowhere is not a folder"),
        (["."], 1, r"\. holds several runs; .*compare.* \. --html report.html compares them"),
        (["run", "--figures", "pdf,gif"], 2, "'gif' is not one of png, pdf, svg"),
        (["run", "--to", "."], 1, "cannot write .: it is a folder"),
        (["run", "--to", "x" * 300], 1, "cannot write x+: File name too long"),
        (["run", "--to", "run/checkpoints/best.ckpt"], 1, r"cannot write \S+: its name must end in \.html"),
        (["run", "--to", "gone/x.html"], 1, "cannot write gone/x.html: .*gone is not a folder"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(record, tmp_path, monkeypatch, capsys, arguments, code, expected):
    shutil.copytree(record.path, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == code
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(expected, message)


PAGE = (ROOT / "docs" / "run_page.md").read_text()
COMMANDS = re.findall(r"^python (scripts/(?:report|summary)\.py .*?)(?:  +#.*)?$", PAGE, re.MULTILINE)


@pytest.mark.whole
def test_the_commands_of_the_documentation_run(record, tmp_path, monkeypatch, capsys):
    from importlib import import_module

    shutil.copytree(record.path, tmp_path / "outputs" / "runs" / "RUN")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitrine.explain.page.learned_sections", lambda *given: [])  # most of the time
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        if (
            "--data-root" in command
        ):  # digits have no folder: test_pictures_that_have_moved_are_read_where_the_user_says
            continue
        script, *arguments = shlex.split(command)
        import_module(f"vitrine.cli.{script.removeprefix('scripts/').removesuffix('.py')}").main(arguments)
    printed = capsys.readouterr().out
    assert printed.count("written to ") == 3
    assert printed.count("FLOPs per image") == 2


def test_images_of_groups_that_are_not_stored_are_said_to_be_taken_as_independent(record):
    (result,) = load_results([record.path]).runs
    of_patients = replace(result, config={**result.config, "data.group": "patient"})
    images = RunImages(of_patients, load_run(record.path))
    predictions = images.predictions()
    alike = " They take each test image as independent, which those of one group are not."
    _, classes, *_ = prediction_sections(images, predictions, list("0123456789"))
    assert classes.text.endswith(alike)
    of_groups = replace(predictions, groups=np.arange(360) // 10)
    assert alike not in prediction_sections(images, of_groups, list("0123456789"))[1].text


def test_a_page_whose_logits_are_lost_has_the_interval_over_images(tmp_path, write_run):
    run = write_run(tmp_path, logits=np.eye(10)[np.arange(100) % 10], labels=np.arange(100) % 10)
    np.savez(run.path / "predictions.npz", labels=np.arange(100) % 10, groups=np.arange(100) // 10)
    page = write_run_page(run.path).path.read_text()
    assert "over 360 test images (Wilson)" in page
