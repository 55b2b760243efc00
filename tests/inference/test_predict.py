"""``vitrine predict`` gives what the run gave in training, and survives bad pictures, bad runs and its own death."""

import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.pictures import stored_probabilities, write_test_images
from helpers.running import ROOT, SMALL, own_file_systems, python, write_image_folder
from PIL import Image, ImageOps

from vitrine import compose, fit, load_run
from vitrine.data.preparation import Preparation
from vitrine.distributed.hardware import Hardware
from vitrine.errors import RunError
from vitrine.inference.attention_images import AttentionImages
from vitrine.inference.brightness import Brightness
from vitrine.inference.results import Journal, _held, may_replace

SEEDS = sorted(ROOT.glob("tests/old_runs/sweeps/*position-seed*/position=learned*"))


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_as_in_training(run, found, order, top_k):
    """Each row has the classes and probabilities of predictions.npz; ``order`` is each picture's number there."""
    expected = stored_probabilities(run)[order]
    likeliest = np.argsort(-expected, axis=1, kind="stable")[:, :top_k]
    for rank in range(top_k):
        suffix = f"_{rank + 1}" if rank else ""
        given = [float(row[f"probability{suffix}"]) for row in found]
        np.testing.assert_allclose(given, np.take_along_axis(expected, likeliest, axis=1)[:, rank], atol=2e-6)
    named = [row["class"] for row in found]
    tied = np.sort(expected, axis=1)[:, -1] - np.sort(expected, axis=1)[:, -2] < 4e-6
    assert all(
        name == run.classes[first] for name, first, tie in zip(named, likeliest[:, 0], tied, strict=True) if not tie
    )
    assert tied.mean() < 0.05


def test_a_run_predicts_what_it_predicted_in_training_image_by_image(predict, run, pictures, tmp_path):
    code, out, err = predict(f"run={run.record.path}", f"input={pictures}", "output=x.csv", "top_k=3")
    assert (code, err) == (0, "")
    found = rows(tmp_path / "x.csv")
    ranks = ["class", "probability", "class_2", "probability_2", "class_3", "probability_3"]
    assert list(found[0]) == ["path", *ranks, "label"]
    assert all(row["label"] == Path(row["path"]).parent.name for row in found)
    assert len(found) == 360
    assert_as_in_training(run, found, [int(row["path"][-9:-4]) for row in found], top_k=3)
    assert f"accuracy  {run.metrics['test/acc']:.4f} of 360 labelled pictures" in out
    assert re.search(rf"^NLL +{run.metrics['test/loss']:.4f}$", out, re.MULTILINE)
    assert re.search(r"^pictures +360 in \d+\.\d s, [\d,]+ images/s$", out, re.MULTILINE)


TRAINED = {
    "digits, enlarged": ["data.image_size=12"],
    "mnist": ["data=mnist"],
    "mnist, reduced": ["data=mnist", "data.image_size=16", "patch=4"],
    "cifar10": ["data=cifar10", "patch=8"],
    "cifar10, reduced": ["data=cifar10", "data.image_size=20", "patch=4"],
    "image folder": ["data=imagefolder", "data.image_size=12", "patch=4"],
    "csv, padded": ["data=csv", "data.image_size=12", "patch=4", "data.resize=pad"],
}


def write_image_csv(folder):
    """List the pictures of a folder, the first of each split turned by its EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = 8
    rows = ["path,label,split"]
    for path in sorted(folder.rglob("*.png")):
        split, label, name = path.relative_to(folder).parts
        if name == "0.png":
            Image.open(path).save(path, exif=exif)
        rows.append(f"{split}/{label}/{name},{label},{split}")
    table = folder / "pictures.csv"
    table.write_text("\n".join(rows))
    return table


def some_of_cifar10(shared_data, folder):
    """Links to 40 training and 20 test images of each class."""
    for split, count in (("train", 40), ("test", 20)):
        for source in (shared_data / "cifar10" / split).iterdir():
            target = folder / "cifar10" / split / source.name
            target.mkdir(parents=True)
            for image in sorted(source.iterdir())[:count]:
                (target / image.name).symlink_to(image)
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("name", TRAINED)
def test_every_data_set_is_prepared_as_in_training(name, predict, tmp_path, request):
    overrides = TRAINED[name]
    pictures = tmp_path / "pictures"
    if own := {"data=imagefolder", "data=csv"} & {*overrides}:  # of other sizes and shapes than the model's
        write_image_folder(pictures, "train", "test", size=(31, 20))
        root = write_image_csv(pictures) if "data=csv" in own else pictures
        overrides = [*overrides, f"data.root={root}"]
    elif "mnist" in name:
        overrides = [*overrides, f"data.root={request.getfixturevalue('shared_data')}"]
    elif "cifar10" in name:
        overrides = [*overrides, f"data.root={some_of_cifar10(request.getfixturevalue('shared_data'), tmp_path)}"]
    brief = ["trainer.max_epochs=1", "debug.limit_batches=1", "accelerator=cpu", "trainer.compile=nothing"]
    paths = [f"paths.output_dir={tmp_path}", f"paths.cache_dir={tmp_path / 'cache'}"]
    run = load_run(fit(compose([*SMALL, *overrides, *brief, *paths])).run_dir)
    if own:
        shown, order = pictures / "test", range(40)
    else:
        shown = tmp_path / "shown"
        written = write_test_images(run, shown, most=256)
        order = [int(path.stem) for path in sorted(written)]
    code, out, err = predict(f"run={run.record.path}", f"input={shown}", "output=x.csv", "top_k=2")
    assert (code, err) == (0, "")
    assert_as_in_training(run, rows(tmp_path / "x.csv"), order, top_k=2)
    if len(order) == len(stored_probabilities(run)):
        assert f"accuracy  {run.metrics['test/acc']:.4f} of" in out


@pytest.fixture
def bad_pictures(tmp_path, pictures):
    """A folder in which every kind of bad picture stands beside good ones in unusual modes."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = min((pictures / "7").iterdir())
    shutil.copy(good, folder / "0_good.png")
    image = Image.open(good)
    image.convert("RGBA").save(folder / "1_rgba.png")
    Image.fromarray(np.asarray(image).astype(np.uint16) * 257).save(folder / "2_16bit.png")
    (folder / "a_text.png").write_text("no picture")
    (folder / "b_empty.png").write_bytes(b"")
    (folder / "c_cut_short.png").write_bytes(good.read_bytes()[:60])
    Image.new("1", (20_000, 20_000)).save(folder / "d_huge.png")
    return folder


