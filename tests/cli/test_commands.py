"""The commands as typed: what they print and write, and their exit codes."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from helpers.running import ROOT, SMALL, only_run, python, write_image_folder

from vitrine.cli import COMMANDS
from vitrine.cli import train as cli_train


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_training_prints_what_it_does_and_leaves_a_run_folder(evaluate, tmp_path):
    done = python(str(ROOT / "train.py"), *SMALL, "seed=0", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    run = only_run(tmp_path)
    assert run.parent == tmp_path / "outputs" / "runs"
    assert files(run) == [
        "attention.png",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
        *(["code.diff"] if (run / "code.diff").exists() else []),
        "config.yaml",
        "confusion.png",
        "curves.png",
        "metrics.csv",
        "metrics.json",
        "predictions.npz",
        "run.json",
    ]
    for shown in (
        "digits",
        "1,293 train, 144 val, 360 test",
        "parameters",
        "FLOPs per image",
        "precision",
        "epoch 2/2",
    ):
        assert shown in done.stdout
    metrics = json.loads((run / "metrics.json").read_text())
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "finished"
    assert f"test accuracy        {metrics['test/acc']:.4f}" in done.stdout
    assert str(run.relative_to(tmp_path)) in done.stdout
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["patch_size"] == 2

    predictions = np.load(run / "predictions.npz")
    assert predictions["logits"].shape == (360, 10)
    right = (predictions["logits"].argmax(axis=1) == predictions["labels"]).mean()
    assert right == pytest.approx(metrics["test/acc"])

    before = files(run)
    again = evaluate(f"run={run.relative_to(tmp_path)}")
    assert again.returncode == 0, again.stderr
    assert f"test accuracy  {metrics['test/acc']:.4f}" in again.stdout
    assert f"test loss      {metrics['test/loss']:.4f}" in again.stdout
    larger = evaluate(f"run={run.relative_to(tmp_path)}", "image_size=16", "patch_size=4")
    assert larger.returncode == 0, larger.stderr
    reached = float(re.search(r"test accuracy  (\S+)", larger.stdout)[1])
    assert abs(reached - metrics["test/acc"]) < 0.15, "twice as large, in patches twice as large, the digits look alike"
    assert files(run) == before

    refused = evaluate(f"run={run.relative_to(tmp_path)}", "image_size=15")
    assert refused.returncode == 2
    assert "patch_size=2\n" in refused.stderr


@pytest.mark.whole
def test_a_multirun_trains_each_point_in_a_folder_of_its_own(train, evaluate, tmp_path):
    done = train("-m", *SMALL, "trainer.max_epochs=1", "position=learned,sincos2d", "seed=0,1")

    assert done.returncode == 0, done.stderr
    assert "trial 4 of 4: position=sincos2d,seed=1" in done.stdout
    facts = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/sweeps/*/*/run.json")]
    assert sorted(one["varies"] for one in facts) == [
        f"position={position},seed={seed}" for position in ("learned", "sincos2d") for seed in (0, 1)
    ]
    assert {one["status"] for one in facts} == {"finished"}
    assert len({one["validation"] for one in facts}) == 1, "every trial is chosen on the same images"
    trial = next(tmp_path.glob("outputs/sweeps/*/*/run.json")).parent.rename(tmp_path / "a trial = (one)")
    assert evaluate(f"run={trial}").returncode == 0, "also where Hydra's grammar has other plans for the name"


@pytest.mark.whole
def test_a_failed_trial_leaves_the_others_to_run_and_is_reported_at_the_end(train, tmp_path):
    fits, breaks = tmp_path / "fits", tmp_path / "breaks"
    write_image_folder(fits)
    write_image_folder(breaks)
    broken = breaks / "train" / "a" / "0.png"
    broken.write_bytes(b"no picture")

    done = train("-m", *SMALL, "data=imagefolder", "data.image_size=8", "patch=2", f"data.root={breaks},{fits}")

    assert done.returncode == 1
    assert "1 of 2 trials failed" in done.stderr
    assert str(broken) in done.stderr
    assert "Traceback" not in done.stderr
    (finished,) = tmp_path.glob("outputs/sweeps/*/*/metrics.json")
    assert "test/acc" not in json.loads(finished.read_text()), "there is no test folder"


@pytest.mark.whole
def test_images_of_ones_own_are_trained_and_tested(train, tmp_path):
    write_image_folder(tmp_path / "pictures", "train", "val", "test")

    done = train(*SMALL, "data=imagefolder", "data.root=pictures", "data.image_size=8", "patch=2", "data.batch_size=8")

    assert done.returncode == 0, done.stderr
    assert "2 classes; 40 train, 40 val, 40 test" in done.stdout
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["classes"] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["modle=vit_tiny"], ["modle", "did you mean model?"]),
        (["model=vit_tinny"], ["model=vit_tinny", "vit_base, vit_nano, vit_small, vit_tiny", "model=vit_tiny"]),
        (["lr=1e-3"], ["lr", "did you mean optimizer.lr?"]),
        (["model.dpeth=3"], ["model.dpeth", "did you mean model.depth?"]),
        (["optimizer.lr=fast"], ["optimizer.lr=fast", "must be a number"]),
        (["trainer.max_epochs=2.5"], ["trainer.max_epochs=2.5", "must be a whole number"]),
        (["optimizer.lr=-1"], ["optimizer.lr=-1", "must be > 0 and <= 100"]),
        (["optimizer.lr=nan"], ["optimizer.lr=nan", "must be finite and > 0"]),
        (["data.batch_size=0"], ["data.batch_size=0", "must be >= 1"]),
        (["trainer.max_epochs=0"], ["trainer.max_epochs=0", "must be >= 1"]),
        (["model.mlp_dropout=1"], ["model.mlp_dropout=1", "must be >= 0 and < 1"]),
        (["seed=-1"], ["seed=-1", "must be >= 0"]),
        (["model.patch_size=3"], ["model.patch_size=3", "must divide the image size, 8: 1, 2, 4, 8"]),
        (["model.heads=5"], ["model.heads=5", "must divide the width, model.dim=192", "model.heads=4"]),
        (["model.dim=90", "position=sincos2d"], ["model.dim=90", "divisible by 4", "model.dim=96"]),
        (["data=imagefolder"], ["data.root", "needs the folder of your images"]),
        (["data=csv"], ["data.root", "needs a CSV file with columns path, label and optionally split"]),
        (["data=csv", "data.root=nowhere.csv"], ["data.root=nowhere.csv", "there is no file nowhere.csv"]),
        (["data=huggingface", "data.root=empty"], ["data.root=empty", "has no dataset_dict.json"]),
        (["data=imagefolder", "data.root=nowhere"], ["data.root=nowhere", "is not a folder"]),
        (["data=imagefolder", "data.root=empty"], ["data.root=empty", "at least two classes; found none"]),
        (["data=imagefolder", "data.root=one"], ["data.root=one", "found only a"]),
        (["resume=outputs/none"], ["resume=outputs/none", "is not a folder"]),
        (["paths.output_dir=file"], ["paths.output_dir=file", "is a file, not a folder"]),
        (["paths.output_dir=/proc/runs"], ["paths.output_dir=/proc/runs", "cannot write to"]),
        (["resume="], ["resume", "is not a run folder"]),
        (["patch=2,4"], ["patch=2,4", "has several values", "-m"]),
        (["-m", "patch=2,4", "depth=2,5"], ["depth=5", "1, 2, 3, 4, 6, 8, 12, 24"]),
        (["-m", "model.patch_size=2,3"], ["model.patch_size=3", "must divide"]),
        (["vit_tiny"], ["vit_tiny", "key=value"]),
    ],
)
def test_a_mistake_gets_one_clear_message_and_leaves_nothing(vitrine, tmp_path, arguments, expected):
    (tmp_path / "empty" / "train").mkdir(parents=True)
    write_image_folder(tmp_path / "one", classes=("a",))
    (tmp_path / "file").write_text("")
    before = files(tmp_path)

    code, out, err = vitrine("train", *arguments)

    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for text in expected:
        assert text in err
    assert files(tmp_path) == before


@pytest.mark.parametrize("overrides", [["model=vit_nano"], ["-m", "model=vit_nano", "seed=0,1"]])
def test_on_windows_training_ends_in_one_line(vitrine, tmp_path, monkeypatch, overrides):
    monkeypatch.setattr(cli_train, "sys", SimpleNamespace(platform="win32"))
    problem = "training does not start on Windows; use WSL 2, which is Linux: docs/platforms.md"
    assert vitrine("train", *overrides) == (1, "", f"vitrine: {problem}\n")
    assert not files(tmp_path)


def test_all_faults_are_reported_at_once(train):
    done = train("depht=3", "optimizer.lr=fast", "optimizer.weight_decay=-1", "model.heads=5", "patch=5")

    assert done.returncode == 2
    assert "6 faults" in done.stderr
    for key in ("depht", "optimizer.lr", "optimizer.weight_decay", "model.heads", "patch", "model.patch_size"):
        assert re.search(rf"^  {re.escape(key)}", done.stderr, re.MULTILINE), key


def test_a_gpu_that_is_not_there_is_refused(train, tmp_path):
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    done = train("accelerator=gpu")
    assert done.returncode == 2
    assert "there is no GPU here" in done.stderr
    assert "accelerator=cpu" in done.stderr
    assert files(tmp_path) == []

    recipe = train("experiment=cifar10/best", "data.root=nowhere")
    assert recipe.returncode == 2
    assert "there is no GPU here" in recipe.stderr
    assert "did you mean experiment=cifar10/cpu, or accelerator=cpu?" in recipe.stderr
    assert files(tmp_path) == []


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["modle=vit_tiny"]])
def test_what_needs_no_training_imports_no_torch(tmp_path, arguments):
    code = f"""
