import pytest

from vitrine.data.workers import SHM_ADVICE
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DiskFull
from vitrine.runs import RunRecord
from vitrine.training.lifecycle import recorded


@pytest.mark.parametrize(
    ("full", "remedy"),
    [(DiskFull("no space"), "make room"), (DiskFull("no space", SHM_ADVICE), SHM_ADVICE)],
    ids=["a disk", "shared memory"],
)
def test_a_full_disk_ends_a_run_with_what_to_do_and_how_to_resume(tmp_path, full, remedy):
    record = RunRecord(tmp_path)
    record.write_config({})
    with pytest.raises(DiskFull) as error, recorded(record, Ranks()):
        raise full
    assert str(error.value).startswith(f"no space; {remedy}, then resume with: ")
    assert str(error.value).endswith(f" resume={tmp_path}")
