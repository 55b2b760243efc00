"""What a search may vary, as it is typed or written, and what is refused before anything starts."""

import subprocess
import sys

import pytest
import yaml

from vitrine.command.compose import composing, conf, points
from vitrine.command.space import Interval, read_space, space_of
from vitrine.config.sweep import SweepConfig
from vitrine.errors import ConfigError

TPE = ["sweep.sampler=tpe", "sweep.n_trials=9"]


@pytest.fixture
def space(tmp_path):
    """The space of a search that these overrides ask for."""

    def call(*overrides):
        (point,) = points("train", [f"paths.output_dir={tmp_path}", *overrides], multirun=True)
        return point.space

    return call


@pytest.fixture
def refusal(space):
    """The faults for which a search is refused, as they are told."""

    def call(*overrides):
        with pytest.raises(ConfigError) as error:
            space(*overrides)
        return str(error.value)

    return call


def written(**values):
    """The faults of a space as it stands in YAML."""
    full = {"lr": "optimizer.lr", "depth": "model.depth"}
    found = read_space(yaml.safe_load(yaml.safe_dump({full.get(key, key): value for key, value in values.items()})))[1]
    return "\n".join(map(str, found))


@pytest.mark.whole
def test_a_space_is_written_in_yaml_and_typed_over(space):
    assert space("sweep=optuna/lr_wd", "model=vit_nano") == {
        "optimizer.lr": Interval(1e-4, 1e-2, log=True),
        "optimizer.weight_decay": Interval(1e-3, 1.0, log=True),
    }
    assert space("sweep=optuna/lr_wd", "optimizer.lr=1e-3,3e-3", "patch=2,4", "optimizer.weight_decay=0.1") == {
        "optimizer.lr": ("0.001", "0.003"),
        "patch": ("2", "4"),
    }
    assert space(*TPE, "model.depth=interval(1,6)", "seed=3") == {"model.depth": Interval(1, 6, whole=True)}


