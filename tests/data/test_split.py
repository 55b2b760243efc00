"""Random validation splits: stratified, reproducible, identified by a hash."""

import time

import numpy as np
import pytest
import torch
from helpers.running import write_image_folder
from sklearn.model_selection import train_test_split

from vitrine.data.datamodule import ImageDataModule
from vitrine.data.split import TrainValSplit, split_fold, split_train_val, strata, training_subset
from vitrine.errors import DataError

LABELS = torch.arange(600).remainder(10).clamp(max=7)  # 7 is three times as frequent as the others


def test_both_parts_are_disjoint_complete_and_sorted():
    split = split_train_val(LABELS, 0.1, seed=0)
    together = torch.cat([split.train, split.val])
    assert together.dtype is torch.int64
    assert together.sort().values.tolist() == list(range(600))
    for indices in (split.train, split.val):
        assert indices.tolist() == sorted(indices.tolist())


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_the_split_is_stratified(fraction):
    split = split_train_val(LABELS, fraction, seed=0)
    counts = LABELS[split.val].bincount() / LABELS.bincount()
    assert counts.tolist() == pytest.approx([fraction] * 8, abs=0.01)


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    first = split_train_val(LABELS, 0.1, seed=0)
    torch.manual_seed(2)
    again, other = split_train_val(LABELS, 0.1, seed=0), split_train_val(LABELS, 0.1, seed=1)
    assert torch.equal(first.val, again.val)
    assert first.hash == again.hash
    assert not torch.equal(first.val, other.val)
    assert first.hash != other.hash


def test_the_hash_depends_on_the_validation_indices_alone():
    train, val = torch.arange(10), torch.tensor([2, 5, 7])
    known = TrainValSplit(train, val).hash
    assert TrainValSplit(train[:3], val.clone()).hash == known
    for other in ([3, 5, 7], [2, 5, 8], [2, 5], [2, 5, 7, 9], [2, 7]):
        assert TrainValSplit(train, torch.tensor(other)).hash != known


@pytest.mark.parametrize("seed", range(20))
def test_the_images_held_out_are_those_of_scikit_learn(seed):
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 12))
    labels = np.concatenate([np.arange(classes).repeat(2), random.choice(classes, random.integers(50, 800))])
    labels = 3 * random.permutation(labels)  # classes without images lie between
    fraction = random.uniform(0.2, 0.8)
    train, val = train_test_split(np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=seed)
    found = split_train_val(torch.from_numpy(labels), fraction, seed)
    assert found.train.tolist() == sorted(train)
    assert found.val.tolist() == sorted(val)


def test_a_class_that_would_have_no_training_image_is_named():
    labels = torch.tensor([0] * 50 + [1, 1])
    with pytest.raises(DataError, match=r"^data\.val_fraction=0\.8 leaves no training image of rose; give it"):
        split_train_val(labels, 0.8, seed=0, classes=["aster", "rose"])
    assert set(labels[split_train_val(labels, 0.5, seed=0).train].tolist()) == {0, 1}


def test_classes_of_one_image_are_named():
    with pytest.raises(DataError, match=r"^class rose has one training image; at least 2 are needed"):
        split_train_val(torch.tensor([0] * 20 + [1]), 0.1, seed=0, classes=["aster", "rose"])
    with pytest.raises(DataError, match=r"^classes rose and tulip have one training image"):
        split_train_val(torch.tensor([0] * 20 + [1, 2]), 0.1, seed=0, classes=["aster", "rose", "tulip"])


@pytest.mark.parametrize("fraction", [0.1, 0.9])
def test_a_part_with_fewer_images_than_classes_is_refused_with_values_that_work(fraction):
    labels = torch.arange(27).remainder(9)
    with pytest.raises(DataError, match=r"of 27 images .* each part needs 9, .* from 0\.334 to 0\.666$"):
        split_train_val(labels, fraction, seed=0)
    for possible in (0.334, 0.666):
        split_train_val(labels, possible, seed=0)
    with pytest.raises(DataError, match=r"each part needs 9, .*: there are too few images$"):
        split_train_val(labels.repeat_interleave(2)[:17], 0.5, seed=0)


# --- folds and subsets -----------------------------------------------------------------------------------------------


