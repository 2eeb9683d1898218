import pytest


@pytest.fixture(autouse=True)
def _passwords_are_hashed_fast(settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def _letters_are_sent_at_once(monkeypatch) -> None:
    """Tests of letters read the outbox behind the answer."""
    at = "dashboard.accounts.adapters.send_in_background"
    monkeypatch.setattr(at, lambda send: send())
