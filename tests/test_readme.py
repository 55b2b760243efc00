"""The README's own commands, run as they are written there; long ones are shortened, never changed otherwise."""

import re
import shlex

import pytest
from helpers.running import ROOT, make_pictures, only_run, python

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    re.sub(r"\s+#.*", "", line)
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith(("python train.py", "python eval.py"))
]
SHORT = ["debug.limit_batches=1", "trainer.max_epochs=1", "model.dim=24", "model.depth=1"]


def shortened(words):
    """A multirun of two trials: two values of the first key that has several, one of each other."""
    swept = [word for word in words if "=" in word and "," in word and "[" not in word]
    kept = {word: ",".join(word.split(",")[: 1 if number else 2]) for number, word in enumerate(swept)}
    words = [kept.get(word, word) for word in words]
    if any(word.startswith("sweep=optuna/") for word in words):
        words += ["sweep.n_trials=2"]
    return words


def test_the_readme_shows_the_commands_of_a_first_hour():
    for part in (
        "model=vit_tiny",
        "data=mnist",
        "data=imagefolder",
        " -m ",
        "resume=",
        "like=",
        "eval.py run=",
        "logger=wandb",
    ):
        assert any(part in command for command in COMMANDS), part


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_does_what_it_says(command, tmp_path, request):
    words = shlex.split(command)[1:]
    if any(word.startswith(("resume=", "run=", "like=")) for word in words):
        assert python(str(ROOT / "train.py"), *SHORT, cwd=tmp_path).returncode == 0
        words = [re.sub(r"^(resume|run|like)=.*", rf"\1={only_run(tmp_path)}", word) for word in words]
        if any(word.startswith("like=") for word in words):
            words += SHORT
    elif "data=imagefolder" in words:
        make_pictures(tmp_path / "DIR", "train", "test", size=(20, 16))
        words += ["data.image_size=16", *SHORT]
    elif any("mnist" in word or "cifar10" in word for word in words):
        shared_data = request.getfixturevalue("shared_data")
        words = [word for word in words if not word.startswith("data.root=")]
        words += [f"data.root={shared_data}", *SHORT]
        if any("cifar10" in word for word in words):
            pytest.skip("decoding CIFAR-10's 60,000 pictures takes half a minute; tests/data covers the source")
    elif "hydra/launcher=slurm" in words:
        pytest.skip("needs a cluster; tests/sweeps/test_cluster.py runs one")
    elif "--help" not in words and "--cfg" not in words:
        words += SHORT
    if "-m" in words:
        words = shortened(words)

    done = python(str(ROOT / words[0]), *words[1:], cwd=tmp_path)

    if "accelerator=gpu" in words and "there is no GPU here" in done.stderr:
        return
    if any(word.startswith("model.pretrained=") for word in words) and "could not be downloaded" in done.stderr:
        return
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_python_of_the_readme_runs(tmp_path):
    (code,) = [block for language, block in BLOCKS if language == "python"]
    done = python("-c", code.replace("trainer.max_epochs=2", "trainer.max_epochs=1"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
