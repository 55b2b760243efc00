"""What an installation may take, without installing it."""

import os
import re
import shutil
import subprocess
import tomllib

import pytest
from helpers.running import ROOT
from packaging.requirements import Requirement

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = {Requirement(line).name: Requirement(line) for line in PROJECT["project"]["dependencies"]}
PINS = [Requirement(line) for line in PROJECT["tool"]["uv"]["constraint-dependencies"]]


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning"])
def test_the_malicious_uploads_of_lightning_cannot_be_resolved(name):
    allowed = DEPENDENCIES[name].specifier
    assert not any(allowed.contains(version) for version in ("2.6.2", "2.6.3", "2.7.0"))
    assert allowed.contains("2.6.4")


def test_the_pins_are_versions_alone_and_within_what_is_allowed():
    assert {pin.name for pin in PINS} >= set(DEPENDENCIES)
    for pin in PINS:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert pin.url is None
        if pin.name in DEPENDENCIES:
            assert DEPENDENCIES[pin.name].specifier.contains(exact.version), pin


@pytest.mark.whole
def test_the_lowest_versions_that_are_allowed_go_together(tmp_path):
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not here; `uv run pytest` brings it")
    words = ["pip", "compile", "-", "--resolution", "lowest-direct", "--no-header", "--no-annotate"]
    asked = "\n".join(map(str, DEPENDENCIES.values()))
    done = subprocess.run([uv, *words], cwd=tmp_path, input=asked, capture_output=True, text=True)
    if done.returncode and re.search(r"connect|network|dns|fetch", done.stderr, re.IGNORECASE):
        pytest.skip("the package registry can't be reached")
    assert done.returncode == 0, done.stderr
    found = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line and ";" not in line)
    assert found["lightning"] == "2.6.4"
    assert found["torch"] == "2.11.0"


def test_no_file_in_the_repository_holds_a_download_address():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert not {"uv.lock", "poetry.lock", "pylock.toml"} & set(names)
