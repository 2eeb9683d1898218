"""Tests ask more within a minute than a program may, all from one address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.dashboard.api.asking import Program


@pytest.fixture(autouse=True)
def no_limits(monkeypatch) -> None:
    for name in ("MAX_OF_TOKEN", "MAX_OF_INGEST", "MAX_OF_ADDRESS"):
        monkeypatch.setattr(f"dashboard.api.guards.{name}", 10**6)


@pytest.fixture
def program(alice) -> Program:
    from tests.dashboard.api.asking import Program, make_token

    return Program(make_token(alice, "write"))
