"""The client against a real web process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from cohort import Client

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.runs.models import Run

LINES = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]


@pytest.fixture
def token(alice) -> str:
    from tests.dashboard.api.asking import make_token

    return make_token(alice, "write")


@pytest.fixture
def client(live_app, token) -> Client:
    return Client(live_app, token, retries=0)


@pytest.fixture
def rows(tmp_path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def open_external(team, alice) -> Callable[..., Run]:
    """Opens a run whose events the test sends."""
    from dashboard.supervision.external_runs import open_run
    from tests.dashboard.supervision.test_opening_a_run import OPENING

    def open_one(**changes: Any) -> Run:
        opening = OPENING.model_copy(update={"key": uuid4(), **changes})
        return open_run(opening, team=team, user=alice)[0]

    return open_one