def test_bad_pictures_are_named_and_counted_and_do_not_end_it(predict, run, bad_pictures, tmp_path):
    code, _, err = predict(f"run={run.record.path}", f"input={bad_pictures}", "output=x.csv")
    assert code == 4
    *named, last = err.splitlines()
    assert [re.search(r"/(\w)_", line)[1] for line in named] == ["a", "b", "c", "d"]
    assert all("cannot be decoded as an image" in line for line in named)
    assert "exceeds limit" in named[3]
    assert last == "vitrine: 4 of 7 pictures were not readable"
    page = Image.open(bad_pictures / "0_good.png")
    page.save(bad_pictures / "g_stack.tif", save_all=True, append_images=[page])
    (bad_pictures / "phone").mkdir()
    for name in ("phone/e.HEIC", "f.czi", "notes.txt"):
        (bad_pictures / name).touch()
    code, _, err = predict(f"run={run.record.path}", f"input={bad_pictures}")
    assert err.splitlines()[-2:] == [
        "vitrine: of 1 picture with several pages or frames, only the first was read",
        "vitrine: left out: 2 files of another type (.czi and .heic)",
    ]
    found = rows(tmp_path / "x.csv")
    assert [row["class"] for row in found] == [
        *[run.predict(bad_pictures / "0_good.png", accelerator="cpu").name] * 3,
        *[""] * 4,
    ]
    assert len({row["probability"] for row in found[:3]}) == 1, "the same picture, whatever its mode"


def test_inverted_pictures_are_noticed(predict, run, pictures, tmp_path):
    (tmp_path / "in").mkdir()
    for number, path in enumerate(sorted(pictures.rglob("*.png"))[:3]):
        ImageOps.invert(Image.open(path)).save(tmp_path / "in" / f"{number}.png")
    code, _, err = predict(f"run={run.record.path}", "input=in")
    assert code == 0
    assert re.fullmatch(
        r"vitrine: the pictures have a mean brightness of 0\.[67]\d, those of training 0\.31: are they inverted\?\n",
        err,
    )
    (tmp_path / "in" / "0.png").unlink()
    assert predict(f"run={run.record.path}", "input=in")[2] == "", "two may be as they are"


@pytest.mark.parametrize(
    ("mean", "std", "found", "noted"),
    [
        ((0.13,), (0.31,), 220, True),  # MNIST in black on white
        ((0.13,), (0.31,), 150, False),
        ((0.95,), (0.2,), 10, True),  # drawings on white, inverted
        ((0.95,), (0.2,), 255, False),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 255, False),  # photographs
        ((0.0,), (1.0,), 255, False),  # data that is not normalised
    ],
)
def test_brightness_is_noted_of_drawings_alone(mean, std, found, noted):
    brightness = Brightness(Preparation((2, 2), len(mean), False, mean, std))
    brightness.add(torch.full((3, len(mean), 2, 2), found, dtype=torch.uint8))
    assert bool(brightness.note) is noted


def test_a_table_is_printed_where_no_file_is_asked_for(predict, run, pictures):
    path = sorted((pictures / "3").iterdir())[0]
    code, out, err = predict(f"run={run.record.path}", f"input={path}", "top_k=2")
    assert (code, err) == (0, "")
    head, row, *_ = out.splitlines()
    assert head.split() == ["class", "probability", "class_2", "probability_2", "path"]
    prediction = run.predict(path, accelerator="cpu")
    (first, likely), (second, less) = prediction.top(2)
    assert row.split() == [first, f"{likely:.4f}", second, f"{less:.4f}", str(path)]
    assert row.index(f"{less:.4f}") + len(f"{less:.4f}") == head.index("probability_2") + len("probability_2")


