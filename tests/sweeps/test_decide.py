"""``sweep=decide``: which seeds it trains, when it stops, what it prints, and what a rerun of the command finds."""

import json
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
from helpers import deciding
from helpers.deciding import FOUR, THREE, decide
from helpers.levels import quick, slow
from helpers.running import WITH_HELPERS, start_script, write_image_folder
from helpers.searching import run, train

from vitrine.command.compose import points
from vitrine.compare.decided import SweepDecision
from vitrine.compare.load import RunResult
from vitrine.errors import ConfigError, RunError
from vitrine.runs import RunRecord
from vitrine.runs.lock_file import Holder
from vitrine.sweeps.decide import SeedQueue, finding, plan_decision, print_decision
from vitrine.sweeps.progress import SweepProgress
from vitrine.sweeps.summary import find_sweeps, print_trials
from vitrine.sweeps.trial import read_result

MEANS = {"learned": 0.90, "rope": 0.95, "none": 0.80, "sincos2d": 0.905}


def accuracy(config):
    """RoPE is clearly better than learned positions, none clearly worse."""
    noise = np.random.default_rng([config.seed, len(config.model.position)]).normal(0, 0.004)
    return MEANS[config.model.position] + float(noise)


def equal(config):
    """All configurations are equal."""
    return 0.9 + float(np.random.default_rng([config.seed, len(config.model.position)]).normal(0, 0.004))


def known(queue):
    """sweep.json, as progress writes it."""
    queue.sweep.write(queue.sweep.results(), queue.describe())
    return json.loads((queue.sweep.folder / "sweep.json").read_text())


def trained(queue):
    """Run folders, as often as they were trained."""
    return Counter((queue.sweep.folder / "trained.txt").read_text().split())


def test_clear_differences_take_few_seeds(tmp_path, capsys):
    queue = run(decide(tmp_path, *THREE), accuracy)
    assert queue.decision.verdicts == {"position=rope": "better", "position=none": "worse"}
    assert 9 <= queue.decision.runs <= 15 < queue.decision.max_runs == 60
    assert set(trained(queue).values()) == {1}
    assert len(trained(queue)) == queue.decision.runs, "nothing is trained that was not wanted"
    assert print_decision(queue, queue.sweep.results()) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].startswith("position=rope is better than position=learned after ")
    assert lines[0].endswith("; on these validation images")
    assert "; of position=rope, 0 of 3 runs failed or diverged (95 % interval 0% to 71%);" in lines[0]
    assert "failed" not in lines[1], "a rate of failure says nothing against worse"
    assert f"{queue.decision.runs} of 60 runs; with 95 % confidence, all intervals hold after every seed" in lines
    assert finding("position=rope", queue.decision, queue.metric, 1440).endswith("; on these 1,440 validation images")


@pytest.mark.parametrize(("overrides", "warned"), [([], True), (["callbacks.monitor=last"], False)])
def test_a_decision_by_the_metric_that_chooses_epochs_says_so(tmp_path, capsys, overrides, warned):
    queue = run(decide(tmp_path, *THREE, "sweep.max_seeds=3", *overrides), accuracy)
    print_decision(queue, queue.sweep.results())
    caveat = "\n! val/acc is that of each run's best epoch on the same images, which favours configurations whose"
    assert (caveat in capsys.readouterr().out) == warned


def test_a_sweep_that_decides_has_findings_and_no_best_configuration(tmp_path, capsys):
    queue = run(decide(tmp_path, *THREE, "sweep.max_seeds=6"), accuracy)
    assert known(queue)["best"] is None
    (summary,) = find_sweeps(tmp_path / "sweeps")
    assert summary.best is None
    print_trials(summary)
    printed = capsys.readouterr().out
    assert "best on" not in printed
    assert "\nposition=rope is better than position=learned after 3 seeds, " in printed


@pytest.mark.whole
def test_force_takes_up_the_trial_of_a_dead_machine(tmp_path, monkeypatch):
    queue = decide(tmp_path, *THREE, "force=true")
    trial = queue.ask()
    trial.folder.mkdir(parents=True)
    holder = Holder("other", 1, "x", "another kernel", "2020-01-01T00:00:00+00:00", "abc", 3)
    (trial.folder / ".lock").write_text(json.dumps(asdict(holder)) + "\n")
    queue.put_back(trial)
    monkeypatch.setattr(SeedQueue, "POLL_SECONDS", 0.0)
    assert trial in [queue.ask() for _ in range(3)]


