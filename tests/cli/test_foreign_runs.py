"""Run folders of others, which can hold anything: one line for each that is damaged, and the rest goes on."""

import csv
import io
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.bombs import YAML_BOMB

from vitrine import compose
from vitrine.cli import compare, page, report, runs, summary, sweeps, wandb_sync, watch
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord
from vitrine.runs.facts import SHAPES

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
VALUES = [10**30, -1, True, f"{ESCAPE}red", "\ud800", [["x"]], [1], {"a": {"b": []}}]
ENTRIES = [{name: value} for name in (*SHAPES, "unknown") for value in VALUES]
FILES = {
    "run.json": [
        "[" * 100_000,
        "[" * 800 + "]" * 800,
        "[]",
        "5",
        '"x"',
        "{",
        "",
        '{"status": "finished"}',
        b"\xff",
        "\0",
    ],
    "config.yaml": [
        YAML_BOMB,
        "- " * 50_000,
        "a: !!python/name:os.system",
        "[]",
        "5",
        "",
        b"\xff",
        "a: \x1b",
        "? [1]\n: 2",
        "1: 2",
        "x: 1" + ":0" * 200 + ":0.0",
        "x: 0x" + "f" * 5000,
        "x: [{2020-01-01: 1}]",
        "seed: abc",
        "seed: .inf",
    ],
    "metrics.json": [
        "[]",
        '{"val/acc": "high"}',
        '{"val/acc": NaN}',
        '{"val/acc": 1e999}',
        '{"a": true}',
        '{"val/acc": []}',
        '{"val/acc": 1' + "0" * 400 + "}",
        '{"train_seconds": Infinity, "val/acc": 1}',
        '{"val/acc": 0.5, "test/acc": -5}',
        '{"val/acc": 0.5, "train_seconds": 1e300}',
    ],
    "metrics.csv": [
        "",
        "epoch,step\n1",
        "epoch,step,seconds\nx,y,z\n",
        b"\xff",
        "epoch,step,seconds,val/acc\n1,1,1,nan\n",
        "epoch,step,seconds,val/acc\nnan,inf,1,1e308\n1,0,1,-1e308\n",
        "epoch,step,seconds,val/acc\n1,,,0.5\n",
    ],
    "predictions.npz": ["", "PK", "x" * 1000],
}


@pytest.fixture(scope="module")
def config():
    return to_plain(compose(["model=vit_nano"]))


def make(folder, config, **facts):
    """Write a finished run."""
    record = RunRecord(folder)
    (folder / "checkpoints").mkdir(parents=True)
    known = {
        "id": folder.name,
        "status": "finished",
        "started": "2026-01-01T00:00:00+00:00",
        "command": "python train.py",
    }
    known |= {
        "validation": "292b",
        "images": {"train": 9, "val": 3, "test": 20},
        "classes": [str(n) for n in range(10)],
    }
    (folder / "run.json").write_text(json.dumps(known | facts))
    record.write_config(config)
    record.write_metrics({"val/acc": 0.5, "val/loss": 1.0, "test/acc": 0.4, "test/loss": 1.0, "train_seconds": 3.0})
    (folder / "metrics.csv").write_text("epoch,step,seconds,val/acc\n1,5,2.0,0.5\n")
    np.savez(
        folder / "predictions.npz", logits=np.eye(10, dtype=np.float32)[np.arange(20) % 10], labels=np.arange(20) % 10
    )
    return folder


@pytest.fixture(scope="module")
def outputs(config, tmp_path_factory):
    """A sound run, one with each damaged file, and one with each wrong entry of run.json; the working directory."""
    root = tmp_path_factory.mktemp("foreign")
    make(root / "outputs" / "runs" / "sound", config)
    for name, contents in FILES.items():
        for number, content in enumerate(contents):
            folder = make(root / "outputs" / "runs" / f"{name}-{number}", config)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for number, facts in enumerate(ENTRIES):
        make(root / "outputs" / "runs" / f"entry-{number:03d}", config, **facts)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield root / "outputs"