@pytest.mark.whole
def test_a_name_that_is_no_text_or_moves_the_cursor_is_shown_in_one_line(run, pictures, tmp_path):
    facts = json.loads((run.record.path / "run.json").read_text())
    classes = [f"\x1b[2J{name}" for name in facts["classes"]]
    (run.record.path / "run.json").write_text(json.dumps(facts | {"classes": classes}))
    names = [b"a\xff.png", b"b\x1b[2J\nb.png", b"c\x1b[2J\xff.png"]
    for name in names[:2]:
        shutil.copy(min((pictures / "7").iterdir()), tmp_path / os.fsdecode(name))
    (tmp_path / os.fsdecode(names[2])).write_text("no picture")
    arguments = [f"run={run.record.path}", "input=*.png", "accelerator=cpu", "workers=0"]
    done = python(str(ROOT / "predict.py"), *arguments, cwd=tmp_path, env={"PYTHONIOENCODING": "utf-8:strict"})
    assert done.returncode == 4
    assert "\x1b" not in done.stdout + done.stderr
    shown = [line.split()[-2:] for line in done.stdout.splitlines()[1:4]]
    assert [" ".join(words) for words in shown][1] == r"b\x1b[2J b.png"
    assert (shown[0][1], shown[2][1]) == (r"a\xff.png", r"c\x1b[2J\xff.png")
    assert all(line.startswith(r"\x1b[2J") for line in done.stdout.splitlines()[1:3])
    assert r"c\x1b[2J\xff.png cannot be decoded" in done.stderr


def test_a_folder_in_place_of_the_results_is_named_before_pictures_are_read(predict, run, pictures, tmp_path):
    (tmp_path / "x.csv").mkdir()
    code, out, err = predict(f"run={run.record.path}", f"input={pictures}", "output=x.csv")
    assert (code, out, err) == (1, "", "vitrine: cannot write x.csv: it is a folder\n")
    assert not (tmp_path / "x.csv.partial").exists()


def test_a_file_that_is_no_journal_is_kept(predict, run, pictures, tmp_path):
    (tmp_path / "x.csv.partial").write_text("notes of mine")
    code, _, err = predict(f"run={run.record.path}", f"input={pictures}/1", "output=x.csv")
    assert (code, (tmp_path / "x.csv.partial").read_text()) == (1, "notes of mine")
    assert "x.csv.partial holds results of other runs or settings; delete it, or choose another output" in err


@pytest.mark.parametrize("given", ["data_root=elsewhere", "accept_changed_data=true"])
def test_what_is_for_calibration_is_refused_without(given, predict, run, pictures):
    code, _, err = predict(f"run={run.record.path}", f"input={pictures}", given)
    assert code == 2
    assert f"{given}\n      is for calibrate=true" in err


@pytest.mark.parametrize("output", ["labels.csv", "./labels.csv", "link.csv"])
def test_results_never_replace_the_list_that_they_are_of(output, predict, run, pictures, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text(f"path,label\n{min((pictures / '7').iterdir())},7\n")
    (tmp_path / "link.csv").symlink_to(table)
    before = table.read_text()
    code, _, err = predict(f"run={run.record.path}", "input=labels.csv", f"output={output}")
    assert (code, table.read_text()) == (2, before)
    assert "would replace the input, input=labels.csv; choose another output" in err
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_results_replace_earlier_ones_and_no_other_file(suffix, predict, run, pictures, tmp_path):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    command = [f"run={run.record.path}", f"input={min((pictures / '7').iterdir())}", f"output=x.{suffix}"]
    output = tmp_path / f"x.{suffix}"
    output.touch()
    assert (predict(*command)[0], predict(*command)[0]) == (0, 0)
    output.write_text("path,label\nmine.png,7\n")
    code, _, err = predict(*command)
    assert (code, output.read_text()) == (2, "path,label\nmine.png,7\n")
    assert "exists and does not hold results of predict.py; choose another output" in err


def test_other_tables_that_begin_with_path_and_class_are_no_results(tmp_path):
    table = tmp_path / "truth.csv"
    for head, is_result in (
        ('"path","class","comment"', False),
        ('"path","class","probability","label"', True),
        ("path,class,probability", True),
        ('"path","classes","probabilities"', True),
    ):
        table.write_text(f"{head}\n")
        assert may_replace(table) is is_result, head
    table.write_text("a" * 200_000)
    assert not may_replace(table)
    for line in ('{"path": "a", "mine": 1}', "[" * 100_000):
        (tmp_path / "own.json").write_text(f"[\n{line}\n]\n")
        assert not may_replace(tmp_path / "own.json")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for columns, is_result in ((["my"], False), (["path", "class", "probability"], True)):
        parquet.write_table(pyarrow.table({name: ["1"] for name in columns}), tmp_path / "x.parquet")
        assert may_replace(tmp_path / "x.parquet") is is_result
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + b"\xff" * 200 + b"\x40\0\0\0PAR1")
    assert not may_replace(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "damaged",
    [
        "[" * 100_000,
        '{"path":1,"classes":[],"probabilities":[]}',
        '{"path":"a","classes":[null],"probabilities":[0.5]}',
        '{"path":"a","classes":["x"],"probabilities":null}',
        '{"path":"a","classes":["x"],"probabilities":["high"]}',
        '{"path":"a","classes":["x"],"probabilities":[0.5],"label_probability":"high"}',
        '{"path":"a","classes":["x"],"probabilities":[0.5],"paged":null}',
    ],
)
def test_a_damaged_row_is_named(damaged, tmp_path):
    (tmp_path / "x.csv.partial").write_text(f"{{}}\n{damaged}\n")
    with (
        Journal.open(tmp_path / "x.csv", {}) as journal,
        pytest.raises(RunError, match=r"x\.csv\.partial is damaged; delete it, and rerun the same command"),
    ):
        list(journal.resumed())


