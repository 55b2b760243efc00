"""Runs of W&B's servers, in the shape in which its documented API answers (wandb.apis.public.Run of a GraphQL node)."""

import json
from dataclasses import replace

import pytest
from wandb.apis.public import Run as ServerRun

from vitrine.compare import load_wandb as wandb_results
from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.config.loggers import WandbConfig
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.tracking.wandb_values import run_facts, run_title


def node(identity: str, position: str, seed: int, acc: float, state: str = "finished") -> dict:
    """A run as the server describes it: configuration and summary are JSON, each configured value under ``value``."""
    config = {
        "model": {"position": position, "dim": 64},
        "data": {"name": "digits"},
        "seed": seed,
        "paths": {"a": identity},
    }
    return {
        "id": f"UnVuOnYxOg=={identity}",
        "name": identity,
        "displayName": f"position={position},seed={seed}",
        "state": state,
        "group": "positions",
        "jobType": "train",
        "tags": [],
        "commit": None,
        "createdAt": f"2026-01-31T12:00:0{seed}Z",
        "config": json.dumps({key: {"value": value, "desc": None} for key, value in config.items()} | {"_wandb": {}}),
        "summaryMetrics": json.dumps(
            {
                "status": state,
                "commit": "0123456789abcdef",
                "test/acc": acc,
                "val/acc": acc,
                "_runtime": 9,
                "best": "epoch 3",
                "confusion": {"_type": "image-file"},
            }
        ),
        "systemMetrics": "{}",
        "historyLineCount": 2,
        "historyKeys": {},
        "user": {"name": "someone", "username": "someone"},
    }


HISTORY = [
    {"_step": 0, "_runtime": 4.0, "_timestamp": 1.0, "epoch": 1, "step": 20, "val/acc": 0.5, "train/loss": None},
    {
        "_step": 1,
        "_runtime": 8.0,
        "_timestamp": 2.0,
        "epoch": 2,
        "step": 40,
        "val/acc": 0.9,
        "image": {"path": "a.png"},
    },
]


@pytest.fixture
def server(monkeypatch, tmp_path):
    """An API that answers with the runs that are put into it, and remembers what it was asked."""
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setattr(ServerRun, "scan_history", lambda self: HISTORY)

    class Api:
        def __init__(self):
            self.nodes, self.asked = [], []

        def runs(self, path, filters, lazy):
            self.asked.append((path, filters, lazy))
            return [ServerRun(None, *path.split("/"), run["name"], run, lazy=False) for run in self.nodes]

    api = Api()
    monkeypatch.setattr(wandb_results, "_api", lambda: api)
    return api


def test_runs_of_a_group_are_compared_as_from_their_folders(server):
    for number, (position, acc) in enumerate((("learned", 0.8), ("rope", 0.9))):
        for seed in (0, 1, 2):
            server.nodes.append(node(f"{number}{seed}", position, seed, acc + 0.001 * seed**2 * (1 + number)))
    server.nodes.append(node("99", "learned", 7, 0.1, state="failed"))
    killed = node("98", "rope", 8, 0.1, state="crashed") | {"summaryMetrics": "{}"}
    server.nodes.append(killed)
    found = wandb_results.load_wandb_results("someone/vitrine", "positions")
    assert server.asked == [("someone/vitrine", {"jobType": "train", "group": "positions"}, False)]
    compared = compare(found, target=0.85)
    assert compared.table.columns == ["model.position"]
    assert [summary.row.label for summary in compared.summaries] == ["rope", "learned"]
    assert compared.findings.comparisons[0].sentences[0].startswith("rope is better than learned by 10.17 points")
    assert compared.summaries[0].seconds_to_target.mean == 8
    unfinished = "someone/vitrine/99 (failed) and someone/vitrine/98 (interrupted)"
    assert f"2 runs are not finished and left out: {unfinished}" in compared.caveats
    assert found.runs[0].facts["code"] == {"commit": "0123456789abcdef"}
    assert set(found.runs[0].metrics) == {"test/acc", "val/acc"}
    assert found.runs[0].history[0] == {"epoch": 1, "step": 20, "val/acc": 0.5, "seconds": 4}


