"""Run folders from somebody else, made to do harm."""

import json
import os
import pickle
from pathlib import Path

from lab import Lab, facts, fault


@fault("foreign-runs", "tests/cli/test_foreign_runs.py::test_every_list_goes_on_beside_damaged_runs", quick=True)
def foreign_runs(lab: Lab) -> str:
    """Folders with a YAML bomb, 100,000 brackets, a pid of 10^30, terminal escapes, and text for an object."""
    bomb = "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n"
    good = {"status": "failed", "started": "2026-01-01T00:00:00+00:00"}
    records = {"sound": json.dumps(good), "brackets": "[" * 100_000, "code": json.dumps(good | {"code": "str"})}
    records |= {
        "pid": json.dumps(good | {"pid": 10**30}),
        "escape": json.dumps(good | {"tags": ["\x1b[31m"]}),
        "bomb": records["sound"],
    }
    for name, text in records.items():
        (lab.folder / "out" / name).mkdir(parents=True)
        (lab.folder / "out" / name / "run.json").write_text(text)
    (lab.folder / "out" / "bomb" / "config.yaml").write_text(bomb)
    ended = lab.run("list", "out", script="scripts/runs.py")
    assert ended.code == 0, ended
    assert "out/sound" in ended.out
    assert "\x1b" not in ended.out + ended.err
    assert "4 runs skipped" in ended.err, ended.err
    return "the sound one is listed, escapes as text; one line for each of the other four"


class Touch:
    """What touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Return what unpickling calls."""
        return os.system, (f"touch {self.path}",)


@fault("pickle", "tests/training/test_checkpoints.py::test_a_bare_pickle_is_refused_and_its_code_does_not_run")
def pickled_code(lab: Lab) -> str:
    """Checkpoints replaced by a pickle that runs a command, then `eval`, `predict`, `resume` and `model.pretrained`."""
    run = lab.trained("out", epochs=1)
    trace = lab.folder / "the-code-ran"
    for path in (run / "checkpoints").glob("*.ckpt"):
        path.write_bytes(pickle.dumps(Touch(trace)))
    best = run / "checkpoints" / "best.ckpt"
    content = best.read_bytes()
    ended = [
        lab.run(f"run={run}", script="eval.py"),
        lab.run(f"run={run}", f"input={lab.folder}", script="predict.py"),
        lab.run(f"resume={run}", "trainer.max_epochs=2"),
        lab.run("model=vit_nano", f"model.pretrained={best}"),
    ]
    assert all(each.code for each in ended), ended
    assert not any("Traceback" in each.err for each in ended), ended
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists(), "the pickle does nothing"
    return f"each is refused, nothing runs: `{ended[0].line.replace(str(run), 'RUN')[:150]}`"


@fault("interpolation", "tests/command/test_inherit.py::test_a_run_folder_reads_no_environment")
def interpolation(lab: Lab) -> str:
    """`${oc.env:SECRET}` in a run's config.yaml, then `like=RUN` and `resume=RUN`."""
    run = lab.trained("out", epochs=1)
    config = run / "config.yaml"
    changed = config.read_text().replace("name: null", "name: ${oc.env:SECRET}", 1)
    assert "SECRET" in changed
    config.write_text(changed)
    ended = [lab.run(f"like={run}", SECRET="swordfish"), lab.run(f"resume={run}", SECRET="swordfish")]
    assert not any("swordfish" in each.out + each.err for each in ended), ended
    texts = [path.read_text(errors="replace") for path in lab.folder.rglob("*") if path.suffix in (".yaml", ".json")]
    assert not any("swordfish" in text for text in texts)
    assert [each.code for each in ended] == [2, 2]
    assert "is an interpolation" in ended[0].err + ended[1].err
    return "both are refused: `name=${oc.env:SECRET} is an interpolation, which a run folder cannot have`"


@fault("spreadsheet", "tests/cli/test_foreign_runs.py::test_an_export_holds_no_formula_and_keeps_numbers", quick=True)
def spreadsheet(lab: Lab) -> str:
    """A run whose facts start with `=`, `+`, `-` and `@`, then `runs.py export`; and `runs.py rm` of a link to it."""
    record = {"status": "failed", "started": "2026-01-01", "group": '=HYPERLINK("x")', "like": "@SUM(A1)"}
    folder = lab.folder / "out" / "evil"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))
    ended = lab.run("export", "out", "--to", "all.csv", script="scripts/runs.py")
    assert ended.code == 0, ended
    text = (lab.folder / "all.csv").read_text()
    assert """'=HYPERLINK""" in text, text
    assert "'@SUM(A1)" in text, text
    (lab.folder / "link").symlink_to(folder)
    ended = lab.run("rm", "link", "--yes", script="scripts/runs.py")
    assert ended.code == 0, ended
    assert facts(folder)["status"] == "failed"
    assert not (lab.folder / "link").is_symlink()
    return "cells of text get an apostrophe; of the link and the run, the link is removed"