def test_a_journal_that_begins_with_no_settings_is_named(tmp_path):
    (tmp_path / "x.csv.partial").write_text(f"{'[' * 100_000}\n")
    with pytest.raises(
        RunError, match=r"holds results of other runs or settings; delete it, or choose another output$"
    ):
        Journal.open(tmp_path / "x.csv", {}).__enter__()


def test_a_pipe_in_place_of_the_journal_is_named(tmp_path):
    os.mkfifo(tmp_path / "x.csv.partial")
    with pytest.raises(RunError, match=r"cannot write .*x\.csv\.partial: File or stream is not seekable"):
        Journal.open(tmp_path / "x.csv", {}).__enter__()


def test_every_format_holds_the_same(predict, run, pictures, tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    some = zip(sorted((pictures / "5").iterdir()), [*"05", ""] * 20, strict=False)
    (tmp_path / "some.csv").write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in some))
    for suffix in ("csv", "json", "parquet"):
        assert predict(f"run={run.record.path}", "input=some.csv", f"output=x.{suffix}", "confidence=0.14")[0] == 0
    in_json = json.loads((tmp_path / "x.json").read_text())
    assert pyarrow.read_table(tmp_path / "x.parquet").to_pylist() == in_json
    as_text = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in in_json]
    assert rows(tmp_path / "x.csv") == as_text
    assert {row["class"] is None for row in in_json} == {True, False}
    assert [row["label"] for row in in_json[:3]] == ["0", "5", None]
    assert all((row["class"] is None) == (row["probability"] < 0.14) for row in in_json)


def test_names_of_others_are_text_in_a_spreadsheet_whatever_separates_its_cells(predict, run, pictures, tmp_path):
    with_facts(classes=["\ud800x", "=1+1", *"23456789"])(run.record.path)
    shutil.copy(min((pictures / "7").iterdir()), tmp_path / "a;=1+1;.png")
    assert predict(f"run={run.record.path}", "input=*.png", "output=x.csv", "top_k=10")[0] == 0
    (row,) = rows(tmp_path / "x.csv")
    assert row["path"] == "a;=1+1;.png"
    assert {r"\ud800x", "'=1+1"} < set(row.values())
    with (tmp_path / "x.csv").open(newline="") as file:
        cells = [cell for line in csv.reader(file, delimiter=";") for cell in line]
    assert not [cell for cell in cells if cell.startswith("=")]


def test_doubtful_pictures_are_left_aside_and_the_others_measured(predict, run, pictures, tmp_path):
    probabilities = stored_probabilities(run)
    least = round(float(np.median(probabilities.max(axis=1))), 4)
    _, out, _ = predict(f"run={run.record.path}", f"input={pictures}", "output=x.csv", f"confidence={least}")
    sure = probabilities.max(axis=1) >= least
    right = probabilities.argmax(axis=1) == np.load(run.record.path / "predictions.npz")["labels"]
    assert f"in doubt  {(~sure).sum()} pictures, {(~sure).mean():.1%} of them" in out
    assert f"; accuracy of the others {right[sure].mean():.4f}\n" in out


@pytest.fixture
def command(run, pictures):
    return [f"run={run.record.path}", f"input={pictures}", "output=x.csv", "batch_size=32"]


@pytest.fixture
def partial(predict, command, tmp_path, monkeypatch):
    """What the command left when it was interrupted: 100 rows of 360, and a part of the next."""
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", lambda *_: sys.exit(9))
        assert predict(*command)[0] == 9
    path = tmp_path / "x.csv.partial"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 361
    path.write_bytes(b"".join(lines[:101]) + lines[101][:20])
    return path


@pytest.mark.whole
def test_an_interrupted_command_continues_after_its_last_whole_row(predict, command, partial, tmp_path, monkeypatch):
    classified = []
    append = Journal.append
    monkeypatch.setattr(Journal, "append", lambda self, rows: (classified.extend(rows), append(self, rows)))
    code, out, err = predict(*command)
    assert (code, err) == (0, "")
    assert len(classified) == 260
    assert "accuracy" in out
    assert "of 360 labelled pictures" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "x.csv"]
    assert predict(*command, "output=at_once.csv")[0] == 0
    assert (tmp_path / "x.csv").read_bytes() == (tmp_path / "at_once.csv").read_bytes()


def test_features_are_those_of_the_rows_also_after_an_interruption(predict, run, bad_pictures, tmp_path, monkeypatch):
    command = [f"run={run.record.path}", f"input={bad_pictures}", "output=x.csv", "batch_size=2", "features=x.npz"]
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", lambda *_: sys.exit(9))
        assert predict(*command)[0] == 9
    partial = tmp_path / "x.csv.partial"
    lines = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(lines[:2]) + lines[2][:200])
    code, _, err = predict(*command[:-1])
    assert code == 1
    assert "(features was True, is None)" in err
    assert predict(*command)[0] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixed", "run", "x.csv", "x.npz"]
    with np.load(tmp_path / "x.npz") as found:
        assert list(found) == ["features", "paths"]
        features, paths = found["features"], found["paths"]
    assert paths.tolist() == [row["path"] for row in rows(tmp_path / "x.csv")]
    assert (features.shape, features.dtype) == ((7, run.config.model.dim), np.float32)
    expected = run.features(paths[:3].tolist(), accelerator="cpu")
    np.testing.assert_allclose(features[:3], expected, atol=1e-6)
    assert np.isnan(features[3:]).all(), "of the pictures that cannot be read"


