"""Metrics that a configuration names, built-in ones and functions of a user's own."""

import pytest
from helpers.user_parts import enter_lab

from vitrine.command.compose import points
from vitrine.config.metrics import lower_is_better
from vitrine.errors import ConfigError

LAB = "lab_of_metrics"
METRICS = """
def worst_class(logits, labels, share=0.5): ...
def ece(logits, labels): ...
def needy(logits): ...
"""
OWN = f"callbacks.metrics=[ece,{LAB}.own.worst_class]"
SEARCH = ["depth=1,2", "sweep.sampler=random", "sweep.n_trials=2"]
TARGETS = ["data=digits", "data.targets=[digit,above5]"]
DECIDE = ["depth=1,2", "sweep=decide"]


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    enter_lab(tmp_path, monkeypatch, LAB, own=METRICS, more=METRICS)


def composed(*overrides):
    return points("train", ["model=vit_nano", *overrides], multirun="depth=1,2" in overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["callbacks.metrics_options.worst_class.share=1"],
        ["callbacks.monitor=val/worst_class"],
        ["callbacks=early_stopping", "callbacks.early_stopping.monitor=val/worst_class"],
        [*SEARCH, "sweep.metrics=[val/worst_class]"],
        [*DECIDE, "sweep.metric=test/worst_class"],
    ],
)
def test_a_metric_of_ones_own_is_known_wherever_a_metric_is_named(overrides):
    (point, *_) = composed(OWN, *overrides)
    assert point.config.callbacks.measured == ["ece", "worst_class"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([f"callbacks.metrics=[{LAB}.own.ece]"], f"={LAB}.own.ece must have another name: ece is a built-in metric"),
        ([f"callbacks.metrics=[{LAB}.own.worst_class,{LAB}.more.worst_class]"], "another part of the list has this"),
        ([f"callbacks.metrics=[{LAB}.own.worst_clas]"], f"did you mean callbacks.metrics={LAB}.own.worst_class?"),
        ([f"callbacks.metrics=[{LAB}.own.needy]"], "must be callable as needy(logits, labels, **options)"),
        (["callbacks.metrics=[ec]"], "or the dotted name of a function of yours did you mean ece?"),
        ([OWN, "callbacks.metrics_options.ece.bins=3"], "callbacks.metrics names no part ece"),
        ([OWN, "callbacks.monitor=val/worst_clas"], "did you mean val/worst_class?"),
        (["callbacks.monitor=val/worst_class"], "last, or a function of yours in callbacks.metrics"),
        ([OWN, *SEARCH, "sweep.metrics=[val/worst]"], "did you mean val/worst_class?"),
        ([OWN, *SEARCH, "sweep.metrics=[val/auroc]"], f"add callbacks.metrics=[ece,{LAB}.own.worst_class,auroc]"),
        ([*TARGETS, "callbacks.monitor=val/acc/above5"], "the first select: data.targets=[above5,digit]"),
        ([*TARGETS, *DECIDE, "sweep.metric=test/acc/above5"], "the first select: data.targets=[above5,digit]"),
        ([OWN, *DECIDE, "sweep.metric=worst_class"], "did you mean val/worst_class?"),
        ([OWN, *DECIDE, "sweep.metric=val/ece"], "=val/ece cannot be decided by: of finitely many images, the"),
        ([*DECIDE, "sweep.metric=test/ece"], "is a proper score did you mean test/loss?"),
    ],
)
def test_a_metric_that_is_not_measured_is_refused_in_one_line(overrides, problem):
    with pytest.raises(ConfigError) as error:
        composed(*overrides)
    assert len({fault.key for fault in error.value.faults}) == 1
    assert problem in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        *dict.fromkeys(["Brier", "NLL", "ErrorRate", "RMSEOfDepth", "MulticlassNLL", "top5_Error"], True).items(),
        *dict.fromkeys(["Topk", "WorstClass", "LossyAcc", "Terror"], False).items(),
    ],
)
def test_a_metric_that_is_a_class_is_lower_is_better_by_the_words_of_its_name(name, lower):
    assert lower_is_better(f"val/{name}") == lower_is_better(f"test/{name}/animal") == lower
