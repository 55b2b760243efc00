"""Searches: the trials they suggest, the results Optuna gets, and what a rerun of the command finds."""

import json
import math
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import optuna
import pytest
from helpers import searching
from helpers.running import WITH_HELPERS, start_script
from helpers.searching import TWO, accuracy, run, search, train
from optuna.trial import TrialState, create_trial

from vitrine.errors import ConfigError
from vitrine.runs import RunRecord
from vitrine.sweeps.progress import SweepProgress
from vitrine.sweeps.search_summary import best_trials, describe_search, print_search, rank_trials
from vitrine.sweeps.study import SafeCmaEsSampler
from vitrine.sweeps.summary import SweepSummary, print_trials
from vitrine.sweeps.trial import TrialResult, locked, read_result

RANDOM = [*TWO, "sweep.sampler=random"]


def chosen_values(one):
    """What was chosen for each trial, in order."""
    return [trial.user_attrs["varies"] for trial in one.trials()]


def trained(one):
    """Run folders, as often as they were trained."""
    return Counter((one.sweep.folder / "trained.txt").read_text().split())


def summary(one):
    """The search as it is read from sweep.json."""
    one.sweep.write(one.sweep.results(), describe_search(one))
    return SweepSummary.read(one.sweep.folder)


def last_line(one):
    """The line below the live table of the search."""
    with SweepProgress(one.sweep, one.sweep.results(), live=False, describe=lambda: describe_search(one)) as progress:
        return str(progress._draw().renderables[-1])


def process(folder, seconds, *overrides):
    """Another process of the search."""
    return start_script(searching.__file__, str(folder), str(seconds), *overrides, cwd=folder, env=WITH_HELPERS)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sampler", "count"), [pytest.param("tpe", 12, marks=pytest.mark.quick), ("random", 4), ("cmaes", 8), ("nsga2", 7)]
)
def test_suggestions_depend_on_results_and_not_on_interruptions(tmp_path, monkeypatch, sampler, count):
    monkeypatch.setattr("vitrine.sweeps.study.POPULATION", 3)  # of the trials that NSGA-II draws at random
    overrides = [*TWO, f"sweep.sampler={sampler}", f"sweep.n_trials={count}"]
    whole = run(search(tmp_path / "a", *overrides))
    run(search(tmp_path / "b", *overrides), most=count - 3)
    stopped = run(search(tmp_path / "b", *overrides))

    assert chosen_values(whole) == chosen_values(stopped)
    assert (
        len({values["optimizer.lr"] for values in chosen_values(whole)}) >= 3
    )  # NSGA-II's children take after parents
    assert len(whole.trials()) == count
    for trial in whole.trials():
        (only,) = whole.runs(trial.number)
        assert trial.state == TrialState.COMPLETE
        assert trial.value == accuracy(only.config)
        assert only.folder.name.startswith(f"optimizer.lr-{only.varies['optimizer.lr']}_optimizer.weight_decay-")
        assert f"{only.config.optimizer.lr!r}" == trial.user_attrs["varies"]["optimizer.lr"]
    assert set(trained(stopped).values()) == {1}


@pytest.mark.whole
def test_suggestions_come_from_the_command_s_seed_and_get_better(tmp_path, capsys):
    overrides = [*TWO, "sweep.sampler=tpe", "sweep.n_trials=24"]
    one, other = run(search(tmp_path, *overrides)), run(search(tmp_path, *overrides, "seed=1"), most=3)
    assert one.sweep.folder != other.sweep.folder
    assert chosen_values(one)[:3] != chosen_values(other)
    rates = [math.log10(float(values["optimizer.lr"])) for values in chosen_values(one)]
    assert sum(abs(rate + 3) for rate in rates[-10:]) < sum(abs(rate + 3) for rate in rates[:10])
    shares = describe_search(one)["search"]["importance"]["val/acc"]
    assert shares["optimizer.lr"] > 0.8
    assert sum(shares.values()) < 1, "the rest belongs to both keys together"
    print_search(one)
    shown = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
    assert f"\nimportance for val/acc, over finished trials: {shown} (chance included)\n" in capsys.readouterr().out