@pytest.mark.parametrize(
    ("given", "code", "problem"),
    [
        (["features=x.npz"], 2, "needs output=FILE"),
        (["features=x.npy", "output=x.csv"], 2, "must end with .npz"),
        (["features=no/x.npz", "output=x.csv"], 1, "cannot write no/x.npz: No such file or directory"),
        (["features=folder.npz", "output=x.csv"], 1, "cannot write folder.npz: it is a folder"),
        (["features=mine.npz", "output=x.csv"], 2, "exists and does not hold features of predict.py"),
        (["features=more.npz", "output=x.csv"], 2, "exists and does not hold features of predict.py"),
        (["features=compressed.npz", "output=x.csv"], 2, "exists and does not hold features of predict.py"),
        (["features=x.npz", "output=x.csv", "run=[a,b]"], 2, "needs a single run, not 2"),
    ],
)
def test_a_file_that_cannot_become_features_is_refused_first(given, code, problem, predict, run, pictures, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    arrays = {"features": np.ones((1, 3)), "paths": np.array(["a"])}
    np.savez(tmp_path / "mine.npz", a=np.ones(3))
    np.savez(tmp_path / "more.npz", **arrays, a=np.ones(3))
    np.savez_compressed(tmp_path / "compressed.npz", **arrays)
    for name in "ab":
        (tmp_path / name).symlink_to(run.record.path)
    before = sorted(tmp_path.iterdir())
    found, _, err = predict(f"run={run.record.path}", f"input={pictures}", *given)
    assert found == code
    assert problem in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.whole
def test_rows_of_other_settings_or_pictures_and_damaged_ones_are_not_continued(predict, command, partial, tmp_path):
    refused = {
        "top_k=2": "holds results of other runs or settings; delete it, or choose another output (top_k was 1, is 2)",
        "attention=maps": f"(attention was None, is {tmp_path}/maps)",
        f"{command[1]}/1": "holds results of other pictures: row 1 is",
    }
    for override, problem in refused.items():
        code, _, err = predict(*command, override)
        assert code == 1
        assert problem in err
    partial.write_bytes(partial.read_bytes().replace(partial.read_bytes().splitlines()[2], b"\0" * 9))
    problem = "vitrine: x.csv.partial is damaged; delete it, and rerun the same command\n"
    assert predict(*command) == (1, "", problem)


def test_a_resumed_command_names_the_pictures_that_could_not_be_read_before(
    predict, run, bad_pictures, tmp_path, monkeypatch
):
    page = Image.open(bad_pictures / "0_good.png")
    page.save(bad_pictures / "e_stack.tif", save_all=True, append_images=[page])
    command = [f"run={run.record.path}", f"input={bad_pictures}", "output=x.csv"]
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", lambda *_: sys.exit(9))
        code, _, before = predict(*command)
    assert code == 9
    code, _, err = predict(*command)
    assert code == 4
    *named, unread, paged = err.splitlines()
    assert named == [f"{line} (before the command was interrupted)" for line in before.splitlines()]
    assert (len(named), unread) == (4, "vitrine: 4 of 8 pictures were not readable")
    assert paged == "vitrine: of 1 picture with several pages or frames, only the first was read"


def test_an_interrupted_command_can_be_continued_with_another_confidence(predict, run, pictures, tmp_path, monkeypatch):
    """Which then counts for all rows: they are kept with their class, however likely it is."""
    command = [f"run={run.record.path}", f"input={pictures}/5"]
    _, expected, _ = predict(*command, "output=at_once.csv", "confidence=0.14")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", lambda *_: sys.exit(9))
        assert predict(*command, "output=x.csv", "confidence=0.9")[0] == 9
    partial = tmp_path / "x.csv.partial"
    partial.write_bytes(b"".join(partial.read_bytes().splitlines(keepends=True)[:21]))
    code, out, _ = predict(*command, "output=x.csv", "confidence=0.14")
    assert code == 0
    assert (tmp_path / "x.csv").read_bytes() == (tmp_path / "at_once.csv").read_bytes()
    assert {row["class"] for row in rows(tmp_path / "x.csv")[:20]} > {"", "5"}
    (doubt,) = re.findall(r"^in doubt.*$", expected, re.MULTILINE)
    assert doubt in out


@pytest.mark.whole
def test_a_killed_command_is_finished_by_the_same_command(run, pictures, tmp_path):
    """With worker processes, and paths on standard input, which stays open while rows are written."""
    paths = [str(path) for path in sorted(pictures.rglob("*.png"))] * 20
    arguments = [f"run={run.record.path}", "input=-", "output=x.csv", "batch_size=16", "accelerator=cpu", "workers=2"]
    command = [sys.executable, str(ROOT / "predict.py"), *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    process.stdin.write("\n".join(paths[:3000]) + "\n")
    process.stdin.flush()
    partial, deadline = tmp_path / "x.csv.partial", time.monotonic() + 200
    while not partial.exists() or len(partial.read_bytes().splitlines()) < 500:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(partial.read_bytes().splitlines())
    listed = "\n".join(paths)
    done = subprocess.run(command, cwd=tmp_path, input=listed, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    found = rows(tmp_path / "x.csv")
    assert kept > 500
    assert [row["path"] for row in found] == paths
    order = [int(row["path"][-9:-4]) for row in found]
    assert_as_in_training(run, found, order, top_k=1)


@pytest.mark.skipif(not own_file_systems(), reason="this user may mount no small file system to fill")
@pytest.mark.whole
def test_a_full_disk_is_one_line_and_with_more_room_the_command_continues(run, pictures, tmp_path):
    script = """
        mount -t tmpfs -o size=16k tmpfs disk && "$@" && exit 1
        test $? = 1 && echo >&2 && mount -o remount,size=10m disk && "$@" && wc -l < disk/x.csv
    """
    (tmp_path / "disk").mkdir()
    arguments = [f"run={run.record.path}", f"input={pictures}", "output=disk/x.csv", "batch_size=32", "accelerator=cpu"]
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, str(ROOT / "predict.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    problem = r"the disk is full: cannot write disk/x\.csv\.partial; .* left on that disk"
    assert re.fullmatch(rf"vitrine: {problem}; make room and rerun the same command\n\n", done.stderr)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "361"


def test_the_seeds_of_a_sweep_average_as_an_ensemble(predict, pictures, tmp_path):
    assert len(SEEDS) == 2
    code, _, err = predict(f"run=[{SEEDS[0]},{SEEDS[1]}]", f"input={pictures}", "output=x.csv", "top_k=10")
    assert (code, err) == (0, "")
    mean = sum(stored_probabilities(load_run(seed)) for seed in SEEDS) / 2
    for row in rows(tmp_path / "x.csv"):
        given = {row[f"class{suffix}"]: float(row[f"probability{suffix}"]) for suffix in ("", "_2", "_3", "_10")}
        for name, probability in given.items():
            assert probability == pytest.approx(mean[int(row["path"][-9:-4]), int(name)], abs=2e-6)


@pytest.mark.parametrize("precisions", [("bf16-mixed", "32-true"), ("32-true", "bf16-mixed")])
def test_an_ensemble_with_a_model_that_rounds_nothing_is_computed_so(predict, pictures, monkeypatch, precisions):
    def set_up(hardware):
        raise RunError(hardware.precision)

    models = (SimpleNamespace(hardware=Hardware("cuda", 1, precision, "math", "a GPU")) for precision in precisions)
    monkeypatch.setattr("vitrine.inference.predict.Predictor", lambda *_: next(models))
    monkeypatch.setattr(Hardware, "set_up", set_up)
    _, _, err = predict(f"run=[{SEEDS[0]},{SEEDS[1]}]", f"input={pictures}")
    assert err == "vitrine: 32-true\n"


def test_runs_with_other_classes_are_no_ensemble(predict, run, pictures, tmp_path):
    other = shutil.copytree(run.record.path, tmp_path / "other")
    facts = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(facts | {"classes": facts["classes"][::-1]}))
    code, _, err = predict(f"run=[{run.record.path},{other}]", f"input={pictures}")
    assert code == 1
    assert "has other classes (9, 8, 7, ...) than" in err


def test_probabilities_are_calibrated_on_validation_and_the_effect_reported(predict, run, pictures, tmp_path):
    _, out, err = predict(f"run={run.record.path}", f"input={pictures}", "output=x.csv", "calibrate=true")
    assert not err
    number = r"(\d+\.\d+)"
    effect = rf"NLL {number} to {number}, ECE {number} to {number}"
    fitted = re.search(rf"temperature  {number}, fitted on 144 validation images: {effect}", out)
    assert float(fitted[3]) < float(fitted[2])
    tested = re.search(rf"on 360 test images: {effect}", out)
    assert float(tested[1]) == pytest.approx(run.metrics["test/loss"], abs=1e-4)
    assert f"NLL       {tested[2]}" in out, "the pictures are the test images"
    logits = np.load(run.record.path / "predictions.npz")["logits"] / float(fitted[1])
    likeliest = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).max(axis=1)
    given = {int(row["path"][-9:-4]): float(row["probability"]) for row in rows(tmp_path / "x.csv")}
    np.testing.assert_allclose([given[index] for index in range(360)], likeliest, atol=1e-3)


def test_the_epoch_that_predicts_can_be_named(predict, run, pictures, tmp_path):
    shutil.copy(run.record.best, run.record.best.with_name("epoch_3.ckpt"))
    run.record.end("interrupted")
    picture = min((pictures / "7").iterdir())
    code, out, err = predict(f"run={run.record.path}", f"input={picture}", "checkpoint=3")
    assert (code, err) == (0, ""), "and not that the best so far predicts"
    assert f"{run.predict(picture, accelerator='cpu').probability:.4f}" in out
    code, _, err = predict(f"run={run.record.path}", f"input={picture}", "checkpoint=4")
    assert (code, "has no checkpoint of epoch 4: kept are 3, beside the best" in err) == (1, True)


def test_where_the_validation_images_determine_no_temperature_it_stays_1(predict, run, pictures, monkeypatch):
    monkeypatch.setattr("vitrine.inference.calibrate.fitted_temperature", lambda *_: None)
    picture = min((pictures / "7").iterdir())
    code, out, _ = predict(f"run={run.record.path}", f"input={picture}", "calibrate=true")
    assert code == 0
    assert out.startswith("temperature  1: the validation images do not determine a temperature\n")
    assert f"{run.predict(picture, accelerator='cpu').probability:.4f}" in out


@pytest.mark.whole
def test_where_the_model_looked_is_written_for_each_picture(predict, run, bad_pictures, tmp_path):
    code, _, _ = predict(f"run={run.record.path}", f"input={bad_pictures}", "attention=maps")
    assert code == 4
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == ["0_good.png", "1_rgba.png", "2_16bit.png"]
    image = np.asarray(Image.open(tmp_path / "maps" / "0_good.png"))
    assert image.shape == (224, 2 * (224 + 8) + 14 + 44, 3), "the picture, its map, a colour bar and its labels"
    seen = {tuple(colour) for colour in image[:, 232:456].reshape(-1, 3)}
    assert len(seen) <= 16, "the map alone, a colour for each patch"
    assert tuple(image[0, 464]) in seen, "the bar ends in the brightest colour of the map"
    again = predict(f"run={run.record.path}", f"input={bad_pictures}", "attention=maps")
    assert again[0] == 4, "maps replace those of an earlier command"
    refused = predict(f"run={run.record.path}", f"input={bad_pictures}", f"attention={bad_pictures}/maps")
    assert refused[0] == 2
    assert "must not be inside the pictures" in refused[2]


def test_each_picture_has_a_map_of_its_own(predict, run, pictures, tmp_path):
    picture = min((pictures / "7").iterdir())
    for name in ("pics/a.jpg", "pics/a.jpg.png", "pics/a.png", "pics/a.png.png", "maps/a.png", "a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(picture, tmp_path / name)
    assert predict(f"run={run.record.path}", "input=pics", "attention=drawn")[0] == 0
    drawn = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert drawn == ["a.jpg.png", "a.jpg.png.png", "a.png", "a.png.png.png"]
    (tmp_path / "list.csv").write_text("path\na.png\n./a.png\npics/../a.png\npics/../../a.png\n")
    shutil.copy(picture, tmp_path.parent / "a.png")
    code, _, err = predict(f"run={run.record.path}", "input=list.csv", "attention=of_list")
    assert code == 2
    assert "pics/../a.png and pics/../../a.png would both have the image of_list/pics/a.png" in err


def test_a_killed_command_leaves_no_half_of_a_map(predict, run, pictures, tmp_path, monkeypatch):
    shutil.copy(min((pictures / "7").iterdir()), tmp_path / "1.png")
    command = [f"run={run.record.path}", "input=1.png", "attention=maps"]

    class Killed(BaseException):
        pass

    class Half:
        def save(self, path, **_):
            Path(path).write_bytes(b"\x89PNG")
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(AttentionImages, "drawn", lambda *_: Half())
        with pytest.raises(Killed):
            predict(*command)
    assert not (tmp_path / "maps" / "1.png").exists()
    assert predict(*command)[0] == 0
    assert Image.open(tmp_path / "maps" / "1.png").size[1] == 224


@pytest.mark.parametrize("given", ["pics/1.png", "pics/*.png", "list.csv", "-", "pics"])
def test_a_picture_is_never_replaced_by_its_map(given, predict, run, pictures, tmp_path, monkeypatch):
    for folder in ("pics", "masks"):
        (tmp_path / folder).mkdir()
        shutil.copy(min((pictures / "7").iterdir()), tmp_path / folder / "1.png")
    (tmp_path / "list.csv").write_text("path\npics/1.png\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("pics/1.png\n"))
    before = (tmp_path / "pics" / "1.png").read_bytes()
    folder = "masks" if given == "pics" else "."
    code, out, err = predict(f"run={run.record.path}", f"input={given}", f"attention={folder}")
    assert (code, "probability" in out) == (2, False)
    assert "the image of pics/1.png would replace" in err
    assert before == (tmp_path / "pics" / "1.png").read_bytes() == (tmp_path / "masks" / "1.png").read_bytes()


def damaged(run):
    path = run / "checkpoints" / "best.ckpt"
    path.write_bytes(path.read_bytes()[:5000])


def without_checkpoint(run):
    (run / "checkpoints" / "best.ckpt").unlink()


def with_facts(**changes):
    def change(run):
        facts = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(facts | changes))

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (damaged, r"best\.ckpt is damaged, or not a checkpoint"),
        (without_checkpoint, r"there is no checkpoint .*best\.ckpt: the run stopped before its first epoch was saved"),
        (with_facts(classes=list("abc")), r"run\.json names 3 different classes, the model was trained on 10"),
        (with_facts(classes=["a"] * 10), r"run\.json names 1 different class, the model was trained on 10"),
    ],
)
def test_a_run_that_cannot_predict_is_refused_in_one_line(predict, run, pictures, change, expected, tmp_path):
    change(run.record.path)
    code, out, err = predict(f"run={run.record.path}", f"input={pictures}", "output=x.csv")
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"vitrine: .*{expected}.*\n", err)
    assert not list(tmp_path.glob("x.csv*"))


