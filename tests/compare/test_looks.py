"""Looks at a sweep: what is noted, and what a comparison says once seeds were added after one."""

import json
import math

import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.looks import read_looks, record_look
from vitrine.errors import DiskFull, RunError

DECIDED = ["position=rope was decided", "position=none was decided"]


def compared(folder, **options):
    return compare(load_results([folder]), **options)


def runs_of(folder):
    """The run folders in the order they were started: their names end in random digits."""
    runs = sorted(folder.glob("*/run.json"), key=lambda path: json.loads(path.read_text())["started"])
    return [path.parent for path in runs]


def plan(folder):
    """Write sweep.json as a grid does: with all trials that were asked for."""
    trials = [{"folder": run.name, "varies": {}, "status": "finished"} for run in runs_of(folder)]
    (folder / "sweep.json").write_text(json.dumps({"trials": trials}))


def decide(folder):
    """Write sweep.json as `sweep=decide` does that found both schemes better than the first."""
    look = {"mean": 0.05, "low": 0.01, "high": 0.09}
    arms = ["position=rope", "position=none"]
    decision = {"metric": "val/acc", "baseline": "position=learned", "verdicts": dict.fromkeys(arms, "better")}
    decision |= {"looks": {arm: [look] for arm in arms}, "findings": {arm: f"{arm} was decided" for arm in arms}}
    (folder / "sweep.json").write_text(json.dumps({"trials": [], "decision": decision}))


@pytest.fixture
def looked_at(sweep):
    plan(sweep)
    record_look(compared(sweep).table)
    return sweep


@pytest.mark.parametrize(
    ("others", "entries", "left"),
    [
        ((), {}, 0),
        (("queued", "running", "failed"), {}, 2),
        (("pruned",), {"planned": 20}, 10),
        (("pruned", "new"), {"planned": 20, "complete": True}, 0),  # the second seed of the pruned trial
    ],
)
def test_trials_that_are_left_are_a_caveat(sweep, others, entries, left):
    plan(sweep)
    planned = json.loads((sweep / "sweep.json").read_text()) | entries
    planned["trials"][0]["status"] = "running"  # its folder knows that it has finished
    planned["trials"] += [{"folder": name, "varies": {}, "status": name} for name in others]
    (sweep / "sweep.json").write_text(json.dumps(planned))
    found = [text.partition(" of the sweep have not ended")[0] for text in compared(sweep).caveats if "ended" in text]
    assert found == ([f"{left} trials"] if left else [])


def add_seed(write_run, folder, seed=3, **accs):
    for scheme, acc in accs.items():
        write_run(folder, f"position={scheme}", seed=seed, acc=acc, sweep="position=learned,rope,none seed=0,1,2,3")


def test_a_look_is_noted_once(looked_at):
    (look,) = read_looks(looked_at)
    assert len(look["trials"]) == 9
    again = compared(looked_at)
    record_look(again.table)
    assert len(read_looks(looked_at)) == 1
    assert not any("got more seeds" in text for text in again.caveats)
    assert {tested.row.label: tested.verdict for tested in again.findings.comparisons}["rope"] == "better"


def test_a_look_that_finds_no_room_stops_no_comparison(sweep, monkeypatch):
    def full(path, text):
        raise DiskFull(f"cannot write {path}")

    monkeypatch.setattr("vitrine.compare.looks.write_text", full)
    plan(sweep)
    record_look(compared(sweep).table)
    assert read_looks(sweep) == []


@pytest.mark.whole
def test_rows_with_seeds_from_after_a_look_get_no_verdict(looked_at, write_run):
    add_seed(write_run, looked_at, rope=0.96, learned=0.91)
    found = compared(looked_at)
    day = read_looks(looked_at)[0]["at"][:10]
    (caveat,) = [text for text in found.caveats if "got more seeds" in text]
    assert caveat.startswith(f"2 rows got more seeds after a comparison on {day}: p-values and intervals of a fixed ")
    (rope,) = [tested for tested in found.findings.comparisons if tested.row.label == "rope"]
    assert rope.verdict == "inconclusive"
    assert rope.sentences[0].startswith(
        f"rope and learned: no verdict, since seeds were added after a comparison on {day}; the difference is +5.05 "
    )
    assert rope.difference.low != rope.difference.low
    assert len(found.findings.sentences) == 1
    (looked_at / "looks.json").unlink()
    assert not any("got more seeds" in text for text in compared(looked_at).caveats)


