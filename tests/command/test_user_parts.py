"""Parts of a user's own on the command line, in like=RUN and in files of a user's."""

import sys

import pytest
import yaml
from helpers.user_parts import enter_lab, imported

from vitrine import compose
from vitrine.command.compose import points
from vitrine.command.multirun import varying_keys
from vitrine.command.sources import Sources, composing
from vitrine.command.user_parts import for_hydra, without_replaced
from vitrine.config.serialize import to_plain
from vitrine.errors import ConfigError
from vitrine.runs import RunRecord
from vitrine.sweeps.fingerprint import fingerprint

LAB = "lab_of_the_command_line"
DATA = """
def shapes(count=9, seed=0): ...
shapes.config = {"image_size": 16, "in_channels": 1, "num_classes": 3}
def pictures(root): ...
pictures.config = shapes.config
class Pictures:
    config = shapes.config
    def __call__(self, root): ...
class Strip:
    def __init__(self, size): ...
class Spot(Strip): ...
"""


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    return enter_lab(tmp_path, monkeypatch, LAB, data=DATA)


def faults(*overrides):
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return caught.value.faults


@pytest.mark.parametrize(
    ("override", "composable"),
    [
        ("position=a.b", ["model.position=a.b"]),
        ("position=learned", ["position=learned"]),
        ("model=a.b", ["~model", "model.name=a.b"]),
        ("data=a.b", ["~data", "data.name=a.b"]),
        ("optimizer=a.b", ["optimizer=adamw", "optimizer.betas=null", "optimizer.name=a.b"]),
        ("schedule=a.b", ["schedule=constant", "schedule.name=a.b"]),
        ("callbacks=[default,a.b,ema]", ["callbacks=[default,ema]", "callbacks.parts=[a.b]"]),
        ("callbacks=a.b", ["callbacks.parts=[a.b]"]),
        ("augment=a.b", ["augment=none", "augment.parts=[a.b]"]),
        ("model.position_options.x=1", ["++model.position_options.x=1"]),
        ("like=a.b", ["like=a.b"]),
    ],
)
def test_a_dotted_name_becomes_the_value_of_its_key(override, composable):
    assert for_hydra([override]) == composable


def test_a_part_and_its_options_are_composed():
    config = compose(["model=vit_nano", f"position={LAB}.fourier.Fourier", "model.position_options.bands=8"])
    assert (config.model.position, config.model.position_options) == (f"{LAB}.fourier.Fourier", {"bands": 8})


def test_all_faults_are_reported_together():
    found = faults(f"position={LAB}.fourier.Fourir", f"mlp={LAB}.nope.Mlp", "model.depth=0")
    assert {fault.key for fault in found} == {"model.position", "model.mlp", "model.depth"}


def test_options_are_given_one_by_one_or_as_a_mapping():
    part = f"position={LAB}.fourier.Fourier"
    assert compose([part, "model.position_options={bands:4}"]) == compose([part, "model.position_options.bands=4"])
    (fault,) = faults("optimizer.options={eps:1e-6}")
    assert (fault.key, fault.given) == ("optimizer.options.eps", "1e-06")
    taken = "is an option of a part of your own; optimizer.name=adamw takes none"
    assert fault.problem == f"{taken}; a YAML file can choose a part with its options (docs/own_parts.md)"


def test_choices_and_parts_are_swept_together():
    made = points("train", [f"position=learned,{LAB}.fourier.Fourier", "seed=0,1"], multirun=True)
    assert [point.config.model.position for point in made] == ["learned"] * 2 + [f"{LAB}.fourier.Fourier"] * 2
    assert made[2].varies == {"position": f"{LAB}.fourier.Fourier", "seed": "0"}


def test_an_option_is_given_to_the_parts_that_take_it():
    mine, bands = f"{LAB}.fourier.Fourier", "model.position_options.bands"
    made = points("train", [f"position=learned,{mine}", f"{bands}=8,9", "depth=2", "seed=0"], multirun=True)
    assert [point.varies for point in made] == [
        {"position": "learned"},
        {"position": mine, bands: "8"},
        {"position": mine, bands: "9"},
    ]
    assert [point.config.model.position_options for point in made] == [{}, {"bands": 8}, {"bands": 9}]
    assert [point.shared for point in made] == [["depth='2'", "seed=0"]] * 3
    assert varying_keys(made) == ["position", bands]