def test_a_run_that_has_not_finished_predicts_with_a_note(predict, run, pictures):
    with_facts(status="running\x1b[31m")(run.record.path)
    code, _, err = predict(f"run={run.record.path}", f"input={pictures}/1")
    assert code == 0
    assert err == rf"vitrine: {run.record.path} is running\x1b[31m, not finished: its best epoch so far predicts" + "\n"


def test_labels_of_a_csv_file_give_metrics_and_wrong_ones_are_refused(predict, run, pictures, tmp_path):
    some = sorted(pictures.rglob("*.png"))[::10]
    listed = "".join(f"{path},{path.parent.name}\n" for path in some)
    (tmp_path / "some.csv").write_text("path,label\n" + listed)
    code, out, _ = predict(f"run={run.record.path}", "input=some.csv")
    assert code == 0
    head, row, *_ = out.splitlines()
    assert head.split() == ["class", "probability", "label", "path"]
    assert row.split()[2:] == ["0", str(some[0])]
    assert row.index(" 0  ") + 1 == head.index("label")
    assert f"of {len(some)} labelled pictures" in out
    (tmp_path / "some.csv").write_text(f"path,label\n{some[0]},ten\n")
    code, _, err = predict(f"run={run.record.path}", "input=some.csv")
    assert code == 1
    assert "has the label ten, which is not a class of the run" in err


