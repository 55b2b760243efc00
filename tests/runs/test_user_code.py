"""The source of a user's parts in a run folder."""

import sys

import pytest
from helpers.user_parts import write_package

from vitrine.config.parts import load
from vitrine.config.schema import TrainConfig
from vitrine.config.source_code import MAX_COPY, MAX_IMPORTS, code_hash, source_hash, sources, text_hash
from vitrine.errors import RunError
from vitrine.runs.record import RunRecord
from vitrine.runs.user_code import MAX_PARTS, code_hashes, edited_parts, store_code, trust_overrides

LAB = "lab_of_runs"
FOURIER = f"{LAB}.fourier.Fourier"


@pytest.fixture
def config(tmp_path, monkeypatch) -> TrainConfig:
    monkeypatch.chdir(tmp_path)
    write_package(tmp_path, LAB)
    from vitrine import compose

    config = compose(["model=vit_nano"])
    config.model.position = FOURIER
    return config


@pytest.fixture
def record(tmp_path) -> RunRecord:
    return RunRecord.at(tmp_path / "run")


def test_a_part_whose_hash_is_unknown_counts_as_edited(record, config):
    for parts in ({}, {"parts": {}}, {"parts": {FOURIER: "0"}}):
        record.update(**parts)
        assert edited_parts(record, config) == [FOURIER]
    record.update(parts={FOURIER: code_hash(FOURIER)})
    assert edited_parts(record, config) == []
    assert trust_overrides(record.facts) == [f"trust=[{FOURIER}]"]
    record.update(teacher={"parts": ["lab.Taught", FOURIER]})
    assert trust_overrides(record.facts) == [f"trust=[{FOURIER},lab.Taught]"]


@pytest.mark.parametrize("copied", [True, False])
def test_a_run_that_has_a_hash_of_the_text_is_recognised(record, config, tmp_path, copied):
    """Earlier versions hashed the text: what became of it counts where the run folder has it."""
    if copied:
        store_code(record, config)
    record.update(parts={FOURIER: text_hash(sources(FOURIER))})
    assert edited_parts(record, config) == []
    layers = tmp_path / LAB / "layers.py"
    layers.write_text(layers.read_text() + "# edited\n")
    assert edited_parts(record, config) == ([] if copied else [FOURIER])
    layers.write_text(layers.read_text().replace("0, 1", "0, 2"))
    assert edited_parts(record, config) == [FOURIER]


def test_a_name_that_no_file_can_have_keeps_its_hash(record):
    (record.path / "parts").mkdir()
    name = f"{'a' * 300}.Part"
    record.update(parts={name: "0"})
    assert code_hashes(record, [name]) == {name: "0"}


def test_a_large_file_in_a_run_folder_is_not_read(record, config):
    store_code(record, config)
    (record.path / "parts" / LAB / "layers.py").write_text("#" * (MAX_COPY + 1))
    assert sorted(sources(FOURIER, record.path / "parts")) == [f"{LAB}/__init__.py", f"{LAB}/fourier.py"]


def test_a_part_whose_source_in_a_run_folder_is_large_has_none(record, config):
    store_code(record, config)
    layers = record.path / "parts" / LAB / "layers.py"
    for text in ("#" * MAX_COPY, f"from . import {', '.join(f'm{number}' for number in range(MAX_IMPORTS))}"):
        layers.write_text(text)
        assert sources(FOURIER, record.path / "parts") == {}


def test_hashes_of_the_parts_that_the_configuration_names_are_renewed(record):
    texts = {f"m{number}.py": f"x = {number}\n" for number in range(MAX_PARTS + 2)}
    old = {f"{path[:-3]}.Part": text_hash({path: text}) for path, text in texts.items()}
    new = {f"{path[:-3]}.Part": source_hash({path: text}) for path, text in texts.items()}
    (record.path / "parts").mkdir()
    for path, text in texts.items():
        (record.path / "parts" / path).write_text(text)
    record.update(parts=old)
    record.write_config({"model": {"position": "m3.Part"}, "callbacks": {"parts": ["m4.Part", "m5"]}})
    assert code_hashes(record) == old | {name: new[name] for name in ("m3.Part", "m4.Part")}
    record.write_config({"callbacks": {"parts": list(old)}})
    assert code_hashes(record) == old | dict(list(new.items())[:MAX_PARTS])


@pytest.mark.parametrize("link", ["parts", f"parts/{LAB}", f"parts/{LAB}/fourier.py"])
def test_links_out_of_a_run_folder_are_not_followed(record, config, tmp_path, link):
    store_code(record, config)
    (record.path / link).rename(tmp_path / "elsewhere")
    (record.path / link).symlink_to(tmp_path / "elsewhere")
    assert f"{LAB}/fourier.py" not in sources(FOURIER, record.path / "parts")


def test_earlier_source_gets_the_next_free_number(record, config):
    (record.path / "parts.2").mkdir()
    for _ in range(3):
        store_code(record, config)
    assert sorted(path.name for path in record.path.glob("parts*")) == ["parts", "parts.1", "parts.2", "parts.3"]


def test_source_that_was_edited_after_it_was_imported_is_not_stored(record, config, tmp_path, monkeypatch):
    for module in [module for module in sys.modules if module.startswith(LAB)]:
        monkeypatch.delitem(sys.modules, module)
    load.cache_clear()
    load(FOURIER)
    store_code(record, config)
    layers = tmp_path / LAB / "layers.py"
    layers.write_text(layers.read_text() + "# edited\n")
    store_code(record, config)
    layers.write_text(layers.read_text().replace("0, 1", "0, 2"))
    with pytest.raises(RunError, match=f"{LAB}/layers.py was edited after this process imported it"):
        store_code(record, config)
    load.cache_clear()
    load(f"{LAB}.fourier.Halved")  # of the module as it was imported
    with pytest.raises(RunError, match="run the command again; in a notebook, restart the kernel"):
        store_code(record, config)