def test_seeds_that_the_baseline_alone_got_after_a_look_withhold_every_verdict(looked_at, write_run):
    add_seed(write_run, looked_at, learned=0.91)
    found = compared(looked_at).findings
    assert [tested.verdict for tested in found.comparisons] == ["inconclusive"] * 2
    assert all("no verdict, since seeds were added after" in tested.sentences[0] for tested in found.comparisons)


def test_seeds_that_were_asked_for_before_the_look_are_none_that_were_added(sweep, write_run):
    for seed in (3, 4):
        add_seed(write_run, sweep, seed, learned=0.91, rope=0.96, none=0.91)
    plan(sweep)
    later = [path.parent for path in sweep.glob("*-s4*/run.json")]
    assert len(later) == 3
    for path in later:
        path.rename(sweep.parent / path.name)
    record_look(compared(sweep).table)
    for path in later:
        (sweep.parent / path.name).rename(path)
    assert not any("got more seeds" in text for text in compared(sweep).caveats)


def test_a_look_counts_also_beside_runs_of_another_folder(looked_at, write_run, tmp_path):
    add_seed(write_run, looked_at, rope=0.96)
    other = tmp_path / "other"
    write_run(other, "position=conv", seed=0, acc=0.9)
    found = compare(load_results([looked_at, other]))
    assert any(text.startswith("1 row got more seeds after a comparison on ") for text in found.caveats)
    verdicts = {tested.row.label: tested.sentences[0] for tested in found.findings.comparisons}
    assert "no verdict, since seeds were added after a comparison" in verdicts["rope"]
    plan(other)
    record_look(found.table)
    assert [len(read_looks(folder)) for folder in (looked_at, other)] == [2, 1]


def test_seeds_of_another_folder_count_if_they_were_started_after_the_look(looked_at, write_run, tmp_path):
    caveats = {}
    for year in (2020, 2999):
        other = tmp_path / str(year)
        write_run(other, "position=rope", seed=7, acc=0.96, facts={"started": f"{year}-01-31T12:00:00+00:00"})
        found = compare(load_results([looked_at, other]))
        caveats[year] = [text for text in found.caveats if "got more seeds" in text]
    assert caveats[2020] == []
    assert caveats[2999][0].startswith("1 row got more seeds after a comparison on ")
    sentences = {tested.row.label: tested.sentences[0] for tested in found.findings.comparisons}
    assert "no verdict, since seeds were added after a comparison" in sentences["rope"]
    assert "no verdict" not in sentences["none"]
    alone = compare(load_results([tmp_path / "2020", tmp_path / "2999"]))
    assert not any("got more seeds" in text for text in alone.caveats), "none of them was looked at"


def test_runs_of_a_sweep_that_decides_have_no_verdict_among_others(sweep, write_run, tmp_path):
    (sweep / "sweep.json").write_text('{"trials": [], "decision": {}}')
    write_run(tmp_path / "other", "position=learned", seed=7, acc=0.91)
    found = compare(load_results([sweep, tmp_path / "other"]))
    assert {tested.verdict for tested in found.findings.comparisons} == {"inconclusive"}
    for tested in found.findings.comparisons:
        assert "no verdict, since seeds were added until sweep=decide had decided; the" in tested.sentences[0]
    (caveat,) = [text for text in found.caveats if "got more seeds" in text]
    assert caveat.startswith("3 rows got more seeds until sweep=decide had decided: p-values and intervals")
    assert "delete" not in caveat


def test_a_decision_is_read_through_links_and_other_spellings_of_its_folder(sweep, tmp_path):
    decide(sweep)
    runs = runs_of(sweep)
    (tmp_path / "run").symlink_to(runs[0])
    (tmp_path / "same").symlink_to(sweep)
    spelled = [tmp_path / "same" / run.name for run in runs[1:4]]
    found = compare(load_results([tmp_path / "run", *spelled, *runs[4:]]))
    assert len(found.runs) == len(runs)
    assert [one.sentences[0] for one in found.findings.comparisons] == DECIDED


def test_a_decision_that_was_not_read_leaves_its_runs_without_a_verdict(sweep, write_run, tmp_path):
    decide(sweep)
    write_run(tmp_path / "other", seed=7, metrics={"val/acc": math.nan})
    found = compare(load_results([sweep, tmp_path / "other"]), metric="val/acc")
    assert {one.verdict for one in found.findings.comparisons} == {"inconclusive"}
    for one in found.findings.comparisons:
        assert "no verdict, since seeds were added until sweep=decide had decided; the" in one.sentences[0]