def test_the_plan_is_announced_before_the_first_run(tmp_path):
    queue = decide(tmp_path, *THREE, "sweep.metric=test/acc", "seed=7")
    with SweepProgress(queue.sweep, queue.sweep.results(), live=False, describe=queue.describe, status=queue.progress):
        pass
    announced = json.loads((queue.sweep.folder / "sweep.json").read_text())
    assert (announced["planned"], announced["complete"]) == (60, False)
    plan = announced["decision"]
    assert plan["metric"] == "test/acc"
    assert (plan["alpha"], plan["difference"], plan["method"]) == (0.05, None, "group_sequential")
    assert plan["arms"] == ["position=learned", "position=rope", "position=none"]
    assert plan["runs"] == 0
    first = queue.ask()
    assert (first.config.seed, first.config.model.position) == (7, "learned")


def test_the_order_and_spelling_of_overrides_make_no_other_plan(tmp_path):
    first = decide(tmp_path, "position=learned,rope", "trainer.gradient_clip_val=1,2")
    arms = known(first)["decision"]["arms"]
    assert arms[0] == "position=learned,trainer.gradient_clip_val=1"
    again = decide(tmp_path, "trainer.gradient_clip_val=1.0,2.0", "position=learned,rope")
    assert again.sweep.folder == first.sweep.folder
    assert known(again)["decision"]["arms"][0] == arms[0]
    assert sorted(again.decision.arms) == sorted(arms)
    with pytest.raises(ConfigError, match=r"baseline=position=rope,trainer.gradient_clip_val=1\n *was "):
        decide(tmp_path, "position=rope,learned", "trainer.gradient_clip_val=1,2")


@pytest.mark.whole
def test_another_plan_is_refused_after_it_was_announced(tmp_path):
    known(decide(tmp_path, *THREE))
    for change in ("sweep.alpha=0.2", "sweep.metric=test/acc", "sweep.max_seeds=30", "sweep.method=anytime"):
        with pytest.raises(ConfigError, match="hold only for what was announced before the first run; rerun=true"):
            decide(tmp_path, *THREE, change)
    with pytest.raises(ConfigError, match=r"configurations=(?s:.*)was \[.*none"):
        decide(tmp_path, "position=learned,rope")
    assert decide(tmp_path, *THREE, "sweep.alpha=0.2", "rerun=true").sweep.folder.name.endswith("@2")
    with pytest.raises(RunError, match=r"another sweep; set another sweep\.name, or hydra\.sweep\.dir"):
        decide(tmp_path, *THREE, "depth=3", f"sweep.name={decide(tmp_path, *THREE).sweep.folder.name}")


@pytest.mark.whole
def test_a_rerun_finds_what_is_done_and_trains_the_rest(tmp_path):
    first = run(decide(tmp_path / "a", *THREE), accuracy)
    run(decide(tmp_path / "b", *THREE), accuracy, most=4)
    stopped = run(decide(tmp_path / "b", *THREE), accuracy)
    assert set(trained(stopped).values()) == {1}
    assert stopped.decision.verdicts == first.decision.verdicts
    assert known(stopped)["decision"]["looks"] == known(first)["decision"]["looks"]
    again = decide(tmp_path / "a", *THREE)
    assert again.done
    assert again.ask() is None