@pytest.mark.parametrize(
    ("state", "noted", "status"),
    [
        ("crashed", "finished", "interrupted"),
        ("running", "finished", "running"),
        ("running", "interrupted", "running"),
        ("finished", "running", "interrupted"),
        ("failed", "diverged", "diverged"),
        ("finished", None, "finished"),
    ],
)
def test_a_resumed_run_has_not_the_status_of_its_earlier_session(server, state, noted, status):
    summary = {"summaryMetrics": json.dumps({"status": noted, "val/acc": 0.9})}
    server.nodes.append(node("1", "rope", 0, 0.9, state=state) | summary)
    (run,) = wandb_results.load_wandb_results("someone/vitrine", None).runs
    assert (run.status, run.metrics) == (status, {"val/acc": 0.9} if status == "finished" else {})


def served(path, **options) -> dict:
    """A run folder as the server describes it after the tracker logged it."""
    record, settings = RunRecord.open(path), WandbConfig(**options)
    run = node(record.name, "", record.config["seed"], 0)
    last_epoch = {"epoch": 4, "images_per_second": 1.5}
    summary = {**last_epoch, **run_facts(record, settings), **record.metrics, "status": record.status}
    return run | {
        "displayName": run_title(record, settings, record.facts["varies"]),
        "createdAt": record.facts["started"],
        "config": json.dumps({key: {"value": value} for key, value in record.config.items()}),
        "summaryMetrics": json.dumps(summary),
    }


def test_the_table_is_that_of_the_run_folders(server, tmp_path, write_run):
    for model, acc in (("vit_nano", 0.8), ("vit_tiny", 0.9)):
        for seed in (0, 1, 2):
            overrides = (f"model={model}", "patch=4" if model == "vit_nano" else "patch=2")
            sweep = "model=vit_nano,vit_tiny seed=0,1,2 logger=wandb"
            path = write_run(tmp_path, *overrides, seed=seed, acc=acc + 0.01 * seed, sweep=sweep, predictions=False)
            server.nodes.append(served(path))
    ours, theirs = compare(load_results([tmp_path])), compare(wandb_results.load_wandb_results("me/vitrine", None))
    assert theirs.table.columns == ours.table.columns == ["model", "patch"]
    assert theirs.table.confounded == ours.table.confounded
    summaries = [replace(summary, row=summary.row.label) for summary in theirs.summaries]
    assert summaries == [replace(summary, row=summary.row.label) for summary in ours.summaries]
    assert [(row.parameters, row.flops, row.images_per_second) for row in summaries] == [
        ((202_000, 202_000), (13_000_000, 13_000_000), 1010),
        ((204_000, 204_000), (6_500_000, 6_500_000), 1010),
    ]
    assert theirs.caveats == ours.caveats
    assert [set(run.metrics) - set(mine.metrics) for run, mine in zip(theirs.runs, ours.runs, strict=True)] == [
        {"epoch"}
    ] * 6


@pytest.mark.parametrize("chosen", ["sweep=decide", "sweep.method=anytime"])
def test_runs_of_a_sweep_that_decides_have_no_verdict(server, tmp_path, write_run, chosen):
    sweep = f"{chosen} model=vit_nano position=learned,rope logger=wandb"
    for scheme, acc in (("learned", 0.8), ("rope", 0.9)):
        for seed in range(3):
            path = write_run(tmp_path, f"position={scheme}", seed=seed, acc=acc * (1 + 0.01 * seed), sweep=sweep)
            server.nodes.append(served(path))
    for results in (wandb_results.load_wandb_results("me/vitrine", None), load_results([tmp_path])):
        found = compare(results)
        (tested,) = found.findings.comparisons
        assert tested.verdict == "inconclusive"
        assert "no verdict, since seeds were added until sweep=decide had decided; the" in tested.sentences[0]
        assert any(text.startswith("2 rows got more seeds until sweep=decide had decided:") for text in found.caveats)