import sys
sys.argv = ["train.py", *{arguments!r}]
from vitrine.cli.train import main
try:
    main()
except SystemExit:
    pass
finally:
    print("torch" in sys.modules, "lightning" in sys.modules, "wandb" in sys.modules)
"""
    assert python("-c", code, cwd=tmp_path).stdout.splitlines()[-1] == "False False False"


def test_a_path_with_spaces_and_signs_needs_no_quotes(vitrine):
    code, out, _ = vitrine("train", "paths.output_dir=my runs = (new)", "patch=2", "--cfg", "job")
    assert code == 0
    assert "output_dir: my runs = (new)" in out


def test_help_shows_commands_groups_and_keys(vitrine):
    code, out, _ = vitrine("train", "--help")
    assert code == 0
    for shown in (
        "python train.py model=vit_tiny",
        "position: alibi2d, conv, learned, learned2d, none, relative, rope, rope_mixed, sincos1d, sincos2d",
        "patch: 1, 2, 4, 7, 8, 14, 16",
        "mnist/best, mnist/fast, mnist/quick",
        "weight_decay: 0.05",
        f"hydra/launcher: basic, {', '.join(sorted(path.stem for path in (ROOT / 'conf/hydra/launcher').iterdir()))}",
    ):
        assert shown in out


def test_the_overview_of_commands_is_quick_and_an_unknown_command_names_the_nearest(tmp_path):
    code = """
