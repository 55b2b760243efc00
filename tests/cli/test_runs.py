"""scripts/runs.py, like=RUN and secrets, on real runs: one, and one like it."""

import csv
import json
import os
import pty
import pwd
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.running import ROOT, SMALL, only_run, python, run_script

from vitrine.cli.arguments import errors_in_one_line
from vitrine.cli.runs import main
from vitrine.errors import VitrineError
from vitrine.runs import RunRecord, provenance

ALL_SECTIONS = "config, data, code, versions, machine, metrics"
OLD_SWEEPS = ROOT / "tests" / "old_runs" / "sweeps"
DOCUMENTED = [
    re.sub(r"\s+#.*", "", line)
    for line in (ROOT / "docs" / "commands.md").read_text().splitlines()
    if line.startswith(("python scripts/runs.py", "python scripts/wandb_"))
]
# Runs a program with this terminal as its own, so that Ctrl-C reaches it.
IN_A_SESSION = """
import fcntl, os, runpy, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CANARIES = {
    "WANDB_API_KEY": "canary" * 6 + "1234",
    "HF_TOKEN": "hf_" + "canary" * 5,
    "MY_PASSWORD": "canary-canary-canary",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A run with every logger and secrets in the environment, and a second one like it but for a key."""
    folder = tmp_path_factory.mktemp("real")
    overrides = [*SMALL, "trainer.max_epochs=1", "logger=all", "logger.wandb.mode=offline", "logger.wandb.private=true"]
    done = run_script("train.py", *overrides, cwd=folder, env=CANARIES)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first = only_run(folder)
    overrides = [f"like={first.relative_to(folder)}", "logger.wandb.mode=disabled", "paths.output_dir=other"]
    overrides += ["debug.limit_batches=1", "-m", "optimizer.lr=0.5"]
    done = run_script("train.py", *overrides, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def runs(outputs):
    """The two run folders, as they are typed in ``outputs``."""
    (first,) = outputs.glob("outputs/runs/*/run.json")
    (second,) = outputs.glob("other/sweeps/*/*/run.json")
    return [str(path.parent.relative_to(outputs)) for path in (first, second)]


@pytest.fixture
def command(outputs):
    return lambda *arguments: run_script("scripts/runs.py", *arguments, cwd=outputs)


def table(text):
    head, *rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.whole
def test_a_run_like_another_has_its_configuration_and_records_which(outputs, runs):
    facts = json.loads((outputs / runs[1] / "run.json").read_text())
    assert facts["like"] == runs[0]
    assert "\nlike: null\n" in (outputs / runs[1] / "config.yaml").read_text()


@pytest.mark.whole
def test_a_list_names_users_where_there_are_several(tmp_path, capsys):
    for name, user in (("a", "alice"), ("b", "bob"), ("c", None)):
        RunRecord(tmp_path / name).path.mkdir()
        RunRecord(tmp_path / name).update(id=name, status="failed", user=user)
    main(["list", str(tmp_path)])
    assert [row["user"] for row in table(capsys.readouterr().out)] == ["alice", "bob", "-"]
    main(["list", str(tmp_path), "user=bob"])
    (row,) = table(capsys.readouterr().out)
    assert (Path(row["path"]).name, "user" in row) == ("b", False)


def test_the_user_of_a_run_is_that_of_its_process(monkeypatch):
    monkeypatch.setenv("LOGNAME", "daemon")  # as after `su`
    assert provenance.user() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert provenance.user() == "54321"


def test_diff_shows_other_labels_of_as_many_images(tmp_path, capsys):
    run = next(OLD_SWEEPS.glob("*_position-seed_*/*seed=0*"))
    facts = json.loads((run / "run.json").read_text())
    for name, first, labels in (("one", "0", "01ab"), ("other", "nought", "89ef")):
        shutil.copytree(run, tmp_path / name)
        facts["classes"][0] = first
        known = facts | {"data_fingerprint": {"train": {"images": 1293, "labels": labels}}}
        (tmp_path / name / "run.json").write_text(json.dumps(known))
    main(["diff", str(tmp_path / "one"), str(tmp_path / "other")])
    why = "class 0 is nought, not 0; train has other labels, or its images in another order"
    assert f"\ndata\n\tone\tother\ncontent\t-\t{why}\n" in capsys.readouterr().out
    main(["diff", str(tmp_path / "one"), str(run)])
    assert capsys.readouterr().out == f"the same: {ALL_SECTIONS}\n"


def test_diff_shows_what_differs_in_the_source_of_own_parts(tmp_path, capsys):
    run = next(OLD_SWEEPS.glob("*_position-seed_*/*seed=0*"))
    sources = {
        "one": {"idea.py": "def f():\n    return 1\n", "same.py": "x = 1\n", "long.py": "a\n" * 300},
        "other": {
            "idea.py": "def f():\n    return '\x1b[2J'\n",
            "same.py": "x = 1\n",
            "long.py": "b\n" * 300,
            "new.py": "",
        },
    }
    for name, files in sources.items():
        shutil.copytree(run, tmp_path / name)
        (tmp_path / name / "parts").mkdir()
        for file, text in files.items():
            (tmp_path / name / "parts" / file).write_text(text)
        (tmp_path / name / "parts" / "link.py").symlink_to(tmp_path / f"secret-{name}")
        (tmp_path / f"secret-{name}").write_text(name)
    main(["diff", str(tmp_path / "one"), str(tmp_path / "other")])
    shown = capsys.readouterr().out.partition("\nsource of own parts\n")[2].splitlines()
    assert shown[:6] == [
        "--- one/parts/idea.py",
        "+++ other/parts/idea.py",
        "@@ -1,2 +1,2 @@",
        " def f():",
        "-    return 1",
        r"+    return '\x1b[2J'",
    ]
    folders = f"{tmp_path}/one/parts {tmp_path}/other/parts"
    assert shown[200:202] == [f"... the first 200 lines; diff -ru {folders} shows all", "the same: " + ALL_SECTIONS]
    (tmp_path / "one" / "parts" / "long.py").write_text("b\n" * 300)
    main(["diff", str(tmp_path / "one"), str(tmp_path / "other")])
    assert "[2J'\nonly in other: parts/new.py\nthe same: " in capsys.readouterr().out


def test_diff_shows_what_was_typed_and_nothing_else(command, runs):
    done = command("diff", *runs)
    assert done.returncode == 0, done.stderr
    sections = dict(part.strip().split("\n", 1) for part in done.stdout.split("\n\n"))
    shown = [line.split("\t") for line in sections["config"].splitlines()[1:]]
    assert shown == [
        ["optimizer.lr", shown[0][1], "0.5"],
        ["logger.wandb.mode", "offline", "disabled"],
        ["paths.output_dir", "outputs", "other"],
        ["debug.limit_batches", "-", "1"],
    ]
    assert "versions" in done.stdout.splitlines()[-1]
    assert "metrics" in sections


def test_runs_are_listed_and_chosen(command, runs):
    rows = table(command("list", "outputs", "other").stdout)
    assert [row["path"] for row in rows] == runs
    assert [row["status"] for row in rows] == ["finished", "finished"]
    rows = table(command("list", "outputs", "other", "lr=0.5", "--columns", "run,seed,lr", "--since", "1d").stdout)
    assert rows == [{"run": runs[1].rpartition("/")[2], "seed": "0", "optimizer.lr": "0.5"}]


def test_show_prints_all_of_a_run(command, outputs, runs):
    shown = dict(line.split("\t") for line in command("show", runs[0]).stdout.splitlines() if "\t" in line)
    facts = json.loads((outputs / runs[0] / "run.json").read_text())
    assert (shown["status"], shown["command"], shown["data.name"]) == ("finished", facts["command"], "digits")
    assert shown["test/acc"] == f"{json.loads((outputs / runs[0] / 'metrics.json').read_text())['test/acc']:.4f}"


def test_the_best_shows_its_test_accuracy_and_test_accuracy_does_not_choose(command, outputs, runs):
    metrics = [json.loads((outputs / run / "metrics.json").read_text()) for run in runs]
    better = max((0, 1), key=lambda number: metrics[number]["val/acc"])
    done = command("best", "outputs", "other")
    shown = dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    assert (shown["run"], shown["test/acc"]) == (runs[better], f"{metrics[better]['test/acc']:.4f}")
    assert done.stdout.splitlines()[-2] == "its val/acc may be too good by chance; on fresh seeds:"
    assert done.stdout.splitlines()[-1].endswith(f" -m like={runs[better]} seed=1,2,3")
    refused = command("best", "outputs", "--by", "test/acc")
    assert refused.returncode == 2
    assert "cannot select by test/acc" in refused.stderr


def test_the_best_of_runs_validated_on_different_images_is_no_better(command, outputs, runs, tmp_path):
    chosen = command("best", "outputs", "other").stdout.splitlines()[0].partition("\t")[2]
    shutil.copytree(outputs / next(run for run in runs if run != chosen), outputs / "unlike" / "run")
    facts = outputs / "unlike" / "run" / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"validation": "0123456789abcdef"}))
    config = outputs / "unlike" / "run" / "config.yaml"
    config.write_text(re.sub(r"(?m)^(  val_seed:).*", r"\1 7", config.read_text()))
    done = command("best", chosen, "unlike")
    assert done.stdout.splitlines()[-1] == (
        "1 of 2 runs were validated on other images than this one, so it need not be better than they are: "
        "give filters, such as data.val_seed=0"
    )
    shutil.rmtree(outputs / "unlike")