def test_a_trial_that_another_process_has_just_added_is_shown_later(tmp_path):
    overrides = [*RANDOM, "sweep.n_trials=3"]
    mine, other = search(tmp_path, *overrides), search(tmp_path, *overrides)
    first = mine.ask()
    with locked(first):
        assert other.ask() is not None
    described = []
    listener = SimpleNamespace(trial_ended=lambda trial, result: described.append(describe_search(mine)["search"]))
    mine.subscribe(listener)
    train(first)
    mine.tell(first, read_result(first.folder))
    assert [len(search["trials"]) for search in described] == [1]
    assert len(describe_search(mine)["search"]["trials"]) == 2


def test_a_search_ends_with_its_trials_and_can_be_extended(tmp_path):
    first = run(search(tmp_path, *RANDOM, "sweep.n_trials=3"))
    before = chosen_values(first)
    again = search(tmp_path, *RANDOM, "sweep.n_trials=3")
    assert again.done
    assert describe_search(again)["complete"]
    assert again.ask() is None
    more = search(tmp_path, "sweep.pruner=median", *TWO, "sweep.sampler=tpe", "sweep.n_trials=5")
    assert more.sweep.folder == first.sweep.folder
    assert not more.done
    assert not describe_search(more)["complete"]
    run(more)
    assert chosen_values(more)[:3] == before
    assert len(more.trials()) == 5
    assert set(trained(more).values()) == {1}


@pytest.mark.whole
def test_other_overrides_space_or_objectives_make_another_search(tmp_path):
    first = search(tmp_path, *RANDOM, "sweep.n_trials=3").sweep.folder
    assert search(tmp_path, *RANDOM, "sweep.n_trials=4", "logger=tensorboard").sweep.folder == first
    for overrides in (
        [*RANDOM, "model=vit_nano"],
        [TWO[0], "optimizer.weight_decay=tag(log,interval(1e-3,0.5))", "sweep.sampler=random"],
        [*RANDOM, "sweep.metrics=[val/loss]"],
        [*RANDOM, "sweep.repeats=2"],
        [*RANDOM, "rerun=true"],
    ):
        assert search(tmp_path, *overrides, "sweep.n_trials=3").sweep.folder != first


@pytest.mark.whole
def test_the_trial_of_a_killed_process_is_resumed_by_a_rerun(tmp_path):
    overrides = [*RANDOM, "sweep.n_trials=3"]
    killed = process(tmp_path, 60, *overrides)
    while not list(tmp_path.glob("sweeps/*/*/config.yaml")):
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    one = search(tmp_path, *overrides)
    (begun,) = one.trials()
    assert begun.state == TrialState.RUNNING
    run(one)
    assert len(one.trials()) == 3
    assert {trial.state for trial in one.trials()} == {TrialState.COMPLETE}
    assert chosen_values(one)[0] == begun.user_attrs["varies"]
    assert trained(one) == Counter({one.runs(number)[0].folder.name: 2 if number == 0 else 1 for number in range(3)})


def test_a_trial_killed_during_its_suggestion_is_replaced(tmp_path):
    overrides = [*RANDOM, "sweep.n_trials=2"]
    search(tmp_path, *overrides).study.ask()  # killed before anything else was written
    one = run(search(tmp_path, *overrides))
    assert [trial.state for trial in one.trials()] == [TrialState.COMPLETE] * 2
    assert one.study.trials[0].state == TrialState.FAIL


@pytest.mark.whole
def test_processes_share_a_search_and_train_no_trial_twice(tmp_path):
    overrides = [*RANDOM, "sweep.n_trials=8"]
    other = process(tmp_path, 1.0, *overrides)
    while not list(tmp_path.glob("sweeps/*/*/run.json")):
        assert other.poll() is None
        time.sleep(0.05)
    one = run(search(tmp_path, *overrides))
    assert other.wait(timeout=300) == 0
    assert len(one.trials()) == 8
    assert len(trained(one)) == 8
    assert set(trained(one).values()) == {1}
    pids = {json.loads((run.folder / "run.json").read_text())["pid"] for run in one.sweep.trials}
    assert pids == {os.getpid(), other.pid}