def test_a_label_is_a_class_of_an_earlier_run_in_whatever_unicode_form_both_are(predict, run, tmp_path, pictures):
    composed, decomposed = "\u00fc", "u\u0308"
    (tmp_path / "in" / composed).mkdir(parents=True)
    shutil.copy(min((pictures / "0").iterdir()), tmp_path / "in" / composed)
    with_facts(classes=[decomposed, *"123456789"])(run.record.path)
    code, out, _ = predict(f"run={run.record.path}", "input=in")
    assert code == 0
    assert "of 1 labelled picture" in out
    twice = [decomposed, composed, *"23456789"]
    with_facts(classes=twice)(run.record.path)
    assert load_run(run.record.path).classes == twice


def test_folders_that_are_partly_classes_give_no_metrics_and_a_note(predict, run, pictures, tmp_path):
    shutil.copytree(pictures / "3", tmp_path / "mixed" / "3")
    shutil.copytree(pictures / "4", tmp_path / "mixed" / "four")
    code, out, err = predict(f"run={run.record.path}", "input=mixed", "output=x.csv")
    assert code == 0
    assert "accuracy" not in out
    assert err == "vitrine: no metrics: four, 1 folder in mixed, are not classes of the run\n"


@pytest.mark.parametrize(("names", "known"), [("cat,dog", False), ("3,dog", False), ("3,4", True)])
@pytest.mark.parametrize("listed", [False, True])
def test_features_have_labels_that_need_not_be_classes(names, known, listed, predict, run, pictures, tmp_path):
    expected = names.split(",")
    for digit, name in zip("34", expected, strict=True):
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(min((pictures / digit).iterdir()), tmp_path / "in" / name / "a.png")
    (tmp_path / "in.csv").write_text("path,label\n" + "".join(f"in/{name}/a.png,{name}\n" for name in expected))
    source = "in.csv" if listed else "in"
    code, out, err = predict(f"run={run.record.path}", f"input={source}", "output=x.csv", "features=x.npz")
    assert code == 0
    assert ("of 2 labelled pictures" in out) == known
    note = f"vitrine: no metrics: dog, 1 {'label' if listed else 'folder'} in {source}, are not classes of the run\n"
    assert err == (note if names == "3,dog" else "")
    with np.load(tmp_path / "x.npz") as found:
        assert found["labels"].tolist() == expected