def test_metrics_of_classes_share_a_row_and_metrics_have_four_digits(tmp_path, capsys):
    for name, right in (("one", 0.95), ("other", 0.85)):
        shutil.copytree(next(OLD_SWEEPS.glob("*_position-seed_*/*seed=0*")), tmp_path / name)
        for epoch in ("20", "5", "x"):
            (tmp_path / name / "checkpoints" / f"epoch_{epoch}.ckpt").touch()
        three = {"": right, "_low": right - 0.051, "_high": right + 0.031}
        found = {"val/acc": right, "test/macro_f1": right + 0.000012345, "best_epoch": 4.0}
        found |= {"test/tiny": 1.5e-6, "test/none": 0.0}
        found |= {f"test/class_acc{end}/3": value for end, value in three.items()}
        found |= {f"test/class_acc{end}/a/b": 0.5 for end in three}
        (tmp_path / name / "metrics.json").write_text(json.dumps(found))
    of_three, of_other, both = "3 0.9500 (0.90 to 0.98)", "3 0.8500 (0.80 to 0.88)", "a/b 0.5000 (0.50 to 0.50)"
    for command in ("show", "best"):
        main([command, str(tmp_path / "one")])
        lines = capsys.readouterr().out.splitlines()
        assert f"test by class\t{of_three}, {both}" in lines
        assert {"test/macro_f1\t0.9500", "test/tiny\t1.5e-06", "test/none\t0.0000", "best_epoch\t4"} <= set(lines)
        assert not any("class_acc" in line for line in lines)
        assert ("kept_epochs\t5,20" in lines) == (command == "show")
    main(["diff", str(tmp_path / "one"), str(tmp_path / "other")])
    metrics = capsys.readouterr().out.partition("\nmetrics\n")[2].splitlines()
    assert f"test by class\t{of_three}\t{of_other}" in metrics
    assert not any("class_acc" in line for line in metrics)
    one = json.loads((tmp_path / "one" / "metrics.json").read_text())
    (tmp_path / "other" / "metrics.json").write_text(json.dumps(one | {"test/class_acc_low/3": 0.82}))
    main(["diff", str(tmp_path / "one"), str(tmp_path / "other")])
    metrics = capsys.readouterr().out.partition("\nmetrics\n")[2].splitlines()
    assert metrics[1] == f"test by class\t{of_three}\t3 0.9500 (0.82 to 0.98)", "only the interval differs"


