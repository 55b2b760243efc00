"""Lists of runs are right whatever has happened to the folders, and to the index beside them."""

import errno
import json
import math
import os
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from vitrine.cli.runs import cell_text
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.diff import diff_runs
from vitrine.runs.index import INDEX
from vitrine.runs.registry import best_runs, find_runs, remove_runs


def make(
    folder: Path,
    name: str,
    *,
    status: str = "finished",
    started: str = "2026-01-01T00:00:00+00:00",
    config: dict | None = None,
    metrics: dict | None = None,
    **facts,
) -> RunRecord:
    record = RunRecord(folder / name)
    (record.path / "checkpoints").mkdir(parents=True)
    record.update(id=name, status=status, started=started, **facts)
    record.write_config({"seed": 0, "data": {"name": "digits", "root": "d"}, "model": {"depth": 3}} | (config or {}))
    record.write_metrics(metrics or {"val/acc": 0.5, "test/acc": 0.4})
    return record


@pytest.fixture
def outputs(template, tmp_path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "outputs"))


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Two single runs and a sweep of three."""
    root = tmp_path_factory.mktemp("registry")
    make(root / "runs", "a", started="2026-01-01T00:00:00+00:00", tags=["night", "x"])
    make(root / "runs", "b", started="2026-01-03T00:00:00+00:00", status="failed", error="ValueError: no")
    for seed in range(3):
        metrics = {"val/acc": 0.5 + seed / 10, "val/loss": 1.0 + seed, "test/acc": 0.9 - seed / 10}
        began = f"2026-01-0{4 + seed}T00:00:00+00:00"
        make(root / "sweeps" / "s", f"c{seed}", config={"seed": seed}, metrics=metrics, started=began)
    return root


def names(found) -> list[str]:
    return [entry.path.name for entry in found.entries]


def columns(root: Path) -> list[list]:
    found = find_runs([root])
    return [[one.value(name) for name in found.columns if name != "path"] for one in found.entries]


def test_runs_at_any_depth_are_found_the_earliest_first(outputs):
    assert names(find_runs([outputs])) == ["a", "b", "c0", "c1", "c2"]
    assert find_runs([outputs]).unreadable == []


def test_the_index_agrees_with_the_folders(outputs):
    before = columns(outputs)
    assert (outputs / INDEX).exists()
    assert columns(outputs) == before
    (outputs / INDEX).unlink()
    assert columns(outputs) == before


def test_a_second_listing_reads_no_run(outputs, monkeypatch):
    before = columns(outputs)
    monkeypatch.setattr("vitrine.runs.index._read", None)
    assert columns(outputs) == before


@pytest.mark.parametrize(
    ("change", "column", "value"),
    [
        (lambda record: record.update(group="mine"), "group", "mine"),
        (lambda record: record.write_metrics({"val/acc": 0.125}), "val/acc", 0.125),
        (lambda record: record.write_config({"seed": 77}), "seed", 77),
    ],
    ids=["run.json", "metrics.json", "config.yaml"],
)
def test_what_changes_in_a_file_changes_in_the_list(outputs, change, column, value):
    find_runs([outputs])
    change(RunRecord(outputs / "runs" / "a"))
    (entry,) = [one for one in find_runs([outputs]).entries if one.path.name == "a"]
    assert entry.value(column) == value


def test_a_few_changes_in_a_large_folder_leave_the_index_as_it_is(outputs, monkeypatch):
    find_runs([outputs])
    written = (outputs / INDEX).read_bytes()
    monkeypatch.setattr("vitrine.runs.index.FEW", 0.4)
    for change, (count, rewritten) in enumerate([(1, False), (2, False), (3, True)]):
        for name in ["a", "b", "c0"][:count]:
            (folder,) = outputs.glob(f"**/{name}")
            RunRecord(folder).update(group=f"changed {change}")
        groups = [entry.value("group") for entry in find_runs([outputs]).entries]
        assert groups.count(f"changed {change}") == count
        assert ((outputs / INDEX).read_bytes() != written) == rewritten


def test_folders_that_are_moved_deleted_or_added_do_not_confuse_it(outputs, tmp_path):
    find_runs([outputs])
    shutil.rmtree(outputs / "runs" / "a")
    (outputs / "runs" / "b").rename(outputs / "sweeps" / "s" / "moved")
    make(outputs / "runs", "d")
    assert names(find_runs([outputs])) == ["d", "moved", "c0", "c1", "c2"]
    outputs.rename(tmp_path / "elsewhere")
    found = find_runs([tmp_path / "elsewhere"])
    assert names(found) == ["d", "moved", "c0", "c1", "c2"]
    assert {entry.path.exists() for entry in found.entries} == {True}


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0 and then nothing"])
def test_a_damaged_index_is_rebuilt(outputs, content):
    before = columns(outputs)
    (outputs / INDEX).write_bytes(content)
    assert columns(outputs) == before
    with sqlite3.connect(outputs / INDEX) as index:
        assert index.execute("SELECT count(*) FROM runs").fetchone() == (5,)


def test_an_index_of_another_version_is_rebuilt(outputs):
    before = columns(outputs)
    with sqlite3.connect(outputs / INDEX) as index:
        index.executescript("DROP TABLE runs; CREATE TABLE runs (other); PRAGMA user_version = 99")
    assert columns(outputs) == before
    assert columns(outputs) == before


def test_runs_are_listed_without_a_writable_index(outputs):
    (outputs / INDEX).mkdir()
    assert names(find_runs([outputs])) == ["a", "b", "c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("run.json", "{", "cannot read"),
        ("run.json", "[]", "does not hold a JSON object"),
        ("run.json", "{}", "has no status"),
        ("run.json", None, "cannot read"),
        ("config.yaml", "a: [", "cannot read"),
        ("config.yaml", None, "cannot read"),
        ("config.yaml", "\udcff", "cannot read"),
        ("metrics.json", "", "cannot read"),
    ],
)
def test_a_corrupt_record_is_named_and_skipped(outputs, file, content, problem):
    for indexed in (False, True):
        path = outputs / "runs" / "a" / file
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
        found = find_runs([outputs])
        assert names(found) == ["b", "c0", "c1", "c2"], indexed
        (broken,) = found.unreadable
        assert broken.path == outputs / "runs" / "a"
        assert problem in broken.problem


def test_a_run_that_another_user_may_not_read_is_listed_for_those_who_may(outputs, monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("vitrine.runs.record.read_json", refuse)
        assert len(find_runs([outputs]).unreadable) == 5
    found = find_runs([outputs])
    assert (names(found), found.unreadable) == (["a", "b", "c0", "c1", "c2"], [])


def test_a_run_that_failed_without_a_configuration_is_listed(outputs):
    record = make(outputs / "runs", "early", status="failed")
    (record.path / "config.yaml").unlink()
    (record.path / "metrics.json").unlink()
    assert "early" in names(find_runs([outputs]))


def test_folders_beside_and_inside_runs_are_not_runs(outputs):
    (outputs / "notes").mkdir()
    (outputs / ".hidden").mkdir()
    make(outputs / ".hidden", "h")
    make(outputs / "runs" / "a", "inside")
    found = find_runs([outputs])
    assert (names(found), found.unreadable) == (["a", "b", "c0", "c1", "c2"], [])


def test_a_run_found_through_two_folders_is_listed_once(outputs):
    assert names(find_runs([outputs, outputs / "runs", outputs / "runs" / "a"])) == ["a", "b", "c0", "c1", "c2"]
    assert not (outputs / "runs" / "a" / INDEX).exists(), "a run folder has nothing that the run has not written"


def test_a_path_that_is_not_a_folder_is_refused(outputs):
    with pytest.raises(RunError, match="none is not a folder"):
        find_runs([outputs / "none"])


def test_a_run_whose_process_is_gone_is_interrupted_also_from_the_index(outputs):
    record = RunRecord(outputs / "runs" / "b")
    record.start()
    record.update(pid=2**22 + 1)
    for _ in range(2):
        assert [one.status for one in find_runs([outputs]).entries if one.path.name == "b"] == ["interrupted"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("status", "failed", ["b"]),
        ("status", "failed,finished", ["a", "b", "c0", "c1", "c2"]),
        ("tags", "night", ["a"]),
        ("seed", "1,2.0", ["c1", "c2"]),
        ("depth", "3", ["a", "b", "c0", "c1", "c2"]),
        ("data", "digits", ["a", "b", "c0", "c1", "c2"]),
        ("data", "mnist", []),
        ("val/acc", "0.6", ["c1"]),
        ("error", "null", ["a", "c0", "c1", "c2"]),
        ("tags", "[night]", []),
        ("tags", '[night, "x"]', ["a"]),
        ("tags", "[y],[night,x]", ["a"]),
    ],
)
def test_runs_are_filtered_by_any_column(outputs, column, values, expected):
    assert names(find_runs([outputs]).where(column, values)) == expected


def test_runs_are_filtered_by_whole_lists(tmp_path):
    for name, mean in (("none", []), ("one", [0.5]), ("two", [0.5, 0.3])):
        make(tmp_path, name, config={"data": {"mean": mean}})
    found = find_runs([tmp_path])
    for values, expected in (("[]", ["none"]), ("[.50]", ["one"]), ("[0.5,0.3],[]", ["none", "two"]), ("0.3", ["two"])):
        assert names(found.where("data.mean", values)) == expected


@pytest.mark.parametrize(
    ("column", "sign", "number", "expected"),
    [
        ("val/acc", ">", "0.6", ["c2"]),
        ("val/acc", ">=", "0.6", ["c1", "c2"]),
        ("val/loss", "<", "3", ["c0", "c1"]),
        ("val/loss", "<=", "1e0", ["c0"]),
        ("status", "<", "9", []),
    ],
)
def test_runs_are_filtered_by_numbers(outputs, column, sign, number, expected):
    assert names(find_runs([outputs]).compared(column, sign, number)) == expected


def test_runs_are_sorted_by_any_column_those_without_a_value_first(outputs):
    make(outputs / "runs", "nan", metrics={"val/loss": math.nan}, started="2026-01-09T00:00:00+00:00")
    found = find_runs([outputs])
    assert names(found.by("val/loss")) == ["a", "b", "nan", "c0", "c1", "c2"]
    assert names(found.by("val/loss", descending=True)) == ["a", "b", "c2", "c1", "c0", "nan"]
    assert names(found.by("run", descending=True)) == ["nan", "c2", "c1", "c0", "b", "a"]
    with pytest.raises(RunError, match="no run has a column val/los; did you mean val/loss"):
        found.by("val/los")


def test_an_unknown_status_is_refused_with_the_nearest(outputs):
    with pytest.raises(RunError, match=r"status=finish is not one of finished, .* and running; did you mean finished"):
        find_runs([outputs]).where("status", "failed,finish")


@pytest.fixture
def tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_runs_are_filtered_by_start_time(outputs, tokyo):
    """Local time, as lists show it and the names of run folders have it."""
    found = find_runs([outputs])
    assert names(found.since("2026-01-05T09:00")) == ["c1", "c2"]
    assert cell_text("started", found.entries[-2].value("started")) == "2026-01-05 09:00"
    assert names(found.since("2026-01-05T01:00:00+01:00")) == ["c1", "c2"]
    assert names(found.since("1h")) == names(found.since("1h30m")) == []
    assert len(found.since("99999d").entries) == 5


@pytest.mark.parametrize("text", ["yesterday", "-7d", "nand", "99999999d", ""])
def test_a_start_time_is_a_date_or_an_age(outputs, text):
    with pytest.raises(RunError, match=f"{text or 'an empty text'} is not a time: give a date"):
        find_runs([outputs]).since(text)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("sed", "did you mean seed?"),
        ("val/ac", "did you mean val/acc?"),
        ("dpeth", r"model\.depth"),
        ("zzz", "zzz$"),
        ("model", r"such as model\.depth$"),
    ],
)
def test_an_unknown_column_is_refused_with_the_nearest(outputs, word, problem):
    with pytest.raises(RunError, match=problem):
        find_runs([outputs]).column(word)


def test_an_ambiguous_last_part_is_refused(outputs):
    make(outputs / "runs", "d", config={"other": {"depth": 1}})
    with pytest.raises(RunError, match=r"depth is ambiguous: model\.depth or other\.depth"):
        find_runs([outputs]).column("depth")


def test_the_best_run_is_selected_on_validation(outputs):
    found = find_runs([outputs])
    assert [one.path.name for one in best_runs(found, "val/acc", 2)] == ["c2", "c1"]
    assert [one.path.name for one in best_runs(found, "val/loss")] == ["c0"]
    with pytest.raises(RunError, match="cannot select by test/acc"):
        best_runs(found, "test/acc")
    with pytest.raises(RunError, match="no finished run has epochs"):
        best_runs(found, "epochs")
    with pytest.raises(RunError, match="no runs found"):
        best_runs(found.where("data", "mnist"), "val/acc")


def test_the_best_run_of_a_target_called_like_a_loss_has_the_highest_accuracy(outputs):
    for name, acc in (("d", 0.6), ("e", 0.7)):
        make(outputs / "runs", name, metrics={"val/acc/weight_loss": acc, "val/loss/weight_loss": 1 - acc})
    found = find_runs([outputs])
    for metric in ("val/acc/weight_loss", "val/loss/weight_loss"):
        assert [one.path.name for one in best_runs(found, metric, 2)] == ["e", "d"]


def test_a_diverged_run_is_not_the_best(outputs):
    make(outputs / "runs", "d", metrics={"val/acc": 0.1, "val/loss": float("nan")})
    make(outputs / "runs", "e", metrics={"val/acc": float("nan"), "val/loss": float("-inf")})
    found = find_runs([outputs])
    assert [one.path.name for one in best_runs(found, "val/acc", 9)] == ["c2", "c1", "a", "c0", "d"]
    assert [one.path.name for one in best_runs(found, "val/loss", 9)] == ["c0", "c1", "c2"]
    with pytest.raises(RunError, match="val/loss is not finite in any finished run"):
        best_runs(find_runs([outputs / "runs"]), "val/loss")


def test_two_runs_that_differ_by_one_key_differ_by_that_key_alone(outputs):
    one, other = (RunRecord(outputs / "sweeps" / "s" / name) for name in ("c0", "c1"))
    other.write_config(other.config | {"resume": "outputs/runs/a"})  # how it was asked for
    sections = diff_runs(one, other)
    assert sections["config"] == {"seed": (0, 1)}
    assert {name for name, values in sections.items() if values} == {"config", "metrics"}
    assert sections["metrics"]["val/acc"] == (0.5, 0.6)


def test_differing_code_versions_and_machine_are_reported(outputs):
    one, other = (RunRecord(outputs / "runs" / name) for name in ("a", "b"))
    one.update(code={"commit": "1", "changed": True}, versions={"torch": "2"}, machine={"cores": 2}, device="CPU")
    other.update(code={"commit": "1", "changed": True}, versions={"torch": "3"}, machine={"cores": 8}, device="CPU")
    (one.path / "code.diff").write_text("-a\n+b\n")
    sections = diff_runs(one, other)
    assert sections["versions"] == {"torch": ("2", "3")}
    assert sections["machine"] == {"cores": (2, 8)}
    assert sections["code"]["code.diff"][0].startswith("2 lines, ")
    (other.path / "code.diff").write_text("-a\n+c\n")
    assert len(set(diff_runs(one, other)["code"]["code.diff"])) == 2, "as long, but not the same"
    (other.path / "code.diff").write_text("-a\n+b\n")
    assert diff_runs(one, other)["code"] == {}


def test_a_code_diff_that_is_no_file_or_too_large_is_one_line(outputs, monkeypatch):
    one, other = (RunRecord(outputs / "runs" / name) for name in "ab")
    os.mkfifo(one.path / "code.diff")
    with pytest.raises(RunError, match=r"cannot read .*runs/a/code\.diff: it is not a file"):
        diff_runs(one, other)
    (one.path / "code.diff").unlink()
    (one.path / "code.diff").write_text("-a\n" * 1000)
    monkeypatch.setattr("vitrine.runs.diff.MAX_CODE_DIFF", 1000)
    with pytest.raises(RunError, match=r"cannot read .*runs/a/code\.diff: it is larger than"):
        diff_runs(one, other)


def test_edited_source_of_a_part_is_a_difference_of_the_code(outputs):
    one, other = (RunRecord(outputs / "runs" / name) for name in "ab")
    one.update(parts={"my_lab.fourier.Fourier": "0123456789abcdef"})
    other.update(parts={"my_lab.fourier.Fourier": "fedcba9876543210"})
    assert diff_runs(one, other)["code"]["parts.my_lab.fourier.Fourier"] == ("0123456789abcdef", "fedcba9876543210")


def test_a_run_is_removed_as_a_whole_unless_it_is_running(outputs):
    remove_runs([outputs / "runs" / "a"])
    assert [path.name for path in (outputs / "runs").iterdir()] == ["b"]
    record = RunRecord(outputs / "runs" / "b")
    record.start()
    with pytest.raises(RunError, match=r"b is still running, as process \d+"):
        remove_runs([record.path])
    assert json.loads((record.path / "run.json").read_text())["status"] == "running"
    with pytest.raises(RunError, match="is not a run folder"):
        remove_runs([outputs / "sweeps"])
    assert len(names(find_runs([outputs]))) == 4


def test_of_several_runs_all_are_removed_or_none(outputs):
    one, running = (RunRecord(outputs / "runs" / name) for name in ("a", "b"))
    running.start()
    with pytest.raises(RunError, match="stop it first; nothing was deleted"):
        remove_runs([one.path, running.path], force=True)
    assert one.path.exists()
    running.update(host="a-machine-that-is-gone")
    with pytest.raises(RunError, match="or give --force if that machine is gone; nothing was deleted"):
        remove_runs([one.path, running.path])
    assert one.path.exists()
    remove_runs([one.path, running.path, f"{one.path}/"], force=True)
    assert list((outputs / "runs").iterdir()) == []


def test_more_runs_than_files_may_be_open_are_removed(tmp_path):
    runs = [make(tmp_path, f"r{number}").path for number in range(12)]
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 6, most))
    try:
        remove_runs(runs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    assert list(tmp_path.iterdir()) == []


def test_a_removed_run_has_no_file_open_which_nfs_would_keep(outputs, monkeypatch):
    unlink = os.unlink

    def unlink_on_nfs(path, *, dir_fd=None):
        """Rename a file that is open. NFS removes it once it is closed: too late for rmtree, which gives ``dir_fd``."""
        if dir_fd is not None and is_open(os.stat(path, dir_fd=dir_fd)):
            os.rename(path, ".nfs1", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_on_nfs)
    remove_runs([outputs / "runs" / "a", outputs / "runs" / "b"])
    assert list((outputs / "runs").iterdir()) == []


def is_open(file: os.stat_result) -> bool:
    return any(os.path.samestat(file, path.stat()) for path in Path("/dev/fd").iterdir() if path.exists())


def test_a_run_that_cannot_be_removed_does_not_keep_the_others(outputs, monkeypatch):
    runs, rmtree = [outputs / "runs" / name for name in "ab"], shutil.rmtree

    def refuse(folder, **options):
        if folder.name == ".a.removed":
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(RunError, match=r"^cannot delete .*/\.a\.removed: Directory not empty; 1 other run deleted$"):
        remove_runs(runs)
    assert [path.name for path in (outputs / "runs").iterdir()] == [".a.removed"]


def test_leftovers_of_a_killed_deletion_are_deleted_by_the_next(outputs):
    runs = outputs / "runs"
    for name in ("a", "x"):
        (runs / f".{name}.removed" / "inside").mkdir(parents=True)
    remove_runs([runs / "a"])
    assert [path.name for path in runs.iterdir()] == ["b"]


def test_an_index_that_links_to_another_database_leaves_it_alone(outputs, tmp_path):
    before = columns(outputs)
    other = tmp_path / "mlflow.db"
    with sqlite3.connect(other) as database:
        database.executescript("CREATE TABLE runs (own); INSERT INTO runs VALUES (7)")
    (outputs / INDEX).unlink()
    (outputs / INDEX).symlink_to(other)
    assert columns(outputs) == before
    with sqlite3.connect(other) as database:
        assert database.execute("SELECT own FROM runs").fetchall() == [(7,)]


def hot_journal(index: Path, named: Path) -> bytes:
    """A journal of one page of ``index``, as a killed process leaves it, that names ``named`` as its super-journal."""
    page = index.read_bytes()[:4096]
    checksum = sum(page[position] for position in range(4096 - 200, 0, -200))
    head = struct.pack(">8s5I", bytes.fromhex("d9d505f920a163d7"), 1, 0, 1, 512, 4096).ljust(512, b"\0")
    name = str(named).encode()
    last = name + struct.pack(">2I", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    first = struct.pack(">I", 1) + page + struct.pack(">I", checksum)
    return head + first + struct.pack(">I", 2**30 // 4096 + 1) + last


def test_a_journal_beside_the_index_is_neither_rolled_back_nor_changed(outputs, tmp_path):
    """Older versions of SQLite delete the super-journal that a journal names, which can be any file."""
    find_runs([outputs])
    canary = tmp_path / "canary"
    canary.write_bytes(b"\0" * 512)
    names_before = names(find_runs([outputs]))
    journal, log = (outputs / f"{INDEX}-{kind}" for kind in ("journal", "wal"))
    journal.write_bytes(hot_journal(outputs / INDEX, canary))
    log.write_bytes(bytes.fromhex("377f0682") + b"\0" * 28)
    written = [path.read_bytes() for path in (journal, log)]
    for number in range(2):  # the index is written, and then read
        make(outputs / "runs", f"new{number}", started=f"2026-02-0{number + 1}T00:00:00+00:00")
        for _ in range(2):
            assert names(find_runs([outputs])) == [*names_before, *[f"new{n}" for n in range(number + 1)]]
        assert canary.read_bytes() == b"\0" * 512
        assert [path.read_bytes() for path in (journal, log)] == written
    kept = {INDEX, journal.name, log.name, "runs", "sweeps"}
    assert {path.name for path in outputs.iterdir()} == kept


def test_an_index_in_wal_mode_leaves_no_file_beside_it(outputs):
    before = columns(outputs)
    with closing(sqlite3.connect(outputs / INDEX)) as index:
        index.execute("PRAGMA journal_mode = WAL")
    assert columns(outputs) == before
    make(outputs / "runs", "new")
    assert len(columns(outputs)) == len(before) + 1
    assert {path.name for path in outputs.iterdir()} == {INDEX, "runs", "sweeps"}


@pytest.mark.whole
def test_processes_that_replace_the_index_at_the_same_time_leave_a_whole_one(outputs):
    for number in range(40):
        make(outputs / "runs", f"more{number}")
    listing = "import sys; from vitrine.runs.registry import find_runs; print(len(find_runs(sys.argv[1:]).entries))"
    many = [
        subprocess.Popen([sys.executable, "-c", listing, outputs], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [process.communicate()[0] for process in many] == ["45\n"] * 4
    assert len(names(find_runs([outputs]))) == 45
    with closing(sqlite3.connect(outputs / INDEX)) as index:
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert index.execute("SELECT count(*) FROM runs").fetchone() == (45,)
    assert {path.name for path in outputs.iterdir()} == {INDEX, "runs", "sweeps"}


def test_a_configuration_that_another_process_dropped_from_the_index_is_read_again(outputs):
    before = columns(outputs)
    found = find_runs([outputs])
    with sqlite3.connect(outputs / INDEX) as index:
        index.execute("DELETE FROM runs")
    assert [[one.value(name) for name in found.columns if name != "path"] for one in found.entries] == before


def test_a_view_in_the_place_of_the_table_is_not_computed(outputs):
    before = columns(outputs)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    with sqlite3.connect(outputs / INDEX) as index:
        index.executescript(f"DROP TABLE runs; CREATE VIEW runs AS {endless}")
    assert columns(outputs) == before


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TRIGGER more AFTER INSERT ON runs BEGIN INSERT INTO noted VALUES (NEW.name); END",
        "ALTER TABLE runs ADD COLUMN wide TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000))) VIRTUAL",
    ],
)
def test_an_index_with_more_in_it_than_its_table_is_written_anew(outputs, change):
    before = columns(outputs)
    with sqlite3.connect(outputs / INDEX) as index:
        index.executescript(f"CREATE TABLE noted (name); {change}; DELETE FROM runs")
    assert columns(outputs) == before
    with sqlite3.connect(outputs / INDEX) as index:
        kinds = index.execute("SELECT type, name FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    assert kinds == [("table", "runs")]


def test_a_forged_row_of_the_index_is_one_line(outputs):
    find_runs([outputs])
    with sqlite3.connect(outputs / INDEX) as index:
        index.execute("UPDATE runs SET brief = ?", ('[{"status": "finished", "ended": 5}, {"val/acc": "high"}]',))
    found = find_runs([outputs])
    assert not found.entries
    assert {run.problem.partition(": ")[2] for run in found.unreadable} >= {
        "ended must be text, not a number; delete it; it will be rebuilt"
    }


@pytest.mark.parametrize("brief", ["1", "x", "[1, 2]", "[{}, null]", "[" * 100_000, None])
def test_a_row_of_the_index_that_cannot_be_read_is_one_line(outputs, brief):
    find_runs([outputs])
    with sqlite3.connect(outputs / INDEX) as index:
        index.execute("UPDATE runs SET brief = ?", (brief,))
    found = find_runs([outputs])
    assert not found.entries
    problem = "it has a row that cannot be read; delete it; it will be rebuilt"
    assert problem in {run.problem.partition(": ")[2] for run in found.unreadable}


@pytest.mark.parametrize("config", ["1", "x", None])
def test_a_configuration_in_the_index_that_cannot_be_read_is_one_line(outputs, config):
    find_runs([outputs])
    with sqlite3.connect(outputs / INDEX) as index:
        index.execute("UPDATE runs SET config = ?", (config,))
    with pytest.raises(RunError, match="has no configuration that can be read; delete it; it will be rebuilt"):
        _ = find_runs([outputs]).columns


@pytest.mark.parametrize("signature", ["x", None])
def test_a_run_with_a_forged_signature_in_the_index_is_read_again(outputs, signature):
    before = columns(outputs)
    with sqlite3.connect(outputs / INDEX) as index:
        index.execute("UPDATE runs SET signature = ?", (signature,))
    assert columns(outputs) == before


def test_a_run_whose_checkpoints_lead_into_another_run_is_not_written(tmp_path, monkeypatch):
    mine, foreign = make(tmp_path, "mine"), make(tmp_path, "foreign")
    (foreign.path / "checkpoints").rmdir()
    (foreign.path / "checkpoints").symlink_to(mine.path / "checkpoints")
    refused = r"checkpoints leads into another run, .*mine, which must not be written to"
    with pytest.raises(RunError, match=refused), foreign.owned():
        pass
    (tmp_path / "disk").mkdir()
    (mine.path / "checkpoints").rmdir()
    (mine.path / "checkpoints").symlink_to(tmp_path / "disk")  # a user's own larger disk
    with mine.owned():
        pass
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RunError, match=r"is another user's link, to .*disk; put a folder"), mine.owned():
        pass
