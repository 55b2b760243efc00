"""Sequential decisions: boundaries against published ones, errors by simulation, and the rules around them."""

import doctest
import math

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from vitrine.compare import sequential, sequential_boundaries
from vitrine.compare.sequential import Decision
from vitrine.compare.sequential_boundaries import (
    boundaries,
    group_sequential_levels,
    group_sequential_t,
    mixture_t,
    planned_levels,
    spending,
)
from vitrine.compare.sequential_rule import Rule, image_variance, welch_freedom

TIMES = np.arange(1, 6) / 5
# Lan and DeMets' spending functions at five equal looks, two-sided 5 %: R's ldbounds, and Reboussin et al. (2000).
PUBLISHED = {
    "O'Brien-Fleming": (
        4 * stats.norm.sf(stats.norm.isf(0.05 / 4) / np.sqrt(TIMES)),
        [4.8769, 3.3569, 2.6803, 2.2898, 2.0310],
    ),
    "Pocock": (0.05 * np.log(1 + (math.e - 1) * TIMES), [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_boundaries_spend_what_their_functions_say(name):
    """The recursion of Armitage, McPherson and Rowe (1969) for sums of normal values, on nodes of Gauss-Legendre."""
    spent, published = PUBLISHED[name]
    nodes, weights = np.polynomial.legendre.leggauss(200)
    step, density, sums, crossed = math.sqrt(TIMES[0]), np.ones(1), np.zeros(1), []
    for time, bound in zip(TIMES, published, strict=True):
        here = bound * math.sqrt(time) * nodes
        density = stats.norm.pdf(here[:, None], sums, step) @ density  # of sums that have crossed no boundary before
        density = density * bound * math.sqrt(time) * weights  # times the length of each piece
        sums = here
        crossed.append(1 - density.sum())
    assert crossed == pytest.approx(spent, abs=1e-5)  # as far as four decimals of a boundary tell


@pytest.mark.parametrize("name", PUBLISHED)
def test_boundaries_approach_the_published_normal_ones(name):
    spent, published = PUBLISHED[name]
    counts = 20 * np.arange(1, 6)
    levels = stats.t.sf(boundaries(counts, spent), counts - 1)
    assert stats.norm.isf(levels) == pytest.approx(published, abs=0.02)


def test_the_first_and_a_single_look_are_plain_t_tests():
    assert boundaries([3], [0.05]) == pytest.approx([stats.t.isf(0.025, 2)], rel=1e-6)
    assert boundaries([7], [0.05], pooled=True) == pytest.approx([stats.t.isf(0.025, 12)], rel=1e-6)
    assert boundaries([3, 4], [0.0, 0.05])[0] == math.inf


@pytest.mark.parametrize("pooled", [False, True])
def test_repeated_t_tests_of_normal_values_spend_what_is_planned(pooled):
    counts = np.arange(3, 13)
    spent = 0.1 * np.sqrt(counts / 12)
    critical = boundaries(counts, spent, pooled=pooled)
    x, y = np.random.default_rng(0).standard_normal((2, 40_000, 12))
    test = (
        (lambda n: stats.ttest_ind(x[:, :n], y[:, :n], axis=1))
        if pooled
        else (lambda n: stats.ttest_1samp(x[:, :n], 0, axis=1))
    )
    t = np.stack([test(n).statistic for n in counts])
    crossed = np.maximum.accumulate(np.abs(t) > critical[:, None]).mean(1)
    assert crossed == pytest.approx(spent, abs=0.0045)  # three standard errors


@pytest.mark.parametrize("pooled", [False, True])
def test_critical_values_of_a_small_significance_level_do_not_depend_on_the_cells(pooled, monkeypatch):
    counts, spent = [3, 4, 5, 6], 1e-5 * np.sqrt([0.25, 0.5, 0.75, 1])
    found = boundaries(counts, spent, pooled=pooled)
    monkeypatch.setattr(sequential_boundaries, "CELLS", 800)
    assert found == pytest.approx(boundaries(counts, spent, pooled=pooled), rel=0.01)


@pytest.mark.parametrize(("min_seeds", "stricter"), [(3, "one group"), (6, "two groups")])
def test_planned_levels_are_those_of_one_group_or_of_two_whichever_are_stricter(min_seeds, stricter):
    counts = np.arange(min_seeds, 21)
    spent = spending(0.05, counts / 20)
    one = 2 * stats.t.sf(boundaries(counts, spent), counts - 1)
    two = 2 * stats.t.sf(boundaries(counts, spent, pooled=True), 2 * counts - 2)
    levels = planned_levels(0.05, min_seeds, 20)
    assert levels == pytest.approx(np.where(one < two, one, two), rel=1e-9)
    assert ("one group" if one[1] < two[1] else "two groups") == stricter  # the first look is no difference


@pytest.mark.parametrize("ratio", [1, 8])
def test_welch_tests_keep_the_error_at_any_ratio_of_variances(ratio):
    rule = Rule(0.05, max_seeds=8, paired=False)
    levels = group_sequential_levels(0.05, 3, 8)
    x, y = np.random.default_rng(1).standard_normal((2, 40_000, 8))
    tests = [stats.ttest_ind(x[:, :n], ratio * y[:, :n], axis=1, equal_var=False) for n in range(3, 9)]
    p = np.stack([test.pvalue for test in tests])
    assert (p < levels[:, None]).any(0).mean() < 0.05 + 0.0022
    t, freedom = tests[0].statistic, tests[0].df
    assert np.array_equal(np.abs(t) > rule.critical_t(3, freedom), p[0] < levels[0])


def test_the_mixture_critical_value_has_an_e_value_of_one_over_alpha():
    (critical,) = mixture_t(0.05, np.array([6]), 0.2)

    def mixed(effect):
        return stats.nct.pdf(critical, 5, effect * math.sqrt(6)) * stats.norm.pdf(effect, scale=0.2**-0.5)

    e_value = integrate.quad(mixed, -12, 12, limit=200)[0] / stats.t.pdf(critical, 5)
    assert e_value == pytest.approx(20, rel=1e-3)


def test_freedom_is_scipys():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=5), rng.normal(size=9) * 3
    found = welch_freedom((x.var(ddof=1) / 5, y.var(ddof=1) / 9), (4, 8))
    assert float(found) == pytest.approx(stats.ttest_ind(x, y, equal_var=False).df)


def run(decision, means, *, sd=1.0, seed=0, failed=()):
    """Run what is wanted until all is decided."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(len(decision.arms), decision.rule.max_seeds)) * sd
    while wanted := decision.wanted():
        for arm, number in wanted:
            value = means[arm] + noise[decision.arms.index(arm), number]
            decision.add(arm, number, None if (arm, number) in failed else value)


def test_large_effects_are_decided_and_dropped_at_once():
    decision = Decision(["a", "b", "c"], "a")
    assert decision.wanted() == [(arm, seed) for seed in range(3) for arm in "abc"]
    run(decision, {"a": 0, "b": 50, "c": -1.0})
    assert decision.verdicts["b"] == "better"
    assert len(decision.looks("b")) < len(decision.looks("c")), "b is not trained on with c"
    assert decision.runs < decision.max_runs
    low, high = decision.interval("b")
    assert 0 < low < 50 < high


def test_no_seeds_beyond_the_first_are_wanted_before_all_have_ended():
    decision = Decision(["a", "b"], "a", max_seeds=4)
    for seed in (2, 0):
        decision.add("a", seed, seed)
        decision.add("b", seed, seed)
    assert decision.wanted() == [("a", 1), ("b", 1)]
    assert decision.interval("b") == (-math.inf, math.inf)
    assert decision.verdicts == {"b": None}


def test_the_order_of_results_changes_nothing():
    drawn = np.random.default_rng(3).normal(size=(2, 6))
    values = {(arm, seed): drawn["ab".index(arm), seed] for arm in "ab" for seed in range(6)}
    found = []
    for order in (list(values), list(reversed(values))):
        decision = Decision(["a", "b"], "a", max_seeds=6, method="anytime")
        for arm, seed in order:
            decision.add(arm, seed, values[arm, seed])
        found.append((decision.looks("b"), decision.verdicts))
    assert found[0] == found[1]
    assert len(found[0][0]) >= 2


def test_variances_are_drawn_towards_their_mean_less_the_more_they_differ():
    """Smyth (2004), section 6.2: the variances' logarithms tell the degrees of freedom of their distribution."""
    rule = Rule.of_arms(4, 0.05, None, 3, 20, "group_sequential", paired=True)
    own, freedom = np.array([1.0, 2.0, 3.0, 400.0]), np.array([2.0, 2.0, 4.0, 2.0])
    logs = np.log(own) - special.digamma(freedom / 2) + np.log(freedom / 2)
    spread = logs.var(ddof=1) - special.polygamma(1, freedom / 2).mean()
    suitable = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - spread, 0.1, 100)
    shared, mean = 0.4 * suitable, math.exp((logs * freedom).sum() / 10)
    assert 0 < shared < 1
    variances, known = rule.share_variances(own, freedom)
    assert variances == pytest.approx((shared * mean + freedom * own) / (shared + freedom), rel=1e-4)
    assert known == pytest.approx(freedom + shared, rel=1e-4)
    alike = [Rule.of_arms(k, 0.05, None, 3, 20, "group_sequential", paired=True) for k in (4, 9, 30)]
    assert [r.share_variances([1.0, 1.1, 1.2], [2, 2, 2])[1][0] for r in alike] == [3, 4, 4]
    assert rule.share_variances([1.0, 1.0, 1.0, 1e6], [2, 2, 2, 2])[1][0] < 2.2


def test_a_few_arms_and_any_time_have_variances_of_their_own():
    for arms, method in ((2, "group_sequential"), (9, "anytime")):
        assert Rule.of_arms(arms, 0.05, None, 3, 20, method, paired=True).shared_freedom == 0


def test_intervals_of_many_arms_rest_on_the_variances_of_all():
    """Of those that were dropped, too: b and c end with three seeds, and count when d is looked at with four."""
    rng = np.random.default_rng(7)
    names = ["a", "b", "c", "d"]
    values = rng.normal(size=(4, 6)) + np.array([0, 80, 0.5, 0.5])[:, None]
    decision = Decision(names, "a", max_seeds=6)
    for seed in range(6):
        for name, row in zip(names, values, strict=True):
            decision.add(name, seed, row[seed])
    assert [len(decision.looks(name)) for name in "bcd"] == [1, 1, 2]
    b, c, d = values[1:] - values[0]
    own = [b[:3].var(ddof=1), c[:3].var(ddof=1), d[:4].var(ddof=1)]
    (*_, variance), (*_, freedom) = decision.rule.share_variances(own, [2, 2, 3])
    look = decision.looks("d")[1]
    assert freedom == 3.75
    assert look.high - look.mean == pytest.approx(
        decision.rule.critical_t(4, freedom) * math.sqrt(variance / 4), rel=1e-9
    )


def test_many_arms_are_looked_at_together_in_whatever_order_results_arrive():
    names = ["a", "b", "c", "d"]
    values = dict(zip([(a, s) for a in names for s in range(5)], np.random.default_rng(8).normal(size=20), strict=True))
    found = []
    for order in (list(values), list(reversed(values))):
        decision = Decision(names, "a", max_seeds=5)
        for arm, seed in order:
            decision.add(arm, seed, values[arm, seed])
            ended = all(("d", seed) in order[: order.index((arm, seed)) + 1] for seed in range(3))
            assert ended or not decision.looks("b"), "d's first round is not complete"
        found.append([decision.looks(name) for name in "bcd"])
    assert found[0] == found[1]


def test_arms_that_fail_leave_the_variance_to_the_others():
    decision = Decision(["a", "b", "c", "d"], "a", max_seeds=5)
    run(decision, {"a": 0, "b": 50, "c": 0, "d": 0}, failed=[("d", seed) for seed in range(5)])
    assert decision.verdicts["b"] == "better"
    assert decision.verdicts["d"] == "undecided"
    allfail = Decision(["a", "b", "c", "d"], "a", max_seeds=5)
    run(allfail, dict.fromkeys("abcd", 0), failed=[("a", seed) for seed in range(5)])
    assert set(allfail.verdicts.values()) == {"undecided"}


def test_lower_is_better_turns_the_verdict_around():
    decision = Decision(["a", "b"], "a", lower_is_better=True)
    run(decision, {"a": 0, "b": 50})
    assert decision.verdicts == {"b": "worse"}
    assert decision.interval("b")[0] > 0


def test_equal_needs_a_difference_and_an_interval_within():
    decision = Decision(["a", "b"], "a", difference=2.0)
    run(decision, {"a": 0, "b": 0}, sd=0.3)
    assert decision.verdicts == {"b": "equal"}
    low, high = decision.interval("b")
    assert -2 <= low < high <= 2
    assert decision.runs < decision.max_runs
    without = Decision(["a", "b"], "a")
    run(without, {"a": 0, "b": 0}, sd=0.3)
    assert without.verdicts == {"b": "undecided"}


def test_an_arm_that_fails_more_often_is_not_called_better():
    failed = [("b", 1)]
    decision = Decision(["a", "b"], "a", max_seeds=6)
    run(decision, {"a": 0, "b": 50}, failed=failed)
    assert decision.verdicts == {"b": "undecided"}
    assert decision.looks("b")[-1].failures == (1, 0)
    worse = Decision(["a", "b"], "a", max_seeds=6)
    run(worse, {"a": 0, "b": -50}, failed=failed)
    assert worse.verdicts == {"b": "worse"}


def test_an_arm_that_always_fails_is_given_up_at_the_first_look():
    decision = Decision(["a", "b"], "a")
    run(decision, {"a": 0, "b": 0}, failed=[("b", seed) for seed in range(20)])
    assert decision.verdicts == {"b": "undecided"}
    assert decision.runs == 6


def test_equal_differences_of_few_images_are_no_finding():
    decision = Decision(["a", "b"], "a", resolution=1 / 360)
    for seed in range(3):
        decision.add("a", seed, 300 / 360)
        decision.add("b", seed, 301 / 360)
    assert decision.verdicts == {"b": None}
    without = Decision(["a", "b"], "a")
    for seed in range(3):
        without.add("a", seed, 0.5)
        without.add("b", seed, 0.75)
    assert (without.verdicts, without.interval("b")) == ({"b": None}, (-math.inf, math.inf))


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_floating_point_error_is_no_variance(names, scale, paired):
    """0.3 + 0.1 - 0.3 and 0.7 + 0.1 - 0.7 differ in their last digits."""
    decision = Decision(list(names), "a", max_seeds=4, paired=paired)
    for seed, base in enumerate((0.1, 0.3, 0.7, 0.9)):
        for number, arm in enumerate(names):
            decision.add(arm, seed, scale * ((base if paired else 0.1) + 0.1 * number))
    assert set(decision.verdicts.values()) == {"undecided"}
    assert {decision.interval(arm) for arm in names[1:]} == {(-math.inf, math.inf)}


def crossed(rng, seeds, *, images=360, own=0.08):
    """Which images two configurations of equal accuracy classify correctly, on a test set of its own: (2, seeds, N)."""
    chance = np.clip(rng.beta(8, 1, images) + own * rng.choice([-1, 1], (2, images)), 0.02, 0.98)
    return rng.random((2, seeds, images)) < chance[:, None]


def test_with_predictions_verdicts_hold_for_new_images():
    """Equal configurations, whose accuracy on 360 images differs by chance."""
    rng, wrong = np.random.default_rng(4), {True: 0, False: 0}
    for _ in range(300):
        correct = crossed(rng, 8)
        for known in wrong:
            decision = Decision(["a", "b"], "a", max_seeds=8)
            while wanted := decision.wanted():
                for arm, seed in wanted:
                    right = correct["ab".index(arm), seed]
                    decision.add(arm, seed, right.mean(), right if known else None)
            wrong[known] += decision.verdicts["b"] != "undecided"
            assert decision.looks("b")[-1].new_images is known
    assert wrong[True] <= 0.05 * 300 + 2 * math.sqrt(300 * 0.05 * 0.95)
    assert wrong[False] > 0.08 * 300, "on these images, the difference is real"


def test_with_groups_verdicts_hold_for_new_groups():
    """Of three patients, with 12, 20 and 28 images: 18 false verdicts by a normal quantile, 49 over images."""
    rng, wrong, patients = np.random.default_rng(4), 0, np.repeat([7, 2, 5], [12, 20, 28])
    for _ in range(150):
        chance = 0.7 + 0.3 * rng.uniform(-1, 1, (2, 8))  # of equal configurations, by patient
        correct = rng.random((2, 4, 60)) < chance[:, None, patients]
        decision = Decision(["a", "b"], "a", max_seeds=4)
        while wanted := decision.wanted():
            for arm, seed in wanted:
                right = correct["ab".index(arm), seed]
                decision.add(arm, seed, right.mean(), right, patients)
        wrong += decision.verdicts["b"] != "undecided"
        assert decision.looks("b")[-1].groups == 3
    assert wrong <= 0.05 * 150 + 2 * math.sqrt(150 * 0.05 * 0.95)


@pytest.mark.parametrize(
    ("groups", "others", "known"),
    [
        ([*"ABCDE"] * 20, [*"ABCDE"] * 20, 5),
        (np.arange(100), None, 0),  # images that are alone in their groups are a sample of images
        ([*"ABCDE"] * 20, [*"ABCDF"] * 10 + [*"ABCDE"] * 10, None),
        ([*"ABCDE"] * 20, None, None),
        (["A"] * 98 + ["B", "C"], ["A"] * 98 + ["B", "C"], None),
    ],
)
def test_groups_that_differ_or_hold_nearly_all_images_are_no_sample(groups, others, known):
    rng, decision = np.random.default_rng(6), Decision(["a", "b"], "a", max_seeds=3)
    for seed in range(3):
        for arm, some in (("a", groups), ("b", others)):
            right = rng.random(100) < 0.8
            decision.add(arm, seed, right.mean(), right, some)
    (look,) = decision.looks("b")
    assert (look.groups if look.new_images else None) == known


def test_the_variance_over_images_is_that_of_new_test_sets():
    rng = np.random.default_rng(5)
    large = [crossed(rng, 6, own=0.2) for _ in range(400)]
    means = np.array([x.mean((1, 2)) for x in large])
    over_seeds = np.mean([np.var(x.mean(2)[1] - x.mean(2)[0], ddof=1) / 6 for x in large])
    over_images = np.mean([image_variance(x[1], x[0], shared=6, level=0.05) for x in large])
    assert over_seeds + over_images == pytest.approx(np.var(means[:, 1] - means[:, 0]), rel=0.2)
    assert over_images > over_seeds, "which over seeds alone would be missed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": ["a"]}, "at least two"),
        ({"arms": ["a", "a"]}, "each once"),
        ({"arms": "ab"}, "arms are 'ab'; give a list of names"),
        ({"arms": [1, 2], "baseline": 1}, r"arms are \[1, 2\]; give a list of names"),
        ({"baseline": "z"}, "'z' is not among the arms; choose from a, b$"),
        ({"arms": ["learned", "rope"], "baseline": "learnd"}, "from learned, rope; did you mean learned"),
        ({"alpha": 1.0}, "alpha=1.0 is not between 0 and 1"),
        ({"alpha": "0.05"}, "alpha='0.05' is not between 0 and 1"),
        ({"difference": 0.0}, "difference=0.0 is not a positive number"),
        ({"difference": True}, "difference=True is not a positive number"),
        ({"resolution": -0.1}, "resolution=-0.1 is neither 0 nor a positive number"),
        ({"resolution": math.nan}, "resolution=nan is neither 0 nor"),
        ({"min_seeds": 3.5}, "min_seeds=3.5 is not a whole number"),
        ({"max_seeds": 20.0}, "max_seeds=20.0 is not a whole number"),
        ({"min_seeds": 2}, "min_seeds=2 is below 3"),
        ({"max_seeds": 2}, "max_seeds=2 is below min_seeds=3"),
        ({"method": "peek"}, "choose from group_sequential, anytime$"),
        ({"method": "any_time"}, "choose from group_sequential, anytime; did you mean anytime"),
    ],
)
def test_arguments_out_of_range_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        Decision(**({"arms": ["a", "b"], "baseline": "a"} | change))


def test_contradicting_results_are_refused():
    decision = Decision(["a", "b"], "a")
    decision.add("a", 0, 0.5)
    decision.add("a", 0, 0.5)
    with pytest.raises(ValueError, match=r"was 0\.5 when it was added first, and is 0\.6 now"):
        decision.add("a", 0, 0.6)
    with pytest.raises(ValueError, match="there is no arm 'c'; choose from a, b"):
        decision.add("c", 0, 0.5)
    for seed in (20, -1, 1.5, 1.0, True, "1"):
        with pytest.raises(ValueError, match=f"seed {seed!r} is not among the whole numbers 0 to 19"):
            decision.add("a", seed, 0.5)
    decision.add("a", np.int64(1), 0.5)


def test_an_arm_that_is_not_compared_is_named():
    decision = Decision(["learned", "rope", "none"], "learned")
    for read in (decision.looks, decision.interval):
        with pytest.raises(
            ValueError, match=r"no arm 'ropes' is compared with learned; .* rope, none; did you mean rope"
        ):
            read("ropes")
        with pytest.raises(ValueError, match=r"no arm 'learned' is compared with learned; choose from rope, none$"):
            read("learned")


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        (np.ones(90, bool), "correct is of 90 test images; that of other results is of 100"),
        (np.ones((100, 1), bool), r"correct has shape \(100, 1\); give \(N,\)"),
        (np.ones(1, bool), r"correct has shape \(1,\); .* at least 2 test images"),
        (np.linspace(0, 1, 100), r"correct holds 0\.0101\d+; give True or False for each test image, or 1 or 0"),
        (np.full(100, np.nan), "correct holds nan; give"),
    ],
)
def test_a_result_with_invalid_images_is_refused_and_not_stored(correct, message):
    decision, right = Decision(["a", "b"], "a", max_seeds=3), np.arange(100) < 80
    for seed in range(3):
        decision.add("a", seed, 0.8 + 0.001 * seed, right.astype(float))
    with pytest.raises(ValueError, match=message):
        decision.add("b", 0, 0.9, correct)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\); give \(N,\), one for each of 100 test images"):
        decision.add("b", 0, 0.9, right, [0, 1, 2])
    assert decision.wanted() == [("b", 0), ("b", 1), ("b", 2)]
    for seed in range(3):
        decision.add("b", seed, 0.9 - 0.002 * seed, ~right)
    assert decision.done
    assert decision.looks("b")[-1].new_images


def test_intervals_shrink_and_hold_the_boundary():
    decision = Decision(["a", "b"], "a", alpha=0.2, max_seeds=5)
    x = np.random.default_rng(6).normal(size=(2, 5))
    for seed in range(5):
        decision.add("a", seed, x[0, seed])
        decision.add("b", seed, x[1, seed])
    for look in decision.looks("b"):
        d = x[1, : look.seeds] - x[0, : look.seeds]
        critical = group_sequential_t(0.2, 3, 5)[look.seeds - 3]
        assert look.high - look.low == pytest.approx(2 * critical * stats.sem(d))
        assert look.correlation == pytest.approx(np.corrcoef(x[:, : look.seeds])[0, 1])


def test_the_example_in_the_docstring():
    assert doctest.testmod(sequential).failed == 0
