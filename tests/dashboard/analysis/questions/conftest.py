from collections.abc import Iterator

import pytest

from tests.trainer.rewards.judge_server import Judging, judge_server


@pytest.fixture
def judging(monkeypatch) -> Iterator[Judging]:
    from tests.dashboard.analysis.questions.factories import answer_honestly

    with judge_server() as server:
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", server.url.split("/")[2])
        server.reply = answer_honestly
        yield server