@pytest.mark.parametrize("path", sorted((conf() / "sweep" / "optuna").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_search_in_conf_can_begin(space, path):
    assert space(f"sweep=optuna/{path.stem}")


def test_numbers_are_typed_with_six_digits_inside_their_interval():
    rates = Interval(1.23456212e-4, 1e-2, log=True)
    assert rates.text(0.00123456789) == "0.00123457"
    assert rates.text(rates.low) == "0.000123456212"  # not below it
    assert Interval(1, 6, whole=True).text(3.0) == "3"
    assert Interval(0.0, 0.3, step=0.1).numbers == pytest.approx((0.0, 0.1, 0.2, 0.3))
    assert Interval(1, 6, step=2, whole=True).numbers == (1, 3, 5)
    assert Interval(0.0, 1.0).numbers == ()


def test_what_cannot_be_an_interval_is_reported():
    assert "low must be <= high" in written(lr={"low": 2, "high": 1})
    assert "low must be > 0 where log is true" in written(lr={"low": 0, "high": 1, "log": True})
    assert "takes log or step" in written(lr={"low": 1, "high": 2, "log": True, "step": 0.5})
    assert "step must be > 0 and at most high - low" in written(lr={"low": 1, "high": 2, "step": 3})
    unknown = written(lr={"lo": 1, "high": 2})
    assert "sweep.space.optimizer.lr.lo" in unknown
    assert "did you mean low?" in unknown
    assert "needs low" in unknown
    assert "must be a number" in written(lr={"low": "x", "high": 2})
    assert "must be an integer" in written(depth={"low": 1.5, "high": 2})
    assert "must be true or false" in written(lr={"low": 1, "high": 2, "log": 3})
    assert "not a number; list values" in written(position={"low": 1, "high": 2})
    assert "needs a list of values" in written(lr=3)
    assert "needs a list of values" in written(lr=[])
    assert written(lr={"low": 1, "high": 1}) == written(depth=[1, None]) == ""


def test_unknown_keys_and_values_of_a_space_are_reported_with_the_nearest(refusal):
    at_once = refusal(
        *TPE,
        "position=lerned,rope",
        "optimiser.lr=interval(1,2)",
        "optimizer.lr=interval(2,1)",
        "optimizer.name=interval(1,2)",
    )
    for problem in (
        "did you mean position=learned?",
        "did you mean optimizer.lr?",
        "low must be <= high",
        "is not a number",
    ):
        assert problem in at_once
    assert "did you mean tpe?" in refusal("sweep.sampler=tbe", "sweep.n_trials=9", "depth=1,2")
    assert "must be > 0 and <= 100" in refusal(*TPE, "optimizer.lr=interval(1e-5,200)")
    with composing() as loader:
        sweep = SweepConfig(sampler="tpe", n_trials=9, space={"rerun": [True, False], "depht": [1, 2]})
        shared, unknown = space_of(sweep, [], loader)[1]
    assert "is shared by all trials" in str(shared)
    assert "did you mean depth?" in str(unknown)


def test_values_in_yaml_are_spelled_as_those_that_are_typed(space):
    values = {"model.class_token": [True, False], "data.mean": [[0.5], [0.25]]}
    values |= {"callbacks.metrics": [[], ["auroc"]], "loss.class_weights": [{"1": 2}, None]}
    with composing() as loader:
        written, found = space_of(SweepConfig(sampler="tpe", n_trials=9, space=values), [], loader)
    assert found == []
    typed = ["model.class_token=True,false", "data.mean=[0.5],[0.25]"]
    typed += ["callbacks.metrics=[],[auroc]", "loss.class_weights={1:2},null"]
    assert written == space(*TPE, *typed)
    assert written["model.class_token"] == ("true", "false")
    assert written["loss.class_weights"] == ("{1:2}", "null")


def test_what_a_search_cannot_optimise_is_reported(refusal):
    lr = "optimizer.lr=interval(1e-4,1e-3)"
    test = refusal(*TPE, lr, "sweep.metrics=[test/acc]")
    assert "models are selected on the validation split" in test
    assert "did you mean val/acc?" in test
    assert "val/ac\n      is not one of val/acc, " in refusal(*TPE, lr, "sweep.metrics=[val/ac]")
    assert "different metrics" in refusal(*TPE, lr, "sweep.metrics=[val/acc,val/acc]")
    for varied in ("loss=cross_entropy,focal", "loss.gamma=interval(0.0,5.0)"):
        assert "measures another loss for each value" in refusal(*TPE, "loss=focal", varied, "sweep.metrics=[val/loss]")
    assert "measured after each epoch" in refusal(*TPE, lr, "sweep.metrics=[parameters]", "sweep.pruner=median")
    assert "measured after each epoch" in refusal(*TPE, lr, "sweep.metrics=[val/acc,val/loss]", "sweep.pruner=median")


def test_what_excludes_each_other_in_a_search_is_reported(refusal):
    lr = "optimizer.lr=interval(1e-4,1e-3)"
    at_once = refusal(lr, "sweep.sampler=cmaes", "sweep.n_trials=0", "seed=1,2", "sweep.metrics=[val/acc,val/loss]")
    for problem in ("must be >= 1", "at least two intervals", "takes a single metric", "sweep.repeats=3"):
        assert problem in at_once
    written = "sweep.space={data.targets:[[a],[b]],data.val_fraction:[0.2]}"
    folds = refusal(*TPE, lr, "data.folds=3", "data.fold=0,1,2", "data.val_seed=0,1", "data=digits,mnist", written)
    for key in ("data", "data.targets", "data.fold", "data.val_seed"):
        assert f"{key}\n      chooses the validation images or labels, and a search would find the easiest" in folds
    assert "data.folds\n" not in folds
    assert "did you mean data.val_fraction=0.2?" in folds
    empty = refusal("sweep.sampler=tpe")
    assert "is empty" in empty
    assert "is required for a search" in empty
    assert "needs a step" in refusal(lr, "sweep.sampler=grid")
    assert "applies to searches only" in refusal("seed=1,2", "sweep.pruner=median")
    for of_decisions in ("metric=val/loss", "alpha=0.1", "difference=0.01", "min_seeds=4", "max_seeds=9"):
        refused = refusal(*TPE, lr, f"sweep.{of_decisions}")
        assert f"sweep.{of_decisions}\n      applies to decisions only" in refused
        assert ("did you mean sweep.metrics=[val/loss]?" in refused) == ("metric" in of_decisions)
    points = "sweep.difference=1\n      must be below 1, as the metric is in [0, 1]: 0.01 is one point"
    assert points in refusal("sweep=decide", "position=learned,none", "sweep.difference=1")
    assert "or search it: sweep.sampler=tpe" in refusal(lr)
    assert "must divide the image size" in refusal(*TPE, lr, "patch=7")
    assert "must divide the image size" in refusal(*TPE, "patch=7,14")


def test_the_search_begins_where_something_can_be_trained(space):
    assert space(*TPE, "patch=7,4")["patch"] == ("7", "4")


def test_nothing_is_imported_or_written_to_refuse_a_search(tmp_path):
    code = (
        "import sys; from vitrine.command.compose import points; from vitrine.errors import ConfigError\n"
        f"points('train', ['paths.output_dir={tmp_path}', 'sweep=optuna/lr_wd'], multirun=True)\n"
        "print(sorted({'torch', 'optuna', 'lightning'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr
    assert list(tmp_path.iterdir()) == []
