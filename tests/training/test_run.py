"""Attempts of a run, where a rank restarted by torchrun continues; and the data of all ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.running import SMALL, write_image_folder

from vitrine import compose, fit
from vitrine.distributed.hardware import choose_hardware
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DataError
from vitrine.runs import RunRecord
from vitrine.training import run as runs
from vitrine.training.run import begin_attempt, check_effects, load_data


@pytest.fixture
def remembered(monkeypatch):
    """What torchrun's store holds between attempts; a new attempt's process has counted nothing yet."""
    store: dict[str, str] = {}
    monkeypatch.setattr(runs, "remember", store.__setitem__)
    monkeypatch.setattr(runs, "recall", store.get)

    def restart():
        runs._attempts.clear()

    restart()
    yield restart
    restart()


def begin(folder, *overrides, time_from=100.0):
    return begin_attempt(compose([*SMALL, f"paths.output_dir={folder}", *overrides]), None, "", time_from)


def test_a_restarted_rank_continues_each_of_its_runs(tmp_path, remembered):
    """Two runs of one configuration and one of another, the first finished, the second killed while it ran."""
    first, second, other = (begin(tmp_path, seed) for seed in ("seed=0", "seed=0", "seed=1"))
    assert len({first.path, second.path, other.path}) == 3
    for attempt, status in ((first, "finished"), (second, "running")):
        record = RunRecord(Path(attempt.path))
        record.start()
        record.update(status=status, host="another machine")
    remembered()
    continued = [begin(tmp_path, seed, time_from=900.0) for seed in ("seed=0", "seed=0", "seed=1")]
    assert [attempt.path for attempt in continued[:2]] == [first.path, second.path]
    assert [attempt.status for attempt in continued] == ["finished", "interrupted", "new"]
    assert [attempt.time_from for attempt in continued] == [100.0, 100.0, 900.0], (
        "max_time counts from the first attempt"
    )
    assert continued[2].path != other.path, "it was killed before anything was written"


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
    check_effects(replace(config, data=replace(config.data, hold_out=False, val_fraction=0.1, val_seed=0)), own)