@pytest.fixture
def command(capsys):
    """Run a command in this process; return its exit code, stdout and stderr, which hold nothing a terminal obeys."""

    def run(main, *arguments):
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        shown = capsys.readouterr()
        assert not [character for character in shown.out + shown.err if ord(character) < 32 and character not in "\n\t"]
        assert "Traceback" not in shown.err
        return code, shown.out, shown.err

    return run


def test_every_list_goes_on_beside_damaged_runs(outputs, command):
    for arguments in (["list"], ["list", "status=finished", "--columns", "path,tags,error,commit,group,processes"]):
        code, shown, problems = command(runs.main, *arguments)
        assert code == 0
        assert "outputs/runs/sound" in shown
        lines = problems.splitlines()
        assert lines[-1] == f"vitrine: {len(lines) - 1} runs skipped"
        assert len({line.split(":")[1] for line in lines[:-1]}) == len(lines) - 1, "a line for each"
    skipped = {line.split("/")[2].split(":")[0] for line in lines[:-1]}
    assert {"run.json-0", "run.json-1", "config.yaml-0", "config.yaml-1", "metrics.json-1", "metrics.json-6"} <= skipped
    wrong = {f"entry-{ENTRIES.index(facts):03d}" for facts in ({"pid": 10**30}, {"code": -1}, {"tags": [["x"]]})}
    assert wrong <= skipped
    assert "code must be an object, not a number" in problems
    code, shown, _ = command(runs.main, "best")
    assert (code, "selected by val/acc" in shown) == (0, True)


def test_each_run_is_shown_or_refused_in_one_line(outputs, command):
    folders = sorted((outputs / "runs").iterdir())
    folders = [folder for folder in folders if "entry" not in folder.name or int(folder.name[-3:]) % 11 == 0]
    for folder in folders:
        for arguments in (["show", folder], ["diff", folder, outputs / "runs" / "sound"]):
            code, _, problem = command(runs.main, *arguments)
            assert (code, problem.count("\n")) in [(0, 0), (2, 1)], (folder.name, problem)


@pytest.mark.whole
def test_each_run_can_be_watched(outputs, command):
    for folder in sorted((outputs / "runs").iterdir()):
        code, _, problem = command(watch.main, folder, "--once")
        assert (code, problem.count("\n")) in [(0, 0), (1, 1), (2, 1)], (folder.name, problem)


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (runs.main, ["list"]),
        (runs.main, ["show"]),
        (sweeps.main, []),
        (sweeps.main, ["--root"]),
        (watch.main, []),
        (report.main, []),
        (summary.main, []),
    ],
)
def test_a_path_that_the_system_refuses_is_one_line(command, main, arguments):
    code, shown, problem = command(main, *arguments, "a" * 300)  # as the path of a folder that may not be entered
    assert code in (1, 2)
    assert shown == ""
    assert problem.startswith("vitrine: ")
    assert "a" * 300 in problem


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.csv", "predictions.npz", ".lock"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, command, config, name):
    make(tmp_path / "sound", config)
    folder = make(tmp_path / "piped", config)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    code, shown, _ = command(runs.main, "list", tmp_path)
    assert (code, "sound" in shown) == (0, True)
    command(compare.main, tmp_path)


def test_what_can_be_compared_is_compared(outputs, command, tmp_path):
    page, accept = tmp_path / "page.html", ["--accept-changed-data"]  # some name other validation splits
    code, shown, problem = command(compare.main, outputs, "--metric", "val/acc", "--html", page, *accept)
    assert code == 0, problem
    assert "damaged and left out" in shown
    assert page.stat().st_size > 100_000
    for folder in sorted((outputs / "runs").glob("*[.]*")):
        code, _, problem = command(compare.main, folder, outputs / "runs" / "sound")
        assert (code, problem.count("\n")) in [(0, 0), (2, 1)], (folder.name, problem)


