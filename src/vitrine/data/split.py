"""Random parts of the training images, stratified by class: a validation split or fold, and a part to train on."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.errors import DataError
from vitrine.text import listed, plural

MAX_LISTED = 3
TRIES = 200  # random choices of groups, of which the most representative is taken


def strata(labels: Tensor, smallest: int, classes: Sequence[str] = ()) -> Tensor:
    """Return the class that each image counts for when splits are stratified: its own; of several, the rarest.

    Images without a label are one more class. Of several labels, groups of fewer than ``smallest`` images are joined.

    Args:
        labels: (N,) int64, which is returned as it is; or (N, classes) uint8.
        smallest: number of images that a group must have to be split.
        classes: names of the classes, for the message.

    Returns:
        (N,) int64.

    Raises:
        DataError: a class has a single image.
    """
    if labels.dim() == 1:
        return labels
    counts = labels.sum(dim=0, dtype=torch.int64)
    _check_alone(counts, classes)
    none = labels.shape[1]
    rarest = torch.where(labels > 0, counts, len(labels) + 1).min(dim=1)
    groups = torch.where(labels.bool().any(dim=1), rarest.indices, none)
    sizes = groups.bincount(minlength=none + 1)
    small = (sizes < smallest)[groups]
    if small.any():
        groups[small] = none + 1
        if int(small.sum()) < smallest:
            groups[small] = sizes.argmax()
    return groups


@dataclass(frozen=True)
class TrainValSplit:
    """Sorted indices of the training and validation images, int64."""

    train: Tensor
    val: Tensor

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the validation indices."""
        return hashlib.sha256(self.val.numpy().tobytes()).hexdigest()[:16]


def split_train_val(labels: Tensor, fraction: float, seed: int, classes: Sequence[str] = ()) -> TrainValSplit:
    """Split off ``fraction`` of the images for validation, stratified by class; ``seed`` alone decides which.

    Of a class whose share is less than an image, there may be none for validation.

    Args:
        labels: (N,) int64.
        fraction: in (0, 1).
        seed: of the random choice.
        classes: names of the classes, for the message.

    Raises:
        DataError: a class has a single image, or none for training; or a part has fewer images than there are classes.
    """
    counts = torch.bincount(labels)
    _check_alone(counts, classes)
    present, held_out = int((counts > 0).sum()), math.ceil(fraction * len(labels))
    if min(held_out, len(labels) - held_out) < present:
        least = math.ceil(1000 * present / len(labels)) / 1000
        hint = f"give it a value from {least:g} to {1 - least:g}" if least <= 0.5 else "there are too few images"
        raise DataError(
            f"data.val_fraction={fraction:g} splits off {held_out} of {len(labels)} images for validation; each part "
            f"needs {present}, one for each class (of several labels, an image counts for its rarest): {hint}"
        )
    found = hold_out(labels, held_out, seed)
    if lost := _lost_classes(labels, found.train, classes):
        raise DataError(f"data.val_fraction={fraction:g} leaves no training image of {lost}; give it a smaller value")
    return found


def hold_out(labels: Tensor, count: int, seed: int) -> TrainValSplit:
    """Hold out ``count`` images, of each class in proportion to its images; ``seed`` alone decides which.

    They are those that scikit-learn's ``train_test_split`` chooses. Importing it would be a quarter of the time before
    the first training step.

    Args:
        labels: (N,) int64.
        count: number of images, in [1, N).
        seed: of the random choice.
    """
    sizes = np.unique(labels.numpy(), return_counts=True)[1]
    classes = np.split(labels.numpy().argsort(kind="stable"), sizes.cumsum()[:-1])
    generator = np.random.RandomState(seed)
    kept = _in_proportion(sizes, len(labels) - count, generator)
    left = _in_proportion(sizes - kept, count, generator)  # all of them, but it draws
    parts = [generator.permutation(images) for images in classes]
    train = np.concatenate([part[:most] for part, most in zip(parts, kept, strict=True)])
    val = np.concatenate([part[most : most + more] for part, most, more in zip(parts, kept, left, strict=True)])
    return TrainValSplit(torch.from_numpy(np.sort(train)), torch.from_numpy(np.sort(val)))


