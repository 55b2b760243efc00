"""Tab completion: what the shell is offered for a command line that is not finished."""

import pytest

from vitrine.cli.completion import suggestions


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_keys_are_completed_after_the_override_of_a_sweep(flag):
    assert "optimizer.lr=" in suggestions(f"python train.py {flag} position=learned,rope optimizer.l")
