"""Images of one group, as of a patient, are never in two splits."""

import tracemalloc
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.running import write_image_folder

from vitrine import compose, fit, load_run
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.groups import group_of, likely_groups, refuse_shared
from vitrine.data.split import hold_out_groups, split_fold
from vitrine.errors import ConfigError, DataError
from vitrine.explain.page import render
from vitrine.inference.export.model_card import AccuracyOnTest
from vitrine.runs import RunRecord
from vitrine.runs.predictions import read_groups
from vitrine.training.metrics import wilson_interval

LABELS = torch.arange(120).remainder(2)
GROUPS = [f"P{number // 6}" for number in range(120)]  # twenty groups of six


def module(root: Path, *overrides: str) -> ImageDataModule:
    source = "csv" if root.suffix == ".csv" else "imagefolder"
    given = ["model=vit_nano", f"data={source}", f"data.root={root}", "data.image_size=8", "patch=4"]
    return ImageDataModule(compose([*given, f"paths.cache_dir={root.parent}/cache", "data.storage=disk", *overrides]))


@pytest.fixture
def patients(tmp_path):
    """Forty images in two classes; in each, ten groups of two: the same names in both, as of patients with both."""
    write_image_folder(tmp_path / "pictures")
    for file in sorted((tmp_path / "pictures").rglob("*.png")):
        file.rename(file.with_name(f"P{int(file.stem) // 2}_{file.name}"))
    return tmp_path / "pictures"


@pytest.fixture
def table(patients):
    """The same images in a CSV file."""

    def write(*splits: str) -> Path:
        rows = ["path,label,patient,split"]
        for number, file in enumerate(sorted(patients.rglob("*.png"))):
            rows.append(f"{file},{file.parent.name},{file.stem.partition('_')[0]},{splits[number % len(splits)]}")
        path = patients.parent / "table.csv"
        path.write_text("\n".join(rows))
        return path

    return write


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.3, 0.5])
def test_whole_groups_are_held_out_about_as_many_as_asked_for_and_alike_in_classes(fraction):
    split = hold_out_groups(LABELS, GROUPS, fraction, seed=0)
    assert sorted(torch.cat([split.train, split.val]).tolist()) == list(range(120))
    assert {GROUPS[row] for row in split.train} & {GROUPS[row] for row in split.val} == set()
    assert len(split.val) == pytest.approx(120 * fraction, abs=1)
    assert LABELS[split.val].float().mean() == 0.5


def test_the_groups_held_out_are_those_of_earlier_versions():
    """So that runs of different versions are validated on the same images. P16 alone has class 2."""
    labels = torch.tensor([0] * 48 + [1] * 48 + [2] * 6 + [0] * 18)
    for seed, expected in enumerate(["P0 P10 P3 P8", "P11 P14 P18 P6", "P0 P12 P2 P8"]):
        drawn = {GROUPS[row] for row in hold_out_groups(labels, GROUPS, 0.2, seed).val.tolist()}
        assert " ".join(sorted(drawn)) == expected


