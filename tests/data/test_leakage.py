"""Files with equal bytes are found in whichever splits they are."""

from vitrine.data.leakage import TAIL, repeated


def test_equal_files_in_two_splits_are_found_under_any_name(tmp_path):
    contents = {
        "train/a": b"x" * 3 * TAIL,
        "train/b": b"y" + b"x" * (3 * TAIL - 1),  # of equal size and end
        "train/c": b"z" * 9,
        "train/c again": b"z" * 9,
        "val/d": b"x" * 3 * TAIL,
        "val/e": b"w" * 3 * TAIL,
        "test/f": b"z" * 9,
        "test/g": b"",
        "test/h": b"x" * 3 * TAIL,
    }
    splits = {}
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        splits.setdefault(path.parent.name, []).append(path)
    found = {(first.name, second.name) for first, second in repeated(splits)}
    assert found == {("a", "d"), ("a", "h"), ("c", "f")}
