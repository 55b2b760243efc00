import ast
import itertools
import math
import py_compile
import re
import sys

import pytest
from helpers.user_parts import enter_lab, imported

from vitrine.config import ViTConfig, source_code, vit_faults
from vitrine.config.model import vit_config_from
from vitrine.config.parts import (
    Interface,
    Part,
    PartError,
    as_part_error,
    build,
    function,
    is_dotted,
    load,
    parts_of,
)
from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import from_plain, omitted_value, to_plain
from vitrine.config.source_code import code_hash, source_hash, sources
from vitrine.config.trust import TRUST_ALL, is_trusted
from vitrine.errors import RunError, VitrineError

COUNT = itertools.count()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Name of a package in the working directory that no other test has imported."""
    name = f"lab_{next(COUNT)}"
    enter_lab(tmp_path, monkeypatch, name, broken="import no_such_module", faulty="1 / 0", bad="def (")
    return name


def config(**changes):
    return ViTConfig(image_size=8, patch_size=2, in_channels=1, num_classes=10, dim=8, depth=1, heads=2, **changes)


def only_fault(**changes):
    (fault,) = vit_faults(config(**changes), "model.")
    return fault


def test_a_part_with_options_has_no_fault(lab):
    assert vit_faults(config(position=f"{lab}.fourier.Fourier", position_options={"bands": 8})) == []


@pytest.mark.parametrize(
    ("name", "problem", "near"),
    [
        ("{lab}_.fourier.Fourier", "there is no module {lab}_", ""),
        ("{lab}.fouriers.Fourier", "{lab} has no fouriers", ""),
        ("{lab}.fourier.Fourir", "{lab}.fourier has no Fourir", "model.position={lab}.fourier.Fourier"),
        ("{lab}.fourier.BANDS", "is not a class or function, but of type int", ""),
        ("__main__.part", "from __main__; put it into a file, and name it there: my_lab.part", ""),
        ("{lab}.broken.Fourier", "No module named 'no_such_module'", ""),
        ("{lab}.faulty.Fourier", "ZeroDivisionError: division by zero", ""),
        ("{lab}.bad.Fourier", "SyntaxError", ""),
        ("platform.node", "must be callable as node(config, **options)", ""),
    ],
)
def test_a_part_that_cannot_be_used_is_one_line(lab, name, problem, near):
    fault = only_fault(position=name.format(lab=lab))
    assert fault.key == "model.position"
    assert problem.format(lab=lab) in fault.problem
    assert "\n" not in fault.problem
    assert fault.nearest == near.format(lab=lab)


def test_an_unknown_option_names_the_nearest(lab):
    fault = only_fault(position=f"{lab}.fourier.Fourier", position_options={"band": 8})
    assert (fault.key, fault.given) == ("model.position_options.band", "8")
    assert "bands, scale" in fault.problem
    assert fault.nearest == "model.position_options.bands"


def test_an_option_without_default_is_needed(lab):
    assert only_fault(norm="torch.nn.Embedding", norm_options={"device": None}).key == "model.norm"  # it takes no eps
    fault = only_fault(pool="torch.nn.Bilinear", pool_options={"in2_features": 1})
    assert fault.key == "model.pool_options.out_features"


def test_options_of_a_built_in_part_are_refused():
    fault = only_fault(mlp_options={"act": "GELU"})
    assert fault.key == "model.mlp_options.act"
    assert "model.mlp=gelu takes none" in fault.problem


def test_a_setting_that_a_part_does_not_get_is_refused(lab):
    fault = only_fault(mlp="torch.nn.Linear", mlp_dropout=0.1)
    assert fault.key == "model.mlp_dropout"
    fault = only_fault(attention="torch.nn.MultiheadAttention", position="rope")
    assert (fault.key, fault.nearest) == ("model.position", "model.position=sincos2d")


def test_dotted_names_and_trusted_prefixes():
    assert is_dotted("my_lab.fourier.Fourier")
    assert not any(map(is_dotted, ("learned", "my_lab.", ".x", "a b.c", "a/b.c", "1.5", None)))
    assert is_trusted("my_lab.fourier.Fourier", ["my_lab"])
    assert is_trusted("my_lab.fourier.Fourier", ["other", "my_lab.fourier"])
    assert not is_trusted("my_lab_of_others.x.Y", ["my_lab"])
    assert not is_trusted("my_lab.fourier.Fourier", [])


def test_only_the_code_of_a_package_is_reached_by_its_name(lab, tmp_path):
    text = "import functools\nimport os\nfrom os import system\nfrom torch.nn import Identity\nfrom . import layers\n"
    text += "run = functools.partial(system)\nmodule = Identity()\n\n\ndef mine(): ...\n"
    (tmp_path / lab / "reaching.py").write_text(text)
    reaching = f"{lab}.reaching"
    assert load(f"{reaching}.mine").__name__ == "mine"
    for name, problem in {
        f"{reaching}.os.system": "only imports os, the module os",
        f"{reaching}.layers.places": rf"only imports layers, the module {lab}\.layers",
        f"{reaching}.system": "it is defined in posix",
        f"{reaching}.run": "is not a class or function, but of type partial",
        f"{reaching}.module.load_state_dict": "is not a module or class, but of type Identity",
        f"{reaching}.mine.__globals__.get": "__globals__ is a private name",
        f"{reaching}.__loader__.exec_module": "__loader__ is a private name",
        f"{lab}.fourier.Fourier.__init__": "__init__ is a private name",
        f"{lab}.fourier.Fourier.load_state_dict": r"it is defined in torch\.nn",
    }.items():
        with pytest.raises(PartError, match=problem):
            load(name)
    with pytest.raises(PartError) as caught:
        load(f"{reaching}.Identity")
    assert caught.value.near == "torch.nn.modules.linear.Identity"


def test_the_working_directory_stays_importable_once_a_part_of_it_is_loaded(lab, tmp_path):
    with pytest.raises(PartError):
        load(f"{lab}.broken.Part")
    load("torch.nn.RMSNorm")
    assert str(tmp_path) not in sys.path
    (tmp_path / f"beside_{lab}.py").write_text("VALUE = 3\n")
    (tmp_path / "math.py").write_text("VALUE = 4\n")
    text = f"def part():\n    import math\n\n    from beside_{lab} import VALUE\n    return VALUE, math.pi\n"
    (tmp_path / lab / "lazy.py").write_text(text)
    assert load(f"{lab}.lazy.part")() == (3, math.pi)
    assert sys.path[-1] == str(tmp_path), "behind installed packages"
    assert f"beside_{lab}.py" in sources(f"{lab}.lazy.part")


def test_trust_is_a_list_of_dotted_names():
    assert is_trusted("my_lab.fourier.Fourier", TRUST_ALL)
    for trust in ("my_lab", [""], ["my_lab", ""], ["*"], ["my_lab."], [None]):
        with pytest.raises(VitrineError, match="must be a list of dotted names"):
            is_trusted("my_lab.fourier.Fourier", trust)


def test_a_refusal_suggests_the_parts_and_not_their_packages():
    from vitrine.config.schema import CallbacksConfig
    from vitrine.config.trust import check_trust

    with pytest.raises(RunError, match=r"trust=\[torch\.a\.B,torch\.c\.D\] on the command line"):
        check_trust(CallbacksConfig(parts=["torch.a.B", "torch.c.D"]), [], "RUN")


def stored(lab):
    values = to_plain(config(position=f"{lab}.fourier.Fourier"))
    return values, {"model": values}


def test_reading_a_configuration_imports_nothing(lab):
    model, run = stored(lab)
    with pytest.raises(RunError, match=r"unless you allow it: trust=\[lab_\d+\.fourier\.Fourier\]"):
        vit_config_from(model)
    with pytest.raises(RunError, match="not imported unless"):
        from_plain(ViTConfig, model)
    assert not imported(lab)
    assert from_plain(ViTConfig, run["model"], trust=[lab]).position == f"{lab}.fourier.Fourier"


def test_what_a_run_folder_holds_is_data():
    """A name of the standard library is code as any other."""
    values = to_plain(config()) | {"position": "os.system"}
    with pytest.raises(RunError, match=r"names code outside vitrine, position=os\.system"):
        from_plain(ViTConfig, values, trust=["my_lab"])


def test_keys_of_parts_are_stored_only_where_they_are_used(lab):
    assert not any("option" in key or key == "name" for key in to_plain(config()))
    used = to_plain(config(position=f"{lab}.fourier.Fourier", position_options={"bands": 8}))
    assert used["position_options"] == {"bands": 8}
    assert omitted_value("model.position_options.bands") == "default"
    assert omitted_value("model.name") == "vit"
    assert omitted_value("model.dim") is None
    assert omitted_value("unknown.key") is None


def test_a_model_of_the_users_stores_no_keys_of_vits(lab):
    values = to_plain(config(name="torchvision.models.resnet18", options={"width": 3}))
    assert sorted(values) == ["image_size", "in_channels", "name", "num_classes", "options", "patch_size"]
    assert from_plain(ViTConfig, values, trust=["torchvision"]).options == {"width": 3}


def test_every_part_of_the_schema_has_its_options(lab):
    """The field of options is found by name: that it is there is what this tests."""
    fields = _part_fields(TrainConfig)
    assert len(fields) == 16
    assert all(isinstance(interface, Interface) for interface in fields.values())


def _part_fields(schema, prefix=""):
    import dataclasses
    import typing

    from vitrine.config.parts import options_field

    found = {}
    for field in dataclasses.fields(schema):
        kind = typing.get_type_hints(schema)[field.name]
        if dataclasses.is_dataclass(kind):
            found |= _part_fields(kind, f"{prefix}{field.name}.")
        elif "part" in field.metadata:
            assert options_field(field.name) in {other.name for other in dataclasses.fields(schema)}
            found[f"{prefix}{field.name}"] = field.metadata["part"]
    return found


def test_source_follows_imports_inside_the_folder_and_no_further(lab):
    found = sources(f"{lab}.fourier.Fourier")
    assert sorted(found) == [f"{lab}/__init__.py", f"{lab}/fourier.py", f"{lab}/layers.py"]
    assert not imported(lab)  # it is read, not imported


def test_edited_source_has_another_hash_also_where_it_is_imported_from(lab, tmp_path):
    before = code_hash(f"{lab}.fourier.Fourier")
    assert code_hash(f"{lab}.fourier.Fourier") == before
    layers = tmp_path / lab / "layers.py"
    layers.write_text(layers.read_text().replace("0, 1", "0, 2"))
    assert code_hash(f"{lab}.fourier.Fourier") != before


@pytest.mark.parametrize(
    ("edited", "same"),
    [
        ("# new\ndef f(x):  # of x\n\n    return {'a': x, **x}\n", True),
        ('"""New."""\n\ndef f(x):\n    """Of x."""\n    return {"a": x, **x}\n', True),
        ('def f(x): return dict({"a": x, **x})\n', False),
        ('def f(x): return {"b": x, **x}\n', False),
        ('def f(x=""): return {"a": x, **x}\n', False),
    ],
)
def test_comments_docstrings_and_formatting_are_not_hashed(edited, same):
    before = source_hash({"mine.py": 'def f(x): return {"a": x, **x}\n'})
    assert (source_hash({"mine.py": edited}) == before) is same


def test_the_text_of_a_format_is_the_same_in_every_version_of_python():
    """Python 3.12 adds an empty text behind the last field."""
    text = "f'{x!r:>{width}}'"
    (of_3_11, of_3_12) = (ast.parse(text), ast.parse(text))
    parts = of_3_12.body[0].value.values[0].format_spec.values
    parts[2:] = [ast.Constant("")]
    assert source_code._dump(of_3_12) == source_code._dump(of_3_11)
    assert source_hash({"mine.py": "x = ['', 1]"}) != source_hash({"mine.py": "x = [1]"})


@pytest.mark.parametrize("calls", [0, 100])
def test_the_hash_of_nested_source_does_not_depend_on_how_deep_the_caller_is(calls):
    def hash_of(text, calls):
        return hash_of(text, calls - 1) if calls else source_hash({"mine.py": text})

    for terms, same in ((800, True), (1200, False)):
        text = "x = " + " + ".join(["1"] * terms)
        commented = f"{text}  # {calls}"  # another text than the other test's: syntax trees are cached
        assert (hash_of(text, 0) == hash_of(commented, calls)) is same


@pytest.mark.parametrize("text", ["def f(:", "\0", "-" * 100_000 + "1", "-" * 1200 + "1"])
def test_source_that_python_cannot_parse_is_hashed_as_text(text):
    assert source_code._syntax(text) == text


def test_an_installed_package_counts_by_its_version():
    assert sources("torch.nn.RMSNorm") == {}
    assert code_hash("torch.nn.RMSNorm").startswith("torch 2")


def test_an_import_name_that_is_not_the_name_of_the_distribution_has_a_version():
    assert re.fullmatch(r"pillow \d+\..*", code_hash("PIL.Image.open"))


def test_a_package_in_several_folders_is_identified_by_the_source_in_any_of_them(tmp_path, monkeypatch):
    name = f"lab_{next(COUNT)}"
    for folder in ("first", "second"):
        (tmp_path / folder / name).mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / folder)
    source = tmp_path / "first" / name / "mine.py"  # second comes first
    source.write_text("def mine(): ...\n")
    assert load(f"{name}.mine.mine").__name__ == "mine"
    assert sources(f"{name}.mine.mine") == {f"{name}/mine.py": "def mine(): ...\n"}
    before = code_hash(f"{name}.mine.mine")
    source.write_text("def mine(): return 3\n")
    assert code_hash(f"{name}.mine.mine") != before


def test_a_part_without_source_is_refused(lab, tmp_path):
    py_compile.compile(str(tmp_path / lab / "layers.py"), cfile=str(tmp_path / lab / "compiled.pyc"))
    with pytest.raises(PartError, match=rf"{lab}\.compiled has no source file, {lab}/compiled\.py"):
        load(f"{lab}.compiled.places")


def test_a_module_or_class_that_fails_when_it_is_asked_for_a_name_is_one_line(lab, tmp_path):
    text = "class Meta(type):\n    def __getattr__(self, name):\n        return 1 / 0\n\n\n"
    text += "class Odd(metaclass=Meta): ...\n"
    (tmp_path / lab / "odd.py").write_text(f"{text}\n\ndef __getattr__(name):\n    raise ImportError('not here')\n")
    with pytest.raises(PartError, match=r"cannot be imported: ImportError: not here \(.*odd.py, line \d+\)$"):
        load(f"{lab}.odd.Part")
    with pytest.raises(PartError, match=r"cannot be imported: ZeroDivisionError: .*odd.py, line 3\)$"):
        load(f"{lab}.odd.Odd.part")


def test_a_part_that_raises_is_one_line(lab, tmp_path):
    (tmp_path / lab / "raising.py").write_text("class Part:\n    def __init__(self):\n        raise KeyError('no')\n")
    for interface in (Interface(), Interface(function=True)):
        part = Part("callbacks.parts", f"{lab}.raising.Part", "callbacks.parts_options.Part", {}, interface)
        with pytest.raises(PartError, match=r"cannot be built: KeyError: 'no' \(.*raising.py, line 3\)$"):
            function(part) if interface.function else build(part)
    with pytest.raises(ZeroDivisionError), as_part_error("cross_entropy", "failed"):
        1 / 0  # noqa: B018


def test_an_option_whose_name_is_a_number_is_a_fault(lab):
    fault = only_fault(position=f"{lab}.fourier.Fourier", position_options={1: 2})
    assert (fault.key, fault.given) == ("model.position_options.1", "2")


def test_load_raises_with_the_reason(lab):
    assert load(f"{lab}.fourier.Fourier").__name__ == "Fourier"
    with pytest.raises(PartError, match=f"{lab}.fourier has no X"):
        load(f"{lab}.fourier.X")


def test_a_list_of_parts_has_options_by_class():
    from vitrine.config.schema import CallbacksConfig

    callbacks = CallbacksConfig(parts=["a.B", "c.D"], parts_options={"D": {"x": 1}})
    assert [(part.name, part.options_key, part.options) for part in parts_of(callbacks, "callbacks.")] == [
        ("a.B", "callbacks.parts_options.B", {}),
        ("c.D", "callbacks.parts_options.D", {"x": 1}),
    ]
