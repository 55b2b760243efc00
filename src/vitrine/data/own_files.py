"""What ``data.root`` must be, by the source of the images, and the classes there. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from vitrine.config.parts import part_at, takes
from vitrine.config.schema import DataConfig
from vitrine.data.hub_dataset import HubDataset
from vitrine.data.image_csv import read_csv
from vitrine.data.image_folder import class_folders
from vitrine.errors import ConfigError, Fault

# By data.name.
NEEDED_ROOT = {
    "imagefolder": "the folder of your images, with train/<class>/* in it",
    "csv": "a CSV file with columns path, label and optionally split",
    "huggingface": "the folder that save_to_disk of Hugging Face datasets has written",
}
WITHOUT_ROOT = "has no effect on data=digits, or on a data set of your own without a parameter root"


def count_classes(name: str, root: str, *, multi_label: bool = False, targets: Sequence[str] = ()) -> list[int]:
    """Return the number of classes of the source ``data=name`` at ``root``; of several targets, those of each.

    Image files are not listed, which takes minutes where there are millions.

    Raises:
        DataError: there is no such data set, or it cannot be trained on.
    """
    if name == "csv":
        return [len(classes) for classes in read_csv(root, multi_label=multi_label, targets=targets).targets.values()]
    if name == "imagefolder":
        return [len(class_folders(Path(root))[0])]
    return [len(HubDataset.scan(root).classes)]


def reads_root(data: DataConfig) -> bool:
    """Whether the data set is read from ``data.root``.

    Raises:
        PartError: it is a user's own, and cannot be imported.
    """
    part = part_at(data, "name")
    return data.name != "digits" if part is None else takes(part, "root")


def refuse_idle_root(data: DataConfig, data_root: str) -> None:
    """Raise ConfigError where the data set is not read from the folder ``data_root`` that a user gives for a run."""
    if not reads_root(data):
        raise ConfigError([Fault("data_root", data_root, WITHOUT_ROOT)])
