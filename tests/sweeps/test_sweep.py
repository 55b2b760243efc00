import errno
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock
from helpers.deciding import THREE, decide
from helpers.searching import TWO, run, search, train
from helpers.user_parts import enter_lab

from vitrine.cli.flags import parse_flags
from vitrine.command.compose import points
from vitrine.command.sources import Sources, composing
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.user_code import store_code
from vitrine.sweeps.run import run as run_sweep
from vitrine.sweeps.search_summary import describe_search, print_search
from vitrine.sweeps.summary import find_sweeps, mixed_images, print_location, print_sweep, print_trials
from vitrine.sweeps.sweep import (
    BestConfiguration,
    Sweep,
    best_configuration,
    check_folder,
    ranked_configurations,
)
from vitrine.sweeps.trial import TrialResult


def grid(folder, *overrides):
    return Sweep.plan(points("train", [f"paths.output_dir={folder}", *overrides], multirun=True))


def test_the_order_of_overrides_makes_no_other_configuration():
    """As after a rerun that names its keys in another order, with one more seed."""
    varies = [
        {"patch": "2", "depth": "4", "seed": "0"},
        {"seed": "1", "depth": "4", "patch": "2"},
        {"patch": "2", "depth": "6", "seed": "0"},
    ]
    results = [TrialResult("finished", {"val/acc": accuracy}) for accuracy in (0.7, 0.9, 0.85)]
    best = best_configuration(varies, results)
    assert (best.label, best.count, best.mean, best.left_out) == ("patch=2,depth=4", 2, 0.8, 1)


@pytest.mark.parametrize(
    ("monitored", "metric"),
    [("val/macro_f1", "val/macro_f1"), ("val/macro_f1,last", "val/acc"), ("val/loss", "val/acc"), ("last", "val/acc")],
)
def test_a_grid_selects_by_what_all_its_trials_monitor(tmp_path, capsys, monitored, metric):
    planned = grid(tmp_path, "seed=0,1", f"callbacks.monitor={monitored}")
    print_sweep(planned, [TrialResult("finished", {"val/acc": 0.25, "val/macro_f1": 0.75})] * len(planned.trials))
    table, best = capsys.readouterr().out.split("best on validation: ")
    assert metric in table.splitlines()[1].split()
    assert f"({metric} 0." in best.splitlines()[0]


def test_the_best_configuration_is_the_first_of_the_ranking():
    """Of the configuration with the best mean, a trial has no value of the metric."""
    varies = [{"patch": patch, "seed": seed} for patch in "24" for seed in "01"]
    metrics = [{"val/acc": 0.8}, {"val/acc": 0.8}, {"val/acc": 0.95}, {}]
    results = [TrialResult("finished", values) for values in metrics]
    ranked = ranked_configurations(varies, results)
    assert [one.label for one in ranked] == ["patch=2", "patch=4"]
    assert best_configuration(varies, results) == replace(ranked[0], left_out=1)


def test_the_name_of_another_sweep_is_refused(tmp_path):
    named = ["model=vit_nano", "seed=0,1", "sweep.name=mine"]
    sweep = grid(tmp_path, *named, "optimizer.weight_decay=0")
    sweep.write(sweep.results(), {})
    assert grid(tmp_path, *named, "optimizer.weight_decay=0.0").folder == sweep.folder
    with pytest.raises(RunError, match="mine holds another sweep"):
        grid(tmp_path, *named, "optimizer.weight_decay=0.1")


def test_trials_of_earlier_commands_keep_their_places(tmp_path):
    """The first is the baseline of comparisons. One whose fingerprint is another now is in the place of the old one."""
    sweep = grid(tmp_path, "model=vit_nano", "position=learned,rope,none")
    learned, rope, none = sweep.trials
    path = sweep.folder / "sweep.json"

    def write(*trials):
        for trial in trials:
            trial.folder.mkdir(parents=True, exist_ok=True)
        replace(sweep, trials=list(trials)).write([TrialResult("new")] * len(trials), {})
        return [trial["varies"]["position"] for trial in json.loads(path.read_text())["trials"]]

    write(learned, rope)
    assert write(none) == ["learned", "rope", "none"]
    path.write_text(path.read_text().replace(learned.folder.name, "of-another-default"))
    assert write(none, rope, learned) == ["learned", "rope", "none"]
    assert "of-another-default" not in path.read_text()


