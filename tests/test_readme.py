"""The commands of README.md, run as they are written there; long ones are shortened and not changed otherwise."""

import re
import shlex
import shutil

import pytest
from helpers.forking import forking_server
from helpers.running import ROOT, only_run, python, write_image_folder

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    re.sub(r"\s+#.*", "", line)
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith(("python train.py", "python eval.py", "python predict.py"))
]
SHORT = ["debug.limit_batches=1", "trainer.max_epochs=1", "model.dim=48", "model.depth=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    assert python(str(ROOT / "train.py"), *SHORT, cwd=folder).returncode == 0
    return only_run(folder)


@pytest.fixture(scope="module")
def scripts():
    """Runs the scripts of the checkout in processes of their own, without importing torch again in each."""
    with forking_server() as server:
        yield server


PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_of_a_page_exist(page):
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    paths = [ROOT / path for path in re.findall(r"\b(?:benchmarks|scripts|tests|src/vitrine)/[\w/]+\.\w+", text)]
    assert [path for path in links + paths if not path.exists()] == []


def shortened(arguments):
    """A multirun of two trials: two values of the first key that has several, one of every other."""
    swept = [argument for argument in arguments if "=" in argument and "," in argument and "[" not in argument]
    kept = {argument: ",".join(argument.split(",")[: 1 if index else 2]) for index, argument in enumerate(swept)}
    arguments = [kept.get(argument, argument) for argument in arguments]
    if any(argument.startswith("sweep=optuna/") for argument in arguments):
        arguments += ["sweep.n_trials=2"]
    if "sweep=decide" in arguments:
        arguments += ["sweep.max_seeds=3"]
    return arguments


def test_the_readme_shows_the_first_commands_a_user_needs():
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
@pytest.mark.whole
def test_a_command_of_the_readme_runs(command, tmp_path, request, scripts):
    arguments = shlex.split(command)[1:]
    if any(argument.startswith(("resume=", "run=", "like=")) for argument in arguments):
        run = shutil.copytree(request.getfixturevalue("finished"), tmp_path / "run")
        arguments = [re.sub(r"^(resume|run|like)=.*", rf"\1={run}", argument) for argument in arguments]
        if "input=DIR" in arguments:
            write_image_folder(tmp_path / "DIR", "some")
        if any(argument.startswith("like=") for argument in arguments):
            arguments += SHORT
    elif "data=imagefolder" in arguments:
        write_image_folder(tmp_path / "DIR", "train", "test", size=(20, 16))
        arguments += ["data.image_size=16", *SHORT]
    elif any("mnist" in argument or "cifar10" in argument for argument in arguments):
        shared_data = request.getfixturevalue("shared_data")
        arguments = [argument for argument in arguments if not argument.startswith("data.root=")]
        arguments += [f"data.root={shared_data}", *SHORT]
        if any("cifar10" in argument for argument in arguments):
            pytest.skip("decoding the 60,000 images of CIFAR-10 takes half a minute; tests/data covers this data set")
    elif "hydra/launcher=slurm" in arguments:
        pytest.skip("needs a cluster; tests/sweeps/launchers/test_slurm.py runs one")
    elif "--help" not in arguments and "--cfg" not in arguments:
        arguments += SHORT
    if "-m" in arguments:
        arguments = shortened(arguments)

    done = scripts.run(*arguments, cwd=tmp_path)

    if "accelerator=gpu" in arguments and "there is no GPU here" in done.stderr:
        return
    if (
        any(argument.startswith("model.pretrained=") for argument in arguments)
        and "could not be downloaded" in done.stderr
    ):
        return
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_python_of_the_readme_runs(tmp_path):
    (code,) = [block for language, block in BLOCKS if language == "python"]
    done = python("-c", code.replace("trainer.max_epochs=2", "trainer.max_epochs=1"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
