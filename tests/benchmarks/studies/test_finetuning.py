"""benchmarks/studies/finetuning.py: the record holds the runs of the present commands only."""

from vitrine.command.compose import points
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord
from vitrine.sweeps.sweep import Sweep

FACTS = {
    "machine": {"processor": "AMD EPYC", "cores": 2},
    "device": "CPU",
    "precision": "32-true",
    "versions": {"torch": "2.15.0"},
    "images": {"train": 10},
    "trained_parameters": 10,
    "code": {"commit": "a" * 40},
    "status": "finished",
}


def test_runs_of_an_earlier_command_in_the_same_folder_are_left_out(study, tmp_path, monkeypatch):
    script = study("finetuning")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "OUT", tmp_path / "out")
    monkeypatch.setattr(script, "METHODS", {"from scratch": []})
    source = RunRecord(tmp_path / "source")
    source.path.mkdir()
    source.update(**FACTS)
    source.write_metrics({"test/acc": 0.5})
    (present, earlier) = (
        ["model=vit_nano", f"depth={depth}", "seed=0,1,2", "paths.output_dir=out/from-scratch"] for depth in (1, 2)
    )
    for arguments, value in ((present, 0.25), (earlier, 0.75)):
        monkeypatch.chdir(tmp_path)
        for trial in Sweep.plan(points("train", arguments, multirun=True)).trials:
            trial.folder.mkdir(parents=True)
            record = RunRecord(trial.folder)
            record.update(**FACTS)
            record.write_config(to_plain(trial.config))
            record.write_metrics(dict.fromkeys([*script.METRICS, *script.KEPT], value))
    monkeypatch.chdir("/")
    found = script.collect("source", {"from scratch": present})
    for split in ("val", "test"):
        assert found["methods"]["from scratch"][f"{split}/balanced_acc"] == [0.25] * 3
    assert found["methods"]["from scratch"]["seeds"] == [0, 1, 2]
