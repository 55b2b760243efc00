"""The compare command: its output, and its messages about what cannot be compared."""

import os
import re
import runpy
import subprocess
import sys

import pytest
from helpers.running import ROOT, python, run_script

from vitrine.cli.compare import main
from vitrine.compare.load import load_results
from vitrine.runs.provenance import COMMAND

SCRIPT = str(ROOT / "scripts" / "compare.py")


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Run scripts/compare.py in this process, in the folder of the runs: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [SCRIPT, *arguments])
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.mark.whole
def test_a_sweep_is_compared_without_torch_or_wandb(sweep, tmp_path):
    done = python(SCRIPT, "sweep", "--baseline", "none", "--target", "0.8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "position  n  test accuracy (%)" in done.stdout
    assert "- highest mean test accuracy of 3 configurations: rope, 96.07 ± 2.50 % over 3 runs" in done.stdout
    assert (
        "- learned and none: no significant difference over 3 seeds, r = 0.73; smallest difference that 3 seeds detect "
        in done.stdout
    )
    assert "s to 80 %" in done.stdout
    modules = "vitrine.compare.comparison, vitrine.compare.report.page, vitrine.compare.load_wandb"
    code = f"import sys, {modules}; print({{'torch', 'wandb'}} & set(sys.modules))"
    assert python("-c", code, cwd=tmp_path).stdout == "set()\n"


@pytest.mark.whole
def test_a_closed_pipe_is_not_an_error(sweep, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run([sys.executable, SCRIPT, "sweep"], cwd=tmp_path, stdout=output, stderr=subprocess.PIPE)
    assert done.stderr == b""


DOCUMENTED = re.findall(
    r"^python scripts/compare.py (?!wandb:)(.*?)(?:  +#.*)?$",
    (ROOT / "docs" / "commands.md").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def patches(tmp_path_factory, write_run):
    """Two positional schemes by two patch sizes by two seeds."""
    folder = tmp_path_factory.mktemp("patches") / "sweep"
    command = "position=learned,rope patch=2,4 seed=0,1"
    for number, position in enumerate(("learned", "rope")):
        for patch in (2, 4):
            for seed in (0, 1):
                acc = 0.95 + 0.01 * number - 0.004 * patch + 0.001 * seed * patch
                write_run(
                    folder,
                    f"position={position}",
                    f"patch={patch}",
                    seed=seed,
                    acc=acc,
                    sweep=command,
                    predictions=False,
                )
    return folder


def test_a_comparison_is_noted_before_it_is_seen(compare, sweep, monkeypatch):
    (sweep / "sweep.json").write_text('{"trials": []}')

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("vitrine.cli.compare.print_table", interrupted)
    code, _, stderr = compare("sweep")
    assert (code, stderr) == (130, "vitrine: interrupted\n")
    assert (sweep / "looks.json").is_file()


def test_the_docs_have_the_commands_that_compare():
    assert len(DOCUMENTED) >= 5


@pytest.mark.parametrize("command", DOCUMENTED)
def test_a_documented_command_compares(command, compare, patches, monkeypatch):
    runs = {run.config["model.position"]: run.name for run in load_results([patches]).runs}
    command = command.replace("outputs/sweeps/NAME", str(patches))
    command = command.replace("RUN RUN", f"{runs['learned']} {runs['rope']}").replace("across data", "across patch")
    monkeypatch.setattr("vitrine.compare.report.figures.CURVES", ())  # drawing takes time
    code, printed, stderr = compare(*command.split())
    assert code == 0, stderr
    assert "patch" in printed if "--by" in command else "rope" in printed
    written = re.findall(r"--(?:html|csv) (\S+)", command)
    drawn = f"6 files in {patches / 'figures'}\n" if "--figures" in command else ""
    assert stderr == drawn + "".join(f"written to {name}\n" for name in written)


def test_markdown_has_findings_and_latex_is_the_table_alone(compare, sweep, monkeypatch):
    code, printed, stderr = compare("sweep", "--markdown")
    assert (code, stderr) == (0, "")
    assert printed.startswith("| position | n |")
    assert "\n- highest mean" in printed
    assert re.search(r"on fresh seeds: `python train\.py -m like=.*`$", printed, re.MULTILINE)
    monkeypatch.setenv(COMMAND, "vitrine compare sweep")
    assert re.search(r"on fresh seeds: `vitrine train -m like=.*`$", compare("sweep", "--markdown")[1], re.MULTILINE)
    code, printed, stderr = compare("sweep", "--latex")
    assert (code, stderr) == (0, "")
    assert printed.startswith("\\begin{tabular}")
    assert "highest" not in printed


def test_csv_goes_to_a_file_beside_the_table_or_to_stdout_in_its_place(compare, sweep, tmp_path):
    (tmp_path / "table.csv").write_text("position,metric,seeds,runs,mean,low,high\n")  # of an earlier version
    code, printed, stderr = compare("sweep", "--csv", "table.csv")
    assert (code, stderr) == (0, "written to table.csv\n")
    assert printed.startswith("position  n  test accuracy (%)")
    assert compare("sweep", "--csv", "-") == (0, (tmp_path / "table.csv").read_text(), "")


def test_each_mistake_has_one_clear_message(compare, sweep, tmp_path, write_run):
    (tmp_path / "empty").mkdir()
    (sweep / "sweep.json").write_text('{"trials": []}')
    write_run(tmp_path / "unfinished", status="failed")
    write_run(tmp_path / "unfinished", seed=1, status="interrupted")
    write_run(tmp_path / "one", metrics={"val/acc": 0.9})
    write_run(tmp_path / "one", seed=1, metrics={"odd": 0.9})
    mistakes = {
        "sweeep": "sweeep is not a folder",
        "empty": "there is no run in empty: no run.json in it or below it",
        "unfinished": "nothing to compare: no run is finished (1 failed, 1 interrupted)",
        "one": "these runs have no metric in common (",
        "one --metric val/acc": "1 of 2 runs have no val/acc",
        "sweep --metric test/accc": "no run has the metric test/accc; available: best_epoch, ",
        "sweep --by colour": "do not differ in colour; they differ in position",
        "sweep --baseline rops": "no row is called rops; rows: learned; rope; none; did you mean rope?",
        "sweep --difference 1": "a difference of 1 in test accuracy must be below 1, as the metric is in [0, 1]",
        "sweep --group a": "--group needs wandb:ENTITY/PROJECT",
        "data=digits": "give a folder with runs, too",
        "wandb:someone/project data=digits": "data=digits selects runs on disk",
        "wandb:project": "wandb:project must be wandb:ENTITY/PROJECT",
        "wandb:someone/project sweep": "not both",
    }
    for arguments, message in mistakes.items():
        code, printed, stderr = compare(*arguments.split())
        assert (code, printed) == (2, ""), arguments
        assert stderr.startswith("vitrine: "), arguments
        assert stderr.count("\n") == 1, arguments
        assert message in stderr
    for target in ("97", "0"):
        assert f"--target {target} is not an accuracy" in compare("sweep", "--target", target)[2]
    assert "--difference 0 must be above 0" in compare("sweep", "--difference", "0")[2]
    for path, problem in (
        ("no/x.html", f"{tmp_path / 'no'} is not a folder"),
        (".", "it is a folder; name a file in it"),
    ):
        for options in (("--html",), ("--html", "page.html", "--csv")):
            code, _, stderr = compare("sweep", *options, path)
            assert (code, stderr) == (2, f"vitrine: cannot write {path}: {problem}\n")
    for option, name, kind in (("--html", "a.html", "page"), ("--csv", "a.csv", "table")):
        (tmp_path / name).write_text("<!doctype html>\n<p>mine, not vitrine's")
        code, _, stderr = compare("sweep", option, name)
        problem = f"it exists and is not a {kind} of vitrine's; choose another file"
        assert (code, stderr) == (2, f"vitrine: cannot write {name}: {problem}\n")
        code, _, stderr = compare("sweep", option, "run.json")
        ends = ".html or .htm" if kind == "page" else ".csv"
        assert (code, stderr) == (2, f"vitrine: cannot write run.json: its name must end in {ends}\n")
        assert (tmp_path / name).read_text() == "<!doctype html>\n<p>mine, not vitrine's"
    assert not (sweep / "looks.json").exists(), "nothing was seen"
    assert not (tmp_path / "page.html").exists()


@pytest.mark.whole
def test_wandb_without_a_login_is_reported(tmp_path):
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "netrc")}
    done = run_script("scripts/compare.py", "wandb:someone/project", "--group", "sweep", cwd=tmp_path, env=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("vitrine: W&B needs a login: run `wandb login`")
    assert "Traceback" not in done.stderr


def test_trusted_prefixes_are_separated_by_commas_or_repeated(monkeypatch, capsys):
    received = []
    monkeypatch.setattr("vitrine.compare.load.load_results", lambda *_, **given: received.append(given) or sys.exit(9))
    with pytest.raises(SystemExit):
        main(["RUNS", "--trust", "my_lab,other_lab", "--trust", "third", "--allow-changed-code"])
    assert received == [{"trust": ["my_lab", "other_lab", "third"], "allow_changed_code": True}]
    for empty in ("", "my_lab,"):
        with pytest.raises(SystemExit) as stop:
            main(["RUNS", "--trust", empty])
        assert stop.value.code == 2
        assert "has an empty prefix" in capsys.readouterr().err
