from vitrine.sweeps.sweep import best_configuration
from vitrine.sweeps.trial import TrialResult


def test_the_order_of_overrides_makes_no_other_configuration():
    """As after a rerun that names its keys in another order, with one more seed."""
    varies = [
        {"patch": "2", "depth": "4", "seed": "0"},
        {"seed": "1", "depth": "4", "patch": "2"},
        {"patch": "2", "depth": "6", "seed": "0"},
    ]
    results = [TrialResult("finished", {"val/acc": accuracy}) for accuracy in (0.7, 0.9, 0.85)]
    best = best_configuration(varies, results)
    assert (best.label, best.count, best.mean, best.left_out) == ("patch=2,depth=4", 2, 0.8, 1)