@pytest.mark.whole
@pytest.mark.parametrize("configurations", [slow(THREE), FOUR])
def test_a_killed_process_and_two_at_once_train_no_seed_twice(tmp_path, configurations):
    overrides = [*configurations, "sweep.max_seeds=4"]
    command = [deciding.__file__, str(tmp_path), "0.3", *overrides]
    killed = start_script(*command, cwd=tmp_path, env=WITH_HELPERS)
    while not list(tmp_path.glob("sweeps/*/*/metrics.json")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    both = [start_script(*command, cwd=tmp_path, env=WITH_HELPERS) for _ in range(2)]
    assert [one.wait(timeout=300) for one in both] == [0, 0]
    queue = decide(tmp_path, *overrides)
    assert queue.done
    finished = [folder.parent.name for folder in queue.sweep.folder.glob("*/metrics.json")]
    assert len(finished) == queue.decision.runs
    assert sum(trained(queue).values()) <= len(finished) + 1, "only the killed run was started twice"


@pytest.mark.whole
def test_a_failed_run_has_no_value_and_is_retried_by_a_rerun(tmp_path, capsys):
    def failing(config):
        return "out of memory" if config.model.position == "rope" and config.seed == 1 else accuracy(config)

    queue = run(decide(tmp_path, *THREE, "sweep.max_seeds=5"), failing)
    assert queue.decision.verdicts["position=rope"] == "undecided", "only survivors would be averaged"
    assert print_decision(queue, queue.sweep.results()) == 1
    printed = capsys.readouterr()
    assert "; of position=rope, 1 of 5 runs failed or diverged (95 % interval 1% to 72%);" in printed.out
    assert "position=rope,seed=1: out of memory" in printed.err
    again = run(decide(tmp_path, *THREE, "sweep.max_seeds=5"), accuracy)
    assert again.decision.verdicts["position=rope"] == "better"


def test_four_configurations_are_looked_at_together(tmp_path):
    queue = decide(tmp_path, *FOUR, "sweep.max_seeds=6")
    trials = [queue.ask() for _ in range(12)]
    assert queue.ask() is None, "the next round begins when this one has ended"
    late = next(trial for trial in trials if trial.varies == {"position": "sincos2d", "seed": "2"})
    for trial in trials:
        if trial is not late:
            train(trial, accuracy)
            queue.tell(trial, read_result(trial.folder))
    assert queue.ask() is None
    assert set(queue.decision.verdicts.values()) == {None}
    line = finding("position=rope", queue.decision, queue.metric)
    assert line == "position=rope: fewer than 3 seeds have ended of it or of others that it is looked at with"
    train(late, accuracy)
    queue.tell(late, read_result(late.folder))
    assert queue.decision.verdicts["position=rope"] == "better"
    again = run(decide(tmp_path, *FOUR, "sweep.max_seeds=6"), accuracy)
    assert {look.seeds for look in again.decision.looks("position=rope")} == {3}


@pytest.mark.whole
def test_a_sweep_is_not_decided_by_the_rule_of_another_version(tmp_path):
    queue = decide(tmp_path, *THREE)
    announced = known(queue)
    del announced["decision"]["rule"]
    (queue.sweep.folder / "sweep.json").write_text(json.dumps(announced))
    with pytest.raises(ConfigError) as refusal:
        decide(tmp_path, *THREE)
    (fault,) = refusal.value.faults
    assert fault.key == "the rule of this version of vitrine"
    assert fault.problem.startswith("was another: verdicts hold only for what was announced")


@pytest.mark.whole
def test_a_run_that_failed_in_another_process_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    one, other = decide(tmp_path, *THREE), decide(tmp_path, *THREE)
    monkeypatch.setattr(other, "_began", "2000-01-01T00:00:00+00:00")
    trial = one.ask()
    train(trial, lambda config: "out of memory")
    one.tell(trial, read_result(trial.folder))
    handed_out = [other.ask() for _ in range(8)]
    assert trial.folder not in {each.folder for each in handed_out}
    assert other.ask() is None
    rerun = decide(tmp_path, *THREE)
    assert rerun.ask().folder == trial.folder, "a later command tries it again"


@pytest.mark.whole
def test_equal_configurations_are_given_up_or_equal_within_a_difference(tmp_path):
    queue = run(decide(tmp_path / "a", *THREE), equal)
    assert set(queue.decision.verdicts.values()) == {"undecided"}
    lines = [finding(arm, queue.decision, queue.metric) for arm in queue.decision.verdicts]
    assert any("given up: a verdict had become improbable" in line for line in lines)
    queue = run(decide(tmp_path / "b", *THREE, "sweep.difference=0.02"), equal)
    assert set(queue.decision.verdicts.values()) == {"equal"}
    line = finding("position=rope", queue.decision, queue.metric)
    assert line.startswith("position=rope and position=learned are equal within 2 points after ")


def decided_on_images(folder, metric, *overrides, images=200, **further):
    """A decision by a test metric, whose runs store predictions; its value is the accuracy, whatever the metric."""
    rng, labels = np.random.default_rng(0), np.arange(images) % 10

    def predict(trial):
        right = rng.random(images) < MEANS[trial.config.model.position]
        logits = np.eye(10)[np.where(right, labels, (labels + 1) % 10)]
        trial.folder.mkdir(parents=True, exist_ok=True)
        np.savez(trial.folder / "predictions.npz", logits=logits, labels=labels, **further)

    queue = decide(folder, "position=learned,none", f"sweep.metric={metric}", "sweep.max_seeds=4", *overrides)
    while not queue.done:
        trial = queue.ask()
        queue.started(trial)
        predict(trial)
        deciding.finish(trial, {metric: float(np.mean(correct(trial)))}, images=images)
        queue.tell(trial, deciding.read_result(trial.folder))
    return queue


def test_test_accuracy_uses_stored_predictions(tmp_path):
    queue = decided_on_images(tmp_path, "test/acc")
    assert all(look.new_images for look in queue.decision.looks("position=none"))
    assert "on these" not in known(queue)["decision"]["findings"]["position=none"]
    assert queue.decision.resolution == 1 / 200


@pytest.mark.parametrize(
    ("metric", "facts", "differs"),
    [
        ("val/acc", {"validation": "another"}, "the validation split is another, not one"),
        ("val/acc", {"data_fingerprint": {"train": {"images": 111}}}, "train has 111 images, not 152"),
        ("val/acc", {"data_fingerprint": {"train": {"images": 152}, "test": {"images": 36}}}, ""),
        ("test/acc", {"images": {"test": 36}}, "test has 36 images, not 28"),
        ("test/acc", {"validation": "another"}, ""),
    ],
)
def test_runs_on_other_data_are_not_decided_upon(tmp_path, metric, facts, differs):
    overrides = ["position=learned,none", f"sweep.metric={metric}", "sweep.method=anytime"]
    queue, data = decide(tmp_path, *overrides), {"validation": "one", "images": {"test": 28}}
    if "data_fingerprint" in facts:
        data["data_fingerprint"] = {"train": {"images": 152}}
    trials = [queue.ask() for _ in range(2)]
    for trial, known in zip(trials, (data, data | facts), strict=True):
        train(trial, lambda config: {metric: 0.5})
        images = np.eye(10)[np.arange(known["images"]["test"]) % 10]
        np.savez(trial.folder / "predictions.npz", logits=images, labels=images.argmax(1))
        RunRecord(trial.folder).update(**known)
    queue.tell(trials[0], read_result(trials[0].folder))
    refused = pytest.raises(RunError, match=rf"the data of .* is not that of .*: {differs}; they cannot be compared")
    with refused if differs else nullcontext():
        queue.tell(trials[1], read_result(trials[1].folder))
    with refused if differs else nullcontext():
        decide(tmp_path, *overrides)


def test_a_verdict_on_one_test_image_is_about_this(tmp_path):
    queue = decided_on_images(tmp_path, "test/acc", images=1)
    assert not any(look.new_images for look in queue.decision.looks("position=none"))
    assert known(queue)["decision"]["findings"]["position=none"].endswith("; on this 1 test image")


def test_a_verdict_on_groups_of_test_images_is_about_others(tmp_path, capsys):
    for label in "ab":
        (tmp_path / "train" / label).mkdir(parents=True)
    overrides = ["data=imagefolder", f"data.root={tmp_path}", "data.group=prefix"]
    queue = decided_on_images(tmp_path, "test/acc", *overrides, groups=np.arange(200) // 20)
    assert all(look.new_images for look in queue.decision.looks("position=none"))
    assert known(queue)["decision"]["findings"]["position=none"].endswith("; over 10 groups of test images")
    print_decision(queue, queue.sweep.results())
    caveat = "\n! test images come in 10 groups (data.group=prefix): intervals for other images do not know of kinds"
    assert caveat in capsys.readouterr().out


@pytest.mark.whole
@pytest.mark.parametrize("metric", quick(["test/loss", "test/top5_acc", "val/loss"], ["test/loss"]))
def test_a_verdict_by_another_metric_is_about_its_images(tmp_path, metric, capsys):
    """Stored predictions tell which images are classified correctly, which is the variance of accuracy alone."""
    queue = decided_on_images(tmp_path, metric)
    assert not any(look.new_images for look in queue.decision.looks("position=none"))
    ending = f"; on these 200 {'test' if metric.startswith('test') else 'validation'} images"
    assert known(queue)["decision"]["findings"]["position=none"].endswith(ending)
    print_decision(queue, queue.sweep.results())
    assert f"{ending}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("metric", "verdict"), [("test/top5_acc", "worse"), ("test/balanced_acc", "undecided")])
def test_values_that_do_not_vary_are_decided_only_where_images_are_counted(tmp_path, metric, verdict):
    """One image of a small class moves a mean over classes by more than one of all images moves their share."""
    queue = decide(tmp_path, "position=learned,none", f"sweep.metric={metric}", "sweep.max_seeds=4")
    while not queue.done:
        trial = queue.ask()
        queue.started(trial)
        trial.folder.mkdir(parents=True, exist_ok=True)
        deciding.finish(trial, {metric: MEANS[trial.config.model.position]}, images=200)
        queue.tell(trial, read_result(trial.folder))
    assert queue.decision.verdicts == {"position=none": verdict}


def correct(trial):
    with np.load(trial.folder / "predictions.npz") as stored:
        return stored["logits"].argmax(1) == stored["labels"]


def test_intervals_are_printed_as_they_shrink(tmp_path, capsys):
    queue = decide(tmp_path, "position=learned,none", "sweep.max_seeds=6", "sweep.method=anytime")
    progress = SweepProgress(queue.sweep, queue.sweep.results(), live=False, status=queue.progress)
    queue.subscribe(progress)
    with progress:
        run(queue, equal)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  position=none: after ")]
    assert len(lines) == 4
    assert lines[0].startswith("  position=none: after 3 seeds, ")


def test_compare_reads_the_sweep_with_its_own_intervals(tmp_path):
    queue = decide(tmp_path, "position=learned,none", "sweep.max_seeds=4")
    decision = known(run(queue, accuracy))["decision"]
    one = RunResult("x", "finished", {}, {}, {}, {}, [], next(queue.sweep.folder.glob("*/run.json")).parent)
    read = SweepDecision.of([one])
    (overrides, row) = read.rows[0]
    assert (read.metric, read.baseline, overrides) == ("val/acc", {"position": "learned"}, {"position": "none"})
    assert row.verdict == "worse"
    assert (row.low, row.high) == queue.decision.interval("position=none")
    assert row.sentence == decision["findings"]["position=none"]
    assert SweepDecision.of([replace(one, folder=tmp_path / "elsewhere" / "run")]) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["position=learned,rope", "seed=0,1"], "leave seed out, and set sweep.max_seeds"),
        (["position=learned,rope", "sweep.sampler=tpe", "sweep.n_trials=3"], "a search, sweep.sampler, chooses them"),
        (["position=learned,rope", "sweep.max_seeds=4", "sweep.min_seeds=5"], "is below sweep.min_seeds=5"),
        (["position=learned,rope", "sweep.min_seeds=2"], "sweep.min_seeds=2"),
        (["position=learned,rope", "sweep.metric=acc"], "is not one of val/acc, val/loss, "),
        (["position=rope"], "needs at least two configurations"),
        (["position=learned,rope,learned"], "position=learned\n *is given twice; give each configuration once"),
        (["model.drop_path=0,0.0"], "model.drop_path=0\n *is given twice; give each configuration once"),
        (["data=mnist", "data.root=a,b"], "data.root=b\n *trains the same as data.root=a; give each"),
        (["data=digits,mnist"], "data.name=mnist(?s:.*)on different images cannot be compared"),
        (["position=learned,rope", "accept_changed_data=true"], "runs on different data cannot be compared"),
        (["loss=cross_entropy,focal", "sweep.metric=test/loss"], "sweep.metric=test/loss\n *measures another loss for"),
        (["data.val_seed=0,1", "sweep.metric=test/acc"], "data.val_seed\n *repeats configurations"),
        (
            ["data.folds=5", "data.fold=0,1", "position=learned,rope"],
            "data.fold\n *repeats configurations, which sweep=",
        ),
        (["data.val_fraction=0.1,0.2"], "data.val_fraction=0.2(?s:.*)on different images cannot be compared"),
    ],
)
def test_what_cannot_be_decided_is_named(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        plan_decision(points("train", [f"paths.output_dir={tmp_path}", "sweep=decide", *overrides], multirun=True))


def test_groups_decide_which_images_are_validated_on(tmp_path):
    write_image_folder(tmp_path / "images", "train", "test")
    data = ["data=imagefolder", f"data.root={tmp_path / 'images'}", "data.num_classes=2", "data.group=null,prefix"]
    command = [f"paths.output_dir={tmp_path}", "sweep=decide", *data]
    with pytest.raises(ConfigError, match=r"data.group=prefix\n *differs from null: .* different images cannot"):
        plan_decision(points("train", command, multirun=True))
    assert plan_decision(points("train", [*command, "sweep.metric=test/acc"], multirun=True))