def _in_proportion(sizes: np.ndarray, count: int, generator: np.random.RandomState) -> np.ndarray:
    """Share ``count`` among classes in proportion to sizes, the largest remainders first; ties are drawn."""
    exact = sizes / sizes.sum() * count
    shares = np.floor(exact)
    missing, remainders = int(count - shares.sum()), exact - shares
    for remainder in np.unique(remainders)[::-1]:
        if missing == 0:
            break
        equal = np.flatnonzero(remainders == remainder)
        drawn = generator.choice(equal, min(missing, len(equal)), replace=False)
        shares[drawn] += 1
        missing -= len(drawn)
    return shares.astype(int)


def split_fold(
    labels: Tensor,
    folds: int,
    fold: int,
    seed: int,
    classes: Sequence[str] = (),
    groups: Sequence[str] | None = None,
) -> TrainValSplit:
    """Split the images into ``folds`` parts, stratified by class; part number ``fold``, from 0, is for validation.

    Each image is in one part; ``seed`` alone decides in which. With ``groups``, the name of each image's group, each
    group is in one part, and parts are as alike in classes as the groups allow.

    Raises:
        DataError: a class has fewer images than there are folds; or there are fewer groups, or a class is in no group
            left for training.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    if groups is not None and (count := len(set(groups))) < folds:
        raise DataError(f"data.group has {plural(count, 'group')} of training images, and needs {folds} for data.folds")
    _check_smallest(labels, folds, f"for data.folds={folds}", classes)
    kind, members = (StratifiedKFold, None) if groups is None else (StratifiedGroupKFold, _numbered(groups))
    parts = kind(folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels.numpy(), members)
    held_out = np.zeros(len(labels), bool)
    held_out[list(parts)[fold][1]] = True
    return _of_groups(labels, held_out, classes)


def hold_out_groups(
    labels: Tensor, groups: Sequence[str], fraction: float, seed: int, classes: Sequence[str] = ()
) -> TrainValSplit:
    """Hold out about ``fraction`` of the images for validation, in whole groups; ``seed`` alone decides which.

    Of :data:`TRIES` random choices of so many of the groups, it is the one whose numbers of images of each class are
    nearest to that fraction, of those that leave each class in training if there are any. If there are none, groups
    that alone have a class stay in training, the choices are of the others, and a class that still has no training
    image gets its smallest group back.

    Args:
        labels: (N,) int64.
        groups: name of the group of each image.
        fraction: in (0, 1).
        seed: of the random choices.
        classes: names of the classes, for the message.

    Raises:
        DataError: there are fewer than two groups, or each that is held out has to go back.
    """
    count, members = len(set(groups)), _numbered(groups)
    if count < 2:
        raise DataError(f"data.group has {plural(count, 'group')} of training images, and needs 2 to split them")
    total, generator = np.bincount(labels.numpy()), np.random.RandomState(seed)
    held_out = min(max(1, round(fraction * count)), count - 1)

    def images_of(chosen: np.ndarray) -> np.ndarray:
        """(N,) bool: which images are of these groups."""
        is_chosen = np.zeros(count, bool)
        is_chosen[chosen] = True
        return is_chosen[members]

    def error(chosen: np.ndarray) -> tuple[bool, float]:
        found = np.bincount(labels.numpy()[images_of(chosen)], minlength=len(total))
        return bool(((found == total) & (total > 0)).any()), float(np.abs(found - fraction * total).sum())

    def best_of(groups: np.ndarray) -> np.ndarray:
        return min((generator.permutation(groups)[:held_out] for _ in range(TRIES)), key=error)

    best = best_of(np.arange(count))
    if error(best)[0] and len(free := _of_shared_classes(labels.numpy(), members)):
        best = best_of(free)
    drawn = images_of(best)
    kept = _leaving_each_class(labels.numpy(), members, drawn)
    return _of_groups(labels, kept if kept.any() else drawn, classes)


def _of_shared_classes(labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return the numbers of the groups that have no class for themselves, (M,) int64.

    Args:
        labels: (N,) int64.
        members: (N,) int64, the number of the group of each image.
    """
    label, group = np.divmod(np.unique(labels * (members.max() + 1) + members), members.max() + 1)
    return np.setdiff1d(members, group[np.bincount(label)[label] == 1])


