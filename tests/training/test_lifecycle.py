import sys

import pytest

from vitrine.data.workers import SHM_ADVICE
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DiskFull, Interrupted
from vitrine.runs import RunRecord
from vitrine.training.lifecycle import recorded


@pytest.mark.parametrize(
    ("full", "remedy"),
    [(DiskFull("no space"), "make room"), (DiskFull("no space", SHM_ADVICE), SHM_ADVICE)],
    ids=["a disk", "shared memory"],
)
def test_a_full_disk_ends_a_run_with_what_to_do_and_how_to_resume(tmp_path, monkeypatch, full, remedy):
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    record = RunRecord(tmp_path)
    record.write_config({})
    with pytest.raises(DiskFull) as error, recorded(record, Ranks()):
        raise full
    assert str(error.value).startswith(f"no space; {remedy}, then resume with: ")
    assert str(error.value).endswith(f" resume={tmp_path}")


@pytest.mark.parametrize(("parts", "trust"), [({}, ""), ({"lab.Part": "1f"}, ", trust=['lab.Part']")])
def test_a_program_of_ones_own_resumes_a_run_by_a_call(tmp_path, parts, trust):
    record = RunRecord(tmp_path)
    record.update(parts=parts)
    with pytest.raises(Interrupted) as error, recorded(record, Ranks()):
        raise KeyboardInterrupt
    assert str(error.value) == f"interrupted; resume with: resume('{tmp_path}'{trust})"
