"""Each example as a user would run it: copied to a folder, swept, killed, resumed, and read by others."""

import ast
import json
import os
import shlex
import shutil
import signal
import subprocess
import time

import pytest
from helpers.levels import slow
from helpers.running import ROOT, only_run, run_script, start_script
from helpers.user_parts import enter, imported

from vitrine.cli import evaluate
from vitrine.cli import train as train_command
from vitrine.command.compose import points

EXAMPLES = {
    "fourier": ["model=vit_nano", "position=my_lab.fourier.Fourier", "model.position_options.bands=3"],
    "gradient_norm": ["model=vit_nano", "callbacks=[default,my_lab.gradient_norm.GradientNorm]"],
    "shapes": ["model=vit_nano", "data=my_lab.shapes.shapes", "data.options.count=240"],
    "small_cnn": ["model=my_lab.small_cnn.SmallCNN", "model.options.width=4"],
}
SERVERS = ["serve", "serve_onnx"]  # tests/test_serving.py
BRIEF = ["trainer.max_epochs=2", "debug.limit_batches=2", "trainer.compile=nothing", "accelerator=cpu"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch, "my_lab")
    shutil.copytree(ROOT / "examples", tmp_path / "my_lab", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def in_this_process(capfd):
    """Carry out a command without a new process, which would import torch again."""

    def call(main, *arguments):
        capfd.readouterr()
        code = 0
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return call


def train(*overrides, cwd):
    return run_script("train.py", *overrides, *BRIEF, cwd=cwd)


def test_there_is_a_test_for_each_example_and_none_is_long():
    files = sorted((ROOT / "examples").glob("*.py"))
    assert [file.stem for file in files] == sorted([*EXAMPLES, *SERVERS])
    assert all(len(file.read_text().splitlines()) <= (100 if file.stem in SERVERS else 40) for file in files)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_commands_in_an_example_can_be_typed(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text()))
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("python train.py ")]
    assert commands
    for _, _, *arguments in commands:
        multirun = "-m" in arguments
        made = points("train", [argument for argument in arguments if argument != "-m"], multirun=multirun)
        assert len(made) >= 3 * multirun


@pytest.mark.parametrize("name", ["fourier", slow("shapes"), slow("gradient_norm"), slow("small_cnn")])
@pytest.mark.whole
def test_an_example_is_swept_over_seeds_and_read_only_if_trusted(folder, name, in_this_process):
    swept = train("-m", *EXAMPLES[name], "seed=0,1", "hydra/launcher=process", "launcher.threads=1", cwd=folder)
    assert swept.returncode == 0, swept.stdout + swept.stderr
    records = sorted(folder.glob("outputs/sweeps/*/*/run.json"))
    assert [json.loads(path.read_text())["status"] for path in records] == ["finished"] * 2
    run = records[0].parent
    assert (run / "parts" / "my_lab" / f"{name}.py").read_text() == (folder / "my_lab" / f"{name}.py").read_text()
    assert len({path.parent.name.rsplit("_", 1)[1] for path in records}) == 2
    read = [f"run={run.relative_to(folder)}", "accelerator=cpu"]
    refused = in_this_process(evaluate.main, *read)
    assert refused.returncode == 1
    assert "trust=[my_lab." in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not imported("my_lab")
    trusted = in_this_process(evaluate.main, *read, "trust=[my_lab]")
    assert trusted.returncode == 0
    assert "test accuracy" in trusted.stdout


@pytest.mark.whole
@pytest.mark.parametrize("name", [slow("fourier"), "shapes", slow("gradient_norm"), slow("small_cnn")])
def test_an_example_is_resumed_after_kill_9_if_trusted_and_unchanged(folder, name, in_this_process):
    process = start_script("train.py", *EXAMPLES[name], *BRIEF, "trainer.max_epochs=2000", cwd=folder)
    try:
        deadline = time.monotonic() + 200
        while not list(folder.glob("outputs/runs/*/checkpoints/last.ckpt")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run = only_run(folder)
    epochs = f"trainer.max_epochs={len((run / 'metrics.csv').read_text().splitlines()) + 1}"
    resume = [f"resume={run.relative_to(folder)}", epochs]
    refused = in_this_process(train_command.main, *resume)
    assert refused.returncode == 2
    assert "trust=[my_lab." in refused.stderr
    source = folder / "my_lab" / f"{name}.py"
    source.write_text(source.read_text() + "EDITED = True\n")
    edited = in_this_process(train_command.main, *resume, "trust=[my_lab]")
    assert edited.returncode == 1
    assert "allow_changed_code=true" in edited.stderr
    source.write_text(source.read_text().removesuffix("EDITED = True\n"))
    resumed = run_script("train.py", *resume, "trust=[my_lab]", cwd=folder)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
