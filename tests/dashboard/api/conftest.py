"""Tests ask more within a minute than a program may, all from one address."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_OF_TOKEN", "MAX_OF_INGEST", "MAX_OF_ADDRESS"):
        monkeypatch.setattr(f"dashboard.api.guards.{name}", 10**6)
