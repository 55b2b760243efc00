"""Mistakes in configuration files of the user's own: each is named as its override would be, with the file."""

import pytest

GLOBAL = b"# @package _global_\n"
LOOP = "its defaults lead back to it"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"model: {dim: wide}", ["  model.dim=wide\n", "in experiment/mine.yaml: must be a whole number"]),
        (b"data: {mean: 0.5}", ["  data.mean\n", "in experiment/mine.yaml: must be a list of numbers"]),
        (
            b"model: {dmi: 3}",
            ["  model.dmi\n", "in experiment/mine.yaml: there is no such key", "did you mean model.dim?"],
        ),
        (b"trainer: 3", ["  trainer=3\n", "in experiment/mine.yaml: is a section; its keys are trainer.max_epochs, "]),
        (b"callbacks: [x]", ["  callbacks=['x']\n", "in experiment/mine.yaml: is a section; its keys are callbacks."]),
        (b"sed: 3", ["  sed\n", "did you mean seed?"]),
        (b"callbacks: {ema: {dcay: 0.9}}", ["  callbacks.ema.dcay\n", "did you mean callbacks.ema.decay?"]),
        (b"defaults: [override /model: vit_nno]", ["  model=vit_nno\n", "of a file: the choices", "model=vit_nano?"]),
        (b"defaults: [override /experiment/mnist: quick]", ["  experiment/mnist\n", "mine.yaml: there is nothing to"]),
        (b"defaults: [override /modl: vit_nano]", ["mine.yaml: there is no such group\n", "did you mean model?"]),
        (b"defaults: [mnist/quik]", ["  experiment=mnist/quik\n", "mine.yaml: is not", "experiment=mnist/quick?"]),
        (b"defaults: [/lab/x]", ["  experiment/mine.yaml\n", "its `defaults` name lab/x, and there is no such file"]),
        (b"defaults: [mine, _self_]", ["  experiment/mine.yaml\n", LOOP]),
        (b"defaults: [{/experiment: mnist/quick}, _self_]", ["  experiment/mine.yaml\n", LOOP]),
        (b"name: a\x07b", ["conf/experiment/mine.yaml\n", "is not valid YAML: it has the character #x07"]),
        (b"name: k\xe4fer", ["experiment/mine.yaml\n", "is not valid UTF-8: byte 27\n"]),
        (b"# @package a b c", ["experiment/mine.yaml\n", "'@package a b c'\n"]),
    ],
)
def test_a_mistake_in_an_experiment_is_named_with_its_file(vitrine, tmp_path, text, expected):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    head = b"" if text.startswith(b"# @package") else GLOBAL
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_bytes(head + text)
    code, out, err = vitrine("train", "experiment=mine")
    assert (code, out) == (2, "")
    for part in expected:
        assert part in err
    assert "raised while composing" not in err


def test_an_interpolation_without_its_end_in_the_space_of_a_sweep_is_one_fault(vitrine, tmp_path):
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text("space: {position: ['${x', learned]}")
    code, out, err = vitrine("train", "-m", "sweep=mine", "model=vit_nano")
    assert (code, out) == (2, "")
    assert "  space.position[0]\n      no viable alternative at input '${x'\n" in err


def test_a_group_that_no_file_chooses_from_has_no_choice_to_replace(vitrine, tmp_path):
    for group in ("lab", "my/lab", "experiment"):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / "x.yaml").write_bytes(GLOBAL + b"name: x\ndefaults: [/lab: x, /my: lab/x, _self_]")
    problem = "has no effect: no file chooses from this group in its `defaults`; one in conf/experiment can, with"
    for group, choice in (("lab", "x"), ("my", "lab/x"), ("my/lab", "x")):
        (tmp_path / "conf" / group / f"{choice}.yaml").write_bytes(GLOBAL)
        _, _, err = vitrine("train", f"{group}={choice}")
        assert f"  {group}={choice}\n      {problem} `- /{group}: {choice}`\n" in err
    _, _, err = vitrine("train", "+my/lab=x")
    assert "      a choice from a group is made without +\n      did you mean my/lab=x?\n" in err
    code, _, _ = vitrine("train", "experiment=x", "--cfg", "job")
    assert code == 0


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        ("train", b"defaults: [train, _self_]\nname: k\xe4fer", "is not valid UTF-8"),
        ("train", b"defaults: [train, _self_]\nname: a\x07b", "is not valid YAML"),
        ("train", b"defaults: [train, mine, _self_]", LOOP),
        ("eval", b"defaults: [eval, _self_]\nrum: outputs", "did you mean run?"),
    ],
)
def test_a_mistake_in_a_primary_configuration_is_one_fault(vitrine, tmp_path, command, text, expected):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_bytes(text)
    code, out, err = vitrine(command, "--config-name", "mine")
    assert (code, out) == (2, "")
    assert "mine.yaml" in err
    assert expected in err


@pytest.mark.parametrize(
    ("settings", "key", "instead"),
    [
        ("sweeper: {params: {seed: '0,1'}}", "hydra.sweeper.params.seed", "sweep.space"),
        ("job: {chdir: true}", "hydra.job.chdir", "hydra.run.dir=DIR"),
        ("verbose: true", "hydra.verbose", "debug=traceback"),
    ],
)
def test_a_setting_of_hydra_without_effect_is_refused_in_a_file_too(vitrine, tmp_path, settings, key, instead):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(f"defaults: [train, _self_]\nhydra: {{{settings}}}\n")
    code, out, err = vitrine("train", "--config-name", "mine", "model.heads=5")
    assert (code, out) == (2, "")
    assert f"  {key}\n      this setting of Hydra is not used here: " in err
    assert instead in err
    assert "model.heads=5" in err


def test_settings_of_hydra_with_an_effect_may_stand_in_a_file(vitrine, tmp_path):
    (tmp_path / "conf").mkdir()
    settings = "run: {dir: here}, sweep: {dir: there, subdir: '${hydra.job.num}'}, help: {footer: x}"
    chosen = "defaults: [train, {override /hydra/launcher: process}, _self_]\n"
    (tmp_path / "conf" / "mine.yaml").write_text(f"{chosen}hydra: {{{settings}}}\nseed: 3\n")
    command = ["train", "--config-name", "mine", "-m", "depth=1,2", "--cfg", "job", "-p", "seed"]
    assert vitrine(*command)[:2] == (0, "# run 1 of 2: depth=1\n3\n")


@pytest.mark.parametrize("command", ["summary", "channel-statistics", "preview"])
def test_other_commands_have_the_users_files_too(vitrine, tmp_path, command):
    for folder, name in (("conf", "found"), ("mine", "named")):
        (tmp_path / folder / "experiment").mkdir(parents=True)
        (tmp_path / folder / "experiment" / f"{name}.yaml").write_text("# @package _global_\nsed: 3\n")
    assert "in experiment/found.yaml: there is no such key" in vitrine(command, "experiment=found")[2]
    named = vitrine(command, "experiment=named", "--config-dir", "mine")
    assert named[0] == 2
    assert "in experiment/named.yaml: there is no such key" in named[2]


def test_a_run_folder_with_a_sign_in_its_name_is_no_override(vitrine, tmp_path):
    (tmp_path / "a=1" / "run").mkdir(parents=True)
    assert "  like=a=1/run\n      a=1/run is not a run folder" in vitrine("summary", "a=1/run")[2]