def test_the_command_of_the_best_configuration_is_one_of_a_single_run():
    common = ["model=vit_nano", "launcher={workers:2}", "++sweep.name=foo", "++launcher.threads=2", "rerun=true"]
    common += ["hydra/launcher=process", "hydra.sweep.dir=DIR", "++data.val_seed=3"]
    command = BestConfiguration({"patch": "2"}, 0.9, {}, 1).command(common)
    assert command.endswith("train.py model=vit_nano ++data.val_seed=3 patch=2")
    assert points("train", command.split()[2:], multirun=False)
    varies = [{"patch": "2", "data.folds": "3", "data.fold": fold} for fold in "012"]
    over_folds = best_configuration(varies, [TrialResult("finished", {"val/acc": 0.5})] * 3)
    command = over_folds.on_fresh_seeds(["++data.folds=5"], [0])
    assert command.endswith("train.py -m patch=2 data.folds=null data.fold=null seed=1,2,3"), "as a file may set them"
    one_fold = BestConfiguration({"data.folds": "3", "data.fold": "1"}, 0.9, {}, 1)
    assert one_fold.command([]).endswith("train.py data.folds=3 data.fold=1")


@pytest.mark.parametrize(
    ("key", "values", "warned"),
    [
        ("seed", "0011", "1 of 4"),
        ("data.fold", "0123", ""),
        ("data.fold", "0101", "1 of 4"),
        ("data", "aabb", "2 of 4"),
        ("data.targets", "aabb", "2 of 4"),
    ],
)
def test_trials_that_were_validated_on_other_images_are_counted(key, values, warned):
    varies = [{"patch": str(patch), key: value} for patch, value in enumerate(values)]
    images = ["a", "a", "a", "a" if key in ("data", "data.targets") else "b"]
    results = [TrialResult("finished", {"val/acc": 0.5}, validation=(each, "")) for each in images]
    warning = mixed_images(varies, results)
    expected = f"warning: {warned} trials were validated on other images or labels" if warned else ""
    assert warning[: len(expected) or None] == expected


@pytest.mark.parametrize(("labels", "warned"), [(["", "x", "x"], ""), (["", "x", "y"], "1 of 3"), (["x", "", "x"], "")])
def test_labels_are_compared_where_they_are_known(labels, warned):
    """Runs of earlier versions do not have them."""
    results = [TrialResult("finished", {"val/acc": 0.5}, validation=("a", label)) for label in labels]
    assert mixed_images([{"seed": seed} for seed in "012"], results)[9:15] == warned


def test_a_sweep_over_changed_data_warns_of_its_best(tmp_path, capsys):
    """Of two seeds, the second was trained after half of the images had been deleted."""
    sweep = grid(tmp_path, "model=vit_nano", "seed=0,1")
    for trial, labels in zip(sweep.trials, "ab", strict=True):
        train(trial, lambda config: 0.5)
        split = {"images": 10, "labels": labels}
        RunRecord(trial.folder).update(validation="0123456789abcdef", data_fingerprint={"train": split})
    sweep.write(sweep.results(), {})
    print_sweep(sweep, sweep.results())
    print_trials(*find_sweeps(tmp_path / "sweeps"))
    warning = "vitrine: warning: 1 of 2 trials were validated on other images or labels than the first, so"
    assert capsys.readouterr().err.count(warning) == 2


def test_a_sweep_over_data_sets_names_the_best_of_each(tmp_path, capsys):
    """An easier data set is no better configuration."""
    sweep = grid(tmp_path, "model=vit_nano", "data=digits,mnist", "patch=2,4", "data.image_size=28")
    for trial in sweep.trials:
        name, patch = trial.varies["data"], trial.varies["patch"]
        reached = {("digits", "2"): 0.7, ("digits", "4"): 0.6, ("mnist", "2"): 0.8, ("mnist", "4"): 0.9}
        train(trial, lambda config, value=reached[name, patch]: value)
        RunRecord(trial.folder).update(validation=name)
    sweep.write(sweep.results(), {})
    for show in (lambda: print_sweep(sweep, sweep.results()), lambda: print_trials(*find_sweeps(tmp_path / "sweeps"))):
        show()
        printed, warned = capsys.readouterr()
        best = [line for line in printed.splitlines() if line.startswith("best on validation")]
        assert [line.split(": ")[1].split(" (")[0] for line in best] == ["data=digits,patch=2", "data=mnist,patch=4"]
        assert not warned
    print_location(sweep)
    assert capsys.readouterr().out.endswith("--across data\n")
    (read,) = find_sweeps(tmp_path / "sweeps")
    assert read.best is sweep.best(sweep.results()) is check_folder(sweep.folder)["best"] is None


