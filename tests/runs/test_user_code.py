"""The source of a user's parts in a run folder."""

import sys
from importlib import import_module

import pytest
from helpers.user_parts import write_package

from vitrine.config import source_code
from vitrine.config.parts import load
from vitrine.config.schema import TrainConfig
from vitrine.config.source_code import code_hash
from vitrine.errors import RunError
from vitrine.runs.record import RunRecord
from vitrine.runs.user_code import edited_parts, store_code, trust_overrides

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


def test_a_module_that_was_imported_and_edited_before_it_is_named_is_not_stored(record, config, tmp_path, monkeypatch):
    for module in [module for module in sys.modules if module.startswith(LAB)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(source_code, "_imported", {})
    monkeypatch.syspath_prepend(tmp_path)
    import_module(f"{LAB}.fourier")
    load.cache_clear()
    load(FOURIER)
    store_code(record, config)
    source_code._imported.clear()
    layers = tmp_path / LAB / "layers.py"
    layers.write_text(layers.read_text().replace("0, 1", "0, 10"))
    load.cache_clear()
    load(FOURIER)
    with pytest.raises(RunError, match=f"{LAB}/layers.py was edited after this process imported it"):
        store_code(record, config)


def test_a_module_that_has_replaced_itself_counts_as_what_its_file_holds(config, monkeypatch):
    monkeypatch.setattr(source_code, "_imported", {})
    monkeypatch.setitem(sys.modules, f"{LAB}.layers", object())
    source_code.remember_sources(FOURIER)
    assert not source_code.edited_since_import(FOURIER)