def test_the_seed_alone_draws_the_groups_and_each_may_be_held_out():
    """Also where groups differ in size and have one class each, as patients do."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(2, 10, (40,), generator=generator).tolist()
    groups = [f"P{number}" for number, size in enumerate(sizes) for _ in range(size)]
    labels = torch.tensor([number % 2 for number, size in enumerate(sizes) for _ in range(size)])
    assert hold_out_groups(labels, groups, 0.2, seed=3).hash == hold_out_groups(labels, groups, 0.2, seed=3).hash
    times, shares = Counter(), []
    for seed in range(100):
        split = hold_out_groups(labels, groups, 0.2, seed=seed)
        times.update({groups[row] for row in split.val})
        shares.append(float(labels[split.val].float().mean()))
        assert len(split.val) == pytest.approx(0.2 * len(labels), rel=0.15)
    assert len(times) == 40
    assert max(times.values()) < 45  # of 100, where 20 are expected
    assert max(abs(share - float(labels.float().mean())) for share in shares) < 0.1


@pytest.mark.parametrize("split", [partial(hold_out_groups, fraction=0.2), partial(split_fold, folds=5, fold=1)])
def test_a_long_name_of_one_group_takes_no_memory_for_the_others(split):
    expected = split(LABELS, groups=GROUPS, seed=0)
    groups = [f"{name}{'x' * 100_000}" if name == "P9" else name for name in GROUPS]
    tracemalloc.start()
    found = split(LABELS, groups=groups, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.hash == expected.hash
    assert peak < 5_000_000  # an array of the names has 48 MB


def test_each_group_is_in_one_fold():
    folds = [split_fold(LABELS, 5, fold, seed=0, groups=GROUPS) for fold in range(5)]
    assert sorted(row for split in folds for row in split.val.tolist()) == list(range(120))
    assert sum(len({GROUPS[row] for row in split.val}) for split in folds) == 20


def test_with_few_groups_or_images_the_message_says_what_is_needed():
    assert len(hold_out_groups(LABELS[:18], GROUPS[:18], 0.1, seed=0).val) == 6, "one group of three"
    with pytest.raises(DataError, match=r"data\.group has 1 group of training images, and needs 2 to split them"):
        hold_out_groups(LABELS[:6], GROUPS[:6], 0.1, seed=0)
    with pytest.raises(DataError, match=r"data\.group has 3 groups of training images, and needs 5 for data\.folds"):
        split_fold(LABELS[:18], 5, 0, seed=0, groups=GROUPS[:18])
    rare = torch.tensor([0] * 27 + [1] * 3)
    with pytest.raises(DataError, match=r"class ill has 3 training images, and needs 5 for data\.folds=5"):
        split_fold(rare, 5, 0, seed=0, classes=["well", "ill"], groups=[f"P{number // 2}" for number in range(30)])


def test_a_class_of_one_group_stays_in_training_and_fails_where_a_fold_takes_it():
    labels = torch.tensor([0] * 12 + [1] * 6)
    for seed in range(10):
        assert labels[hold_out_groups(labels, GROUPS[:18], 0.1, seed=seed).train].unique().tolist() == [0, 1]
    found = set()
    for fold in range(3):
        try:
            split_fold(labels, 3, fold, seed=0, classes=["well", "ill"], groups=GROUPS[:18])
        except DataError as error:
            found.add(str(error))
    assert found == {
        "data.group leaves no training image of ill: all are of groups that are in the validation split; another "
        "data.val_seed may draw others"
    }


def test_of_many_rare_classes_each_keeps_a_group_in_training():
    """No random choice leaves some of each class of two groups. Of two groups, each with a class, none can be given."""
    labels = torch.cat([torch.arange(2000).repeat(2), torch.arange(100).repeat(20)])
    groups = [f"P{number}" for number in range(len(labels))]
    for seed in range(3):
        split = hold_out_groups(labels, groups, 0.1, seed)
        assert len(labels[split.train].unique()) == 2000
        assert len(split.val) == pytest.approx(600, abs=60)
        assert sorted(torch.cat([split.train, split.val]).tolist()) == list(range(6000))
    with pytest.raises(DataError, match=r"^data\.group leaves no training image of"):
        hold_out_groups(torch.tensor([0, 0, 1, 1]), ["A", "A", "B", "B"], 0.5, seed=0)


def test_where_many_groups_alone_have_a_class_the_others_are_held_out():
    """Of 40 classes, 36 have one group and four have three each."""
    sizes = [1] * 36 + [3] * 4
    groups = [f"P{label}_{number}" for label, size in enumerate(sizes) for number in range(size)]
    labels = torch.tensor([label for label, size in enumerate(sizes) for _ in range(size)])
    for seed in range(3):
        split = hold_out_groups(labels, groups, 0.2, seed)
        assert len(labels[split.train].unique()) == 40
        assert len(split.val) >= 0.15 * len(labels)


@pytest.mark.parametrize("key", ["data.val_fraction=0.2", "data.folds=5 data.fold=1"])
@pytest.mark.parametrize("source", ["prefix", "folder", "patient"])
def test_a_validation_split_shares_no_patient_with_training(source, key, patients, table):
    root = patients
    if source == "folder":
        for file in sorted(patients.rglob("*.png")):
            (file.parent / file.name.partition("_")[0]).mkdir(exist_ok=True)
            file.rename(file.parent / file.name.partition("_")[0] / file.name)
    elif source == "patient":
        root = table("train")
    found = module(root, f"data.group={source}", *key.split())
    files = found._files()
    names = {split: {Path(file).name.partition("_")[0] for file in files[split][0]} for split in files}
    assert len(names["val"]) == 2
    assert len(names["train"]) == 8
    assert not names["val"] & names["train"]
    assert len(found.val) == 8
    assert len(found.groups_of("val")) == 8
    assert len(set(found.groups_of("val"))) == 2


def test_a_group_in_two_splits_of_the_data_is_leakage(table):
    root = table("train", "test")
    with pytest.raises(DataError, match=r"table.csv: 10 groups with images in two splits, .*: P0 \(train and test\), "):
        module(root, "data.group=patient")
    assert module(root).test is not None, "without groups, nothing is known"


def test_a_column_that_may_tell_groups_is_not_left_unread_in_silence(table, capsys):
    root = table("train")
    module(root)
    assert "column patient is not read; data.group=patient keeps the images of each together" in capsys.readouterr().err
    module(root, "data.group=patient")
    assert "patient" not in capsys.readouterr().err
    assert [likely_groups([name]) for name in ("Patient_ID", "subject id", "taken by")] == [
        "Patient_ID",
        "subject id",
        "",
    ]


@pytest.mark.parametrize(
    ("source", "group", "message"),
    [
        ("imagefolder", "patient", "must be folder or prefix with data=imagefolder"),
        ("imagefolder", "prefx", r"did you mean data.group=prefix\?"),
        ("csv", "split", "must be a column that tells groups; split does not"),
        ("digits", "folder", "is for data=imagefolder, csv and huggingface, not for data=digits"),
    ],
)
def test_what_tells_no_groups_is_refused(source, group, message, patients, table):
    root = {"imagefolder": [f"data.root={patients}"], "csv": [f"data.root={table('train')}"], "digits": []}[source]
    with pytest.raises(ConfigError, match=message):
        compose(["model=vit_nano", f"data={source}", *root, f"data.group={group}"])


def test_a_missing_column_or_value_is_named(table):
    root = table("train")
    with pytest.raises(DataError, match=r"has no column patent; .*rename patient to patent\?"):
        module(root, "data.group=patent")
    root.write_text(root.read_text().replace(",P3,", ",,", 1))
    with pytest.raises(DataError, match=r"there is no patient$"):
        module(root, "data.group=patient")


def test_files_without_a_group_are_named():
    assert [group_of(Path("P7/x/1.png"), "folder"), group_of(Path("x/P7_1_2.png"), "prefix")] == ["P7", "P7"]
    assert {group_of(Path(f"{name}/1.png"), "folder") for name in ("\u00fc", "u\u0308")} == {"\u00fc"}
    assert group_of(Path("u\u0308_1.png"), "prefix") == "\u00fc"
    with pytest.raises(DataError, match=r"1\.png is in no folder inside its class; expected CLASS/GROUP/1\.png"):
        group_of(Path("1.png"), "folder")
    for name in ("1.png", "_1.png"):
        with pytest.raises(DataError, match=f"the name of {name} does not begin with a group and _, as in P7_1.png"):
            group_of(Path(name), "prefix")
    refuse_shared({"train": ["a", "a", "b"], "test": ["c"]}, "root")


def test_a_run_stores_the_groups_of_its_test_images_and_its_intervals_are_over_these(tmp_path):
    root = tmp_path / "pictures"
    write_image_folder(root, "train", "test")
    for file in sorted(root.rglob("*.png")):
        file.rename(file.with_name(f"{file.parts[-3]}{int(file.stem) // 4}_{file.name}"))
    given = ["model=vit_nano", "depth=1", "data=imagefolder", f"data.root={root}", "data.image_size=8", "patch=4"]
    given += ["data.group=prefix", "trainer.max_epochs=1", "trainer.compile=nothing", "data.storage=disk"]
    done = fit(compose([*given, f"paths.output_dir={tmp_path}", f"paths.cache_dir={tmp_path}/cache"]))
    stored = read_groups(done.run_dir / "predictions.npz").tolist()
    assert len(stored) == 40
    assert Counter(stored) == dict.fromkeys(range(5), 8), "four images of each of both classes"
    found = AccuracyOnTest.of(load_run(done.run_dir))
    alone = wilson_interval(round(40 * found.value), 40)
    assert found.low < alone[0]
    assert found.high >= alone[1]
    page = render(RunRecord.open(done.run_dir), [])
    assert f"{100 * found.low:.2f} to {100 * found.high:.2f} over 40 test images in 5 groups (Wilson)" in page
    of_a = wilson_interval(round(20 * done.metrics["test/class_acc/a"]), 20)
    assert done.metrics["test/class_acc_low/a"] < of_a[0] or of_a[0] == 0
