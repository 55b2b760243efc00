"""Attempts of a run: a rank restarted by torchrun continues where the attempt before it wrote."""

from pathlib import Path

import pytest
from helpers.running import SMALL

from vitrine import compose
from vitrine.runs import RunRecord
from vitrine.training import attempt as attempts
from vitrine.training.attempt import begin_attempt


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


def test_the_run_folder_may_be_a_string(tmp_path):
    begin_attempt(compose(SMALL), str(tmp_path / "run"), "", 100.0)
    assert (tmp_path / "run" / "checkpoints").is_dir()