import sys
from vitrine.cli.main import main
main(["--help"])
print({"torch", "hydra", "omegaconf", "rich"} & set(sys.modules))
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.endswith("set()\n"), done.stderr
    assert "  wandb-sync" in done.stdout
    module = python("-m", "vitrine", "comapre", cwd=tmp_path)
    assert (module.returncode, module.stdout) == (2, "")
    assert module.stderr == "vitrine: there is no command comapre; did you mean compare?\n"


def test_the_help_of_every_command_is_quick(tmp_path):
    code = """
import sys
from vitrine.cli import COMMANDS
from vitrine.cli.main import main
for name in COMMANDS:
    try:
        main([name, "--help"])
    except SystemExit as end:
        assert not end.code, name
    print(name, {"torch", "scipy", "pandas", "sklearn", "matplotlib", "plotly", "wandb", "optuna"} & set(sys.modules))
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\S+) set\(\)$", done.stdout, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["needs a run folder: python predict.py run=", "needs a picture, folder, glob pattern or CSV file"]),
        (["run=file", "input=x", "output=x.txt"], ["output=x.txt", "must end with .csv, .json or .parquet"]),
        (["-m", "run=file", "input=x"], ["-m", "run=[RUN,RUN] averages several runs"]),
        (["run=[a,b]", "input=x", "attention=maps"], ["attention=maps", "needs a single run, not 2"]),
        (["run=file", "input=x", "top_q=3"], ["top_q", "did you mean top_k?"]),
        (["run=file", "input=x", "confidence=2"], ["confidence=2.0", "must be >= 0 and <= 1"]),
    ],
)
def test_a_mistake_in_predicting_gets_one_clear_message(vitrine, arguments, expected):
    code, out, err = vitrine("predict", *arguments)
    assert (code, out) == (2, "")
    for text in expected:
        assert text in err


def test_evaluating_what_is_not_a_run_is_an_error(vitrine, tmp_path):
    (tmp_path / "outputs").mkdir()
    for folder, expected in (("outputs", "is not a run folder"), ("nowhere", "is not a folder")):
        code, _, err = vitrine("eval", f"run={folder}")
        assert code == 1
        assert expected in err
        assert "Traceback" not in err
    err = vitrine("eval")[2]
    assert "needs a run folder: python eval.py run=" in err
    assert "did you mean" not in err


def test_where_no_run_is_given_the_newest_is_named(vitrine, tmp_path):
    for name, at in (("newer", 2), ("older", 1)):
        file = tmp_path / "outputs" / "runs" / name / "run.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (at, at))
    for command in ("eval", "predict"):
        assert "did you mean run=outputs/runs/newer?" in vitrine(command)[2]
    for command in (["report"], ["page"], ["export"], ["runs", "show"]):
        code, _, err = vitrine(*command)
        assert code == 2
        assert re.search(r"required: RUN.*; the newest run is outputs/runs/newer$", err.strip())
    assert vitrine("page", "outputs/runs/newer", "more")[2].strip().endswith("unrecognized arguments: more")


@pytest.mark.parametrize(
    ("command", "given", "instead"),
    [
        ("eval", "run=a,b", "python eval.py -m ... runs them sequentially"),
        ("predict", "run=a,b", "run=[RUN,RUN] averages several runs"),
        ("predict", "top_k=1,2", "give one"),
        ("predict", "target=a,b", "give one; quote a name with commas: 'target=\"a,b\"'"),
        (
            "predict",
            "input=a,b",
            "name a folder, a pattern ('DIR/*.png') or a CSV file; quote a name with commas: 'input=\"a,b\"'",
        ),
    ],
)
def test_several_values_outside_a_multirun_are_one_fault(vitrine, command, given, instead):
    code, _, err = vitrine(command, given, *(("run=x", "input=x") if given[0] == "t" else ()))
    assert code == 2
    assert err == f"vitrine: invalid configuration:\n  {given}\n      has several values; {instead}\n"


@pytest.mark.parametrize("command", ["train.py --help", "train.py --cfg job", "train.py --info", "-m vitrine --help"])
@pytest.mark.whole
def test_a_printing_command_ends_quietly_with_the_reader_of_its_output(command):
    shown = subprocess.run(
        f"{sys.executable} {command} | head -n 1", shell=True, cwd=ROOT, capture_output=True, text=True
    )
    assert len(shown.stdout.splitlines()) == 1
    assert shown.stderr == ""