@pytest.mark.parametrize(("highest", "single"), [(0.9, False), (0.95, True)])
@pytest.mark.parametrize("better", ["learned", "sincos2d"])
def test_of_equal_runs_the_best_is_that_of_the_best_configuration(tmp_path, capsys, better, highest, single):
    """Each has one good seed: ``better`` that of 0.9, the other position that of ``highest``."""
    shutil.copytree(next(OLD_SWEEPS.glob("*_position-seed_*")), tmp_path / "sweep")
    for path in (tmp_path / "sweep").glob("*/metrics.json"):
        is_better, first = f"position={better}" in path.parent.name, "seed=0" in path.parent.name
        values = (0.9, 0.8) if is_better else (highest, 0.7)
        path.write_text(json.dumps({"val/acc": values[0] if first else values[1]}))
        if not is_better:  # the same run, not another seed
            shutil.copytree(path.parent, tmp_path / "copies" / path.parent.name)
    main(["best", str(tmp_path)])
    printed = capsys.readouterr().out
    (shown,) = [line for line in printed.splitlines() if line.startswith("varies\t")]
    assert (f"position={better}," in shown) is not single
    assert "finished runs; 2 left out, since the same configuration and seed ran again later" in printed
    assert (
        bool(re.search(f"of configurations with 2 runs, that of .*position={better}.* mean, 0.8500", printed)) is single
    )


