from dataclasses import replace

import pytest
from helpers.running import SMALL

from vitrine import compose
from vitrine.runs import RunRecord
from vitrine.sweeps.trial import Trial


@pytest.fixture(scope="session")
def small():
    """The configuration of a training of a second or two."""
    return compose(SMALL)


@pytest.fixture
def make_trial(small, tmp_path):
    """Makes trials of one sweep that differ in their seed; ``changes`` are sections of the configuration."""

    def make(number: int = 0, **changes) -> Trial:
        config = replace(small, seed=number, **changes)
        return Trial(
            number=number, config=config, varies={"seed": str(number)}, folder=tmp_path / "sweep" / f"seed={number}"
        )

    return make


@pytest.fixture
def left():
    """Writes the run folder that a trial of a given status has."""

    def leave(trial: Trial, status: str, **facts) -> RunRecord:
        record = RunRecord.at(trial.folder)
        record.start()
        if status != "running":
            record.end(status, facts.pop("error", None))
        record.update(**facts)
        if status == "finished":
            record.write_metrics({"val/acc": 0.5, "train_seconds": 1.0})
        return record

    return leave
