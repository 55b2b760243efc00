import json
import re
import shlex
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from vitrine import compose
from vitrine.command.compose import points
from vitrine.command.output_dirs import place
from vitrine.config.keys import keys
from vitrine.config.schema import EmaConfig, TrainConfig
from vitrine.config.serialize import from_plain, to_plain
from vitrine.config.sweep import facts_of
from vitrine.errors import ConfigError, RunError
from vitrine.runs import RunRecord
from vitrine.sweeps.fingerprint import (
    VERSION,
    TrialFolders,
    _defaults,
    fingerprint,
    record_facts,
    sweep_name,
    taught_by_other_weights,
    trial_name,
)
from vitrine.sweeps.sweep import Sweep

WITHOUT_EFFECT = {
    "name",
    "tags",
    "resume",
    "like",
    "debug.traceback",
    "debug.profile",
    "data.root",
    "data.storage",
    "data.target_classes",
    "data.workers",
    "callbacks.keep_every",
    "trainer.log_every_n_steps",
    "trainer.max_time",
}


@pytest.fixture(scope="module")
def config():
    return compose(["model=vit_nano", "callbacks=[default,early_stopping,ema]", "logger=all", "augment.rand={}"])


def changed(config, key):
    """``config`` with another value at the dotted ``key``."""
    name, _, rest = key.partition(".")
    value = getattr(config, name)
    if rest:
        return replace(config, **{name: changed(value, rest)})
    other = [*value, "x"] if isinstance(value, list) else f"{value}x"
    return replace(config, **{name: other})


def test_every_key_that_affects_the_result_changes_the_fingerprint(config):
    for key in keys(TrainConfig):
        same = fingerprint(changed(config, key)) == fingerprint(config)
        assert same == (key in WITHOUT_EFFECT or key.startswith(("paths.", "logger."))), key


@pytest.mark.parametrize("key", ["paths.output_dir", "logger.wandb.mode", "data.workers", "tags", "debug.traceback"])
def test_paths_loggers_and_labels_leave_the_fingerprint(config, key):
    assert fingerprint(changed(config, key)) == fingerprint(config)


def test_the_folder_of_own_images_affects_the_result():
    assert not facts_of("data.root").affects("mnist")
    assert all(facts_of("data.root").affects(source) for source in ("imagefolder", "csv", "huggingface"))