def test_every_column_is_exported(command, outputs, runs):
    for name in ("runs.CSV", "runs.json"):
        assert command("export", "outputs", "other", "--to", name).returncode == 0
    with (outputs / "runs.CSV").open(newline="") as file:
        rows = list(csv.DictReader(file))
    stored = json.loads((outputs / "runs.json").read_text())
    assert [row["path"] for row in rows] == [row["path"] for row in stored] == runs
    assert [float(row["optimizer.lr"]) for row in rows] == [row["optimizer.lr"] for row in stored]
    refused = command("export", "--to", "runs.txt", "outputs")
    assert refused.stderr == "vitrine: cannot write runs.txt: its name must end in .csv or .json\n"


@pytest.mark.parametrize("name", ["labels.csv", "labels.json"])
def test_an_export_replaces_its_own_tables_and_no_other_file(tmp_path, capsys, name):
    run, file = tmp_path / "run", tmp_path / name
    run.mkdir()
    arguments = ["export", str(run), "--to", str(file)]
    main(arguments)
    shutil.copytree(next(OLD_SWEEPS.glob("*_position-seed_*/*seed=0*")), run, dirs_exist_ok=True)
    main(arguments)
    main(arguments)
    assert str(run) in file.read_text()
    file.write_text("path,label\na.png,cat\n")
    with pytest.raises(SystemExit):
        main(arguments)
    problem = "it exists and is not a table of vitrine's; choose another file"
    assert capsys.readouterr().err == f"vitrine: cannot write {file}: {problem}\n"
    assert file.read_text() == "path,label\na.png,cat\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "outputs"], "vitrine: outputs is not a run folder: it has no run.json; the newest run in it is"),
        (["show", "nowhere"], "vitrine: nowhere is not a folder\n"),
        (["diff", "nowhere", "outputs"], "vitrine: nowhere is not a folder\n"),
        (["list", "nowhere"], "vitrine: nowhere is not a folder\n"),
        (["list", "modle.depth=3"], "vitrine: no run has a column modle.depth; did you mean model.depth?\n"),
        (["list", "--columns", "val/ac"], "vitrine: no run has a column val/ac; did you mean val/acc?\n"),
        (["list", "val/acc>high"], "vitrine: val/acc>high needs a number after >\n"),
        (["list", "--descending"], "vitrine: --descending needs --sort COLUMN\n"),
        (["list", "--since", "soon"], "vitrine: soon is not a time"),
        (["list", "--since", ""], "vitrine: an empty text is not a time"),
        (["rm", "outputs"], "vitrine: outputs is not a run folder"),
    ],
)
def test_a_mistake_gets_one_clear_message(command, arguments, expected):
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(expected)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("val/acc==0.24", "val/acc==0.24: == is not one of =, >, >=, <, <=; did you mean =?"),
        ("val/acc => 0.2", "val/acc => 0.2: => is not one of =, >, >=, <, <=; did you mean >=?"),
        ("val/acc=<0.2", "val/acc=<0.2: =< is not one of =, >, >=, <, <=; did you mean <=?"),
        ("status!=finished", "status!=finished: != is not one of =, >, >=, <, <="),
        ("val/acc>nan", "val/acc>nan needs a number after >"),
        ("val/acc>90", "val/acc>90: val/acc is in [0, 1]; did you mean val/acc>0.9?"),
        ("val/acc>=97.5", "val/acc>=97.5: val/acc is in [0, 1]; did you mean val/acc>=0.975?"),
    ],
)
def test_a_filter_with_another_operator_is_refused(tmp_path, capsys, given, expected):
    shutil.copytree(next(OLD_SWEEPS.glob("*_position-seed_*/*seed=0*")), tmp_path / "run")
    with pytest.raises(SystemExit):
        main(["list", str(tmp_path), given])
    assert capsys.readouterr().err == f"vitrine: {expected}\n"


