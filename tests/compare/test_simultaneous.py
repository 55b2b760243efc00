"""Critical values of intervals that hold together, against scipy, statsmodels and published tables."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.levels import quick
from scipy import stats
from statsmodels.formula.api import ols

from vitrine.compare.difference import difference
from vitrine.compare.simultaneous import Family, PooledVariance


def together(freedom, comparisons):
    """Dunnett's distribution from scipy's multivariate t, by quasi-Monte Carlo."""
    shape = 0.5 + 0.5 * np.eye(comparisons)
    return stats.multivariate_t(np.zeros(comparisons), shape, freedom, seed=0)


@pytest.mark.parametrize(("freedom", "comparisons"), [(2, 2), (8, 4), (20, 2), (60, 9)])
@pytest.mark.parametrize("one_sided", [False, True])
def test_dunnetts_values_are_those_of_the_multivariate_t(freedom, comparisons, one_sided):
    family = Family(comparisons, "dunnett", one_sided)
    bound = np.full(comparisons, family.critical_t(freedom))
    law = together(freedom, comparisons)
    inside = law.cdf(bound) if one_sided else law.cdf(bound, lower_limit=-bound)
    assert float(inside) == pytest.approx(0.95, abs=5e-4)
    assert family.p(bound[0], freedom) == pytest.approx(0.05, abs=1e-6)


def test_dunnetts_test_is_scipys():
    rng = np.random.default_rng(0)
    groups = [rng.normal(shift, 1.0, 6) for shift in (0.0, 0.3, 1.8, -0.6)]
    theirs = stats.dunnett(*groups[1:], control=groups[0], rng=1)
    pooled = np.mean([group.var(ddof=1) for group in groups])
    for group, p in zip(groups[1:], theirs.pvalue, strict=True):
        t = (group.mean() - groups[0].mean()) / math.sqrt(pooled / 3)
        assert Family(3, "dunnett").p(t, 20) == pytest.approx(p, abs=2e-3)


@pytest.mark.parametrize("method", ["bonferroni", "dunnett", "tukey"])
def test_a_single_comparison_is_a_t_test_and_p_agrees_with_the_critical_value(method):
    assert Family(1, method).critical_t(7.5) == pytest.approx(stats.t.isf(0.025, 7.5), rel=1e-4)
    family = Family(6, method)
    critical = family.critical_t(9)
    assert family.p(critical * 1.001, 9) < 0.05 < family.p(critical * 0.999, 9)
    assert family.p(-critical, 9) == pytest.approx(0.05, abs=1e-4)
    assert family.critical_t(9) <= Family(6).critical_t(9)


def test_the_pooled_variance_is_that_of_a_two_way_analysis_of_variance():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(4, 5)) + 3 * rng.normal(size=5)
    rows = [dict(enumerate(row)) for row in values]
    table = pd.DataFrame(
        [(k, s, value) for k, row in enumerate(values) for s, value in enumerate(row)], columns=[*"ksy"]
    )
    fitted = ols("y ~ C(k) + C(s)", table).fit()
    found = PooledVariance.of(rows)
    assert (found.variance, found.freedom) == pytest.approx((fitted.mse_resid, fitted.df_resid))
    tested = difference(rows[2], rows[0], Family(3, "dunnett"), None, found)
    named = fitted.t_test("C(k)[T.2] = 0")
    assert tested.p == pytest.approx(float(named.pvalue))
    assert tested.high - tested.mean == pytest.approx(Family(3, "dunnett").critical_t(12) * float(named.sd.item()))


def test_variances_are_not_pooled_if_seeds_or_variances_differ():
    rng = np.random.default_rng(3)
    rows = [dict(enumerate(rng.normal(size=8))) for _ in range(3)]
    assert PooledVariance.of(rows) is not None
    assert PooledVariance.of(rows[:2]) is None
    assert PooledVariance.of([*rows, dict(enumerate(rng.normal(size=7)))]) is None
    assert PooledVariance.of([*rows, dict(enumerate(rng.normal(size=8), 1))]) is None
    assert PooledVariance.of([*rows, dict(enumerate(50 * rng.normal(size=8)))]) is None
    assert PooledVariance.of([dict.fromkeys(range(4), 0.5)] * 3) is None


def test_rows_whose_residuals_are_of_one_size_are_compared_without_a_warning():
    sizes = [[0.01, 0.01, -0.01, -0.01], [-0.01, -0.01, 0.01, 0.01], [0.0, 0.0, 0.0, 0.0]]
    rows = [{seed: 0.5 + size for seed, size in enumerate(row)} for row in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PooledVariance.of(rows) is None, "they vary differently"


def test_partly_paired_seeds_lie_between_welchs_and_the_paired_test():
    rng = np.random.default_rng(4)
    common = 2 * rng.normal(size=12)
    x, y = (dict(enumerate(common + rng.normal(size=12))) for _ in range(2))
    paired, welch = stats.ttest_rel([*x.values()], [*y.values()]), stats.ttest_ind([*x.values()], [*y.values()])
    assert difference(x, y).p == pytest.approx(paired.pvalue)
    some = {seed + (0 if seed < 9 else 50): value for seed, value in y.items()}
    found = difference(x, some)
    assert (found.shared, found.counts, found.paired) == (9, (12, 12), False)
    assert sorted([paired.pvalue, welch.pvalue])[0] < found.p < sorted([paired.pvalue, welch.pvalue])[1]
    # Derrick, Toher and White (2017), equation 7, written out.
    a, b = np.array([*x.values()]), np.array([*y.values()])
    r, va, vb = np.corrcoef(a[:9], b[:9])[0, 1], a.var(ddof=1) / 12, b.var(ddof=1) / 12
    error = math.sqrt(va + vb - 2 * r * math.sqrt(va * vb) * 9 / 12)
    welch_freedom = (va + vb) ** 2 / ((va**2 + vb**2) / 11)
    freedom = 8 + (welch_freedom - 9 + 1) / 24 * 6
    assert found.p == pytest.approx(2 * stats.t.sf(abs(a.mean() - b.mean()) / error, freedom))
    alone = {seed + 100: value for seed, value in y.items()}
    assert difference(x, alone).p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


@pytest.mark.whole
@pytest.mark.parametrize(("counts", "comparisons"), quick([((3, 10), 3), ((3, 20), 9), ((3, 3), 9)], [((3, 3), 9)]))
def test_small_groups_keep_their_level_at_every_ratio_of_variances(counts, comparisons):
    generator, family, found = np.random.default_rng(0), Family(comparisons), []
    for ratio in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
        x, y = (generator.normal(0, spread, (300_000, n)) for spread, n in zip((ratio, 1.0), counts, strict=True))
        squares = [group.var(1, ddof=1) / n for group, n in zip((x, y), counts, strict=True)]
        freedom = sum(squares) ** 2 / sum(square**2 / (n - 1) for square, n in zip(squares, counts, strict=True))
        critical = stats.t.isf(family._level(counts) / 2, freedom)
        found.append(float((abs(x.mean(1) - y.mean(1)) > critical * np.sqrt(sum(squares))).mean()))
    level = 0.05 / comparisons
    assert 0.5 * level < max(found) < level + 3 * math.sqrt(level / 300_000)
    assert family.critical_t(5.0, counts) > Family(comparisons).critical_t(5.0)
