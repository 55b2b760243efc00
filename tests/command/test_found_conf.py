"""What a conf/ that was only found in the working directory may do: give values, but allow no code to run."""

import os

import pytest
import yaml
from helpers.levels import quick
from helpers.user_parts import enter_lab, imported

from vitrine.command.compose import points
from vitrine.command.sources import Sources, composing
from vitrine.errors import ConfigError, Fault

LAB = "lab_of_a_found_folder"
PART = f"{LAB}.fourier.Fourier"


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    return enter_lab(tmp_path, monkeypatch, LAB)


def write(path, values, package="_global_"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# @package {package}\n{yaml.safe_dump(values)}")


def made(*overrides, multirun=False, folder=None, command="train"):
    with composing(Sources.choose(folder)):
        return points(command, list(overrides), multirun=multirun)


def test_a_file_that_is_always_read_grants_no_trust(working_directory):
    permissions = {"trust": [LAB], "allow_changed_code": True}
    write(working_directory / "conf/local/default.yaml", {**permissions, "model": {"position": PART}, "seed": 3})
    with pytest.raises(ConfigError, match="not imported unless you allow it"):
        made()
    assert not imported(LAB)
    (point,) = made("model.position=learned")
    assert (point.config.seed, point.config.trust, point.config.allow_changed_code) == (3, [], False)
    (point,) = made("model.position=learned", f"trust=[{LAB}]", "allow_changed_code=true")
    assert (point.config.trust, point.config.allow_changed_code) == ([LAB], True)


def test_a_folder_that_is_named_grants_trust(working_directory):
    write(working_directory / "mine/local/default.yaml", {"trust": [LAB], "allow_changed_code": True})
    (point,) = made(folder="mine")
    assert (point.config.trust, point.config.allow_changed_code) == ([LAB], True)


@pytest.mark.parametrize(
    ("typed", "merged"),
    [
        ("{1:3}", {"0": 2, "1": 3}),
        ("{0:3}", {"0": 3}),
        ("balanced", "balanced"),
        ("[1,1,1,1,1,1,1,1,1,3]", [1] * 9 + [3]),
    ],
    ids=str,
)
def test_typed_weights_of_classes_are_merged_with_those_of_a_file(working_directory, typed, merged):
    write(working_directory / "conf/experiment/mine.yaml", {"loss": {"class_weights": {"0": 2}}})
    (point,) = made("experiment=mine", f"loss.class_weights={typed}")
    assert point.config.loss.class_weights == merged


def test_typed_weights_of_some_classes_are_not_merged_with_a_list(working_directory):
    write(working_directory / "conf/experiment/mine.yaml", {"loss": {"class_weights": [1] * 10}})
    with pytest.raises(ConfigError) as caught:
        made("experiment=mine", "loss.class_weights={0:3}")
    problem = "cannot change a list of a file or run; give a whole list"
    assert caught.value.faults == [Fault("loss.class_weights", "{0:3}", problem)]


def test_a_pipe_is_not_read(working_directory):
    (working_directory / "conf/experiment").mkdir(parents=True)
    os.mkfifo(working_directory / "conf/experiment/pipe.yaml")
    assert Sources.choose().files == []
    with pytest.raises(ConfigError, match="pipe"):
        made("experiment=pipe")


def test_a_group_named_trust_grants_none(working_directory):
    write(working_directory / "conf/trust/lab.yaml", {"trust": ["os"]})
    with pytest.raises(ConfigError):
        made("trust=lab")


def test_every_refused_name_of_a_list_is_named(working_directory):
    write(working_directory / "conf/callbacks/mine.yaml", {"parts": [PART, f"{LAB}.fourier.Halved"]}, "callbacks")
    with pytest.raises(ConfigError) as caught:
        made("callbacks=[default,mine]")
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("callbacks.parts", f"{PART},{LAB}.fourier.Halved")
    assert f"trust=[{PART},{LAB}.fourier.Halved]" in fault.problem
    assert not imported(LAB)


def test_a_found_primary_of_eval_does_not_decide_what_a_run_may_import(working_directory):
    write(working_directory / "conf/mine.yaml", {"defaults": ["eval", "_self_"], "run": "RUN", "trust": [LAB]})
    write(working_directory / "mine/mine.yaml", {"defaults": ["eval", "_self_"], "run": "RUN", "trust": [LAB]})

    def trust(folder, *overrides):
        with composing(Sources.choose(folder, "mine", "eval")):
            (point,) = points("eval", list(overrides), multirun=False)
        return point.config.trust

    assert trust(None) == []
    assert trust(None, f"trust=[{LAB}.fourier]") == [f"{LAB}.fourier"]
    assert trust("mine") == [LAB]
    assert not imported(LAB)


@pytest.mark.whole
@pytest.mark.parametrize("sampler", [{}, {"sampler": "random", "n_trials": 2}])
@pytest.mark.parametrize("values", [["learned", PART], [f"learned,{PART}"]])
def test_names_in_a_found_space_are_not_typed(working_directory, values, sampler):
    write(working_directory / "conf/sweep/mine.yaml", {"space": {"position": values}, **sampler}, "sweep")
    with pytest.raises(ConfigError, match="not imported unless you allow it"):
        made("sweep=mine", "model=vit_nano", multirun=True)
    assert not imported(LAB)


def test_names_in_the_space_of_a_named_folder_are_allowed(working_directory):
    write(working_directory / "mine/sweep/mine.yaml", {"space": {"position": ["learned", PART]}}, "sweep")
    assert len(made("sweep=mine", "model=vit_nano", multirun=True, folder="mine")) == 2


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "value"),
    quick([("setup", ["touch x"]), ("sbatch", ["--comment=x"]), ("partition", "a\ntouch x")], [("setup", ["touch x"])]),
)
def test_a_found_folder_gives_no_commands_to_a_launcher(working_directory, name, value):
    write(working_directory / "conf/local/default.yaml", {"launcher": {name: value, "account": "mine"}})
    with pytest.raises(ConfigError) as caught:
        made("seed=0,1", multirun=True)
    assert [fault.key for fault in caught.value.faults] == [f"launcher.{name}"]
    typed = "launcher.partition=b" if name == "partition" else f"launcher.{name}=[--b]"
    (point, _) = made("seed=0,1", typed, "hydra/launcher=slurm", multirun=True)
    assert point.config.launcher.account == "mine"