@pytest.mark.parametrize("given", ["val/acc>=0", "status=finished"])
def test_a_filter_may_have_spaces_around_its_operator(tmp_path, capsys, given):
    shutil.copytree(next(OLD_SWEEPS.glob("*_position-seed_*/*seed=0*")), tmp_path / "run")
    main(["list", str(tmp_path), re.sub("([<>=]+)", r" \1 ", given)])
    assert str(tmp_path / "run") in capsys.readouterr().out


def test_a_corrupt_record_is_named_skipped_and_counted(command, outputs, runs):
    broken = outputs / "outputs" / "runs" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    try:
        done = command("list")
    finally:
        (broken / "run.json").unlink()
        broken.rmdir()
    assert done.returncode == 0
    assert [row["path"] for row in table(done.stdout)] == runs[:1]
    named, counted = done.stderr.splitlines()
    assert named.startswith("vitrine: skipped outputs/runs/broken: cannot read")
    assert counted == "vitrine: 1 run skipped"


def test_deleting_asks_and_deletes_the_whole(command, outputs):
    copy = outputs / "copies" / "one"
    copy.mkdir(parents=True)
    (copy / "run.json").write_text('{"status": "failed"}')
    (copy / "notes.txt").write_text("")
    refused = command("rm", "copies/one")
    assert refused.returncode == 2
    assert "not interactive: pass --yes to delete" in refused.stderr
    assert copy.exists()
    assert command("rm", "copies/one", "outputs/../copies/one/", "--yes").stdout.endswith("1 run deleted\n")
    assert list((outputs / "copies").iterdir()) == []


def test_no_secret_of_the_environment_is_in_anything_that_was_written(outputs, runs):
    files = [path for path in outputs.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".wandb"]
    assert [path for path in files if "tfevents" in path.name]
    for path in files:
        content = path.read_bytes()
        assert not [name for name, value in CANARIES.items() if value.encode() in content], path


def test_a_private_run_sends_no_machine_and_no_path(outputs, runs):
    (log,) = outputs.glob("outputs/runs/*/wandb/offline-run-*/*.wandb")
    content = log.read_bytes()
    commit = json.loads((outputs / runs[0] / "run.json").read_text())["code"].get("commit", "no commit")
    for sent in (f'"{socket.gethostname()}"', str(ROOT), str(outputs), commit):
        assert sent.encode() not in content, sent
    names = {path.name for path in (log.parent / "files").rglob("*") if path.is_file()}
    assert not names & {"requirements.txt", "wandb-metadata.json", "diff.patch"}


@pytest.fixture
def script():
    from vitrine.cli import runs

    return runs


def test_a_value_of_several_lines_stays_in_its_row(script, tmp_path, monkeypatch, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"status": "failed", "error": "ValueError: no\n\tnor that"}))
    monkeypatch.setattr("sys.argv", ["runs.py", "list", str(tmp_path), "--columns", "status,error"])
    script.main()
    assert capsys.readouterr().out == "status\terror\nfailed\tValueError: no nor that\n"


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_ctrl_c_and_ctrl_d_at_the_question_delete_nothing(tmp_path, key):
    record = RunRecord.create(tmp_path, "run")
    record.update(id=record.name, status="failed")
    reading, writing = pty.openpty()
    command = [sys.executable, "-c", IN_A_SESSION, str(ROOT / "scripts/runs.py"), "rm", str(record.path)]
    with subprocess.Popen(command, stdin=writing, stdout=writing, stderr=subprocess.STDOUT) as process:
        os.close(writing)
        printed = ""
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while True:
                if select.select([reading], [], [], 0.2)[0]:
                    printed += os.read(reading, 4096).decode()
                elif "[y/N] " in printed:  # once more: Python misses a signal between its prompt and its reading
                    os.write(reading, key.encode())
        os.close(reading)
    assert (process.returncode, printed.splitlines()[-1]) == (0, "nothing was deleted")
    assert record.path.is_dir()


