"""One spelling of an override: however it is typed, it makes the same trials, sweep and search."""

import pytest
from helpers.searching import search
from hydra.core.override_parser.overrides_parser import OverridesParser

from vitrine.command.compose import points
from vitrine.command.spelling import spelled_value
from vitrine.errors import ConfigError
from vitrine.sweeps.fingerprint import fingerprint
from vitrine.sweeps.sweep import Sweep


def made(*overrides, multirun=True):
    return points("train", ["model=vit_nano", *overrides], multirun=multirun)


@pytest.mark.parametrize(
    ("typed", "key", "values"),
    [
        ("++seed=0,1", "seed", ["0", "1"]),
        ("seed=range(1,3)", "seed", ["1", "2"]),
        ("optimizer.weight_decay=0.0,.1", "optimizer.weight_decay", ["0", "0.1"]),
        ("optimizer.weight_decay=0,1e-1", "optimizer.weight_decay", ["0", "0.1"]),
        ("optimizer.lr=range(0.1,0.5,0.1)", "optimizer.lr", ["0.1", "0.2", "0.3", "0.4"]),
        ("optimizer.lr=range(0.5,0.2,-0.1)", "optimizer.lr", ["0.5", "0.4", "0.3"]),
        ("optimizer.lr=range(0.4,0.8,0.1)", "optimizer.lr", ["0.4", "0.5", "0.6", "0.7"]),
        ("optimizer.betas=[0,.9],[0.0,0.9]", "optimizer.betas", ["[0,0.9]", "[0,0.9]"]),
        ("++sweep.space={optimizer.lr:[1.0,0.10]}", "optimizer.lr", ["1", "0.1"]),
        ("sweep.space={position:[learned,rope]}", "position", ["learned", "rope"]),
    ],
)
def test_values_have_one_spelling(typed, key, values):
    assert [point.varies for point in made(typed)] == [{key: value} for value in values]


def test_a_text_in_a_list_that_is_not_typed_is_spelled_as_a_text():
    values = [["null", "01", "a,b", "True", "1e3", ""], ["c", "b d", "3x"], [None, 1, 0.5]]
    assert OverridesParser.create().parse_override(f"x={spelled_value(values)}").value() == values
    assert spelled_value(values).endswith(r"a\,b,'True','1e3',''],[c,b\ d,3x],[null,1,0.5]]")


def test_a_step_of_a_range_is_the_number_that_is_shown():
    third = made("optimizer.lr=range(0.1,0.5,0.1)")[2]
    assert fingerprint(third.config.run) == fingerprint(made("optimizer.lr=0.3", multirun=False)[0].config.run)


def test_a_sweep_and_a_search_are_found_by_any_spelling(tmp_path):
    sweeps = [["seed=0,1", "++data.workers=1", "optimizer.lr=1"], ["++seed=0,1", "++optimizer.lr=1.0"]]
    planned = [Sweep.plan(made(f"paths.output_dir={tmp_path}", *overrides)) for overrides in sweeps]
    assert len({sweep.folder for sweep in planned}) == 1
    assert [trial.folder.name.partition("_")[0] for trial in planned[0].trials] == ["seed-0", "seed-1"]
    decays = ("0.1", "1e-1", ".1", "0.2 optimizer.weight_decay=0.1")
    random = ["sweep.sampler=random", "sweep.n_trials=2", "optimizer.lr=interval(1e-4,1e-2)"]
    found = [search(tmp_path, *random, *f"optimizer.weight_decay={decay}".split()).sweep.folder for decay in decays]
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "spellings",
    [
        ["++sweep.space={model.drop_path:{low:0,high:0.3}}", "model.drop_path=interval(0,0.3)"],
        ["++sweep.space={model.depth:{low:1,high:3}}", "model.depth=interval(1,3)"],
        [f"++sweep.space={{model.depth:{{low:2,high:8,step:{step}}}}}" for step in ("2", "2.0")],
    ],
)
def test_a_search_is_found_by_any_spelling_of_an_interval(tmp_path, spellings):
    random = ["model=vit_nano", "sweep.sampler=random", "sweep.n_trials=2"]
    assert len({search(tmp_path, *random, spelling).sweep.folder for spelling in spellings}) == 1


def test_a_search_with_a_quoted_override_is_found_again(tmp_path):
    """Its name has a space, a colon and a comma, and the search stores it without the quotes that they need."""
    root = tmp_path / "my photos: cats, dogs"
    for name in ("cat", "dog"):
        (root / "train" / name).mkdir(parents=True)
        (root / "train" / name / "a.png").touch()
    images = ["data=imagefolder", f"data.root='{root}'", "data.num_classes=2"]
    overrides = ["optimizer.lr=interval(1e-4,1e-2)", "sweep.sampler=random", "sweep.n_trials=1", "sweep.name=mine"]
    assert len({search(tmp_path, *images, *overrides).sweep.folder for _ in range(2)}) == 1


def test_equal_values_of_a_search_are_one():
    (point,) = made("optimizer.weight_decay=0,0.0,.1", "sweep.sampler=grid")
    assert point.space == {"optimizer.weight_decay": ("0", "0.1")}


@pytest.mark.parametrize("sampler", [[], ["sweep.sampler=grid", "sweep.metrics=[images_per_second]"]])
@pytest.mark.parametrize("typed", ["data.workers=1,2", "logger=csv,tensorboard", "++sweep.space={data.workers:[1,2]}"])
def test_a_key_that_makes_no_other_trial_does_not_vary(sampler, typed):
    with pytest.raises(ConfigError, match=r"cannot vary: it does not change the result, .* one trial; give one value"):
        made(typed, "position=learned,rope", *sampler)