def test_a_sweep_of_a_part_with_an_option_is_the_same_beside_a_choice_that_takes_none(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, "lab_of_sweep")
    fourier, option = "lab_of_sweep.fourier.Fourier", "model.position_options.bands=8"
    alone = grid(tmp_path, "model=vit_nano", f"position={fourier},lab_of_sweep.fourier.Halved", option)
    beside = grid(tmp_path, "model=vit_nano", f"position=learned,{fourier}", option)
    assert beside.folder == alone.folder
    assert beside.keys == ["position", "model.position_options.bands"]
    assert option in alone.common
    assert option not in beside.common


def test_edited_source_is_trained_again_and_reported_but_comments_are_no_edit(tmp_path, monkeypatch, capsys):
    enter_lab(tmp_path, monkeypatch, "lab_of_sweep")
    part, layers = "lab_of_sweep.fourier.Fourier", tmp_path / "lab_of_sweep" / "layers.py"
    overrides = ["model=vit_nano", f"position=learned,{part}", "seed=0,1"]
    for trial in grid(tmp_path, *overrides).trials:
        train(trial, lambda config: 0.5)
        record = RunRecord(trial.folder)
        record.update(**store_code(record, trial.config))
    monkeypatch.setattr("vitrine.sweeps.run.run_trial", lambda trial, **options: TrialResult("failed", error="no"))
    layers.write_text(f"# the same code\n{layers.read_text()}")
    made = [f"paths.output_dir={tmp_path}", *overrides]
    assert run_sweep(points("train", made, multirun=True), "basic") == 0
    assert "other source" not in capsys.readouterr().err
    layers.write_text(layers.read_text().replace("0, 1", "0, 2"))
    assert run_sweep(points("train", made, multirun=True), "basic") == 2
    line = f"vitrine: 2 finished trials are of other source of {part} and are trained again; what was trained stays"
    assert capsys.readouterr().err.startswith(line)


def test_a_search_over_different_validation_splits_warns_of_its_best(tmp_path, capsys):
    one = run(search(tmp_path, *TWO, "sweep.sampler=random", "sweep.n_trials=2"))
    for number, trial in enumerate(one.sweep.trials):
        RunRecord(trial.folder).update(validation=str(number))
    print_search(one)
    assert "1 of 2 trials were validated on other images" in capsys.readouterr().err


