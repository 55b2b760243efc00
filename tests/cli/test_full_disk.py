"""A full disk: what every way of training says, leaves behind, and does once there is room again."""

import re
import subprocess
import sys

import pytest
from helpers.levels import slow
from helpers.running import ROOT, SMALL, own_file_systems

# Mounts a file system of a given size that only its processes see, trains until it is full, and then with more room.
SCRIPT = """
    mount -t tmpfs -o size=$1 tmpfs disk && shift
    "$@" paths.output_dir=disk
    echo "code $?" && cat disk/*/*/run.json disk/*/*/*/run.json 2>/dev/null
    echo >&2 && mount -o remount,size=20m disk && cd disk
    if test -e runs; then "$1" "$2" resume=$(echo runs/*); else "$@" paths.output_dir=.; fi
"""


@pytest.mark.skipif(not own_file_systems(), reason="this user may mount no small file system to fill")
@pytest.mark.whole
@pytest.mark.parametrize("launcher", ["", *map(slow, ["basic", "process"])])
def test_a_full_disk_is_reported_in_one_line_and_with_more_room_training_resumes(tmp_path, launcher):
    """The first checkpoint does not fit. A sweep begins no other trial."""
    (tmp_path / "disk").mkdir()
    sweep = ["-m", "seed=0,1", f"hydra/launcher={launcher}"] if launcher else []
    sweep += ["launcher.workers=1"] if launcher == "process" else []
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, *sweep]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", "200k", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    first, second = done.stderr.split("\n\n")
    where = r"disk/sweeps/\S+/\S+" if launcher else r"disk/runs/\S+"
    problem = rf"the disk is full: cannot write {where}/checkpoints/last\.ckpt; [\d.]+ kB left on that disk"
    advice = "make room and rerun the same command" if launcher else ".*"
    assert re.fullmatch(f"vitrine: {problem}; {advice}", first)
    assert "code 1\n" in done.stdout
    (status,) = re.findall(r'"status": "(\w+)"', done.stdout)
    assert status == "interrupted"
    assert re.search(f'"error": "{problem}"', done.stdout)
    assert (done.returncode, second) == (0, "")
    assert "test accuracy" in done.stdout or "best on validation" in done.stdout
