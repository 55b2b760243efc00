"""Files that another person may have written: what is refused, quickly, and what is read."""

import json
import time

import pytest
from helpers.bombs import YAML_BOMB

from vitrine import untrusted
from vitrine.untrusted import ANY, NUMBER, check_nesting, misshapen, read_json, read_yaml


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (YAML_BOMB, "alias"),
        ("a: &a {x: 1}\nb: {<<: [*a, *a]}", "alias"),
        ("&a [*a]", "alias"),
        ("[" * 400_000, "deeper than 20|maximum nesting depth"),  # the second by PyYAML 6.0.4 itself
        ("- " * 400_000 + "1", "deeper than 20"),
        ("".join(" " * level + "a:\n" for level in range(1000)), "deeper than 20"),
        ("a: b\n" * 300_000, "larger than 1 MiB"),
        ("a: [1", "line 2: did not find expected"),
        ("a: !!python/object/apply:os.system [id]", "line 1: could not determine a constructor"),
        ("a: !!int ''", "type of its tag"),
        ("a: !!timestamp x", "type of its tag"),
        ('a: "\0"', "control characters"),
        ("a: " + "9" * 10_000, "more than 1,000 digits"),
        ("a: 1" + ":1" * 500_000, "more than 1,000 digits"),
        ("a: 1" + ":1" * 500_000 + ".5", "more than 1,000 digits"),
        ("a: ! 1" + ":1" * 500_000, "more than 1,000 digits"),
        ('a: !!int "1' + ": 1" * 300_000 + '"', "more than 1,000 digits"),
        (b"a: \xff", "utf-8"),
    ],
)
def test_yaml_that_is_no_configuration_is_refused_at_once(tmp_path, text, problem):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.perf_counter()
    with pytest.raises(ValueError, match=problem):
        read_yaml(path)
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 400_000, "deeper than 20"),
        ("[" * 500 + "]" * 500, "deeper than 20"),
        ("9" * 10_000, "4300 digits"),
        ("{", "^it is not JSON$"),
        (b'"\xff"', "utf-8"),
    ],
)
def test_json_that_is_no_record_is_refused(tmp_path, text, problem):
    path = tmp_path / "run.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=problem):
        read_json(path)


def test_a_file_beyond_the_limit_is_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(["x" * 1000]))
    monkeypatch.setattr(untrusted, "MAX_JSON", 500)
    with pytest.raises(ValueError, match="larger than"):
        read_json(path)


def test_values_within_the_limits_are_read(tmp_path):
    values = {"a": [1, 2.5, None, True, "x", "9" * 5000], "b": {"c": {"d": []}}}
    for name, read in (("a.json", read_json), ("a.yaml", read_yaml)):
        (tmp_path / name).write_text(json.dumps(values))
        assert read(tmp_path / name) == values


def test_a_value_that_occurs_many_times_counts_each_time(monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_VALUES", 10_000)
    bomb = ["x"] * 10
    for _ in range(9):
        bomb = [bomb] * 10
    with pytest.raises(ValueError, match="more than 10,000 values"):
        check_nesting({"config": bomb})
    deep = []
    for _ in range(21):
        deep = [deep]
    with pytest.raises(ValueError, match="deeper than 20"):
        check_nesting(deep)


SHAPES = {
    "text": str,
    "count": int,
    "id": range(1, 10),
    "names": [str],
    "speed": {ANY: NUMBER},
    "code": {"commit": str},
}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"text": 5}, "text must be text, not a number"),
        ({"count": "5"}, "count must be a whole number, not text"),
        ({"count": True}, "count must be a whole number, not true or false"),
        ({"count": 10**30}, "count is too large"),
        ({"id": 10**30}, "id must be a whole number from 1 to 9"),
        ({"id": 0}, "id must be a whole number from 1 to 9"),
        ({"names": "abc"}, "names must be a list, not text"),
        ({"names": ["a", {}]}, "an item of names must be text, not an object"),
        ({"speed": {"x": "fast"}}, "speed.x must be a number, not text"),
        ({"code": "str"}, "code must be an object, not text"),
        ({"code": {"commit": []}}, "code.commit must be text, not a list"),
        ({"text": None, "count": 5, "id": 9, "names": [], "speed": {"x": 0.5}, "code": {"other": []}, "new": [1]}, ""),
    ],
)
def test_an_entry_of_another_shape_is_named(values, problem):
    assert misshapen(values, SHAPES) == problem