@pytest.mark.parametrize(
    ("position", "option", "problem"),
    [
        ("learned,rope", "bands", "is an option of a part of your own"),
        (f"none,{LAB}.fourier.Fourier", "band", "is not an option of .* has bands, scale"),
    ],
)
def test_an_option_that_no_part_takes_is_refused(position, option, problem):
    with pytest.raises(ConfigError, match=problem):
        points("train", [f"position={position}", f"model.position_options.{option}=8"], multirun=True)


def test_a_part_of_a_recipe_is_replaced_with_its_options(lab):
    (lab / "given" / "experiment").mkdir(parents=True)
    mine, other = f"{LAB}.data.Strip", f"{LAB}.data.Spot"
    values = {
        "model": {"position": f"{LAB}.fourier.Fourier", "position_options": {"bands": 4}},
        "augment": {"parts": [mine, other], "parts_options": {"Strip": {"size": 2}, "Spot": {"size": 3}}},
    }
    recipe = "# @package _global_\n" + yaml.safe_dump(values)
    (lab / "given" / "experiment" / "full.yaml").write_text(recipe)
    with composing(Sources.choose(str(lab / "given"))):
        typed = [f"augment.parts=[{other},{mine}],[{mine}],[]", "augment.parts_options.Strip.size=5"]
        made = points("train", ["experiment=full", "model.position=learned", *typed], multirun=True)
    assert [point.config.augment.parts_options for point in made] == [
        {"Strip": {"size": 5}, "Spot": {"size": 3}},
        {"Strip": {"size": 5}},
        {},
    ]
    assert made[0].config.model.position_options == {}


def test_edited_code_is_another_trial(lab):
    def identity():
        return fingerprint(compose([f"position={LAB}.fourier.Fourier"]))

    before, learned = identity(), fingerprint(compose(["position=learned"]))
    text = (lab / LAB / "layers.py").read_text()
    (lab / LAB / "layers.py").write_text(f"{text}# edited\n")
    assert identity() == before
    (lab / LAB / "layers.py").write_text(text.replace("0, 1", "0, 2"))
    assert identity() != before
    assert fingerprint(compose(["position=learned"])) == learned


def test_a_data_set_describes_its_images():
    config = compose([f"data={LAB}.data.shapes", "data.options.count=5", "data.patch_size=4"])
    assert (config.model.image_size, config.model.num_classes, config.data.options) == (16, 3, {"count": 5})
    (fault,) = faults(f"data={LAB}.data.shapes")
    assert fault.key == "data.patch_size"


def test_a_folder_is_refused_for_a_data_set_that_takes_none():
    typed = ["data.patch_size=4", "data.root=elsewhere"]
    (fault,) = faults(f"data={LAB}.data.shapes", *typed)
    assert (fault.key, fault.given) == ("data.root", "elsewhere")
    for name in ("pictures", "Pictures"):
        assert compose([f"data={LAB}.data.{name}", *typed]).data.root == "elsewhere"


def test_a_description_of_images_that_is_no_dict_is_a_fault(lab):
    (lab / LAB / "data.py").write_text("def shapes(): ...\nshapes.config = 5\n")
    (fault,) = faults(f"data={LAB}.data.shapes")
    assert (fault.key, fault.problem) == ("data.name", "its attribute config must be a dict, not int")


@pytest.mark.parametrize(
    ("key", "near"), [("epoch", "epochs"), ("batch_size", "data.batch_size=1"), ("root", "data.root=1"), (5, "")]
)
def test_a_description_of_images_has_no_other_keys(lab, key, near):
    (lab / LAB / "data.py").write_text(f"{DATA}shapes.config[{key!r}] = 1\n")
    (fault,) = faults(f"data={LAB}.data.shapes", "data.patch_size=4")
    assert (fault.key, fault.given, fault.nearest) == ("data.name", f"{LAB}.data.shapes", near)
    allowed = "image_size, in_channels, num_classes, patch_size, epochs, mean, std, flip"
    assert fault.problem == f"its attribute config has {key}; it can have {allowed}"


