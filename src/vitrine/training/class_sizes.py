"""How many training images each class has, and the accuracy of always answering the class that has the most."""

from vitrine.data.datamodule import ImageDataModule
from vitrine.text import plural

MAX_LISTED = 12  # classes that are listed one by one
EVEN = 1.5  # times as many training images in one class as in another: there is nothing to list
UNEVEN = 10  # times as many training images in one class as in another: balanced sampling is advised


def class_sizes(data: ImageDataModule) -> str:
    """Describe the classes, of several targets those of the first, in a line.

    ``viel: 271, rar: 7 in train; accuracy of always viel: 0.9688 on validation, 0.6667 on test``. Of classes of about
    one size, the range is all: ``125 to 131 images each in train``.
    """
    config, names = data.config, data.dataset.classes
    counts = data.train.per_class(len(names)).tolist()
    is_even = max(counts) <= EVEN * min(counts)
    if len(names) <= MAX_LISTED and not is_even:
        text = ", ".join(f"{name}: {count:,}" for name, count in zip(names, counts, strict=True)) + " in train"
    else:
        least = f"{min(counts):,} to " if min(counts) < max(counts) else ""
        text = f"{least}{plural(max(counts), 'image')} each in train"
    if config.data.multi_label or is_even:
        return text
    always: dict[str, list[str]] = {}
    for stage, split in {"validation": data.val, "test": data.test}.items():
        if split is not None:
            of_split = split.per_class(len(names)).tolist()
            most = max(of_split)
            always.setdefault(names[of_split.index(most)], []).append(f"{most / len(split):.4f} on {stage}")
    text += "".join(f"; accuracy of always {name}: {', '.join(shares)}" for name, shares in always.items())
    is_evened_out = config.data.sampling == "balanced" or config.loss.class_weights is not None
    if max(counts) > UNEVEN * min(count for count in counts if count) and not is_evened_out:
        text += "; data.sampling=balanced draws each class equally often"
    return text
