"""Secrets are recognised by the names of the environment variables that hold them."""

import os

import pytest

from vitrine.redact import redact, secret_keys

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


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@host.org/a.git", "https://***@host.org/a.git"),
        ("https://token@host.org", "https://***@host.org"),
        ("postgres://user:p@ss@w0rd@host:5432/runs?a=b@c", "postgres://***@host:5432/runs?a=b@c"),
        ("git@host.org:team/a.git", "git@host.org:team/a.git"),
        ("https://host.org/@team, me@host.org", "https://host.org/@team, me@host.org"),
    ],
)
def test_the_credentials_of_a_url_are_recognised(url, shown):
    assert redact(url) == shown


def test_a_secret_is_found_at_any_depth_of_lists_and_mappings():
    token = "hf_" + "x" * 30
    values = {"a": {"b": [1, {"c": [[token], token]}]}, "d": [token, token], "e": [{"f": "plain"}, None], "g": token}
    assert secret_keys(values) == ["a.b.c", "d", "g"]