def test_an_export_holds_no_formula_and_keeps_numbers(outputs, command, config, tmp_path):
    make(
        tmp_path / "evil",
        config,
        group='=HYPERLINK("x")',
        varies="@SUM(A1)",
        like="-cmd",
        device="+1+cmd",
        error=f"{ESCAPE}",
    )
    code, _, _ = command(runs.main, "export", tmp_path / "evil", outputs / "runs", "--to", tmp_path / "all.csv")
    assert code == 0
    text = (tmp_path / "all.csv").read_text()
    assert "\x1b" not in text
    (row,) = [row for row in csv.DictReader(io.StringIO(text)) if row["run"] == "evil"]
    assert [row[name] for name in ("group", "varies", "like", "device")] == [
        '\'=HYPERLINK("x")',
        "'@SUM(A1)",
        "'-cmd",
        "'+1+cmd",
    ]
    assert (row["val/acc"], row["seed"]) == ("0.5", "0")
    (row,) = [row for row in csv.DictReader(io.StringIO(text)) if row["run"] == "metrics.json-8"]
    assert row["test/acc"] == "-5"


def test_a_table_in_markdown_holds_no_html_and_no_link(tmp_path, command, config):
    evil = "<img src=x onerror=alert(1)>|[a](http://b)"
    for number, position in enumerate((evil, "rope")):
        values = {**config, "model": {**config["model"], "position": position}}
        make(tmp_path / str(number), values, command=f"python train.py position='{position}'")
    code, shown, _ = command(compare.main, tmp_path, "--markdown")
    assert code == 0
    assert "&lt;img src=x onerror=alert(1)&gt;\\|\\[a\\](http://b)" in shown
    assert "<img" not in shown


def test_the_name_of_a_page_s_folder_does_nothing_to_the_terminal(tmp_path, command, config, monkeypatch):
    run = make(tmp_path / f"a{ESCAPE}", config)
    written = SimpleNamespace(path=run / "page.html", size=1, notes=[])
    monkeypatch.setattr("vitrine.inference.page.page.write_page", lambda *arguments, **settings: written)
    code, shown, _ = command(page.main, str(run))
    assert (code, "\x1b" in shown, r"a\x1b]0;owned\x07" in shown) == (0, False, True)


def test_a_link_is_removed_and_not_the_run_it_points_to(tmp_path, command, config):
    kept = make(tmp_path / "kept", config)
    (tmp_path / "link").symlink_to(kept, target_is_directory=True)
    code, shown, _ = command(runs.main, "rm", tmp_path / "link", "--yes")
    assert (code, "a link to" in shown) == (0, True)
    assert not (tmp_path / "link").is_symlink()
    assert (kept / "run.json").exists()


def test_a_damaged_sweep_is_one_line(tmp_path, command):
    sound = {"format": 1, "metric": "val/acc", "keys": ["seed"], "common": [], "trials": []}
    damaged = [
        {"keys": 5},
        {"trials": 5},
        {"trials": [5]},
        {"trials": [{}]},
        {"trials": [{"folder": [], "varies": {}}]},
        {"trials": [{"folder": "a", "varies": {"seed": None}}]},
        {"keys": [None]},
        {"common": [None]},
    ]
    damaged += [{"metric": "x"}, {"metric": []}, {"common": "x"}, {"format": [[]]}, {"keys": [f"{ESCAPE}[red]"]}]
    for number, change in enumerate([{}, *damaged]):
        folder = tmp_path / "sweeps" / f"sweep-{number:02d}"
        folder.mkdir(parents=True)
        (folder / "sweep.json").write_text(json.dumps(sound | change))
    for name in ("deep", "list"):
        (tmp_path / "sweeps" / name).mkdir()
    (tmp_path / "sweeps" / "deep" / "sweep.json").write_text("[" * 100_000)
    (tmp_path / "sweeps" / "list" / "sweep.json").write_text("[]")
    code, shown, problems = command(sweeps.main, "--root", tmp_path)
    assert code == 0
    assert "sweep-00" in shown
    assert problems.count("\n") == len(damaged) - 1 + 2, problems
    for folder in (tmp_path / "sweeps").iterdir():
        code, _, problem = command(sweeps.main, folder)
        assert (code, problem.count("\n")) in [(0, 0), (1, 1)], problem


def test_pushing_to_wandb_skips_damaged_runs(outputs, command):
    code, shown, problems = command(wandb_sync.main, outputs, "--dry-run")
    assert code == 0
    assert "without Weights & Biases" in shown
    assert problems.count("\n") == problems.count("vitrine: skipped") > 100
