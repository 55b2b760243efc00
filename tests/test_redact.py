"""Secrets are recognised by the names of the environment variables that hold them."""

import os

import pytest

from vitrine.redact import redact

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("WANDB_API_KEY", "KAGGLE_KEY", "OPENAI_KEY", "AZURE_STORAGE_KEY", "SMTP_PASS")),
        *((name, True) for name in ("MYSQL_PWD", "SSH_PASSPHRASE", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN")),
        *((name, False) for name in ("PWD", "OLDPWD", "KEYBOARD", "COMPASS", "BYPASS_CACHE", "HISTFILE")),
    ],
)
def test_a_secret_is_recognised_by_its_variables_name(monkeypatch, name, secret):
    for other in os.environ:
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, SECRET)
    assert redact(f"notes={SECRET}!") == ("notes=***!" if secret else f"notes={SECRET}!")
