"""A run's pictures show its record."""

import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.levels import quick
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from PIL import Image

from vitrine import compose, figure_style
from vitrine.config.model import ViTConfig
from vitrine.data.image_dataset import Split
from vitrine.figure_style import WIDTH, drawable, shorten
from vitrine.models import VisionTransformer, rollout_problem
from vitrine.runs import MetricsFile, RunRecord
from vitrine.training.lit_module import Classifier
from vitrine.training.plots import (
    TRAIN,
    VAL,
    attention,
    confusion,
    curves,
    draw_attention,
    draw_confusion,
    draw_curves,
)


@pytest.fixture(autouse=True)
def _nothing_to_warn_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def new(folder: Path, *, hold_out: bool = True) -> RunRecord:
    record = RunRecord.create(folder, "word")
    record.write_config({"data": {"hold_out": hold_out}})
    record.update(id=record.name)
    return record


def run(folder: Path, epochs: int, *, bend: float = 1.0) -> RunRecord:
    record = new(folder)
    file = MetricsFile(record)
    for epoch in range(1, epochs + 1):
        for step in (5 * epoch - 2, 5 * epoch):
            loss = 2.0 * (step / 5) ** -bend
            file.append({"epoch": epoch, "step": step, "seconds": 0.0, "train/loss": loss, "train/acc": 1 - loss / 5})
        file.append({"epoch": epoch, "step": step, "seconds": 0.0, "val/loss": loss + 0.1, "val/acc": 0.9 - loss / 5})
    return record


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def map_of(picture: np.ndarray) -> np.ndarray:
    """The lower left of attention.png of one image: its map, without the colour bar on the right."""
    return picture[picture.shape[0] // 2 :, : round(0.74 * picture.shape[1])]


def has_colour(picture: np.ndarray, colour: str) -> bool:
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return bool((np.abs(picture - wanted).max(axis=2) < 4).any())


@pytest.mark.parametrize("epochs", [1, 3, 100])
def test_curves_show_training_and_validation_side_by_side(tmp_path, epochs):
    path = draw_curves(run(tmp_path, epochs))
    picture = pixels(path)
    assert path.name == "curves.png"
    assert picture.shape == (480, 1200, 3)
    for half in (picture[:, :600], picture[:, 600:]):
        assert has_colour(half, TRAIN)
        assert has_colour(half, VAL)


@pytest.mark.whole
def test_other_numbers_give_other_curves_and_the_same_numbers_the_same(tmp_path):
    first, same, other = (pixels(draw_curves(run(tmp_path, 3, bend=bend))) for bend in (1.0, 1.0, 0.5))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_a_run_without_validation_has_no_curve_of_it(tmp_path):
    record = new(tmp_path)
    file = MetricsFile(record)
    for step in (1, 2):
        file.append({"epoch": 1, "step": step, "seconds": 0.0, "train/loss": 1 / step, "train/acc": 0.5})
    picture = pixels(draw_curves(record))
    assert has_colour(picture, TRAIN)
    assert not has_colour(picture, VAL)


@pytest.mark.parametrize(
    ("hold_out", "own", "label"),
    [
        (True, False, "validation"),
        (False, False, "validation (trained on)"),
        (False, True, "validation"),  # a split of the data set's own is never trained on
    ],
)
def test_validation_images_that_are_trained_on_are_labelled_so(tmp_path, hold_out, own, label):
    record = new(tmp_path, hold_out=hold_out)
    record.update(data_fingerprint={"train": {}, **({"val": {}} if own else {})})
    row = {"step": 5, "epoch": 1, "train/loss": 2.0, "val/loss": 1.9, "val/acc": 0.5}
    figure = curves([row], ["loss"], width=4, held_out=record.holds_out)
    assert [line.get_label() for line in figure.axes[0].lines] == ["training", label]


def test_a_single_value_is_a_dot():
    row = {"step": 5, "epoch": 1, "train/loss": 2.0, "val/loss": 1.9, "val/acc": 0.5}
    assert [line.get_marker() for line in curves([row], ["loss"], width=4).axes[0].lines] == [".", "o"]
    (line, _) = curves([row, row | {"step": 10, "epoch": 2}], ["loss"], width=4).axes[0].lines
    assert line.get_marker() == ""


def test_a_run_without_rows_has_empty_axes(tmp_path):
    picture = pixels(draw_curves(new(tmp_path)))
    assert not has_colour(picture, TRAIN)


def test_a_nan_loss_leaves_a_gap(tmp_path):
    record = run(tmp_path, 3)
    step = {"epoch": 4, "step": 20, "seconds": 0.0, "train/loss": float("nan"), "train/acc": 0.1}
    MetricsFile(record, step=15).append(step)
    assert has_colour(pixels(draw_curves(record)), TRAIN)


def logits_of(predictions: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[predictions]


def cell(picture: np.ndarray, row: int, column: int, count: int) -> np.ndarray:
    """The colour near a corner of a cell, where no number is written; the axes are found by their frame."""
    frame = np.abs(picture - (89, 98, 109)).max(axis=2) < 40
    tall = np.flatnonzero(frame.sum(axis=0) > picture.shape[0] // 2)
    wide = np.flatnonzero(frame.sum(axis=1) > picture.shape[1] // 2)
    x = tall[0] + (tall[-1] - tall[0]) * (column + 0.2) / count
    y = wide[0] + (wide[-1] - wide[0]) * (row + 0.2) / count
    return picture[round(y), round(x)]


@pytest.mark.whole
@pytest.mark.parametrize("count", quick([2, 10, 100], [10]))
def test_a_confusion_matrix_is_dark_where_predictions_are(tmp_path, count):
    labels = np.arange(count).repeat(4)
    predictions = (labels + 1) % count  # each class taken for the next one
    record = RunRecord.create(tmp_path, "word")
    path = draw_confusion(record, logits_of(predictions, count), labels, [f"class {i}" for i in range(count)])
    picture = pixels(path)
    assert path == record.path / "confusion.png"
    assert picture.shape[0] < picture.shape[1] <= 1440
    for label in {0, count // 2, count - 1}:
        right, wrong = cell(picture, label, label, count), cell(picture, label, (label + 1) % count, count)
        assert right.min() > 230  # almost white
        assert wrong[0] < 100  # blue


def test_a_confusion_matrix_changes_with_one_prediction(tmp_path):
    record = RunRecord.create(tmp_path, "word")
    labels = np.arange(10).repeat(3)
    first = pixels(draw_confusion(record, logits_of(labels, 10), labels, list("0123456789")))
    changed = labels.copy()
    changed[0] = 7
    second = pixels(draw_confusion(record, logits_of(changed, 10), labels, list("0123456789")))
    assert not np.array_equal(first, second)


def test_classes_that_do_not_occur_have_their_place(tmp_path):
    record = RunRecord.create(tmp_path, "word")
    labels = np.array([3, 3, 3])
    picture = pixels(draw_confusion(record, logits_of(np.array([3, 3, 8]), 10), labels, list("0123456789")))
    assert cell(picture, 3, 3, 10)[0] < 130
    assert cell(picture, 3, 8, 10)[0] < 180
    assert cell(picture, 8, 8, 10).min() > 230


def test_too_many_classes_have_no_confusion_matrix(tmp_path, capsys):
    record = RunRecord.create(tmp_path, "word")
    labels = np.arange(3)
    (record.path / "confusion.png").write_text("of before the run was resumed with other data")
    assert draw_confusion(record, logits_of(labels, 1001), labels, list(map(str, range(1001)))) is None
    assert not record.pictures
    assert capsys.readouterr().err == "vitrine: confusion.png is drawn of up to 1,000 classes, not of 1,001\n"


def test_long_class_names_leave_room_for_the_matrix(tmp_path):
    record = RunRecord.create(tmp_path, "word")
    labels = np.arange(10)
    names = [f"a name of some length {i}" for i in range(10)]
    picture = pixels(draw_confusion(record, logits_of(labels, 10), labels, names))
    assert cell(picture, 0, 0, 10)[0] < 100
    assert cell(picture, 9, 0, 10).min() > 230


@pytest.mark.parametrize("count", [16, 17, 100])
def test_names_and_axes_of_a_small_confusion_matrix_can_be_read(count):
    """Named classes are those whose names have room; others have numbers."""
    names = [f"a long name {i:03}" for i in range(count)]
    figure = confusion(np.eye(count), np.ones(count), names, width=WIDTH)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    axes, bar = figure.axes
    assert bar.get_window_extent().intervaly == pytest.approx(axes.get_window_extent().intervaly), "they are aligned"
    labels = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert not any(above.overlaps(below) for above, below in pairwise(labels))
    assert (axes.get_ylabel() == "true") == (count == 16)
    for axis in (axes.xaxis, axes.yaxis):
        extent = axis.label.get_window_extent()
        assert figure.bbox.x0 < extent.x0 < extent.x1 < figure.bbox.x1
        assert figure.bbox.y0 < extent.y0 < extent.y1 < figure.bbox.y1


# Cut to 14 characters, two of them are the same at the beginning and at the end.
ALIKE = ["Corn_(maize)_rust", "Corn_(maize)_healthy", "Corn_(maize)_leaf_spot", "Corn_(maize)_grey_leaf_spot"]


def test_long_names_of_classes_are_cut_in_the_middle_and_stay_apart():
    assert shorten(ALIKE) == ["Corn_(m…)_rust", "Corn_(m…ealthy", "2 Corn_(…_spot", "3 Corn_(…_spot"]
    assert shorten(["a", "1\n2", "14 characters.", "a"]) == ["0 a", "1 2", "14 characters.", "3 a"]
    matrix = confusion(np.eye(4), np.ones(4), ALIKE, width=4.2)
    images, maps = np.zeros((4, 1, 8, 8), np.uint8), np.ones((4, 2, 2))
    for axes in (matrix.axes[0], *attention(images, maps, ALIKE, ALIKE, ALIKE).axes[:2]):
        assert len({label.get_text() for label in axes.get_xticklabels()}) == 4


def test_a_long_name_in_wide_characters_leaves_room_for_the_matrix():
    figure = confusion(np.eye(12), np.ones(12), ["とても長い日本語のクラス名前", *"abcdefghijk"], width=4.2)
    with warnings.catch_warnings(action="ignore"):  # this machine may have no font for it
        figure.draw_without_rendering()
    assert figure.axes[0].get_window_extent().width > figure.bbox.width / 2


@pytest.fixture
def fonts_here(monkeypatch):
    """Makes ``OTHER_FONTS`` those given."""

    def install(*names: str) -> None:
        monkeypatch.setattr(figure_style, "OTHER_FONTS", names)
        figure_style.fonts.cache_clear()

    yield install
    figure_style.fonts.cache_clear()


def test_a_character_is_drawn_in_the_first_font_that_has_it(fonts_here, capsys):
    known = [set(get_font(findfont(name)).get_charmap()) for name in ("DejaVu Sans", "STIXGeneral")]
    name = chr(min(known[1] - known[0] - set(range(128))))  # Matplotlib comes with both
    fonts_here("No Such Font")
    assert figure_style.fonts() == ["DejaVu Sans"]
    assert drawable(["a", f"a{name}", "é"]) == ["a", "no. 1", "é"]
    assert name in capsys.readouterr().err
    fonts_here("No Such Font", "STIXGeneral")
    assert drawable(["a", f"a{name}"]) == ["a", f"a{name}"]
    with figure_style.styled():
        figure = Figure()
        figure.text(0, 0, name)
        figure.draw_without_rendering()  # a glyph that is missing would be warned of
    assert capsys.readouterr().err == ""


def drawn(tmp_path: Path, look: float, count: int = 4) -> np.ndarray:
    """attention.png of a model that looks at every patch alike, or, as ``look`` grows, at bright ones only."""
    config = compose(
        ["model=vit_nano", "model.depth=1", "model.heads=1", "position=none", f"paths.output_dir={tmp_path}"]
    )
    module = Classifier(config, steps=0, images_per_step=0)
    with torch.no_grad():
        for parameter in module.model.parameters():
            parameter.zero_()
        module.model.patch_embed.proj.weight[0].fill_(1.0)
        module.model.blocks[0].norm1.weight.fill_(1.0)
        module.model.blocks[0].attn.qkv.bias[0] = look
        module.model.blocks[0].attn.qkv.weight[config.model.dim, 0] = 1.0
    images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    images[:, :, :2, 6:] = 255  # the patch at the top right
    path = draw_attention(
        RunRecord.create(tmp_path, "word"), module, Split(images, torch.zeros(count).long()), ["a"] * 10
    )
    assert path.name == "attention.png"
    return pixels(path)


def test_the_attention_plot_is_bright_where_the_model_attends(tmp_path):
    picture = drawn(tmp_path, 50.0, count=1)
    shown = map_of(picture)
    dark, yellow = shown.max(axis=2) < 60, np.abs(shown - (252, 255, 164)).max(axis=2) < 4
    assert dark.sum() == pytest.approx(15 * yellow.sum(), rel=0.05), "the other fifteen patches are dark"
    (row, column), (rows, columns) = (np.argwhere(part).mean(axis=0) for part in (yellow, dark))
    assert row < rows, "at the top"
    assert column > columns, "on the right"
    uniform = map_of(drawn(tmp_path, 0.0, count=1)).max(axis=2) < 60
    assert uniform.mean() < 0.02, "uniform attention is bright everywhere, beside the letters"


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (3, 3), (100, 8)])
def test_a_few_images_are_shown_in_two_rows(tmp_path, count, shown):
    picture = drawn(tmp_path, 50.0, count)
    for row in np.array_split(picture, 2):
        dark = (row.max(axis=2) < 60).sum(axis=0) > 40  # columns of pixels through an image, or its map
        assert (np.diff(dark.astype(int)) == 1).sum() == shown


def test_maps_too_large_for_memory_are_not_drawn():
    sizes = {"in_channels": 3, "num_classes": 10, "dim": 12, "heads": 3, "depth": 2}
    assert not rollout_problem(VisionTransformer(ViTConfig(image_size=224, patch_size=8, **sizes)))
    problem = rollout_problem(VisionTransformer(ViTConfig(image_size=512, patch_size=8, **sizes)))
    assert problem == "the attention weights of an image take 384 MB, more than 256"


def test_a_prediction_beyond_the_datas_classes_has_its_number(tmp_path):
    config = compose(["model=vit_nano", "model.depth=1", "model.num_classes=100", f"paths.output_dir={tmp_path}"])
    module = Classifier(config, steps=0, images_per_step=0)
    with torch.no_grad():
        module.model.head.bias[77] = 1e6
    split = Split(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2).long())
    assert draw_attention(RunRecord.create(tmp_path, "word"), module, split, list("0123456789")).exists()


def test_several_labels_of_an_image_stand_beside_its_attention(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("vitrine.training.plots.attention", lambda *shown: given.extend(shown[2:]) or Figure())
    config = compose(["model=vit_nano", "model.depth=1", f"paths.output_dir={tmp_path}"])
    module = Classifier(config, steps=0, images_per_step=0)
    with torch.no_grad():
        module.model.head.weight.zero_()
        module.model.head.bias.copy_(torch.tensor([5.0, -5.0, 1.0, *[-1.0] * 7]))
    labels = torch.tensor([[1.0, 1.0, *[0.0] * 8], [0.0] * 10])
    split = Split(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), labels)
    classes = ["cat", "dog", "owl", *"0123456"]
    draw_attention(RunRecord.create(tmp_path, "word"), module, split, classes)
    assert given == [["cat, dog", "none"], ["cat, owl", "cat, owl"], classes]


def test_a_prediction_beyond_the_datas_classes_counts_as_wrong(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(Figure, "suptitle", lambda figure, text, **_: titles.append(text))
    labels, predictions = np.array([0, 0, 1, 1]), np.array([0, 5, 1, 7])
    draw_confusion(RunRecord.create(tmp_path, "word"), logits_of(predictions, 8), labels, ["a", "b"])
    assert titles == ["4 test images, 50.00% correct"]