def _leaving_each_class(labels: np.ndarray, members: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Give the smallest group of each class that is held out as a whole back to training.

    Args:
        labels: (N,) int64.
        members: (N,) int64, the number of the group of each image.
        held_out: (N,) bool, which images are held out.

    Returns:
        (N,) bool, which images are still held out.
    """
    held_out, sizes = held_out.copy(), np.bincount(members)
    for label in np.setdiff1d(labels[held_out], labels[~held_out]):
        own = labels == label
        if held_out[own].all():  # of the groups given back so far, none has this class
            groups = members[own]
            held_out[members == groups[sizes[groups].argmin()]] = False
    return held_out


def _numbered(groups: Sequence[str]) -> np.ndarray:
    """(N,) int64: the number of each image's group, in the order of names.

    In an array of text, as of ``np.unique``, each would take as much memory as the longest.
    """
    numbers = {name: number for number, name in enumerate(sorted(set(groups)))}
    return np.array([numbers[name] for name in groups])


def _of_groups(labels: Tensor, held_out: np.ndarray, classes: Sequence[str]) -> TrainValSplit:
    """The split that holds out these images, (N,) bool, if it leaves images of each class for training."""
    train, val = (torch.from_numpy(np.flatnonzero(part)) for part in (~held_out, held_out))
    if lost := _lost_classes(labels, train, classes):
        problem = "all are of groups that are in the validation split; another data.val_seed may draw others"
        raise DataError(f"data.group leaves no training image of {lost}: {problem}")
    return TrainValSplit(train, val)


def training_subset(
    labels: Tensor, seed: int, *, fraction: float | None = None, count: int | None = None, classes: Sequence[str] = ()
) -> Tensor:
    """Choose ``fraction`` of each class's images, at least one, or ``count`` of them; ``seed`` alone decides which.

    A smaller choice is part of a larger one.

    Returns:
        Sorted indices, int64.

    Raises:
        DataError: a class has fewer than ``count`` images.
    """
    if count is not None:
        _check_smallest(labels, count, f"for data.per_class={count}", classes)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator).argsort()
    by_class = order[labels[order].argsort(stable=True)].split(labels.bincount().tolist())
    chosen = []
    for own in by_class:
        most = count if count is not None else max(1, round((fraction or 1.0) * len(own)))
        chosen.append(own[:most])
    return torch.cat(chosen).sort().values


def _lost_classes(labels: Tensor, train: Tensor, classes: Sequence[str]) -> str:
    """Name the classes that have no image at the indices ``train``; empty if all have one."""
    lost = set(labels.tolist()) - set(labels[train].tolist())
    return listed([classes[label] if classes else label for label in sorted(lost)], MAX_LISTED)


def _check_alone(counts: Tensor, classes: Sequence[str]) -> None:
    """Raise DataError where a class has a single image; ``counts`` (classes,) are those of their images."""
    if alone := [name for name, count in zip(classes, counts.tolist(), strict=False) if count == 1]:
        names = f"classes {listed(alone, MAX_LISTED)} have" if len(alone) > 1 else f"class {alone[0]} has"
        raise DataError(
            f"{names} one training image; at least 2 are needed in each class, to train and to validate on; "
            "add images, leave the class out, or give the data a validation split of its own"
        )


def _check_smallest(labels: Tensor, needed: int, purpose: str, classes: Sequence[str]) -> None:
    """Raise DataError where a class that has images has fewer than are needed; the message names the smallest."""
    counts = labels.bincount()
    smallest = int(torch.where(counts > 0, counts, counts.max()).argmin())
    if (count := int(counts[smallest])) < needed:
        name = classes[smallest] if smallest < len(classes) else str(smallest)
        raise DataError(f"class {name} has {plural(count, 'training image')}, and needs {needed} {purpose}")
