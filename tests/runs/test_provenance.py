"""Provenance of a run: code, versions, machine and command."""

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from vitrine.runs import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A git checkout with one commit, that vitrine seems to run from."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # as inside a git hook
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    source = tmp_path / "checkout" / "src" / "vitrine" / "runs"
    source.mkdir(parents=True)
    (source / "provenance.py").write_text("one = 1\n")
    folder = tmp_path / "checkout"
    (folder / "README.md").write_text("A page.\n")
    monkeypatch.setattr(provenance, "CHECKOUT", folder)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "First")
    return folder


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("python train.py -m seed=0,1", "the same command"),
        ("python train.py -m rerun=false name='rerun=true'x", "the same command"),
        ("python train.py -m seed=0,1 rerun=true", "the same command without rerun=true"),
        ("vitrine train -m ++rerun=True seed=0,1", "the same command without rerun=true"),
    ],
)
def test_the_same_command_is_named_without_what_starts_over(monkeypatch, typed, named):
    monkeypatch.setenv(provenance.COMMAND, typed)
    assert provenance.same_command() == named


def test_a_clean_checkout_is_its_commit(checkout):
    facts = {"commit": git(checkout, "rev-parse", "HEAD"), "changed": False, "untracked": []}
    assert provenance.code_state() == (facts, "")


def test_a_change_of_the_code_is_recorded_and_can_be_applied(checkout):
    source = checkout / "src" / "vitrine" / "runs" / "provenance.py"
    source.write_text("two = 2\n")
    git(checkout, "config", "color.ui", "always")
    facts, difference = provenance.code_state()
    assert facts == {"commit": git(checkout, "rev-parse", "HEAD"), "changed": True, "untracked": []}
    git(checkout, "checkout", "--quiet", ".")
    subprocess.run(["git", "-C", str(checkout), "apply"], input=difference, text=True, check=True)
    assert source.read_text() == "two = 2\n"


def test_a_staged_change_is_recorded(checkout):
    (checkout / "src" / "vitrine" / "new.py").write_text("three = 3\n")
    git(checkout, "add", ".")
    facts, difference = provenance.code_state()
    assert facts["changed"]
    assert "+three = 3" in difference


def test_an_untracked_file_is_named(checkout):
    (checkout / "src" / "vitrine" / "new.py").write_text("three = 3\n")
    facts, difference = provenance.code_state()
    assert facts["changed"]
    assert facts["untracked"] == ["src/vitrine/new.py"]
    assert difference == ""


def test_a_change_of_the_docs_is_not_a_change_of_the_code(checkout):
    (checkout / "README.md").write_text("Another page.\n")
    assert provenance.code_state()[0]["changed"] is False


def test_code_in_another_encoding_is_not_an_error(checkout):
    (checkout / "src" / "vitrine" / "runs" / "provenance.py").write_bytes("name = 'Größe'\n".encode("latin-1"))
    facts, difference = provenance.code_state()
    assert facts["changed"]
    assert "+name = 'Gr" in difference


def test_without_a_checkout_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "CHECKOUT", tmp_path)
    assert provenance.code_state() == ({}, "")


def test_without_git_nothing_is_recorded(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.code_state() == ({}, "")


def test_a_checkout_without_a_commit_records_nothing(checkout):
    git(checkout, "update-ref", "-d", "HEAD")
    assert provenance.code_state() == ({}, "")


def test_versions_are_those_that_are_installed():
    versions = provenance.versions()
    assert versions["python"] == platform.python_version()
    for name in ("torch", "numpy", "lightning", "hydra-core"):
        assert versions[name] == version(name)


def test_a_missing_package_is_left_out(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("numpy", "no-such-package-anywhere"))
    assert set(provenance.versions()) == {"python", "numpy"}


def test_the_machine_is_this_one():
    machine = provenance.machine()
    assert 1 <= machine["cores"] <= (os.cpu_count() or 1)
    assert machine["memory"] is None or machine["memory"] > 2**28
    assert machine["processor"]
    assert machine["system"] == platform.platform()


@pytest.mark.parametrize("options", [[], ["-W", "ignore"]], ids=["plain", "with-an-option-of-python"])
def test_the_command_can_be_run_again(tmp_path, options):
    (tmp_path / "train.py").write_text("from vitrine.runs.provenance import command\nprint(command())\n")
    arguments = [*options, "train.py", "model=vit_nano", "data.mean=[0.1, 0.2]", "name=it's"]
    command = [sys.executable, *arguments]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert shlex.split(first) == ["python", *arguments]
    typed = first.replace("python", shlex.quote(sys.executable), 1)
    again = subprocess.run(typed, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert again == first


def test_a_secret_is_not_in_the_command_whatever_quotes_it_has(monkeypatch):
    secret = 'it\'s a "secret" of mine'
    monkeypatch.setenv("MY_PASSWORD", secret)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "seed=1", f"name={secret}, yes"])
    assert shlex.split(provenance.command()) == ["python", "train.py", "seed=1", "name=***, yes"]


def test_a_command_begins_with_its_process():
    code = (
        "import time; began = time.time(); time.sleep(0.5)\n"
        "from vitrine.runs.provenance import process_started_at\n"
        "print(process_started_at() - began)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert -30 < float(done.stdout) < 0.1


@pytest.mark.parametrize(
    ("started", "command", "program"),
    [
        (["/usr/bin/python3", "train.py", "seed=1"], "python train.py seed=1", "python scripts/wandb_sync.py"),
        (["/env/bin/python", "/env/bin/vitrine", "train"], "vitrine train", "vitrine wandb-sync"),
        (["python", "-m", "vitrine", "train"], "python -m vitrine train", "python -m vitrine wandb-sync"),
    ],
)
def test_commands_are_named_as_the_user_started_them(monkeypatch, started, command, program):
    monkeypatch.setattr(sys, "orig_argv", started)
    assert provenance.command() == command
    assert provenance.program("wandb-sync") == program
    assert provenance.is_command()


@pytest.mark.parametrize(
    "started", [["python", "/lab/train.py"], ["python", "exp.py", "--out", "/data/vitrine"], ["python"]]
)
def test_a_program_of_the_user_s_own_is_no_command_of_vitrine(monkeypatch, started):
    monkeypatch.setattr(sys, "orig_argv", started)
    assert not provenance.is_command()


def test_without_the_scripts_of_a_checkout_the_installed_command_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "CHECKOUT", tmp_path)
    assert provenance.program("train") == "vitrine train"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux alone has control groups")
@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("", {}, 8),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/pod/c1\n", {"pod/c1/cpu.max": "max 100000", "pod/cpu.max": "250000 100000"}, 3),
        ("0::/\n", {"cpu.max": "6400000 100000"}, 8),
        ("4:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": 150000, "cpu/job/cpu.cfs_period_us": 100000}, 2),
        ("4:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": -1, "cpu/job/cpu.cfs_period_us": 100000}, 8),
    ],
)
def test_control_groups_limit_the_available_cores(membership, files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for path, text in {"self/cgroup": membership, **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(str(text))
    assert provenance.available_cores(proc=tmp_path, groups=tmp_path) == cores