def test_each_image_is_in_one_fold_and_folds_are_stratified():
    folds = [split_fold(LABELS, 5, fold, seed=0) for fold in range(5)]
    assert torch.cat([split.val for split in folds]).sort().values.tolist() == list(range(600))
    for split in folds:
        assert torch.cat([split.train, split.val]).sort().values.tolist() == list(range(600))
        assert LABELS[split.val].bincount().tolist() == [12] * 7 + [36]
    assert not torch.equal(folds[0].val, split_fold(LABELS, 5, 0, seed=1).val)


def test_smaller_subsets_are_nested_in_larger_ones_and_stratified():
    before: set[int] = set()
    for fraction in (0.001, 0.1, 0.35, 0.36, 1.0):
        chosen = training_subset(LABELS, 3, fraction=fraction)
        assert before <= set(chosen.tolist())
        before = set(chosen.tolist())
        assert chosen.tolist() == sorted(before)
        counts = (LABELS[chosen].bincount() / LABELS.bincount()).tolist()
        assert counts == pytest.approx([fraction] * 8, abs=0.017)
        assert min(LABELS[chosen].bincount().tolist()) >= 1
    assert len(before) == 600
    few, more = (set(training_subset(LABELS, 3, count=count).tolist()) for count in (5, 20))
    assert few < more
    assert LABELS[sorted(more)].bincount().tolist() == [20] * 8
    assert few != set(training_subset(LABELS, 4, count=5).tolist())


def test_a_subset_is_that_of_earlier_versions_and_takes_time_linear_in_its_classes():
    labels = torch.tensor([0, 2, 0, 2, 2, 0, 3, 2, 0, 0, 3, 2])
    assert training_subset(labels, 3, fraction=0.5).tolist() == [2, 4, 6, 9, 11]
    assert training_subset(labels, 3, count=1).tolist() == [4, 6, 9]
    before = time.process_time()
    assert len(training_subset(torch.arange(40_000), 0, fraction=0.5)) == 40_000
    assert time.process_time() - before < 2  # 8 s if each class reads all labels


@pytest.mark.parametrize(
    ("choose", "needs"),
    [
        (lambda labels, names: training_subset(labels, 0, count=2, classes=names), "2 for data.per_class=2"),
        (lambda labels, names: split_fold(labels, 5, 0, 0, names), "5 for data.folds=5"),
    ],
    ids=["subset", "folds"],
)
def test_a_class_with_one_image_is_named(choose, needs):
    labels = torch.tensor([0] * 50 + [1] * 50 + [2])
    with pytest.raises(DataError, match=f"class newt has 1 training image, and needs {needs}"):
        choose(labels, ["ant", "bee", "newt"])


def test_folds_of_data_with_a_validation_split_of_its_own_are_refused(compose, tmp_path):
    write_image_folder(tmp_path / "own", "train", "val")
    words = ["data=imagefolder", f"data.root={tmp_path / 'own'}", "data.image_size=8", "patch=4"]
    with pytest.raises(DataError, match=r"data\.folds=5 is for data without a validation split of its own"):
        ImageDataModule(compose(*words, "data.folds=5", "data.fold=0"))
    whole, part = (ImageDataModule(compose(*words, *more)) for more in ([], ["data.per_class=3"]))
    assert part.sizes == {"train": 6, "val": 40, "test": 0}
    assert whole.sizes == {"train": 40, "val": 40, "test": 0}


def test_a_smaller_part_leaves_validation_and_the_data_s_fingerprint_as_they_are(compose):
    whole, part = (ImageDataModule(compose(*more)) for more in ([], ["data.train_fraction=0.1"]))
    assert part.validation_hash == whole.validation_hash
    assert part.dataset.fingerprint == whole.dataset.fingerprint
    assert part.sizes == {"train": pytest.approx(129, abs=5), "val": 144, "test": 360}
    assert part.steps_per_epoch == 2


def test_of_several_labels_the_rarest_counts_for_strata():
    rows = [[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1], [1, 0, 1]]
    labels = torch.tensor(rows, dtype=torch.uint8)
    assert strata(labels, 2).tolist() == [1, 0, 0, 1, 3, 3, 2, 2]
    assert strata(labels[:-1], 2).tolist() == [1, 0, 0, 1, 3, 3, 0], "a group of one joins the largest"
    assert strata(labels, 3).tolist() == [4] * 8, "groups that are too small are joined"
    assert strata(LABELS, 2) is LABELS
    with pytest.raises(DataError, match="class b has one training image"):
        strata(labels[[0, 1, 4, 6, 7]], 2, ["a", "b", "c"])
