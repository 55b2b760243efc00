"""The data of all ranks, and keys that do not fit it."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.running import SMALL, write_image_folder
from PIL import Image
from torch.distributed import HashStore

from vitrine import compose, fit
from vitrine.data import memory
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.decode import Decoder
from vitrine.data.split import split_train_val
from vitrine.distributed.hardware import choose_hardware
from vitrine.distributed.launch import Launch
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DataError, RunError
from vitrine.training.load_data import check_split_keys, load_data, report_few_levels, report_upscaling


@pytest.mark.parametrize(
    ("overrides", "devices", "message"),
    [
        (["data.batch_size=2000"], 4, "cut to the 1293 training images, a number that must be .*; set .*_size=1292$"),
        (["augment.mixup=0.5", "data.batch_size=2000"], 2, "divisible by trainer.devices=2; set data.batch_size=1292$"),
        (["data.train_fraction=0.001", "data.batch_size=64"], 16, "cut to the 10 .*; take fewer devices$"),
    ],
)
def test_a_batch_that_is_cut_is_shared_equally_between_devices_or_refused(overrides, devices, message):
    config = compose([*SMALL, *overrides])
    hardware = choose_hardware(config)
    with pytest.raises(DataError, match=message):
        load_data(config, replace(hardware, devices=devices), Ranks())
    assert len(load_data(config, hardware, Ranks()).train) > 0


def test_pictures_that_are_scaled_up_are_reported_with_their_size(tmp_path, capsys):
    write_image_folder(tmp_path, size=(10, 4))
    pictures = sorted((tmp_path / "train" / "a").iterdir())
    config = compose(SMALL)
    report_upscaling(replace(config, data=replace(config.data, image_size=[8, 21])), pictures)
    assert capsys.readouterr().err == "", "at most twice as high"
    config = replace(config, data=replace(config.data, image_size=[9, 24]))
    for patch, size in ((2, 10), (4, 12), (13, 13), (16, None)):
        report_upscaling(replace(config, model=replace(config.model, patch_size=patch)), pictures)
        hint = f"; data.image_size={size} takes less computation" if size else ""
        report = f"vitrine: pictures of at most 4x10 pixels are scaled up to 9x24{hint}\n"
        assert capsys.readouterr().err == report, patch


def test_pictures_with_several_pages_are_reported(tmp_path, capsys):
    write_image_folder(tmp_path)
    given = [f"data.root={tmp_path}", "data.image_size=8", "patch=4", f"paths.cache_dir={tmp_path / 'cache'}"]
    config = compose(["data=imagefolder", *given])
    hardware = choose_hardware(config)
    load_data(config, hardware, Ranks())
    assert capsys.readouterr().err == ""
    first, stack = (tmp_path / "train" / "a" / name for name in ("0.png", "0.tif"))
    first.unlink()
    page = Image.new("RGB", (8, 8))
    page.save(stack, save_all=True, append_images=[page, page])
    load_data(config, hardware, Ranks())
    problem = f"of pictures with several pages or frames, such as {stack}, only the first is read"
    assert capsys.readouterr().err == f"vitrine: warning: {problem}\n"


@pytest.mark.parametrize("suffix", ["tif", "png", "pgm"])
@pytest.mark.parametrize(("values", "levels"), [((100, 1600), 7), ((512, 16895), 64), ((511, 16895), None)])
def test_pictures_of_16_bits_that_use_few_of_them_are_reported(tmp_path, capsys, suffix, values, levels):
    pictures = [tmp_path / f"{value}.{suffix}" for value in values]
    for path, value in zip(pictures, values, strict=True):
        Image.fromarray(np.full((4, 4), value, np.uint16)).save(path)
    report_few_levels([0, 65535], pictures)
    found = capsys.readouterr().err
    if levels is None:
        assert found == ""
    else:
        use = f"2 of the 16-bit pictures use values from {values[0]} to {values[1]}, which become {levels} of 256"
        hint = f"data.levels=[{values[0]},{values[1]}] spreads them over all"
        assert found == f"vitrine: warning: {use} grey levels; {hint}\n"
        report_few_levels(values, pictures)
        assert capsys.readouterr().err == ""
    Image.fromarray(np.full((4, 4), 3, np.uint8)).save(tmp_path / "8 bits.png")
    report_few_levels([0, 65535], [*pictures, tmp_path / "8 bits.png"])
    assert capsys.readouterr().err == ""


def test_the_data_of_16_bits_is_looked_at_before_training(tmp_path, capsys):
    for label, name in enumerate(("train/a", "train/b")):
        (tmp_path / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.linspace(100 + label, 1600 - number // 8, 64, dtype=np.uint16).reshape(8, 8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.tif")
    folders = [f"data.root={tmp_path}", f"paths.cache_dir={tmp_path / 'cache'}"]
    config = compose([*SMALL, "data=imagefolder", "data.image_size=8", "patch=4", *folders])
    load_data(config, choose_hardware(config), Ranks())
    assert "16-bit pictures use values from 100 to 1600, which become 7 of 256" in capsys.readouterr().err
    spread = replace(config, data=replace(config.data, levels=[100, 1600]))
    images = load_data(spread, choose_hardware(config), Ranks()).train.images
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert "16-bit" not in capsys.readouterr().err


def test_classes_without_a_validation_or_test_image_are_reported(tmp_path, capsys):
    write_image_folder(tmp_path / "data", "train", "test")
    shutil.rmtree(tmp_path / "data/test/a")
    for number in range(3, 20):
        (tmp_path / f"data/train/b/{number}.png").unlink()
    folders = [f"data.root={tmp_path / 'data'}", f"paths.cache_dir={tmp_path / 'cache'}"]

    def load(*more):
        config = compose([*SMALL, "data=imagefolder", "data.image_size=8", "patch=4", *folders, *more])
        load_data(config, choose_hardware(config), Ranks())
        return capsys.readouterr().err

    hint = "data.val_fraction=0.34 or data.folds=3 gives each class some"
    found = load()
    assert f"there is no validation image of b (3 in train): metrics say nothing of it; {hint}\n" in found
    assert "there is no test image of a (20 in train): metrics say nothing of it\n" in found
    for given in (["data.val_fraction=0.34"], ["data.folds=3", "data.fold=0"]):
        assert "no validation image" not in load(*given, "callbacks.monitor=val/balanced_acc")
    stopping = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.monitor=val/balanced_acc"]
    for monitored in (["callbacks.monitor=val/macro_f1"], stopping):
        with pytest.raises(DataError, match=rf"no validation image of b .* needs some of each class; {hint}$"):
            load(*monitored)


@pytest.fixture
def load_table(tmp_path):
    """Load forty images, two of each patient, with labels in a CSV file: ``load(column=[...], ...)(*overrides)``."""
    write_image_folder(tmp_path / "data")
    paths = [str(path) for path in sorted(tmp_path.rglob("*.png"))]

    def write(**columns):
        columns = {"path": paths, "patient": [f"P{row // 2}" for row in range(40)], **columns}
        lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
        (tmp_path / "table.csv").write_text("\n".join(lines))

        def load(*overrides):
            folders = [f"data.root={tmp_path / 'table.csv'}", f"paths.cache_dir={tmp_path / 'cache'}"]
            config = compose([*SMALL, "data=csv", "data.image_size=8", "patch=4", *folders, *overrides])
            return load_data(config, choose_hardware(config), Ranks())

        return load

    return write


HALVES = ["left", "right"] * 20


def test_a_class_of_a_further_target_without_a_training_image_is_refused(load_table):
    given = ["data.targets=[side,disease]", "data.group=patient"]
    for ill, seed, split in ((2, 2, ["data.val_fraction=0.5"]), (4, 3, ["data.folds=2", "data.fold=0"])):
        load = load_table(side=HALVES, disease=["ill"] * ill + ["well"] * (40 - ill))
        load(*given, *split, "data.val_seed=0")
        problem = rf"^the validation split takes every image of ill \({ill} in train\) of target disease; another data"
        with pytest.raises(DataError, match=rf"{problem}.val_seed may leave some to train on$"):
            load(*given, *split, f"data.val_seed={seed}")


MULTI_LABEL = ["data.multi_label=true", "loss=binary_cross_entropy"]
OF_P = {  # each image with c has a rarer label, so that the stratified split does not see c
    "label": ["c|d"] * 3 + ["c|e"] * 3 + ["d", "d", "e", "e"] + ["a"] * 30,
    "patient": ["P"] * 6 + [f"P{row // 2}" for row in range(34)],
}
TARGETS = ["data.targets=[side,disease]"]


@pytest.mark.parametrize(
    ("columns", "given", "names"),
    [
        (OF_P, [*MULTI_LABEL, "data.group=patient"], "c (6 in train), all in one group"),
        (
            {"side": HALVES, "disease": ["ill"] * 2 + ["well"] * 38},
            [*TARGETS, "data.group=patient"],
            "ill (2 in train) of target disease, all in one group",
        ),
        ({"side": HALVES, "disease": ["ill"] + ["well"] * 39}, TARGETS, "ill (1 in train) of target disease"),
    ],
)
def test_a_fold_of_all_training_images_of_a_class_that_no_seed_divides_is_reported(
    load_table, capsys, columns, given, names
):
    load = load_table(**columns)
    for fold in range(4):
        load(*given, "data.folds=4", f"data.fold={fold}")
    warning = f"vitrine: warning: this fold validates every image of {names}, and trains on none of it\n"
    assert capsys.readouterr().err.count(warning) == 1


def test_classes_of_further_targets_without_a_validation_or_test_image_are_reported(load_table, capsys):
    place, split = ["sea"] * 26 + ["land"] * 2 + ["sea"] * 12, ["train"] * 30 + ["test"] * 10
    load_table(side=HALVES, place=place, split=split)("data.targets=[side,place]")
    found = capsys.readouterr().err
    assert "there is no validation image of land (2 in train) of target place: metrics say nothing of it\n" in found
    assert "there is no test image of land (2 in train) of target place: metrics say nothing of it\n" in found
    assert " left" not in found


def test_a_monitor_that_validation_images_do_not_define_is_refused_with_the_way_out(load_table, capsys):
    own = ["train"] * 30 + ["val"] * 10
    early = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.monitor=val/auroc"]
    load = load_table(label=["ill"] * 4 + ["well"] * 36, split=own)
    assert "no validation image of ill" in (load() and capsys.readouterr().err)
    with pytest.raises(
        DataError, match=r"no validation image of ill \(4 in train\), and val/auroc needs some of a class"
    ):
        load(*early)
    several = ["data.multi_label=true", "loss=binary_cross_entropy"]
    load = load_table(label=["a"] * 10 + ["b"] * 20 + ["|"] * 10, split=own)
    for metric, needed in {"auroc": "some of a class and some without it", "map": "some of any class"}.items():
        problem = rf"of a \(10 in train\) and b \(20 in train\), and val/{metric} needs {needed}$"
        with pytest.raises(DataError, match=problem):
            load(*several, f"callbacks.monitor=val/{metric}")
    load = load_table(label=["a"] * 10 + ["a|b"] * 30, split=own)
    with pytest.raises(DataError, match=r"^all validation images have the same labels, and val/auroc needs"):
        load(*several, "callbacks.monitor=val/auroc")
    load(*several, "callbacks.monitor=val/map")


def test_of_groups_a_monitor_over_classes_is_refused_with_the_way_out_if_there_is_one(load_table):
    way = r"; a larger data.val_fraction \(1 of 20 groups now\) or another data.val_seed may give each class some"
    for rare, hint in ((2, ""), (4, way)):
        load = load_table(label=["ill"] * rare + ["well"] * (40 - rare))
        with pytest.raises(DataError, match=rf"and val/balanced_acc needs some of each class{hint}$"):
            load("data.group=patient", "data.val_fraction=0.05", "callbacks.monitor=val/balanced_acc")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda path: path.unlink(), r"train has 39 images, not 40 \(b: 19, not 20\)"),
        (lambda path: path.rename(path.with_name("70.png")), "train has files of other names"),
        (None, r"the validation split is \w{16}, not \w{16}"),
    ],
)
def test_ranks_that_read_different_data_are_refused_before_anything_is_written(tmp_path, monkeypatch, change, problem):
    roots = [tmp_path / name for name in "01"]
    for root in roots:
        write_image_folder(root)
    store = HashStore()
    first, second = (Ranks(Launch("srun", rank, count=2, local_rank=rank, nodes=1), store) for rank in range(2))

    def load(root, ranks):
        given = ["data.image_size=8", "patch=4", "data.batch_size=8", "data.storage=disk", f"data.root={root}"]
        config = compose([*SMALL, "data=imagefolder", *given, f"paths.cache_dir={tmp_path / 'cache'}"])
        return load_data(config, choose_hardware(config), ranks)

    load(roots[0], first)
    load(roots[1], second)  # the same files in another place
    if change is not None:
        change(roots[1] / "train/b/7.png")
    load(roots[0], first)
    if change is None:  # as other groups
        drawn = split_train_val(torch.arange(2).repeat(20), 0.1, seed=1)
        monkeypatch.setattr("vitrine.data.datamodule.split_train_val", lambda *_: drawn)
    ends = "; ranks train one run together, on the same data$"
    message = rf"the data of rank 1, data.root={roots[1]}, is not that of rank 0: {problem}.*{ends}"
    with pytest.raises(RunError, match=f"^{message}"), second.failing_together():
        load(roots[1], second)
    with pytest.raises(RunError, match=f"^rank 1 of 2: {message}"):
        first.wait_for_all()


LARGER = ["data.train_size=12", "augment.crop=0", "augment.resized_crop=[0.3,1.0]"]


@pytest.mark.parametrize("own_val", [False, True])
def test_images_to_train_on_are_decoded_at_their_size_and_all_others_as_without_it(tmp_path, own_val):
    write_image_folder(tmp_path / "data", "train", "test", *(["val"] if own_val else []), size=(20, 17))
    folders = [f"data.root={tmp_path / 'data'}", f"paths.cache_dir={tmp_path / 'cache'}"]

    def read(*more):
        return ImageDataModule(
            compose([*SMALL, "data=imagefolder", "data.image_size=8", "patch=4", "data.crop_pct=0.8", *folders, *more])
        )

    plain, larger, streamed = read(), read(*LARGER), read(*LARGER, "data.storage=disk")
    rows = torch.arange(40) if own_val else plain.train_val_split.train
    paths = [plain.dataset.files["train"][row] for row in rows.tolist()]
    images = torch.from_numpy(Decoder(12, 3).read(paths))
    for data in (larger, streamed):
        splits = [(data.train, (images, plain.train.labels))]
        splits += [(split, (one.images, one.labels)) for split, one in ((data.val, plain.val), (data.test, plain.test))]
        for split, (pixels, labels) in splits:
            ((found, own),) = split.batches([torch.arange(len(split))])
            assert torch.equal(found, pixels)
            assert torch.equal(own, labels)
        assert (data.dataset.val is not None) == own_val
    of_splits = 3 if own_val else 2
    new = 1 if own_val else 2  # the images to train on, and those to validate on that are drawn from them
    assert len(list((tmp_path / "cache").glob("*.npz"))) == of_splits + new


@pytest.mark.parametrize(
    ("choice", "room", "size", "decoded"),
    [
        (["data.train_fraction=0.25"], 6000, "2.3 kB", [12]),  # 8 to train on, 4 to validate on
        (["data.per_class=4"], 6000, "2.3 kB", [12]),
        (["data.per_class=4", *LARGER], 12_000, "4.22 kB", [8, 4]),
    ],
)
def test_training_images_that_are_used_are_in_memory_where_not_all_have_room(
    tmp_path, monkeypatch, choice, room, size, decoded
):
    write_image_folder(tmp_path / "data")
    given = [f"data.root={tmp_path / 'data'}", "data.image_size=8", "patch=4", "data.workers=1", *choice]

    def read(cache, placement=None, patience=math.inf):
        folders = [f"paths.cache_dir={tmp_path / cache}"]
        config = compose([*SMALL, "data=imagefolder", *given, *folders])
        return ImageDataModule(config, placement=placement, patience=patience)

    def same(data):
        assert data.validation_hash == whole.validation_hash
        for split, expected in ((data.train, whole.train), (data.val, whole.val)):
            ((images, labels),) = split.batches([torch.arange(len(split))])
            assert torch.equal(images, expected.images)
            assert torch.equal(labels, expected.labels)

    whole = read("whole")
    monkeypatch.setattr(memory, "available_memory", lambda: room)
    part = read("part")
    assert (part.placement.line, part.placement.part) == (f"in memory: {size}", True)
    assert part.placement.facts == {"place": "memory", "workers": 0, "line": f"in memory: {size}"}
    assert len(part.dataset.train) == 40
    same(part)
    slow = read("slow", patience=0.0)
    assert [len(store.known) for store in slow.incomplete] == decoded
    same(slow)
    monkeypatch.setattr(memory, "available_memory", lambda: room * 2 // 3)
    streamed = read("none")
    assert streamed.placement.line.endswith(f"{size} exceeds the {room // 3000} kB of memory for images")
    same(streamed)
    monkeypatch.setattr(Decoder, "read", lambda *_: pytest.fail("decoded again"))
    same(read("part", part.placement))  # on another rank


@pytest.mark.parametrize("given", ["data.val_fraction=0.2", "data.val_seed=7"])
def test_a_key_that_chooses_validation_images_is_refused_where_the_data_has_its_own(tmp_path, given):
    write_image_folder(tmp_path / "own", "train", "val")
    paths = [f"paths.cache_dir={tmp_path / 'cache'}", f"paths.output_dir={tmp_path}"]
    config = compose(
        [*SMALL, "data=imagefolder", f"data.root={tmp_path / 'own'}", "data.image_size=8", "patch=4", *paths, given]
    )
    with pytest.raises(DataError, match=rf"^{given} is for data without a validation split of its own, which this has"):
        fit(config)
    own = load_data(config, choose_hardware(config), Ranks())
    check_split_keys(replace(config, data=replace(config.data, hold_out=False, val_fraction=0.1, val_seed=0)), own)
