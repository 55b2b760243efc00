"""Images of a group, as of a patient, tell less of other images than as many of others would."""

import numpy as np
import pytest
from statsmodels.api import OLS

from vitrine.runs.image_groups import effective_images, group_freedom, group_numbers, group_values


@pytest.fixture
def drawn():
    """Two hundred images of thirty groups, and the difference in accuracy of two models on each, over seeds."""
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(30), rng.integers(1, 14, 30))[:200])
    return groups, np.round(rng.normal(size=30)[groups] + rng.normal(size=len(groups))) / 3


def test_groups_are_numbered_as_they_come():
    assert group_numbers(["P7", "P1", "P7", "slide"]).tolist() == [0, 1, 0, 2]


def test_values_of_groups_have_the_mean_of_the_images_and_its_cluster_robust_variance(drawn):
    groups, differences = drawn
    found = group_values(differences, groups)
    fitted = OLS(differences, np.ones(len(groups))).fit(cov_type="cluster", cov_kwds={"groups": groups})
    assert len(found) == len(set(groups)) < len(groups)
    assert found.mean() == pytest.approx(fitted.params[0])
    assert found.var(ddof=1) / len(found) == pytest.approx(fitted.bse[0] ** 2)


def test_images_that_are_each_a_group_are_as_they_are(drawn):
    _, differences = drawn
    assert group_values(differences, np.arange(len(differences))) == pytest.approx(differences)
    correct = differences > 0
    assert effective_images(correct, np.arange(len(correct))) == pytest.approx(len(correct) - 1)


def test_equal_images_of_a_group_tell_as_much_as_one_and_less_of_few_groups():
    correct = np.arange(1000) % 1000 < 700
    ten_each = effective_images(correct, np.arange(1000) // 10)
    assert ten_each == pytest.approx(99 * (1.9623 / 1.9842) ** 2, rel=1e-3)  # t of 999 and 99 degrees of freedom
    assert effective_images(correct, np.arange(1000) // 100) == pytest.approx(9 * (1.9623 / 2.2622) ** 2, rel=1e-3)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_where_all_images_are_alike_groups_are_what_counts(share):
    assert effective_images(np.full(40, bool(share)), np.arange(40) // 8) == 5


def test_groups_of_unequal_sizes_tell_less_than_as_many_of_equal_ones():
    assert group_freedom(np.arange(60) // 6) == pytest.approx(9)
    assert group_freedom(np.arange(60)) == pytest.approx(59)
    assert group_freedom(np.zeros(60, int)) == 0
    assert group_freedom(np.repeat(range(10), [300, *[10] * 9])) == pytest.approx(390**2 / (300**2 + 900) - 1)


def test_one_group_tells_no_more_than_one_image():
    assert effective_images(np.arange(40) < 30, np.zeros(40, int)) == 1