def test_a_run_named_by_its_path_is_the_same_from_whichever_folder(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for section, key in (("model", "pretrained"), ("distill", "teacher")):
        paths = ("run", str(tmp_path / "run"))
        named = [replace(config, **{section: replace(getattr(config, section), **{key: path})}) for path in paths]
        assert len({*map(fingerprint, named)}) == 1, key


@pytest.mark.whole
def test_a_sweep_is_named_by_its_fixed_overrides_and_varying_keys(tmp_path):
    def name(*overrides):
        made = points("train", ["model=vit_nano", f"paths.output_dir={tmp_path}", *overrides], multirun=True)
        return Sweep.plan(made).folder.name

    asked = name("patch=2,4", "seed=0,1")
    assert asked.startswith("vit_nano_patch-seed_")
    assert name("seed=0,1", "patch=2,4") == name("patch=2,4,8", "seed=range(5)") == asked
    launched = ["hydra/launcher=process", "launcher.workers=2"]
    assert name("patch=2,4", "seed=0,1", "logger=wandb", *launched) == asked
    others = {name("patch=2,4", "seed=0,1", "depth=3"), name("patch=2,4", "model.heads=2,4"), name("seed=0,1")}
    assert len(others | {asked}) == 4


def test_a_changed_default_needs_a_new_version():
    """Fingerprints leave defaults out: trials of the old default and of the new one would have the same."""
    known = json.loads(Path(__file__).with_name("fingerprint_defaults.json").read_text())
    assert known["version"] == VERSION, "store the defaults of the new version"
    changed = {key: _defaults().get(key) for key, value in known["defaults"].items() if _defaults().get(key) != value}
    assert changed == {}, "increase VERSION in sweeps/fingerprint.py, and store the new defaults beside this test"


IMAGES = {"image_size": 8, "in_channels": 1, "num_classes": 10, "patch_size": 2}
PLAIN = {
    "model": {**IMAGES, "depth": 1, "layer_scale": 0.1},
    "data": {**IMAGES, "name": "digits", "root": "data", "epochs": 32, "mean": [0.3], "std": [0.5], "flip": False},
    "optimizer": {"name": "adamw", "lr": 0.003125, "weight_decay": 0, "betas": [0.9, 0.999]},
    "trainer": {"max_epochs": 32},
}


@pytest.mark.parametrize(
    ("section", "values", "pinned"),
    [
        ("seed", 3, "92bbfca2590adb51"),
        ("data", {"name": "csv", "root": "/nowhere/pictures", "image_size": [8, 12]}, "0468d3c0b7350661"),
        ("callbacks", {"ema": {}, "early_stopping": None}, "ba11f3e1672f8646"),
        ("model", {"position": "my_lab.Fourier", "position_options": {"bands": 4}}, "9cabd7638df755f6"),
    ],
)
def test_fingerprints_computed_in_another_way_need_a_new_version(section, values, pinned, monkeypatch):
    """Without one, finished trials would be trained again."""
    monkeypatch.setattr("vitrine.sweeps.fingerprint.code_hash", {"my_lab.Fourier": "1f"}.get)
    values = PLAIN.get(section, {}) | values if isinstance(values, dict) else values
    config = from_plain(TrainConfig, PLAIN | {section: values}, trust=["my_lab"])
    assert fingerprint(config) == pinned, "increase VERSION in sweeps/fingerprint.py, and pin the new fingerprints"


def test_a_section_at_its_defaults_differs_from_one_that_is_off(config):
    off = replace(config, callbacks=replace(config.callbacks, ema=None))
    on = replace(config, callbacks=replace(config.callbacks, ema=EmaConfig()))
    assert fingerprint(on) != fingerprint(off)


def test_a_new_key_at_its_default_changes_no_fingerprint(config, monkeypatch):
    before = fingerprint(config)
    monkeypatch.setattr("vitrine.sweeps.fingerprint._defaults", lambda: _defaults_with("model.windows", 0))
    for windows, same in ((0, True), (7, False)):
        plain = to_plain(config)
        plain["model"]["windows"] = windows
        monkeypatch.setattr("vitrine.sweeps.fingerprint.to_plain", lambda _, plain=plain: plain)
        assert (fingerprint(config) == before) is same


def _defaults_with(key, value, known=_defaults()):  # noqa: B008 - before it is replaced
    return {**known, key: value}


def test_the_source_of_a_user_s_part_counts(config, monkeypatch):
    found = {fingerprint(config)}
    part = SimpleNamespace(name="my_lab.Fourier", key="model.position")
    monkeypatch.setattr("vitrine.sweeps.fingerprint.parts_of", lambda config: [part])
    for source in ("1f", "2e"):
        monkeypatch.setattr("vitrine.sweeps.fingerprint.code_hash", lambda name, source=source: source)
        found.add(fingerprint(config))
    assert len(found) == 3


def test_a_trial_with_the_user_s_parts_is_found_after_a_new_version(config, monkeypatch, tmp_path):
    """Its source is known by the hash in run.json: the file on disk may have changed since."""
    config = replace(
        config,
        model=replace(config.model, position="my_lab.Fourier"),
        callbacks=replace(config.callbacks, parts=["my_lab.Norm"]),
        logger=replace(config.logger, parts=["my_lab.Log"]),
    )
    hashes = {"my_lab.Fourier": "1f", "my_lab.Norm": "2e", "my_lab.Log": "3d"}
    monkeypatch.setattr("vitrine.sweeps.fingerprint.code_hash", hashes.get)
    trial = RunRecord(tmp_path / "sweep" / "named_otherwise")
    trial.path.mkdir(parents=True)
    trial.update(parts=hashes, **record_facts(config))
    trial.write_config(to_plain(config))
    assert TrialFolders(trial.path.parent).find(config, {}) == trial.path
    trial.update(fingerprint="of another version", fingerprint_version=VERSION - 1)
    assert TrialFolders(trial.path.parent).find(config, {}) == trial.path
    trial.update(parts=hashes | {"my_lab.Fourier": "4c"})
    assert TrialFolders(trial.path.parent).find(config, {}) != trial.path


def test_trials_that_other_weights_of_their_teacher_taught_are_found(config, tmp_path):
    records = [RunRecord.at(tmp_path / name) for name in ("teacher", "before", "after")]
    for weights, record in zip((b"old", b"new"), records[1:], strict=True):
        records[0].best.write_bytes(weights)
        record.update(teacher={"run": str(tmp_path / "teacher"), "sha256": sha256(weights).hexdigest()})
    taught = replace(config, distill=replace(config.distill, teacher=str(tmp_path / "teacher")))
    assert taught_by_other_weights(records[1:], [config, taught]) == {str(tmp_path / "teacher"): 1}
    assert taught_by_other_weights(records[2:], [taught]) == {}


@pytest.mark.parametrize("name", [None, "chosen"])
def test_a_trial_whose_folder_is_a_link_is_not_taken(config, tmp_path, name):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "documents").mkdir()
    (tmp_path / "sweep" / (name or trial_name({}, fingerprint(config)))).symlink_to(tmp_path / "documents")
    with pytest.raises(RunError, match=r"is a link, to .*documents: a trial's folder must be in its sweep's"):
        TrialFolders(tmp_path / "sweep").find(config, {}, name)


