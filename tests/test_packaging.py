"""The wheel, installed without the checkout; and the dependencies that an installation may resolve to."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv

import pytest
from helpers.running import ROOT, SMALL, only_run, python
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
    arguments = ["pip", "compile", "-", "--resolution", "lowest-direct", "--no-header", "--no-annotate"]
    asked = "\n".join(map(str, DEPENDENCIES.values()))
    done = subprocess.run([uv, *arguments], cwd=tmp_path, input=asked, capture_output=True, text=True)
    if done.returncode and re.search(r"connect|network|dns|fetch", done.stderr, re.IGNORECASE):
        pytest.skip("the package registry can't be reached")
    assert done.returncode == 0, done.stderr
    found = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line and ";" not in line)
    assert found["lightning"] == "2.6.4"
    assert found["torch"] == "2.11.0"


def test_no_file_in_the_repository_holds_a_download_address():
    """Of an index of packages, as lock files do; a clone elsewhere installs from another one."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    names = listed.stdout.splitlines()
    assert not {"uv.lock", "poetry.lock", "pylock.toml"} & set(names)
    address = re.compile(r"https?://\S+(/simple(/|\b)|\.whl\b|\.tar\.gz\b)|files\.pythonhosted")
    texts = {name: (ROOT / name).read_text(errors="ignore") for name in names if (ROOT / name).is_file()}
    assert [name for name, text in texts.items() if address.search(text)] == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of programs of an environment with vitrine's wheel in it, and this one's packages beside it."""
    folder = tmp_path_factory.mktemp("installed")
    built = python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, site, format="zip")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    (entry,) = (
        line for line in next(site.glob("*.dist-info/entry_points.txt")).read_text().splitlines() if "=" in line
    )
    name, module, function = re.fullmatch(r"(\w+) = ([\w.]+):(\w+)", entry).groups()
    program = folder / "env" / "bin" / name  # as pip writes it
    program.write_text(f"#!{folder}/env/bin/python\nfrom {module} import {function}\n{function}()\n")
    program.chmod(0o755)
    return program.parent


@pytest.fixture
def vitrine(installed, tmp_path):
    """Runs the installed command in an empty folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env["PATH"] = f"{installed}:{env['PATH']}"
        command = ["vitrine", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.whole
def test_the_installed_command_trains_and_evaluates_in_an_empty_folder(vitrine, installed, tmp_path):
    arguments = [*SMALL, "debug=quick", "accelerator=cpu", "trainer.compile=nothing"]
    done = vitrine("train", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_run(tmp_path)
    assert run.parent == tmp_path / "outputs" / "runs"
    assert f'"command": "{shlex.join(["vitrine", "train", *arguments])}"' in (run / "run.json").read_text()
    assert '"code": {}' in (run / "run.json").read_text()

    tested = vitrine("eval", f"run={run.relative_to(tmp_path)}")
    assert tested.returncode == 0, tested.stderr
    assert "test accuracy" in tested.stdout
    assert str(run.relative_to(tmp_path)) in vitrine("runs", "list").stdout
    assert "vitrine train -m" in vitrine("train", "patch=2,4").stderr
    assert "  vitrine train model=vit_tiny " in vitrine("train", "--help").stdout
    assert vitrine("runs", "--help").stdout.startswith("usage: vitrine runs ")


@pytest.mark.whole
def test_bash_completes_the_installed_command(installed, tmp_path):
    """As at a terminal: the function that bash calls on TAB, with the words before the cursor."""
    script = """
        source <(vitrine --shell-completion install=bash)
        complete_line() {
            COMP_LINE="$1"; COMP_POINT=${#1}; COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            COMPREPLY=(); hydra_bash_completion; echo "${COMPREPLY[@]}"
        }
        complete -p vitrine > /dev/null || exit 1
        complete_line "vitrine train experiment=mnist/"
        complete_line "vitrine wandb"
        complete_line "vitrine train model=vit_t"
        complete_line "vitrine predict run=my_r"
    """
    (tmp_path / "my_runs").mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = f"{installed}:{env['PATH']}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "experiment=mnist/best experiment=mnist/fast experiment=mnist/quick",
        "wandb-sync wandb-workspace",
        "model=vit_tiny",
        "run=my_runs",
    ]