@pytest.mark.slow
def test_a_search_of_many_processes_survives_a_hundred_kills(tmp_path):
    overrides = [*RANDOM, "sweep.n_trials=300"]
    workers, moments = [process(tmp_path, 0.5, *overrides) for _ in range(8)], Random(0)
    for _ in range(100):
        time.sleep(moments.uniform(0, 0.5))
        place = moments.randrange(len(workers))
        workers[place].kill()
        workers[place].wait()
        workers[place] = process(tmp_path, 0.5, *overrides)
    assert [worker.wait(timeout=600) for worker in workers] == [0] * len(workers)
    finished = search(tmp_path, *overrides)
    assert finished.done
    complete = [trial for trial in finished.trials() if trial.state == TrialState.COMPLETE]
    assert len(complete) == 300
    assert len(trained(finished)) == len({run.folder.name for run in finished.sweep.trials}) == 300


def test_a_trial_with_repeats_is_the_mean_over_its_seeds(tmp_path):
    one = run(search(tmp_path, *RANDOM, "sweep.n_trials=2", "sweep.repeats=3", "seed=5"))
    for trial in one.trials():
        runs = one.runs(trial.number)
        assert [each.config.seed for each in runs] == [5, 6, 7]
        assert trial.value == pytest.approx(sum(accuracy(each.config) for each in runs) / 3)
    assert len(one.sweep.trials) == 6
    (best,) = best_trials(one, rank_trials(one))
    assert best.count == 3
    assert "seed" not in best.varies


def test_with_a_pruner_the_first_seed_decides_about_the_others(tmp_path):
    one = search(tmp_path, *RANDOM, "sweep.n_trials=1", "sweep.repeats=2", "sweep.pruner=median")
    first = one.ask()
    assert first.pruning_rule is not None
    assert one.ask() is None
    train(first)
    one.tell(first, read_result(first.folder))
    second = one.ask()
    assert (second.config.seed, second.pruning_rule) == (1, None)


@pytest.mark.whole
def test_a_pruned_trial_counts_neither_for_the_values_nor_for_the_importance_of_keys(tmp_path):
    """Optuna takes a pruned trial's last epoch for its value."""
    one = search(tmp_path, *RANDOM, "sweep.n_trials=21", "sweep.pruner=median")
    while not one.done:
        trial = one.ask()
        train(trial)
        if trial.number > 0:
            trial.pruning_rule(1, {"val/acc": 0.1})
            RunRecord(trial.folder).end("pruned", "after epoch 1 of 10, at val/acc 0.1000")
        one.tell(trial, read_result(trial.folder))
    first, *others = describe_search(one)["search"]["trials"]
    assert (first["state"], {row["state"] for row in others}) == ("finished", {"pruned"})
    assert first["values"].keys() == {"val/acc"}
    assert [row["values"] for row in others] == [{}] * 20
    assert one.importance() == {"val/acc": {}}


@pytest.mark.whole
def test_a_learning_sampler_limits_the_runs_at_a_time(tmp_path):
    one = search(tmp_path, *TWO, "sweep.sampler=tpe", "sweep.n_trials=12")
    given = [one.ask() for _ in range(4)]
    assert [trial is None for trial in given] == [False, False, False, True]
    one_at_a_time = ["hydra/launcher=process", "launcher.workers=1"]
    other = search(tmp_path, *TWO, "sweep.sampler=tpe", "sweep.n_trials=12", *one_at_a_time)
    assert other.ask() is not None
    assert other.ask() is None
    assert not other.done


