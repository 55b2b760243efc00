"""Runs of W&B's servers, in the shape in which its documented API answers (wandb.apis.public.Run of a GraphQL node)."""

import json

import pytest
from wandb.apis.public import Run as ServerRun

from vitrine.compare import wandb_runs
from vitrine.compare.compared import compare
from vitrine.errors import RunError


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
            return [ServerRun(None, *path.split("/"), one["name"], one, lazy=False) for one in self.nodes]

    api = Api()
    monkeypatch.setattr(wandb_runs, "_api", lambda: api)
    return api


def test_runs_of_a_group_are_compared_as_from_their_folders(server):
    for number, (position, acc) in enumerate((("learned", 0.8), ("rope", 0.9))):
        for seed in (0, 1, 2):
            server.nodes.append(node(f"{number}{seed}", position, seed, acc + 0.001 * seed**2 * (1 + number)))
    server.nodes.append(node("99", "rope", 7, 0.1, state="failed"))
    killed = node("98", "rope", 8, 0.1, state="crashed") | {"summaryMetrics": "{}"}
    server.nodes.append(killed)
    found = wandb_runs.fetch("someone/vitrine", "positions")
    assert server.asked == [("someone/vitrine", {"jobType": "train", "group": "positions"}, False)]
    compared = compare(found, target=0.85)
    assert compared.table.columns == ["model.position"]
    assert [one.row.label for one in compared.summaries] == ["rope", "learned"]
    assert compared.findings.comparisons[0].words[0].startswith("rope is better than learned by 10.17 points")
    assert compared.summaries[0].seconds.mean == 8
    unfinished = "someone/vitrine/99 (failed), someone/vitrine/98 (interrupted)"
    assert f"2 runs are not finished and not counted: {unfinished}" in compared.caveats
    assert found.runs[0].facts["code"] == {"commit": "0123456789abcdef"}
    assert set(found.runs[0].metrics) == {"test/acc", "val/acc"}
    assert found.runs[0].history[0] == {"epoch": 1, "step": 20, "val/acc": 0.5, "seconds": 4}


def test_a_project_without_runs_and_a_server_that_fails_are_told(server, monkeypatch):
    with pytest.raises(RunError, match="W&B has no training run in someone/vitrine of the group positions"):
        wandb_runs.fetch("someone/vitrine", "positions")

    def refuse(*_, **__):
        raise ValueError("Could not find project vitrine\nand more")

    monkeypatch.setattr(server, "runs", refuse)
    with pytest.raises(RunError, match=r"cannot read someone/vitrine from W&B: Could not find project vitrine$"):
        wandb_runs.fetch("someone/vitrine", None)
