"""The sentence that names the test behind a table's intervals and p-values."""

import math

import numpy as np
import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import difference
from vitrine.compare.load import load_results
from vitrine.compare.method import method_of, sequential_method
from vitrine.compare.notes import notes
from vitrine.compare.simultaneous import Family
from vitrine.compare.table import ConfigurationRow
from vitrine.compare.table_formats import latex, markdown

START = "intervals and p-values of differences: "
ROW = ConfigurationRow("learned", {}, {0: None, 1: None, 2: None})
NOISE = np.random.default_rng(0).normal(size=(2, 20))


def values(seeds, side=0):
    return {seed: float(NOISE[side, seed]) for seed in seeds}


@pytest.mark.parametrize(
    ("ours", "theirs", "test"),
    [
        (range(5), range(5), "paired t-test over 5 seeds; own variances; no correction for a single comparison"),
        (
            range(9),
            range(6),
            "t-test of partly paired samples (Derrick, Toher and White, 2017) over 6 to 9 seeds; own variances; "
            "no correction for a single comparison",
        ),
        (
            range(9),
            range(10, 19),
            "Welch's t-test over 9 seeds; own variances; no correction for a single comparison",
        ),
        (
            range(3),
            range(3, 6),
            "Welch's t-test over 3 seeds; own variances; no correction for a single comparison; without full pairs, "
            "critical values raised for few seeds",
        ),
    ],
)
def test_seeds_decide_the_test_that_is_named(ours, theirs, test):
    assert method_of([difference(values(ours), values(theirs, 1))], Family(), math.nan, [ROW]) == START + test


def test_several_tests_and_corrections_are_counted_and_what_was_not_tested_is_not():
    three = range(5)
    paired, welch = difference(values(three), values(three, 1)), difference(values(three), values(range(7, 14)))
    same = difference(values(three), values(three))
    named = method_of([paired, welch, welch, same], Family(4), 0.1, [ROW])
    assert named == (
        f"{START}1 by paired t-test and 2 by Welch's t-test over 5 to 7 seeds; own variances (Levene's p = 0.1); "
        "Bonferroni's correction for 4 comparisons; without full pairs, critical values raised for few seeds; "
        "p = 1 without a test where both sides have equal values"
    )
    assert method_of([same], Family(), math.nan, [ROW]) == "p = 1 without a test where both sides have equal values"
    assert method_of([], Family(), math.nan, [ROW]) == ""
    tukey = method_of([paired], Family(6, "tukey", pooled=True), 0.5, [ROW], all_pairs=True)
    assert "Tukey's correction for all 6 pairs at 2 % (p-values times 2.5), since variances may differ" in tukey
    bonferroni = method_of([paired], Family(6), 0.1, [ROW], all_pairs=True)
    assert bonferroni.endswith("; Bonferroni's correction for all 6 pairs")
    assert sequential_method(0.9).endswith("they are simultaneous at 90 %")


def test_below_the_table_stand_the_test_and_what_follows_plus_minus(sweep):
    compared = compare(load_results([sweep]))
    mean, method = compared.notes
    assert mean.startswith("± is half the width of the 95 % confidence interval of the mean over seeds (Student's t), ")
    assert mean.endswith("not a standard deviation")
    assert method.startswith(f"{START}paired t-test over 3 seeds; ")
    assert "; variance over test images added where that widens the interval (Clark, 1973)" in method
    assert f"\n% {mean}\n% {method}" in latex(compared)
    assert f"\n- {mean}\n- {method}\n" in markdown(compared)
    lopsided = ConfidenceInterval.of([0.98, 0.999, 0.997], proportion=True)
    assert notes(compared.table, [lopsided], "") == [f"{mean}; where it is not symmetric, brackets hold its bounds"]
    these = compare(load_results([sweep]), fixed_images=True).notes[1]
    assert these == method.replace("; variance over test images added where that widens the interval (Clark, 1973)", "")