def test_a_sweep_that_decides_needs_no_notes_and_a_damaged_file_is_reported(looked_at):
    (looked_at / "looks.json").write_text('{"looks": [{"at": "soon", "trials": []}]}')
    with pytest.raises(RunError, match=r"looks.json: .*; delete it to forget earlier comparisons"):
        compared(looked_at)
    (looked_at / "looks.json").unlink()
    (looked_at / "sweep.json").write_text('{"trials": [], "decision": null}')
    record_look(compared(looked_at).table)
    assert not (looked_at / "looks.json").exists()


def test_a_sweep_that_is_nested_too_deeply_is_reported(sweep):
    (sweep / "sweep.json").write_text('{"trials": [], "decision": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(RunError, match=r"cannot read the decision in .*: it is nested deeper than 20 levels; "):
        compared(sweep)


def test_a_sweep_that_decided_is_compared_by_its_own_metric_and_other_comparisons_have_no_verdict(sweep):
    decide(sweep)
    found = compared(sweep)
    assert found.metric.name == "val/acc"
    assert [one.sentences[0] for one in found.findings.comparisons] == DECIDED
    assert {one.verdict for one in found.findings.comparisons} == {"better"}
    assert {one.difference.mean for one in found.findings.comparisons} == {0.05}, "that of the interval's pairs"
    assert not any("seeds were added" in text or "not apply" in text for text in found.caveats)

    rule = "the sweep announced its own rule, sweep.difference included, before its first run"
    for options, named in (
        ({"fixed_images": True}, "--fixed-images does"),
        ({"fixed_images": True, "difference_of_interest": 0.1}, "--difference and --fixed-images do"),
    ):
        given = compared(sweep, **options)
        assert f"{named} not apply: {rule}" in given.caveats
        assert [one.sentences for one in given.findings.comparisons] == [
            one.sentences for one in found.findings.comparisons
        ]

    for options in ({"metric": "test/acc"}, {"baseline": "rope"}):
        found = compared(sweep, **options)
        assert {one.verdict for one in found.findings.comparisons} == {"inconclusive"}
        for one in found.findings.comparisons:
            assert "no verdict, since seeds were added until val/acc decided" in one.sentences[0]
            assert one.difference.low != one.difference.low
        assert any("other comparisons have no verdict" in text for text in found.caveats)


def filtered(folder, *texts):
    return compare(load_results([folder], texts))


def test_what_a_filter_leaves_out_of_a_sweep_counts(sweep, write_run):
    assert not any("left out" in text for text in filtered(sweep, "position=learned,rope").caveats), "it is no sweep"
    add_seed(write_run, sweep, learned=0.93, rope=0.98)
    write_run(sweep, "data=mnist", "position=learned", seed=0, acc=0.9, sweep="data=digits,mnist", predictions=False)
    plan(sweep)
    assert not any("left out" in text for text in filtered(sweep, "data=digits").caveats), "other images are no choice"
    assert filtered(sweep, "data=digits", "position=rope").caveats == [], "of one row, there is no verdict"

    found = filtered(sweep, "data=digits", "position=learned,rope")
    assert "Bonferroni's correction for 2 comparisons" in found.findings.method
    assert any(text.startswith("1 configuration of the sweep is left out: verdicts") for text in found.caveats)
    (tested,) = found.findings.comparisons
    assert (tested.verdict, tested.difference.corrected) == ("better", pytest.approx(2 * tested.difference.p))

    found = filtered(sweep, "data=digits", "seed=0,1,2")
    assert "seeds or folds that ran are left out: learned and rope; they may" in " ".join(found.caveats)
    tested, *_ = found.findings.comparisons
    assert (
        "rope and learned: no verdict, since seeds or folds that ran are left out; the difference is"
        in tested.sentences[0]
    )
    assert found.findings.candidates == []


def test_rows_share_no_variance_with_one_that_a_filter_leaves_out(tmp_path, write_run):
    apart = {"learned": (0, 1, -1), "rope": (1, -1, 0), "none": (-1, 0, 1), "sincos2d": (0, -1, 1)}
    for scheme, seeds in apart.items():
        for seed, steps in enumerate(seeds):
            add_seed(write_run, tmp_path, seed, **{scheme: 0.9 + steps / 100})
    plan(tmp_path)
    assert "common variance of all rows" in compared(tmp_path).findings.method
    method = filtered(tmp_path, "position=learned,rope,none").findings.method
    assert "; own variances (Levene's p = 1); Bonferroni's correction for 3 comparisons" in method


def test_seeds_of_a_sweep_that_decided_are_not_left_out(sweep):
    decide(sweep)
    with pytest.raises(RunError, match="decided by all of its seeds; leave out no seeds: compare without seed="):
        filtered(sweep, "seed=0,1")
    assert [one.sentences[0] for one in filtered(sweep, "position=learned,rope").findings.comparisons] == DECIDED[:1]
