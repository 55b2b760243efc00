"""Attempts of a run: a rank restarted by torchrun continues where the attempt before it wrote."""

from pathlib import Path

import pytest
from helpers.running import SMALL

from vitrine import compose
from vitrine.runs import RunRecord
from vitrine.training import attempt as attempts
from vitrine.training.attempt import attempt_key, begin_attempt, earlier_attempt


@pytest.fixture
def remembered(monkeypatch):
    """What torchrun's store holds between attempts; a new attempt's process has counted nothing yet."""
    store: dict[str, str] = {}
    monkeypatch.setattr(attempts, "remember", store.__setitem__)
    monkeypatch.setattr(attempts, "recall", store.get)

    def restart():
        attempts._attempts.clear()

    restart()
    yield restart
    restart()


def begin(folder, *overrides, time_from=100.0):
    config = compose([*SMALL, f"paths.output_dir={folder}", *overrides])
    key = attempt_key(config, None, "")
    return earlier_attempt(key) or begin_attempt(key, config, None, "", time_from)


def test_a_restarted_rank_continues_each_of_its_runs(tmp_path, remembered):
    """Two runs of one configuration and one of another, killed before anything was written."""
    first, second, other = (begin(tmp_path, seed) for seed in ("seed=0", "seed=0", "seed=1"))
    assert len({first, second, other}) == 3
    for folder in (first, second):
        RunRecord(Path(folder)).start()
    remembered()
    *continued, new = (begin(tmp_path, seed, time_from=900.0) for seed in ("seed=0", "seed=0", "seed=1"))
    assert continued == [{"folder": folder, "time_from": 100.0} for folder in (first, second)]  # of the first attempt
    assert new not in (first, second, other), "it was killed before anything was written"


def test_the_run_folder_may_be_a_string(tmp_path):
    begin_attempt("key", compose(SMALL), str(tmp_path / "run"), "", 100.0)
    assert (tmp_path / "run" / "checkpoints").is_dir()