def test_the_sweep_of_another_user_is_named_with_what_starts_an_own_one(tmp_path, monkeypatch):
    sweep = grid(tmp_path, "seed=0,1")
    sweep.write([TrialResult("new")] * 2, {})
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    def refuse(lock, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", refuse)
    hint = "sweep.name=NAME or paths.output_dir=DIR starts a sweep of your own"
    with pytest.raises(RunError, match=rf"denied; {sweep.folder} belongs to {sweep.folder.owner()}: {hint}$"):
        sweep.write([TrialResult("new")] * 2, {})


@pytest.mark.parametrize("closed", ["exists", "open"], ids=["folder", "file"])
def test_a_sweep_that_another_user_keeps_private_is_not_taken_for_damaged(tmp_path, monkeypatch, closed):
    (tmp_path / "sweep.json").write_text("{}")
    monkeypatch.setattr(Path, closed, Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    hint = rf"its owner can allow it: chmod -R g\+rX {tmp_path}"
    with pytest.raises(RunError, match=rf"^cannot read {tmp_path}/sweep.json: Permission denied; {hint}$"):
        check_folder(tmp_path)


@pytest.mark.parametrize("name", ["jobs", "locks", "logs", "logs/trial.txt", "study.journal"])
def test_what_a_sweep_writes_may_not_be_a_link_out_of_it(tmp_path, name):
    sweep, written = tmp_path / "sweep", tmp_path / "sweep" / name
    written.parent.mkdir(parents=True)
    check_folder(sweep)
    written.symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=rf"cannot write {written}: it is a link that leads out of .*, to .*mine$"):
        check_folder(sweep)
    (tmp_path / "link").symlink_to(sweep)
    written.unlink()
    check_folder(tmp_path / "link")  # the user's own


@pytest.mark.parametrize(
    ("plan", "overrides"),
    [
        (grid, ["seed=0,1"]),
        (search, [*TWO, "sweep.sampler=random", "sweep.n_trials=1"]),
        (decide, THREE),
    ],
)
def test_a_sweep_whose_journal_is_a_link_is_refused_before_anything_is_written(tmp_path, plan, overrides):
    (tmp_path / "token").write_text("secret")
    folder = tmp_path / "sweeps" / "theirs"
    folder.mkdir(parents=True)
    (folder / "study.journal").symlink_to(tmp_path / "token")
    with pytest.raises(RunError, match=r"cannot write .*study.journal: it is a link that leads out"):
        plan(tmp_path, *overrides, "sweep.name=theirs")
    assert (tmp_path / "token").read_text() == "secret"
    assert [path.name for path in folder.iterdir()] == ["study.journal"]


@pytest.fixture
def night(tmp_path):
    """The sources of ``--config-dir "my files" --config-name night``, whose model has a width of 96."""
    (tmp_path / "my files").mkdir()
    text = "defaults:\n  - train\n  - override model: vit_nano\n  - _self_\nmodel:\n  dim: 96\n"
    (tmp_path / "my files" / "night.yaml").write_text(text)
    return Sources.choose(str(tmp_path / "my files"), "night")


def composed(command):
    """The configuration that a printed command trains first."""
    flags = parse_flags(shlex.split(command)[2:])
    with composing(Sources.choose(flags.config_dir, flags.config_name)):
        return points("train", flags.overrides, multirun=flags.multirun)[0].config.run


def printed_commands(out):
    return [line.strip() for line in out.splitlines() if line.startswith("  python train.py ")]


def test_the_commands_of_a_grid_s_best_configuration_choose_the_same_files(tmp_path, night, capsys):
    with composing(night):
        sweep = grid(tmp_path, "depth=1,2")
    for trial in sweep.trials:
        train(trial)
    sweep.write(sweep.results(), {})
    print_sweep(sweep, sweep.results())
    again, fresh = printed_commands(capsys.readouterr().out)
    assert again == json.loads((sweep.folder / "sweep.json").read_text())["best"]["command"]
    assert [composed(command).model.dim for command in (again, fresh)] == [96, 96]
    print_trials(*find_sweeps(tmp_path / "sweeps"))
    assert printed_commands(capsys.readouterr().out) == [again, fresh]


def test_the_commands_of_a_search_s_best_configuration_choose_the_same_files(tmp_path, night, capsys):
    with composing(night):
        one = run(search(tmp_path, *TWO, "sweep.sampler=random", "sweep.n_trials=2"))
    print_search(one)
    out = capsys.readouterr().out
    commands = printed_commands(out)
    assert [composed(command).model.dim for command in commands] == [96, 96]
    assert describe_search(one)["best"]["command"] == commands[0]


def test_a_long_table_of_a_search_has_the_best_trials(tmp_path, monkeypatch, capsys):
    one = run(search(tmp_path, *TWO, "sweep.sampler=random", "sweep.n_trials=2"))
    print_search(one)
    whole = capsys.readouterr().out.splitlines()
    monkeypatch.setattr("vitrine.sweeps.search_summary.LONGEST", 1)
    print_search(one)
    cut = capsys.readouterr().out.splitlines()
    said = f"1 best of 2 trials; each trial: python scripts/sweeps.py {one.sweep.folder}"
    assert cut == [*whole[:3], said, *whole[4:]]


def accuracies(sweep):
    """A result for each trial: its first value in hundredths; the last trial failed."""
    values = [int(next(iter(trial.varies.values()))) for trial in sweep.trials]
    results = [TrialResult("finished", {"val/acc": value / 100}) for value in values]
    return [*results[:-1], TrialResult("failed", error="out of memory")]


def test_a_table_of_many_trials_has_a_row_for_each_configuration(tmp_path, capsys):
    sweep = grid(tmp_path, "depth=1,2", "seed=range(51)")
    print_sweep(sweep, accuracies(sweep))
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.partition("\n\n")[0].splitlines() if line]
    assert rows[:3] == [["depth", "runs", "mean", "val/acc"], ["1", "51", "0.0100"], ["2", "50", "0.0200"]]
    assert out.splitlines()[4] == f"2 configurations of 102 trials; each trial: python scripts/sweeps.py {sweep.folder}"
    assert "depth=2,seed=50: out of memory" in err


def test_a_table_of_many_configurations_has_the_best_ones(tmp_path, capsys):
    sweep = grid(tmp_path, "data.batch_size=range(1,103)")
    print_sweep(sweep, accuracies(sweep))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:102]] == [str(depth) for depth in range(101, 1, -1)]
    assert lines[102].startswith("100 best of 101 configurations of 102 trials; each trial: python scripts/sweeps.py ")
