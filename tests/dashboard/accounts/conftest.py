from __future__ import annotations

import pytest
from pytest_django import Settings


@pytest.fixture(autouse=True)
def _passwords_are_hashed_fast(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