def test_a_run_without_a_section_and_a_typed_part_are_no_traceback():
    assert without_replaced({"model": 5, 3: 4}, [f"position={LAB}.fourier.Fourier"]) == {"model": 5, 3: 4}


def test_keys_of_vits_are_refused_beside_a_model_of_the_users():
    refused = ["depth=2", "model.heads=4", "mlp=relu", "patch=4", "model.patch_size=2"]
    found = faults("model=torchvision.models.resnet18", "data.patch_size=2", *refused)
    assert [fault.key for fault in found] == [override.partition("=")[0] for override in refused]


def run_folder(folder, **changes):
    record = RunRecord.at(folder)
    values = to_plain(compose(["model=vit_nano", f"position={LAB}.fourier.Fourier", "model.position_options.bands=8"]))
    record.write_config(values | changes)
    record.update(status="finished")
    for module in [module for module in sys.modules if module.startswith(LAB)]:
        del sys.modules[module]
    return record.path


@pytest.mark.parametrize("key", ["like", "resume"])
def test_a_run_is_not_trusted_by_what_its_path_or_its_folder_says(lab, key):
    folder = run_folder(lab / f"{LAB}.fourier.Fourier", trust=[""], allow_changed_code=True)
    (fault,) = faults(f"{key}={folder}")
    assert fault.key == "model.position"
    assert f"trust=[{LAB}.fourier.Fourier]" in fault.problem
    assert not imported(LAB)


@pytest.mark.whole
def test_a_trusted_run_is_inherited_with_its_options(lab):
    folder = run_folder(lab / "run")
    assert compose([f"like={folder}", f"trust=[{LAB}]", "seed=3"]).model.position_options == {"bands": 8}
    assert compose([f"like={folder}", f"position={LAB}.fourier.Fourier"]).model.position_options == {"bands": 8}
    assert compose([f"like={folder}", "position=learned"]).model.position_options == {}  # with the part, its options go


def write_position_file(folder, name="mine", **options):
    (folder / "position").mkdir(parents=True, exist_ok=True)
    values = {"position": f"{LAB}.fourier.Fourier", "position_options": options or {"bands": 4}}
    (folder / "position" / f"{name}.yaml").write_text("# @package model\n" + yaml.safe_dump(values))


@pytest.mark.parametrize(
    ("position", "options", "bands"), [("rope", {}, 4), ("wide", {"scale": 2}, 8)], ids=["typed", "of a file"]
)
def test_a_recipe_s_position_takes_none_of_the_run_s_options(lab, position, options, bands):
    write_position_file(lab / "given", bands=bands)
    write_position_file(lab / "given", "wide", scale=2)
    (lab / "given/experiment").mkdir()
    recipe = yaml.safe_dump({"defaults": [{"override /position": position}, "_self_"]})
    (lab / "given/experiment/plain.yaml").write_text("# @package _global_\n" + recipe)
    with composing(Sources.choose(str(lab / "given"))):
        config = compose([f"like={run_folder(lab / 'run')}", "experiment=plain"])
    assert config.model.position_options == options


def test_a_file_of_the_users_names_a_part(lab):
    write_position_file(lab / "given")
    with composing(Sources.choose(str(lab / "given"))):
        (point,) = points("train", ["position=mine"], multirun=False)
    assert point.config.model.position_options == {"bands": 4}


def test_files_that_were_only_found_are_not_trusted(lab):
    write_position_file(lab / "conf")
    with composing(Sources.choose()):
        with pytest.raises(ConfigError, match="not imported unless you allow it"):
            points("train", ["position=mine"], multirun=False)
        assert not imported(LAB)
        (point,) = points("train", ["position=mine", f"trust=[{LAB}]"], multirun=False)
    assert point.config.model.position == f"{LAB}.fourier.Fourier"
