"""Tests ask more within a minute than a program may, all from one address."""

from __future__ import annotations

import pytest

from dashboard.api import limits


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_OF_TOKEN", "MAX_OF_INGEST", "MAX_OF_ADDRESS"):
        monkeypatch.setattr(limits, name, 10**6)
