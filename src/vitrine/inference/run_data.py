"""The images of a run's data set, read again for a trained model: refused if they are no longer those of the run."""

from collections.abc import Sequence
from dataclasses import replace

from vitrine.config import TrainConfig
from vitrine.config.schema import DataConfig
from vitrine.config.serialize import from_plain
from vitrine.config.trust import TRUST_ALL
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.datasets import refuse_download
from vitrine.data.image_dataset import Split
from vitrine.data.own_files import refuse_idle_root
from vitrine.errors import DataError, RunError
from vitrine.inference.load import LoadedRun
from vitrine.text import listed
from vitrine.training.changed_data import check_data, validation_splits

DATA_ROOT = "; --data-root DIR names the folder that holds it"


def validation_images(run: LoadedRun, root: str | None = None, *, advice: str = "") -> tuple[Split, bool]:
    """Return the validation images of a run, and whether they are training images, too.

    Args:
        run: the run; labels are of all of its targets.
        root: folder of its data; ``None`` is where it was in training, and downloads nothing.
        advice: as of :func:`read_data`.

    Raises:
        DataError: the data is missing or damaged.
        ConfigError: ``root`` is given, but the data is read from no folder.
        RunError: it has changed.
    """
    data = read_data(run, root, advice=advice)
    splits = validation_splits(data)
    _refuse_changes(run, data, splits)
    return data.val, "train" in splits and not data.config.data.hold_out


def test_images(run: LoadedRun, root: str | None = None) -> Split:  # noqa: PT028 - no test
    """Return the test images of a run, as :func:`validation_images` those for validation.

    Raises:
        DataError: the data is missing or damaged, or has no test images.
        ConfigError: ``root`` is given, but the data is read from no folder.
        RunError: it has changed.
    """
    data = read_data(run, root, advice=DATA_ROOT)
    if data.test is None:
        raise DataError("the data set has no test images")
    _refuse_changes(run, data, ["test"])
    return data.test


def read_data(run: LoadedRun, root: str | None = None, *, advice: str = "") -> ImageDataModule:
    """Read the data of a run as it is now, with its fingerprint; image files are not decoded.

    Args:
        run: the run; labels are of all of its targets.
        root: folder of its data; ``None`` is where it was in training, and downloads nothing.
        advice: what ends the message where the data would be downloaded.

    Raises:
        DataError: the data is missing or damaged.
        ConfigError: ``root`` is given, but the data is read from no folder.
    """
    stored, source = run.record.config, run.record.path
    config = from_plain(TrainConfig, stored, trust=TRUST_ALL, source=source)  # only parts of the data are imported
    data = from_plain(DataConfig, stored["data"], trust=run.trust, source=source)
    if root is None:
        refuse_download(data, advice)
    else:
        refuse_idle_root(data, root)
    return ImageDataModule(replace(config, data=replace(data, root=root or data.root, storage="disk")))


def _refuse_changes(run: LoadedRun, data: ImageDataModule, splits: Sequence[str]) -> None:
    if changed := check_data(run.record, data, accept=True, splits=splits, warn=False):
        raise RunError(f"the data is not what {run.record.path} was trained on: {listed(changed, separator='; ')}")
