"""The pages: links, commands, run as they are written (long ones are shortened, not changed otherwise), the site."""

import re
import shlex
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

import pytest
import yaml
from helpers.hub_files import write_hub_dataset
from helpers.levels import quick, slow
from helpers.running import ROOT, only_run, python, run_script, write_image_folder

from vitrine.command.compose import points

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
RUN = [ROOT / "README.md", ROOT / "docs" / "commands.md", ROOT / "docs" / "first_steps.md"]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page):
    """The commands of a page that Hydra composes, without comments."""
    lines = [re.sub(r"\s+#.*", "", line) for block in blocks(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith(("python train.py", "python eval.py", "python predict.py"))]


COMMANDS = sorted({command for page in RUN for command in commands(page)})
COMPOSED = sorted({command for page in PAGES if page not in RUN for command in commands(page)} - set(COMMANDS))
OLD_RUN = next((ROOT / "tests/old_runs/runs").glob("*single*"))
COVERED = (  # by the test of compiled trainings, by that of two ranks, and by the same command with sweep.difference
    "python train.py trainer.compile=blocks trainer.precision=32-true",
    "python train.py accelerator=cpu_ddp",
    "python train.py -m sweep=decide position=learned,rope model=vit_nano",
)
SHORT = ["debug.limit_batches=1", "trainer.max_epochs=1", "model.dim=48", "model.depth=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    assert run_script("train.py", *SHORT, cwd=folder).returncode == 0
    return only_run(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_exist(page):
    text = page.read_text()
    links = [(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    paths = [
        ROOT / path for path in re.findall(r"\b(?:benchmarks|examples|scripts|tests|src/vitrine)/[\w/]+\.\w+", text)
    ]
    assert [path for path in links + paths if not path.exists()] == []
    if (docs := ROOT / "docs") in page.parents:
        assert [link for link in links if docs not in link.parents] == [], "the site has docs only"


def test_contributing_names_each_place_by_the_file_that_defines_it():
    named = re.findall(r"`(\w+)`\s+(?:in|of)\s+`(src/[\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 10
    defined = {(name, path): rf"^(def |class |){name}\b" for name, path in named}
    missing = [place for place, line in defined.items() if not re.search(line, (ROOT / place[1]).read_text(), re.M)]
    assert missing == []


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


def test_the_pages_show_the_first_commands_a_user_needs():
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


@pytest.mark.parametrize("command", [slow(command) if command in COVERED else command for command in COMMANDS])
@pytest.mark.whole
def test_a_documented_command_runs(command, tmp_path, request):
    arguments = shlex.split(command)[1:]
    if any(argument.startswith(("resume=", "run=", "like=", "distill.teacher=")) for argument in arguments):
        run = shutil.copytree(request.getfixturevalue("finished"), tmp_path / "run")
        arguments = [re.sub(r"^(resume|run|like|distill\.teacher)=.*", rf"\1={run}", one) for one in arguments]
        if "input=DIR" in arguments:
            write_image_folder(tmp_path / "DIR", "some")
        if any(argument.startswith(("like=", "distill.teacher=")) for argument in arguments):
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

    done = run_script(*arguments, cwd=tmp_path)

    if "accelerator=gpu" in arguments and "there is no GPU here" in done.stderr:
        return
    if (
        any(argument.startswith("model.pretrained=") for argument in arguments)
        and "could not be downloaded" in done.stderr
    ):
        return
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if "schedule=cosine is now that of" not in line]
    assert notes == []


@pytest.mark.whole
@pytest.mark.parametrize("page", quick(["README.md", "docs/python.md"], ["README.md"]))
def test_the_python_of_a_page_runs(page, tmp_path):
    (code,) = blocks(ROOT / page, "python")
    (tmp_path / "page.py").write_text(code.replace("trainer.max_epochs=2", "trainer.max_epochs=1"))
    done = run_script(str(tmp_path / "page.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [command for command in COMPOSED if not re.search("RUN|my_lab|-dir", command)])
@pytest.mark.whole
def test_a_command_of_another_page_composes(command, tmp_path):
    table = tmp_path / "FILE.csv"
    if "FILE.csv" in command:
        write_image_folder(tmp_path, "train")
        images = sorted(tmp_path.glob("train/*/*"))
        labels = [f"{'|'.join(sorted({'dog', image.parent.name}))},{image.parent.name},in" for image in images]
        lines = [
            f"{image},{label}{number % 2}\n" for number, (image, label) in enumerate(zip(images, labels, strict=True))
        ]
        table.write_text("path,label,animal,place\n" + "".join(lines))
    command = command.replace("root=DIR", f"root={tmp_path}").replace("FILE.csv", str(table))
    if "root=FOLDER" in command:
        command = command.replace("FOLDER", str(write_hub_dataset(tmp_path / "hub", train=2)))
    script, *arguments = shlex.split(command)[1:]
    multirun = "-m" in arguments
    if f"data.root={tmp_path}" in arguments:
        write_image_folder(tmp_path, "train", "test")
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("--")]
    assert points(script.removesuffix(".py"), overrides, multirun=multirun)


@pytest.mark.whole
def test_what_replaces_a_peers_command_composes(tmp_path):
    """The right-hand sides of docs/coming_from.md; those that set other sections are composed together, for time."""
    write_image_folder(tmp_path / "DIR", "train", "test")
    places = {"outputs/runs/RUN": OLD_RUN, "=RUN": f"={OLD_RUN}", "DIR": tmp_path / "DIR"}
    places |= {"FOLDER": write_hub_dataset(tmp_path / "hub", train=2)}
    cells = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "docs" / "coming_from.md").read_text(), re.M)
    texts = sorted({text for cell in cells for text in re.findall("`([^`]+)`", cell)})
    whole, merged = [], []
    for text in texts:
        if not re.match(r"(python )?(train|eval|predict)\.py |-m |[\w.]+=", text) or re.search(r"my[._]|\.\.\.", text):
            continue
        for name, path in places.items():
            text = text.replace(name, str(path))
        *_, script, given = ["train", *re.split(r"(\w+)\.py ", text)]
        overrides = [part for part in shlex.split(given) if part != "-m"]
        if re.search(r"\.py |-m |experiment=|resume=", text):
            whole.append((script, overrides, "-m " in text))
        elif fitting := next((line for line in merged if not sections(line) & sections(overrides)), None):
            fitting += overrides
        else:
            merged.append(overrides)
    assert len(whole) + sum(map(len, merged)) > 80
    for line in merged:
        of_own = (
            [] if any(one.startswith("data=") for one in line) else ["data=imagefolder", f"data.root={places['DIR']}"]
        )
        whole.append(("train", [*of_own, *line], False))
    for script, overrides, multirun in whole:
        assert points(script, overrides, multirun=multirun, check_devices=False)


def sections(overrides):
    return {re.split(r"[.=]", override)[0] for override in overrides}


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_the_command_of_a_wandb_sweep_composes(which):
    sweep = yaml.safe_load((ROOT / "scripts" / "wandb_sweep.yaml").read_text())
    _, _, script, *fixed = [part for part in sweep["command"] if part != "${args_no_hyphens}"]
    chosen = [f"{key}={known['values'][which]}" for key, known in sweep["parameters"].items()]
    (point,) = points(script.removesuffix(".py"), [*fixed, *chosen], multirun=False)
    assert point.config.logger.wandb is not None


def test_the_reference_is_that_of_the_schema_and_conf(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    written = {name: (ROOT / "docs" / "reference" / name).read_text() for name in ("keys.md", "choices.md")}
    assert written == import_module("reference").pages(), "run python scripts/reference.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for _ in range(3):  # on a busy machine, zensical's own watcher of files may end before its build
        done = python("-m", "zensical", "build", "--strict", cwd=folder)
        if "Watcher disconnected" not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.whole
def test_the_site_has_every_page_and_no_broken_link(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}
    assert "Returns" in (site / "reference" / "python.html").read_text()


@pytest.fixture
def served(site):
    """The address of the site, served as ``zensical serve`` does."""
    handler = partial(QuietHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Logs no requests."""

    def log_message(self, *_):
        """Log nothing."""


@pytest.mark.whole
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_the_site_fit_their_window_and_load_nothing_from_elsewhere(served, browser, width, scheme):
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked, failed = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    for page in ("index", "first_steps", "commands", "reference/keys", "reference/python", "speed", "sweeps"):
        tab.goto(f"{served}/{page}.html")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
    tab.close()
    assert {url for url in asked if not url.startswith((served, "data:", "blob:"))} == set()
    assert not failed
