from collections.abc import Iterator

import pytest

from tests.trainer.rewards.judge_server import Judging, judge_server
from trainer.rewards import session
from trainer.rewards.model_judge import asking


@pytest.fixture
def judging(monkeypatch) -> Iterator[Judging]:
    """An endpoint that may be asked, by a process that was never asked before."""
    monkeypatch.setattr(session, "_current", session.Session())
    monkeypatch.setattr(asking, "_FIRST_WAIT_SECONDS", 0.01)
    with judge_server() as server:
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", server.url.split("/")[2])
        yield server
