"""Fixtures that tests of several folders use."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from helpers.running import ROOT, python

import vitrine
from vitrine.errors import ConfigError

# One thread for each test process and what it starts: tests run side by side, on models too small to share.
os.environ["OMP_NUM_THREADS"] = "1"

SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture
def train(tmp_path):
    """Runs train.py in an empty folder; what it writes lands there."""

    def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return python(str(ROOT / "train.py"), *words, cwd=tmp_path, env=env)

    return run


@pytest.fixture
def evaluate(tmp_path):
    """Runs eval.py in the same folder."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return python(str(ROOT / "eval.py"), *words, cwd=tmp_path)

    return run


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real MNIST and CIFAR-10 are not beside this checkout (../shared/data)")
    return SHARED_DATA


@pytest.fixture(scope="session")
def slurm():
    """A real Slurm of one node, and the environment in which its commands find it."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "srun") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here: apt-get install slurmctld slurmd slurm-client munge")
    script = ROOT / "tests" / "sweeps" / "launchers" / "slurm.sh"
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:  # pytest's own is too long for a socket's path
        subprocess.run([script, "start", folder], check=True)
        yield {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
        subprocess.run([script, "stop", folder], check=True)


@pytest.fixture
def compose(tmp_path):
    """Compose as the command line does; nothing would be written outside of ``tmp_path``."""

    def call(*overrides):
        return vitrine.compose([*overrides, f"paths.output_dir={tmp_path}", f"paths.data_dir={tmp_path}"])

    return call


@pytest.fixture
def refusal(compose):
    """The faults for which a command line is refused."""

    def call(*overrides):
        with pytest.raises(ConfigError) as error:
            compose(*overrides)
        return error.value.faults

    return call