@pytest.mark.parametrize(
    "value", ["1e-4", "-1", "null", "[default,ema]", "a b", "ä", "..", "$x", "~x", "{a: 1}", "'3'", "my/images", "x=y"]
)
def test_a_trial_folder_can_be_typed_as_a_value_without_quotes(value):
    name = trial_name({"optimizer.lr": value, "seed": "0"}, "7725e15600000000")
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)
    for key in ("run", "resume", "like", "model.pretrained"):
        typed = f"{key}=outputs/sweeps/vit_nano_lr-seed_07a8635d@2/{name}"
        assert OverridesParser.create().parse_override(typed).value() == typed.partition("=")[2]
        assert shlex.split(typed) == [typed]


def test_names_show_what_varies_and_fit_in_a_folder_name():
    assert trial_name({"patch": "2", "data.root": "a/b c"}, "ab" * 8) == "data.root-a-b-c_patch-2_abababab"
    assert trial_name({"patch": "2", "seed": "0"}, "ab" * 8) == trial_name({"seed": "0", "patch": "2"}, "ab" * 8)
    assert trial_name({}, "ab" * 8) == "trial_abababab"
    assert len(trial_name({"position": "x" * 300}, "ab" * 8)) < 130
    assert len(sweep_name([], ["x" * 300], "digits")) < 130


@pytest.mark.whole
def test_a_chosen_folder_with_files_that_no_run_wrote_is_refused_and_left_alone(tmp_path):
    def planned():
        chosen = [f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=${seed}"]
        return Sweep.plan(place(points("train", ["seed=0,1", *chosen], multirun=True), multirun=True))

    killed_at_its_start = tmp_path / "0"
    (killed_at_its_start / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", ".run.json.x7.tmp", ".lock"):
        (killed_at_its_start / name).touch()
    assert [trial.folder.name for trial in planned().trials] == ["0", "1"]

    mine = tmp_path / "1" / "thesis.tex"
    mine.parent.mkdir()
    mine.touch()
    with pytest.raises(RunError, match=r"1 is not a run, and holds thesis\.tex: a trial starts in an empty folder"):
        planned()
    mine.unlink()
    weights = tmp_path / "1" / "checkpoints" / "weights.pt"
    weights.parent.mkdir()
    weights.touch()
    with pytest.raises(RunError, match=r"holds checkpoints/weights\.pt"):
        planned()
    assert weights.exists()


@pytest.mark.parametrize("name", [".", "..", ".hidden", "a/b", ""])
def test_a_trial_is_not_put_into_the_folder_of_its_sweep_or_a_hidden_one(tmp_path, name):
    found = points("train", ["seed=0", f"hydra.sweep.dir={tmp_path}", f"hydra.sweep.subdir={name}"], multirun=True)
    with pytest.raises(ConfigError, match=r"hydra\.sweep\.subdir"):
        place(found, multirun=True)