def test_failures_are_reported_and_retried_unless_a_metric_is_not_finite(tmp_path, capsys):
    overrides = ["depth=1,2,3,4", "sweep.sampler=grid"]

    def reach(config):
        return {1: "out of memory", 2: {"val/acc": 0.7}, 3: {"val/acc": math.nan}, 4: {"val/acc": 0.6}}[
            config.model.depth
        ]

    one = run(search(tmp_path, *overrides), reach)
    assert [trial.state.name for trial in one.trials()] == ["FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
    assert print_search(one) == 1
    printed = capsys.readouterr()
    assert "1 of 4 trials failed" in printed.err
    assert "1 of 4 trials diverged; only rerun=true or other code tries them again" in printed.err
    assert "depth=1: out of memory" in printed.err
    assert "depth=3: val/acc is NaN or infinite" in printed.err
    again = run(search(tmp_path, *overrides), lambda config: 0.8)
    assert print_search(again) == 0
    assert [row.varies["depth"] for row in rank_trials(again)] == ["1", "2", "4", "3"]
    assert [row.state for row in rank_trials(again)] == ["finished"] * 3 + ["diverged"]
    assert sorted(trained(again).values()) == [1, 1, 1, 2]


@pytest.mark.whole
def test_a_configuration_that_was_suggested_twice_and_failed_is_retried(tmp_path):
    overrides = ["depth=1,2", "sweep.sampler=random", "sweep.n_trials=4"]
    one = run(search(tmp_path, *overrides), lambda config: "out of memory")
    assert [trial.state.name for trial in one.trials()] == ["FAIL"] * 4
    again = run(search(tmp_path, *overrides), lambda config: 0.8)
    assert [trial.state.name for trial in again.trials()] == ["COMPLETE"] * 4
    assert {row.state for row in rank_trials(again)} == {"finished"}
    assert set(trained(again).values()) == {2}


def test_a_nan_loss_is_divergence_whatever_the_accuracy(tmp_path):
    one = run(search(tmp_path, *RANDOM, "sweep.n_trials=1"), lambda config: {"val/acc": 0.1, "val/loss": math.nan})
    assert [(row.state, row.why) for row in rank_trials(one)] == [("diverged", "val/loss is NaN or infinite")]


def test_invalid_combinations_are_avoided_and_do_not_count(tmp_path, capsys):
    overrides = ["model=vit_nano", "patch=2,4,7,14,16", "sweep.sampler=tpe", "sweep.n_trials=25"]
    one = run(search(tmp_path, *overrides), lambda config: 0.5 + 0.1 * (config.model.patch_size == 4))
    assert len(one.trials()) == 25
    assert {values["patch"] for values in chosen_values(one)} == {"2", "4"}  # digits are 8 pixels wide
    assert one.infeasible()
    for trial in one.infeasible():
        assert trial.state == TrialState.PRUNED
        assert "must divide the image size, 8" in trial.user_attrs["infeasible"]
    late = [trial for trial in one.infeasible() if trial.number >= 20]
    assert len(late) < len(one.infeasible()) / 2
    assert len(rank_trials(one)) == 2  # each configuration once
    assert sorted(trained(one).values()) == [1, 1]
    print_search(one)
    assert "suggestions were invalid" in capsys.readouterr().err


def test_a_grid_is_every_combination_once_in_its_order(tmp_path):
    overrides = ["patch=2,7,4", "model.drop_path=interval(0,0.2)", "sweep.sampler=grid"]
    with pytest.raises(ConfigError, match="needs a step"):
        search(tmp_path, *overrides)
    overrides[1] = "model.drop_path=0.0,0.1"
    one = run(search(tmp_path, *overrides))
    assert [tuple(values.values()) for values in chosen_values(one)] == [
        ("2", "0"),
        ("2", "0.1"),
        ("4", "0"),
        ("4", "0.1"),
    ]
    assert len(one.infeasible()) == 2
    assert run(search(tmp_path, *overrides, "sweep.n_trials=3")).done


@pytest.mark.whole
def test_a_search_is_shown_without_folders_that_were_deleted(tmp_path, capsys):
    overrides = ["depth=1,2,3", "sweep.sampler=grid"]
    one = run(search(tmp_path, *overrides), lambda config: 0.5 + 0.1 * config.model.depth)
    for number in (1, 2):
        shutil.rmtree(one.runs(number)[0].folder)
        again = search(tmp_path, *overrides)
        assert again.done
        assert print_search(again) == 0
        assert "depth=3 (val/acc 0.8000" in capsys.readouterr().out
        assert describe_search(again)["best"]["metrics"]["val/acc"] == pytest.approx(0.8)


def test_several_metrics_have_a_front_of_best_trials(tmp_path, capsys):
    overrides = ["depth=1,2,3,4,6", "sweep.sampler=grid", "sweep.metrics=[val/acc,parameters]"]
    reached = {1: 0.5, 2: 0.7, 3: 0.6, 4: 0.9, 6: 0.9}  # depth 3 has more parameters than 2, and is worse; 6 than 4
    one = run(search(tmp_path, *overrides), lambda config: reached[config.model.depth])
    best = best_trials(one, rank_trials(one))
    assert [each.varies["depth"] for each in best] == ["4", "2", "1"]
    assert [each.metrics["parameters"] for each in best] == [4000, 2000, 1000]
    assert print_search(one) == 0
    shown = capsys.readouterr().out
    assert "depth=2 (val/acc 0.7000, parameters 2,000; test/acc 0.5000)" in shown
    assert f"python train.py {_out(tmp_path)} depth=2" in shown
    facts = describe_search(one)["search"]
    assert [each["command"] for each in facts["pareto"]] == [
        f"python train.py {_out(tmp_path)} depth={depth}" for depth in (4, 2, 1)
    ]
    assert "best" not in last_line(one)
    read = summary(one)
    assert read.best is None
    print_trials(read)
    front = shown[shown.index("Pareto front of val/acc and parameters:") : shown.index("\nsweep folder")]
    assert capsys.readouterr().out.endswith(front)


def test_a_trial_of_which_a_run_failed_is_not_the_best_in_a_list_of_sweeps_either(tmp_path, capsys):
    overrides = [*RANDOM, "sweep.n_trials=2", "sweep.repeats=2"]
    one = run(search(tmp_path, *overrides), lambda config: "out of memory" if config.seed else 0.9)
    assert best_trials(one, rank_trials(one)) == []
    assert "best" not in last_line(one)
    assert summary(one).counts["finished"] == 2
    assert summary(one).best is None
    print_trials(summary(one))
    assert "best" not in capsys.readouterr().out


def test_a_list_of_sweeps_ranks_finished_trials_that_sweep_json_has_as_unfinished(tmp_path):
    """As an interrupted command leaves it, whose jobs go on."""
    one = run(search(tmp_path, *RANDOM, "sweep.n_trials=2"))
    best, path = summary(one).best, one.sweep.folder / "sweep.json"
    assert f"; best val/acc {best.mean:.4f}" in last_line(one)
    path.write_text(path.read_text().replace('"state": "finished"', '"state": "unfinished"'))
    assert SweepSummary.read(one.sweep.folder).best == best


@pytest.mark.whole
def test_nsga2_takes_several_objectives(tmp_path):
    overrides = [
        *TWO,
        "depth=1,2,3,4",
        "sweep.sampler=nsga2",
        "sweep.n_trials=12",
        "sweep.metrics=[val/acc,images_per_second]",
    ]
    one = run(search(tmp_path, *overrides))
    assert [len(trial.values) for trial in one.trials()] == [2] * 12
    assert [direction.name for direction in one.study.directions] == ["MAXIMIZE", "MAXIMIZE"]


def test_the_end_shows_trials_best_first_and_the_best_as_a_command(tmp_path, capsys):
    one = run(search(tmp_path, *RANDOM, "model=vit_nano", "patch=2", "sweep.n_trials=4"))
    assert print_search(one) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines() if line.endswith("finished")]
    values = [float(line[2]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert len(values) == 4
    best = lines[0]
    overrides = f"model=vit_nano patch=2 optimizer.lr={best[0]} optimizer.weight_decay={best[1]}"
    command = f"python train.py {_out(tmp_path)} {overrides}"
    assert command in shown
    assert "its val/acc, the best of 4, may be too good by chance; on fresh seeds:\n  python train.py -m " in shown
    assert shown.count("test/acc") == 1
    facts = describe_search(one)
    assert facts["best"]["command"] == command
    assert facts["best"]["mean"] == pytest.approx(values[0], abs=1e-4)
    assert [row["values"]["val/acc"] for row in facts["search"]["trials"]] == pytest.approx(values, abs=1e-4)
    assert facts["search"]["space"]["optimizer.lr"] == {"low": 1e-4, "high": 1e-2, "log": True}


@pytest.mark.whole
def test_the_lowest_loss_ranks_first(tmp_path):
    overrides = ["depth=1,2,3", "sweep.sampler=grid", "sweep.metrics=[val/loss]"]
    one = run(search(tmp_path, *overrides), lambda config: {"val/acc": 0.5, "val/loss": abs(config.model.depth - 2)})
    assert rank_trials(one)[0].varies == {"depth": "2"}
    assert one.study.best_trial.user_attrs["varies"] == {"depth": "2"}


def test_cmaes_unpickles_nothing(tmp_path, monkeypatch):
    overrides = [*TWO, "sweep.sampler=cmaes", "sweep.n_trials=10"]
    stored = run(search(tmp_path, *overrides), most=8)
    assert not any("optimizer" in name for trial in stored.trials() for name in trial.system_attrs), "a pickled state"
    known = stored.trials()[-1]
    state = {"cma:optimizer:0": "80042e", "cma:generation": 7}
    forged = {"params": known.params, "distributions": known.distributions, "value": 0.9, "system_attrs": state}
    stored.study.add_trial(create_trial(**forged))
    monkeypatch.setattr("pickle.loads", lambda _: pytest.fail("unpickled the study"))
    finished = run(search(tmp_path, *overrides))
    assert [trial.system_attrs.get("cma:generation") for trial in finished.trials()] == [None, *[0] * 6, 1, 1, 1]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_computed_state_of_cmaes_is_the_one_that_optuna_stores(direction):
    space = {name: optuna.distributions.FloatDistribution(0, 1) for name in "ab"}
    sampler = optuna.samplers.CmaEsSampler(seed=0)
    study = optuna.create_study(sampler=sampler, direction=direction)
    for _ in range(20):
        trial = study.ask(space)
        study.tell(trial, trial.params["a"] + 2 * trial.params["b"] ** 2)
    stored, computed = sampler._restore_optimizer(study.trials), SafeCmaEsSampler(seed=1)
    computed._restore_optimizer(study.trials)
    transform = optuna._transform._SearchSpaceTransform(space, transform_0_1=True)
    again = computed._init_optimizer(transform, study.direction)
    assert stored.generation == again.generation == 3
    assert again.mean == pytest.approx(stored.mean)
    assert pytest.approx(stored._C) == again._C


def test_a_search_without_valid_suggestions_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrine.sweeps.search.MAX_INFEASIBLE", 3)
    overrides = ["patch=2,7,14,16", "sweep.sampler=random", "sweep.n_trials=1000"]
    one = search(tmp_path, *overrides)
    run(one)
    assert 0 < len(one.trials()) < 1000


def _out(folder: Path) -> str:
    return f"paths.output_dir={folder}"


def test_a_failure_that_its_folder_could_not_record_ends_the_trial(tmp_path, capsys):
    queue = search(tmp_path, *TWO, "sweep.sampler=random", "sweep.n_trials=2")
    queue.tell(failed := queue.ask(), TrialResult("failed", error="cannot lock it"))
    run(queue)
    assert failed.folder not in [queue.sweep.folder / name for name in trained(queue)]
    assert print_search(queue) == 1
    assert "cannot lock it" in capsys.readouterr().err


def test_a_trial_that_only_another_user_may_read_is_left_to_that_user(tmp_path, monkeypatch, capsys):
    overrides = [*RANDOM, "sweep.n_trials=2"]
    theirs = search(tmp_path, *overrides).ask()
    closed = TrialResult("unreadable", error="cannot read it: Permission denied")
    with monkeypatch.context() as patched:
        patched.setattr(
            "vitrine.sweeps.search.read_result",
            lambda folder: closed if folder == theirs.folder else read_result(folder),
        )
        queue = run(search(tmp_path, *overrides), most=2)
        assert [trial.state for trial in queue.trials()] == [TrialState.RUNNING, TrialState.COMPLETE]
        assert (queue.done, queue.complete) == (True, False)
        line = f"vitrine: {theirs.label} is left to the user who trains it: cannot read it: Permission denied\n"
        assert capsys.readouterr().err == line
    assert run(search(tmp_path, *overrides)).complete