def test_caveats_come_from_the_summary_too(server, tmp_path, write_run):
    for seed, facts in enumerate(({}, {"epochs": 9}, {"device": "another"}, {"images": {"train": 5, "test": 360}})):
        server.nodes.append(served(write_run(tmp_path, seed=seed, facts=facts)))
    caveats = "\n".join(compare(wandb_results.load_wandb_results("me/vitrine", None)).caveats)
    assert "different numbers of epochs: 4 (3 runs) and 9 (1 run)" in caveats
    assert "different devices: CPU, 1 thread (3 runs) and another (1 run)" in caveats
    assert "different data: digits, 1,293 images (3 runs) and digits, 5 images (1 run)" in caveats
    server.nodes.append(served(write_run(tmp_path, seed=5, facts={"validation": "others"})))
    with pytest.raises(RunError, match="use different validation splits"):
        compare(wandb_results.load_wandb_results("me/vitrine", None), metric="val/acc")


def test_private_runs_and_those_with_other_values_lack_sizes_and_speed(server, tmp_path, write_run):
    for seed in range(3):
        private = served(write_run(tmp_path, seed=seed), private=True)
        older = node(f"old{seed}", "rope", seed, 0.9)
        others = {
            "images": "many",
            "parameters": "few",
            "epochs": [3],
            "images_per_second": "fast",
        }  # of another program
        older["summaryMetrics"] = json.dumps(json.loads(older["summaryMetrics"]) | others)
        server.nodes += [private, older, served(write_run(tmp_path, "position=none", seed=seed))]
    compared = compare(wandb_results.load_wandb_results("me/vitrine", None))
    assert compared.caveats == []
    sizes = {
        summary.row.label: (summary.parameters, summary.flops, summary.images_per_second)
        for summary in compared.summaries
    }
    assert sizes == {
        "sincos2d": (None, None, None),
        "rope": (None, None, None),
        "none": ((202_000, 202_000), (13_000_000, 13_000_000), 1010),
    }


def test_a_trial_with_a_custom_name_is_described_by_its_configuration(server, tmp_path, write_run):
    for seed, position in enumerate(("learned", "rope")):
        path = write_run(tmp_path, f"position={position}", seed=seed, sweep="position=learned,rope seed=0,1")
        server.nodes.append(served(path, name="depth=mine"))
        config = json.loads(server.nodes[-1]["config"])
        config["logger"]["value"]["wandb"] = {"name": "depth=mine"}
        server.nodes[-1]["config"] = json.dumps(config)
    found = wandb_results.load_wandb_results("me/vitrine", None)
    assert [run.overrides for run in found.runs] == [{}, {}]
    table = compare(found).table
    assert (table.columns, [row.label for row in table.rows]) == (["model.position"], ["learned", "rope"])


def test_a_trial_with_a_shortened_title_is_described_by_its_configuration(server, tmp_path, write_run):
    path = write_run(tmp_path, "position=rope", sweep="position=learned,rope seed=0,1")
    RunRecord(path).update(varies="optimizer.lr=0.1," * 8)
    server.nodes.append(served(path))
    (run,) = wandb_results.load_wandb_results("me/vitrine", None).runs
    assert run.overrides == {}


def test_an_empty_project_and_a_failing_server_are_reported(server, monkeypatch):
    with pytest.raises(RunError, match="W&B has no training run in someone/vitrine in group positions"):
        wandb_results.load_wandb_results("someone/vitrine", "positions")

    def refuse(*_, **__):
        raise ValueError("Could not find project vitrine\nand more")

    monkeypatch.setattr(server, "runs", refuse)
    with pytest.raises(RunError, match=r"cannot read someone/vitrine from W&B: Could not find project vitrine$"):
        wandb_results.load_wandb_results("someone/vitrine", None)