def test_ctrl_c_ends_a_command_in_one_line(capsys):
    with pytest.raises(SystemExit, match="130"), errors_in_one_line():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "vitrine: interrupted\n"


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_a_limit_that_is_not_a_number_of_rows_is_refused(script, monkeypatch, capsys, number):
    monkeypatch.setattr("sys.argv", ["runs.py", "list", f"--limit={number}"])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert f"{number} is not a whole number of at least 1" in capsys.readouterr().err


def test_a_list_is_filtered_by_a_number_and_sorted(tmp_path, capsys):
    shutil.copytree(OLD_SWEEPS, tmp_path / "sweeps")
    arguments = ["list", str(tmp_path), "val/loss<2.2", "--sort", "val/loss", "--descending", "--columns", "val/loss"]
    main([*arguments, "--limit", "2"])
    head, *losses, note = capsys.readouterr().out.splitlines()
    assert head == "val/loss"
    assert 2.2 > float(losses[0]) > float(losses[1])
    assert note.startswith("the last 2 of ")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("vitrine.cli.runs, vitrine.runs.diff", {"torch", "numpy", "omegaconf", "wandb", "rich"}),
        ("vitrine.cli.sweeps", {"torch", "numpy"}),
    ],
)
def test_finding_runs_and_sweeps_imports_nothing_heavy(tmp_path, modules, heavy):
    done = python("-c", f"import sys, {modules}; print(*sys.modules, sep='\\n')", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("line", DOCUMENTED)
def test_a_documented_command_does_what_it_says(outputs, runs, line, tmp_path):
    names = {"outputs/sweeps/NAME": "other", "outputs/runs/RUN": runs[0]}
    arguments = [re.sub("|".join(names), lambda found: names[found[0]], word) for word in shlex.split(line)[1:]]
    done = run_script(*arguments, cwd=outputs, env={"HOME": str(tmp_path), "WANDB_API_KEY": ""})
    if arguments[1] == "rm":
        assert done.stderr == "vitrine: not interactive: pass --yes to delete; nothing was deleted\n"
    elif arguments[0].endswith("wandb_workspace.py"):
        assert "the view could not be saved" in done.stderr, "there is no account"
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb_workspaces")
def test_a_view_of_wandb_groups_by_what_varies(monkeypatch):
    pytest.importorskip("wandb_workspaces")
    from vitrine.cli.wandb_workspace import layout

    asked = json.loads(
        layout("me/mine", ["model.position", "seed"], "my 'sweep'")._to_model().model_dump_json(by_alias=True)
    )
    (chosen,) = asked["spec"]["section"]["runSets"]
    assert [one["name"] for one in chosen["grouping"]] == ["model.value.position", "seed.value"]
    filters = [(one["key"]["name"], one["value"]) for one in chosen["filters"]["filters"]]
    assert filters == [("status", "finished"), ("group", "my 'sweep'")]
    panels = [one for part in asked["spec"]["section"]["panelBankConfig"]["sections"] for one in part["panels"]]
    assert {tuple(one["config"].get("metrics") or ()) for one in panels} >= {("val/acc",), ("val/loss",), ("test/acc",)}
    for project, key, expected in (
        ("mine", "seed", "ENTITY/PROJECT"),
        ("a/b", "position", "did you mean model.position"),
    ):
        with pytest.raises(VitrineError, match=expected):
            layout(project, [key])


def test_secrets_in_overrides_are_refused_and_not_repeated(train, tmp_path):
    overrides = [
        "logger.wandb.notes=canary-canary-canary",
        "tags=[a,xcanary-canary-canaryx]",
        "logger.wandb.name=${oc.env:MY_PASSWORD}",
        "hydra.job.env_set.WANDB_API_KEY=anything",
        "+logger.wandb.api_key=anything",
        f"name={'0123456789abcdef0123' * 2}",
        "data.root=https://me:pass@example.org/digits",
    ]
    done = train("logger=wandb", *overrides, env=CANARIES)
    assert done.returncode == 2
    assert done.stderr.count("looks like a key or token") == len(overrides)
    for override in overrides:
        name, _, value = override.partition("=")
        assert f"\n  {name}\n" in done.stderr
        assert value not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []
