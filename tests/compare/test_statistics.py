"""Statistics against worked examples, and against what they promise in a thousand simulated sweeps."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.levels import quick
from scipy import optimize, special, stats
from scipy.special import expit
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import ALONE, difference, freedom_of_sum
from vitrine.compare.image_tests import bootstrap_interval, holm, mcnemar, paired_interval
from vitrine.compare.seed_plan import Plan, largest_spread
from vitrine.compare.sequential_rule import image_variance
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL, Family
from vitrine.runs.image_groups import group_freedom, group_values

# Student's own data (Biometrika 6, 1908): hours of sleep that ten patients gained by two drugs; `sleep` in R, whose
# help page gives both tests.
FIRST = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
SECOND = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)


def with_moments(mean: float, deviation: float, count: int) -> np.ndarray:
    """A sample of exactly this mean and standard deviation."""
    values = np.random.default_rng(0).normal(size=count)
    return mean + deviation * (values - values.mean()) / values.std(ddof=1)


def by_patient(values, first=0):
    return dict(enumerate(values, first))


def test_the_interval_of_a_mean_is_that_of_nists_example():
    # NIST/SEMATECH e-Handbook, 1.3.5.2: 195 heat flow measurements.
    interval = ConfidenceInterval.of(with_moments(9.261460, 0.02278881, 195))
    assert interval.mean - interval.half_width == pytest.approx(9.258242, abs=1e-6)
    assert interval.mean + interval.half_width == pytest.approx(9.264679, abs=1e-6)


def test_one_value_has_no_interval():
    assert math.isnan(ConfidenceInterval.of([0.9]).half_width)


def test_equal_values_have_no_interval_unless_they_are_rounded():
    for values in ([0.5, 0.5, 0.5], [0.7, float(np.float32(0.7)), 0.7], [0.0, 0.0]):
        interval = ConfidenceInterval.of(values)
        assert all(map(math.isnan, (interval.half_width, interval.low, interval.high)))
        assert str(interval) == f"{values[0]:.4f}"
    assert ConfidenceInterval.of([0.5, 0.5, 0.5], rounding=1e-6).half_width > 0
    assert ConfidenceInterval.of([0.5, 0.5, 0.50001]).half_width > 0


def test_students_sleep_in_pairs():
    found = difference(by_patient(FIRST), by_patient(SECOND))
    assert found.paired
    assert found.counts == (10, 10)
    assert found.mean == pytest.approx(-1.58)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-6)
    assert found.sd == pytest.approx(1.229995, abs=1e-6)


def test_students_sleep_as_two_groups_by_welch():
    found = difference(by_patient(FIRST), by_patient(SECOND, first=100))
    assert not found.paired
    assert found.p == pytest.approx(0.07939, abs=1e-5)
    assert (found.low, found.high) == pytest.approx((-3.3654832, 0.2054832), abs=1e-6)


def test_pairs_are_those_that_both_sides_have():
    found = difference({0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.7, 1: 0.5, 2: 0.65})
    assert (found.paired, found.shared, found.counts) == (True, 3, (3, 3))
    assert found.correlation == pytest.approx(np.corrcoef([0.9, 0.8, 0.85], [0.7, 0.5, 0.65])[0, 1])
    more = difference({0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.7, 1: 0.5, 2: 0.65, 3: 0.1})
    assert (more.paired, more.shared, more.counts) == (False, 3, (3, 4))
    assert more.mean == pytest.approx(0.85 - np.mean([0.7, 0.5, 0.65, 0.1])), "all runs count"
    partly = difference({0: 0.9, 1: 0.8, 2: 0.85}, {1: 0.5, 2: 0.65, 3: 0.1})
    assert (partly.paired, partly.shared, partly.counts) == (False, 0, (3, 3)), "two pairs show no correlation"


def test_one_value_on_a_side_can_be_subtracted_but_not_tested():
    found = difference({0: 0.9}, {0: 0.8, 1: 0.7})
    assert found.mean == pytest.approx(0.15)
    assert math.isnan(found.p)
    assert math.isnan(found.low)


def test_equal_runs_do_not_differ_and_values_without_variance_are_not_tested():
    same = difference({0: 0.9, 1: 0.8}, {0: 0.9, 1: 0.8})
    assert (same.mean, same.p) == (0, 1)
    shifted = difference({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.25})
    assert shifted.mean == 0.25
    assert all(map(math.isnan, (shifted.low, shifted.high, shifted.p)))


def test_holms_correction():
    # R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_mcnemars_exact_test():
    # Approval of a prime minister, asked twice (Agresti, Categorical Data Analysis, 10.1): 150 and 86 changed sides.
    one = np.repeat([True, True, False, False], [794, 150, 86, 570])
    other = np.repeat([True, False, True, False], [794, 150, 86, 570])
    only, other_only, p = mcnemar(one, other)
    assert (only, other_only) == (150, 86)
    assert p == pytest.approx(stats.binomtest(86, 236).pvalue)
    assert p == pytest.approx(3.716e-05, rel=1e-3)
    assert mcnemar(one, one)[2] == 1


@pytest.mark.parametrize("seed", range(5))
def test_corrections_and_exact_tests_are_those_of_statsmodels(seed):
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(loc, scale, size=rng.integers(2, 9)) for loc, scale in ((0, 1), (0.5, 2)))
    found = difference(by_patient(x), by_patient(y, first=100))
    error = CompareMeans(DescrStatsW(x), DescrStatsW(y)).std_meandiff_pooledvar
    assert found.sd == pytest.approx(error / math.sqrt(1 / len(x) + 1 / len(y)), rel=1e-12)
    ps = rng.random(10) ** 3
    assert holm(ps) == pytest.approx(multipletests(ps, method="holm")[1], rel=1e-12)
    one, other = rng.random((2, 60)) < 0.8
    table = [[(one & other).sum(), (one & ~other).sum()], [(~one & other).sum(), (~one & ~other).sum()]]
    assert mcnemar(one, other)[2] == pytest.approx(statsmodels_mcnemar(table, exact=True).pvalue, rel=1e-12)


def test_seeds_for_a_difference_are_cohens():
    # Cohen, Statistical Power Analysis (1988), table 2.4.1: 64 a group for d = 0.5 at 80 %; 34 pairs (G*Power).
    assert Plan(1.0, paired=False).seeds_for(0.5) == 64
    assert Plan(1.0, paired=True).seeds_for(0.5) == 34
    assert Plan(1.0, paired=True, family=Family(5)).seeds_for(0.5) > 34
    assert Plan(1.0, paired=True).seeds_for(5.0) == 3
    assert Plan(1.0, paired=True).seeds_for(500.0) == 3
    assert Plan(1.0, paired=True).seeds_for(1e-4) is None


@pytest.mark.parametrize(("count", "paired"), [(34, True), (64, False), (3, True)])
def test_the_smallest_difference_is_the_one_that_so_many_seeds_detect(count, paired):
    plan = Plan(2.0, paired)
    found = plan.detects(count)
    assert plan.seeds_for(1.01 * found) <= count
    assert plan.seeds_for(0.97 * found) > count
    assert replace(plan, family=Family(9)).detects(count) > found
    if paired:
        assert plan.detects(count, 4 * count) < found, "a spread that is known better"


FAMILIES = pytest.mark.parametrize(
    ("family", "freedom_per_seed"),
    [
        pytest.param(Family(3), 1, id="own variances"),
        pytest.param(Family(3, "dunnett", pooled=True), 3, id="against a baseline"),
        pytest.param(Family(6, "tukey", pooled=True), 3, id="all pairs"),
    ],
)


@FAMILIES
def test_as_many_seeds_are_planned_as_show_the_difference(family, freedom_per_seed):
    plan = Plan(2.0, True, family, freedom_per_seed)
    shown = plan.detects(6)
    assert plan.seeds_for(1.0001 * shown) == 6
    assert plan.seeds_for(0.9999 * shown) == 7


@FAMILIES
def test_planned_seeds_detect_the_difference_of_two_of_four_rows(family, freedom_per_seed):
    shift, sd = 1.5, math.sqrt(2)
    count = Plan(sd, True, family, freedom_per_seed).seeds_for(shift)
    rows = np.random.default_rng(0).normal(size=(20_000, 4, count))
    apart = shift + rows[:, 1] - rows[:, 0]
    rest = rows - rows.mean(1, keepdims=True) - rows.mean(2, keepdims=True) + rows.mean((1, 2), keepdims=True)
    freedom = freedom_per_seed * (count - 1)
    variance = 2 * (rest**2).sum((1, 2)) / freedom if family.pooled else apart.var(1, ddof=1)
    found = abs(apart.mean(1)) > family.critical_t(freedom) * np.sqrt(variance / count)
    assert 0.79 < found.mean() < 0.85


@pytest.mark.parametrize("images", [0.0, 0.3, 3.0])  # variance of the difference over images
def test_the_smallest_difference_has_a_power_of_80_percent_whatever_the_images(images):
    generator, count = np.random.default_rng(0), 6
    shift = Plan(1.0, paired=True, image_variance=images).detects(count)
    pairs = shift + generator.normal(0, math.sqrt(images), (4000, 1)) + generator.normal(0, 1, (4000, count))
    over_seeds = pairs.var(1, ddof=1) / count
    freedoms = np.array([freedom_of_sum((float(part), images), (count - 1.0, 1e6)) for part in over_seeds])
    found = abs(pairs.mean(1)) > stats.t.isf(0.025, freedoms) * np.sqrt(over_seeds + images)
    assert 0.77 < found.mean() < 0.84


@pytest.mark.parametrize("count", [3, 5, 10])
def test_the_smallest_difference_of_two_groups_is_that_of_welchs_test(count):
    generator = np.random.default_rng(0)
    shift = Plan(1.0, paired=False).detects(count)
    groups = [generator.normal(mean, 1, (20_000, count)) for mean in (shift, 0)]
    parts = [group.var(1, ddof=1) / count for group in groups]
    freedom = sum(parts) ** 2 / sum(part**2 / (count - 1) for part in parts)
    t = (groups[0].mean(1) - groups[1].mean(1)) / np.sqrt(sum(parts))
    critical = stats.t.isf(Family()._level((count, count)) / 2, freedom)
    assert 0.78 < (abs(t) > critical).mean() < 0.82


def test_a_difference_that_images_hide_is_not_detected_by_more_seeds():
    assert not Plan(1.0, paired=True).hides(1e-9)
    assert not Plan(1.0, paired=True, image_variance=0.12).hides(1.0)
    assert Plan(1.0, paired=True, image_variance=0.13).hides(1.0)  # times 2.802 ** 2
    assert Plan(1.0, paired=True, family=Family(9), image_variance=0.12).hides(1.0)
    assert Plan(1.0, paired=True, image_variance=0.1).seeds_for(1.0) > Plan(1.0, paired=True).seeds_for(1.0)
    assert Plan(1.0, paired=True, image_variance=0.13).seeds_for(1.0) is None


def test_the_upper_bound_of_a_spread_is_exceeded_in_one_of_five_cases():
    found = np.random.default_rng(0).normal(size=(4000, 5)).std(axis=1, ddof=1)
    assert np.mean([largest_spread(sd, 4) < 1 for sd in found]) == pytest.approx(0.2, abs=0.02)


def test_the_bootstrap_interval_agrees_with_the_normal_interval():
    values = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 4000, p=[0.1, 0.75, 0.15])
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


@pytest.mark.parametrize("differing", [0, 1, 3])
def test_the_bootstrap_interval_has_at_least_the_width_of_the_rule_of_three(differing):
    low, high = bootstrap_interval(np.repeat([1 / 3, 0.0], [differing, 360 - differing]))
    mean = differing / 3 / 360
    assert (low, high) == pytest.approx((mean - np.log(40) / 360, mean + np.log(40) / 360))
    assert bootstrap_interval(np.zeros(1)) == (-1.0, 1.0)


def test_the_variance_over_seeds_and_images_is_that_of_a_pigeonhole_bootstrap():
    """Owen (2007): both are resampled; what is left to seed and image together then counts three times, not once."""
    rng, seeds, images = np.random.default_rng(6), 40, 300
    easy = rng.normal(0.9, 0.15, images) + rng.normal(0, 0.15, (2, 1, images))
    right = rng.random((2, seeds, images)) < np.clip(easy + rng.normal(0, 0.04, (1, seeds, 1)), 0, 1)
    ours, theirs = (dict(enumerate(side.astype(float))) for side in right)
    apart = right[0].astype(float) - right[1]
    found = difference(dict(enumerate(right[0].mean(1))), dict(enumerate(right[1].mean(1))), ALONE, (ours, theirs))
    rest = apart - apart.mean(0) - apart.mean(1, keepdims=True) + apart.mean()
    of_both = rest.var() / (seeds * images)
    draws = [rng.multinomial(count, np.full(count, 1 / count), 4000) / count for count in (seeds, images)]
    pigeonhole = np.einsum("bs,si,bi->b", draws[0], apart, draws[1], optimize=True).var()
    over_seeds = apart.mean(1).var(ddof=1) / seeds
    variance = over_seeds + image_variance(*right.astype(float), shared=seeds, level=0.05)
    assert variance > 1.5 * over_seeds
    assert pigeonhole - 2 * of_both == pytest.approx(variance, rel=0.08)
    critical = np.average(stats.t.isf(0.025, [seeds - 1, images - 1]), weights=[over_seeds, variance - over_seeds])
    assert found.high - found.mean == pytest.approx(critical * math.sqrt(variance))


def test_one_more_seed_on_one_side_leaves_the_part_over_images():
    """What both models of a seed have in common for an image is not subtracted, since it has cancelled already."""
    rng, images = np.random.default_rng(8), 1000
    found = {10: 0.0, 11: 0.0}
    for _ in range(20):
        image, effect, seed = rng.normal(1.2, 1, images), rng.normal(0, 0.25, images), rng.normal(size=(11, images))
        ours, theirs = (
            dict(enumerate(image + side * effect + 0.9 * seed + 0.45 * rng.normal(size=(11, images)) > 0))
            for side in (1, -1)
        )
        for count in found:
            some = {number: ours[number] for number in range(10)}, {number: theirs[number] for number in range(count)}
            means = [{number: float(right.mean()) for number, right in side.items()} for side in some]
            found[count] += difference(*means, correct=some).image_variance
    assert found[11] == pytest.approx(found[10], rel=0.1)


@pytest.mark.whole
@pytest.mark.parametrize("share", quick([0.1, 1.0, 5.0], [1.0]))
def test_an_interval_of_three_seeds_holds_the_truth_of_new_seeds_and_images(share):
    """Satterthwaite's degrees of freedom give 92 % where the part over images is a tenth of that over seeds."""
    rng = np.random.default_rng(7)
    seeds, images = rng.normal(size=(20_000, 3)), rng.normal(size=20_000) * math.sqrt(share / 3)
    over_seeds, over_images = seeds.var(1, ddof=1) / 3, share / 3
    freedom = np.array([freedom_of_sum((part, over_images), (2, 359)) for part in over_seeds])
    half = stats.t.isf(0.025, freedom) * np.sqrt(over_seeds + over_images)
    assert 0.945 < np.mean(np.abs(seeds.mean(1) + images) < half) < 0.975


@pytest.mark.parametrize("unequal", [(30, 30), (150, 150)])
def test_an_interval_over_groups_holds_for_others_where_that_over_images_does_not(unequal):
    """Difficulty varies between groups, and so does which of two models, in the mean equally good, is right."""
    rng, missed = np.random.default_rng(0), Counter()
    for _ in range(300):
        groups = np.repeat(np.arange(12), [*rng.integers(10, 40, 10), *unequal])
        of_group = rng.normal(size=12) + rng.normal(size=(2, 3, 12)) * 0.3 + rng.normal(size=(2, 1, 12))
        right = rng.random((2, 3, len(groups))) < expit(1.5 + of_group)[..., groups]
        means = [dict(enumerate(side.mean(1).tolist())) for side in right]
        for kind, values in (("images", right), ("groups", np.apply_along_axis(group_values, 2, right, groups))):
            of_groups = (len(groups), group_freedom(groups)) if kind == "groups" else None
            found = difference(*means, correct=tuple(dict(enumerate(side)) for side in values), groups=of_groups)
            missed[kind] += not found.low <= 0 <= found.high
    assert missed["groups"] < 0.08 * 300
    assert missed["images"] > 0.2 * 300


def test_the_degrees_of_freedom_of_a_sum_lie_between_those_of_its_parts():
    assert freedom_of_sum((1.0, 0.0), (2, 359)) == 2
    assert freedom_of_sum((0.0, 1.0), (2, 359)) == 359
    assert freedom_of_sum((1.0, 1.0), (7, 7)) == 7
    assert 2 < freedom_of_sum((1.0, 1.0), (2, 359)) < freedom_of_sum((1.0, 5.0), (2, 359)) < 359


@pytest.mark.parametrize("comparisons", [1, 9])
def test_an_interval_over_seeds_and_images_takes_the_t_between_theirs_at_its_own_level(comparisons):
    generator = np.random.default_rng(0)
    right = [generator.random(500) < accuracy for accuracy in (0.8, 0.7)]
    sides = [{seed: own ^ (generator.random(500) < 0.02) for seed in range(3)} for own in right]  # seeds hardly differ
    accuracies = [{seed: float(own.mean()) for seed, own in side.items()} for side in sides]
    found = difference(*accuracies, Family(comparisons), correct=(sides[0], sides[1]))
    over_seeds = found.sd**2 / 3
    t = stats.t.ppf(1 - 0.05 / comparisons / 2, [2, 499])
    total = over_seeds + found.image_variance
    between = np.average(t, weights=[over_seeds, found.image_variance]) * math.sqrt(total)
    assert between > t[0] * math.sqrt(over_seeds), "the interval for these images alone does not decide"
    assert found.high - found.mean == pytest.approx(between)


def test_tangos_interval_inverts_the_score_test_of_the_most_likely_proportions():
    """The nuisance proportion is found numerically here, and by Tango's quadratic equation there."""
    for only, other_only, images in ((12, 2, 50), (0, 0, 100), (3, 0, 30), (150, 86, 1600)):
        low, high = paired_interval(only, other_only, images)
        assert -1 <= low <= (only - other_only) / images <= high <= 1
        for size in (low, high):

            def unlikely(least, size=size, counts=(only, other_only, images)):
                shares = np.array([least + size, least, 1 - 2 * least - size])
                seen = np.array([counts[0], counts[1], counts[2] - counts[0] - counts[1]])
                return -float(special.xlogy(seen, np.maximum(shares, 1e-300)).sum())

            bounds = (max(0.0, -size), (1 - size) / 2)
            found = optimize.minimize_scalar(unlikely, bounds=bounds, options={"xatol": 1e-12})
            variance = images * (2 * found.x + size - size**2)
            assert abs(only - other_only - images * size) / math.sqrt(variance) == pytest.approx(1.95996, rel=1e-3)


def test_intervals_of_accuracies_stay_between_0_and_1():
    values = [0.999, 0.998, 0.9905]
    wide, kept = ConfidenceInterval.of(values), ConfidenceInterval.of(values, proportion=True)
    assert wide.high > 1
    assert 0.9 < kept.low < wide.mean < kept.high < 1
    mean = wide.mean
    logits = special.logit([kept.low, mean, kept.high])
    assert np.diff(logits) == pytest.approx(wide.half_width / (mean * (1 - mean)))
    inside = [0.91, 0.92, 0.9]
    assert ConfidenceInterval.of(inside, proportion=True) == ConfidenceInterval.of(inside)


# --- a thousand sweeps -------------------------------------------------------------------------------------------

SWEEPS = 2000


def three_errors(share: float) -> float:
    """Three standard errors of a share of the sweeps."""
    return 3 * math.sqrt(share * (1 - share) / SWEEPS)


def simulated(generator: np.random.Generator, means, seeds, shared: float = 0.0, spread=None) -> list[dict[int, float]]:
    """A sweep whose runs scatter around ``means``, by seed; ``shared`` is what a seed does to all rows alike."""
    common = dict(zip(seeds[0], generator.normal(0, shared, len(seeds[0])), strict=True))
    rows = []
    for number, mean in enumerate(means):
        deviation = 0.01 if spread is None else spread[number]
        own = seeds[number % len(seeds)]
        rows.append({seed: mean + common.get(seed, 0.0) + generator.normal(0, deviation) for seed in own})
    return rows


def called_different(rows: list[dict[int, float]]) -> bool:
    """Whether any row differs significantly from the first."""
    found = [difference(row, rows[0], Family(len(rows) - 1)) for row in rows[1:]]
    return any(one.low > 0 or one.high < 0 for one in found)


@pytest.mark.parametrize(
    ("seeds", "shared", "spread"),
    [
        pytest.param([range(5)], 0.02, None, id="paired, seeds matter"),
        pytest.param([range(8), range(10, 18)], 0.0, (0.02, 0.01), id="as two groups of unequal spread"),
    ],
)
@pytest.mark.whole
def test_equal_configurations_are_called_different_in_one_sweep_of_twenty(seeds, shared, spread):
    generator = np.random.default_rng(1)
    wrong = sum(called_different(simulated(generator, [0.9, 0.9], seeds, shared, spread)) for _ in range(SWEEPS))
    assert wrong / SWEEPS == pytest.approx(0.05, abs=three_errors(0.05))


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.whole
def test_accuracies_of_few_images_are_not_called_different_more_often(seeds):
    generator = np.random.default_rng(4)
    wrong = 0
    for _ in range(SWEEPS):
        rows = simulated(generator, [0.97, 0.97], [range(seeds)])
        one, other = ({seed: round(360 * acc) / 360 for seed, acc in row.items()} for row in rows)
        wrong += difference(one, other).p < SIGNIFICANCE_LEVEL
    assert wrong / SWEEPS < 0.05 + three_errors(0.05)


@pytest.mark.whole
def test_of_several_equal_configurations_one_is_called_different_in_at_most_one_sweep_of_twenty():
    generator = np.random.default_rng(2)
    wrong = sum(called_different(simulated(generator, [0.9] * 4, [range(5)], 0.02)) for _ in range(SWEEPS)) / SWEEPS
    assert 0.02 < wrong < 0.05 + three_errors(0.05), "the intervals hold together"


@pytest.mark.parametrize("seeds", [[range(5)], [range(5), range(10, 15)]], ids=["paired", "as two groups"])
@pytest.mark.whole
def test_intervals_of_means_and_differences_hold_the_truth_in_nineteen_sweeps_of_twenty(seeds):
    generator = np.random.default_rng(3)
    means = differences = 0
    for _ in range(SWEEPS):
        one, other = simulated(generator, [0.92, 0.9], seeds)
        interval = ConfidenceInterval.of(list(one.values()))
        means += abs(interval.mean - 0.92) <= interval.half_width
        found = difference(one, other)
        differences += found.low <= 0.02 <= found.high
    assert means / SWEEPS == pytest.approx(0.95, abs=three_errors(0.05))
    assert differences / SWEEPS == pytest.approx(0.95, abs=three_errors(0.05))


@pytest.mark.whole
def test_equal_models_differ_on_new_images_in_one_comparison_of_twenty():
    """On 360 images that are a sample, seeds alone find too many differences; 5 seeds, 500 test sets."""
    generator, sweeps, wrong = np.random.default_rng(5), 500, {True: 0, False: 0}
    for _ in range(sweeps):
        chance = np.clip(generator.beta(8, 1, 360) + 0.2 * generator.choice([-1, 1], (2, 360)), 0.02, 0.98)
        one, other = (dict(enumerate(side)) for side in generator.random((2, 5, 360)) < chance[:, None])
        sides = [{seed: float(right.mean()) for seed, right in side.items()} for side in (one, other)]
        for known in wrong:
            found = difference(*sides, ALONE, (one, other) if known else None)
            wrong[known] += found.p < SIGNIFICANCE_LEVEL
            assert (found.p < SIGNIFICANCE_LEVEL) == (found.low > 0 or found.high < 0)
    assert wrong[True] / sweeps <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / sweeps)
    assert wrong[True] / sweeps >= 0.02
    assert wrong[False] / sweeps > 0.08


@pytest.mark.parametrize("level", [0.05, 0.005])
def test_images_on_which_nothing_differs_leave_the_rule_of_threes_uncertainty(level):
    same = np.ones((3, 360))
    error = math.sqrt(image_variance(same, same, shared=3, level=level))
    assert stats.norm.isf(level / 2) * error == pytest.approx(math.log(2 / level) / 360)


@pytest.mark.parametrize(("images", "share"), [(360, 0.003), (1000, 0.0011)])
def test_an_interval_holds_where_hardly_an_image_differs(images, share):
    """One side is always wrong on a share of all images, the other never; a few are missed by chance."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(500):
        hard = rng.random(images) < share
        ours, theirs = (rng.random((2, 10, images)) > 0.0005) & np.stack([np.ones((10, images), bool), [~hard] * 10])
        sides = [dict(enumerate(side)) for side in (ours, theirs)]
        means = [{seed: right.mean() for seed, right in side.items()} for side in sides]
        tested = difference(*means, correct=(sides[0], sides[1]))
        held += tested.low <= share * (1 - 0.0005) <= tested.high
    assert held / 500 > 0.93


@pytest.mark.parametrize("comparisons", [1, 4, 9, 19])
@pytest.mark.parametrize("share", [0.03, 0.14, 1.0])
def test_an_interval_for_new_images_is_never_shorter_than_that_for_these(monkeypatch, comparisons, share):
    ours, theirs = by_patient((0.90, 0.93, 0.95)), by_patient((0.90, 0.90, 0.90))
    right = ({seed: np.ones(400) for seed in ours}, {seed: np.ones(400) for seed in theirs})
    over_seeds = np.var(list(ours.values()), ddof=1) / 3
    monkeypatch.setattr("vitrine.compare.difference.image_variance", lambda *_, **__: share * over_seeds)
    these, new = (difference(ours, theirs, Family(comparisons), correct) for correct in (None, right))
    assert new.high - new.low >= these.high - these.low
    assert new.corrected >= these.corrected
