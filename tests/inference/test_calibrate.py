"""Temperature scaling finds the temperature that logits were divided by, and makes probabilities honest."""

import pytest
import torch

from vitrine.errors import RunError
from vitrine.inference.calibrate import _scaling, fitted_temperature
from vitrine.training.metrics import ece


@pytest.fixture
def honest():
    """Logits whose probabilities are those of their labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=generator)
    return logits, torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_temperature_of_exaggerated_logits_is_found(honest, factor):
    logits, labels = honest
    assert fitted_temperature(factor * logits, labels) == pytest.approx(factor, rel=0.03)


def test_the_calibration_error_is_small_exactly_where_probabilities_are_honest(honest):
    logits, labels = honest
    assert ece(logits, labels) < 0.01
    assert ece(3 * logits, labels) > 0.1


@pytest.mark.parametrize("wrong", [0, 20_000])
def test_images_that_are_all_right_or_all_wrong_determine_no_temperature(honest, wrong):
    logits, _ = honest
    labels = logits.argmax(dim=1)
    labels[:wrong] = logits[:wrong].argmin(dim=1)
    assert fitted_temperature(logits, labels) is None


def test_images_of_one_class_determine_no_temperature(honest):
    logits, labels = (part[honest[1] == 3] for part in honest)
    assert fitted_temperature(logits, labels) is None
    lines = ["1: the validation images, all of one class, do not determine a temperature"]
    assert _scaling(None, logits, labels, False, None).lines == lines


def test_logits_that_are_not_finite_are_refused(honest):
    logits, labels = honest
    logits[3, 0] = torch.nan
    with pytest.raises(RunError, match="the model gives NaN logits on the validation images"):
        fitted_temperature(logits, labels)