def test_a_named_folder_vouches_for_its_values_only(working_directory):
    (working_directory / "mine").mkdir()
    (working_directory / "mine/a.yaml").write_text("# a.Comment\na.Key: 1\nb: [xa.List, '[default,a.Entry]']\nc: a.B\n")
    chosen = Sources.choose("mine")
    allowed = [name for name in ("a.Comment", "a.Key", "a.List", "a.Entry", "xa.List", "a.B") if chosen.vouch_for(name)]
    assert allowed == ["a.Entry", "xa.List", "a.B"]


def test_a_link_to_a_folder_around_it_gives_no_further_choices(working_directory):
    write(working_directory / "conf/experiment/mine.yaml", {"seed": 3})
    (working_directory / "conf/experiment/loop").symlink_to("..")
    (point,) = made("experiment=mine")
    assert point.config.seed == 3
    with pytest.raises(ConfigError, match="did you mean experiment=mine"):
        made("experiment=mina")


@pytest.mark.parametrize("indirect", [False, True])
def test_a_found_primary_imports_no_package(working_directory, indirect):
    hydra = {"searchpath": [f"pkg://{LAB}"]}
    values = {"defaults": ["train", "_self_"], "hydra": "${other}" if indirect else hydra, "other": hydra}
    write(working_directory / "conf/mine.yaml", values)
    with pytest.raises(ConfigError, match=f"pkg://{LAB}\n.*imports Python code"):
        Sources.choose(primary="mine")
    assert not imported(LAB)
    Sources.choose("conf", primary="mine")


def test_a_link_to_a_group_is_a_group(working_directory):
    write(working_directory / "elsewhere/vit_nano.yaml", {})
    (working_directory / "conf").mkdir()
    (working_directory / "conf/model").symlink_to(working_directory / "elsewhere")
    (working_directory / "conf/loop").symlink_to(working_directory / "conf")
    with pytest.raises(ConfigError, match="vitrine has a file of this name"):
        Sources.choose()


@pytest.mark.parametrize("defaults", [[{"override /patch": 4}], [{"override /callbacks": ["default", 3]}], "mnist"])
def test_defaults_that_name_no_choice_are_refused_by_the_name_of_their_file(working_directory, defaults):
    write(working_directory / "mine/experiment/odd.yaml", {"defaults": defaults})
    with pytest.raises(ConfigError) as refused:
        made("experiment=odd", folder="mine")
    (fault,) = refused.value.faults
    assert fault.key == "experiment/odd.yaml"
    assert fault.problem.endswith('numbers in quotes: `override /patch: "4"`')
