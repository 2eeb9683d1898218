"""Tests ask more within a minute than a program may, all from one address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dashboard.datasets.generators.reasoning_gym import Option, Task
from dashboard.datasets.row import Row

TASK = Task("chain_sum", "Adds numbers.", (Option("max_terms", 6),))


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_OF_TOKEN", "MAX_OF_INGEST", "MAX_OF_ADDRESS"):
        monkeypatch.setattr(f"dashboard.api.limits.{name}", 10**6)


@pytest.fixture(autouse=True)
def one_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ones take a process that needs seconds to start; they have tests."""

    def rows(task: str, *, size: int, seed: int, options: Any) -> Iterator[Row]:
        terms = options.get("max_terms", 6)
        for number in range(min(size, 50)):
            yield Row(prompt=f"{number} + {seed} of {terms}", answer=str(number + seed))

    making = "dashboard.api.resources.datasets.making"
    monkeypatch.setattr(f"{making}.list_tasks", lambda: (TASK,))
    monkeypatch.setattr("dashboard.datasets.generated.generate_rows", rows)
