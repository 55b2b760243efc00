"""Tab completion: what the shell is offered for a command line that is not finished."""

import pytest

from vitrine.cli.completion import suggestions


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_keys_are_completed_after_the_override_of_a_sweep(flag):
    assert "optimizer.lr=" in suggestions(f"python train.py {flag} position=learned,rope optimizer.l")


@pytest.mark.parametrize("typed", ["seed=0, mo", "name='a b' de", "callbacks.ema.decay=0.9 mo"])
def test_what_cannot_be_composed_has_no_completions(typed):
    assert suggestions(f"vitrine train {typed}") == []


def test_a_complete_choice_ends_without_a_sign():
    assert "hydra/launcher=process" in suggestions("vitrine train -m hydra/launcher=")
    assert "model=" in suggestions("vitrine train position=torch.nn.Identity mo")