def test_a_command_that_classified_nothing_leaves_no_journal(predict, run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err = predict(f"run={run.record.path}", "input=-", "output=x.csv")
    assert (code, err) == (1, "vitrine: input=-: no picture was named\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_paths_come_from_standard_input(predict, run, pictures, monkeypatch):
    some = sorted(pictures.rglob("*.png"))[:5]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(str, some))))
    code, out, _ = predict(f"run={run.record.path}", "input=-")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()[1:6]] == list(map(str, some))


@pytest.mark.whole
def test_predicting_imports_no_trainer(run, pictures, tmp_path):
    """Lightning and its company take longer to import than many folders to classify."""
    code = f"""
import sys
for name in ("lightning", "pytorch_lightning", "torchmetrics", "matplotlib", "scipy", "sklearn", "pandas"):
    sys.modules[name] = None
from vitrine.cli.main import main
main(["predict", "run={run.record.path}", "input={pictures}", "output=x.csv", "workers=2", "accelerator=cpu"])
"""
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(rows(tmp_path / "x.csv")) == 360


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_lock_that_a_killed_process_may_have_left_is_named(tmp_path, monkeypatch):
    """As on Lustre without flock, where the file is the lock."""
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented")))
    (tmp_path / ".x.csv.partial.lock").write_text("4711\nnode7\n")
    hint = rf"another process; if none is running, delete {tmp_path}/\.x\.csv\.partial\.lock$"
    with pytest.raises(RunError, match=hint), _held(tmp_path / "x.csv.partial"):
        pass
