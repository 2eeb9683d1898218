"""The tokenizer pool is limited, and teams take turns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets import token_preview, tokenizer_pool
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.datasets.tokenizer_pool import (
    ALL_IN_USE,
    OTHERS_FIRST,
    OWN_IN_USE,
    UNLOADED,
    Busy,
    TokenizerPool,
)

QUESTION = {
    "index": 0,
    "row": {"prompt": "3", "answer": None, "columns": {}},
    "data": {},
}


@pytest.fixture
def pool() -> Iterator[TokenizerPool]:
    pool = TokenizerPool()
    yield pool
    pool.close()


def ask(pool: TokenizerPool, team_id: int, model: str) -> Future[dict[str, Any]]:
    """The model does not exist, which the process notices after seconds."""
    return pool.ask(team_id=team_id, model=model, question=QUESTION)


def kept(pool: TokenizerPool) -> list[tuple[int, str]]:
    return sorted(pool._processes)


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(tokenizer_pool, "TURN_SECONDS", 150 - seconds)


def test_tokenizer_processes_are_limited_and_not_shared(pool: TokenizerPool) -> None:
    for team_id, model in ((1, "/a"), (2, "/a"), (3, "/a")):
        ask(pool, team_id, model)

    assert len({one._child.pid for one in pool._processes.values()}) == 3
    with pytest.raises(Busy, match=ALL_IN_USE):
        ask(pool, 4, "/a")


def test_a_team_has_two_at_most(pool: TokenizerPool) -> None:
    ask(pool, 1, "/a")
    ask(pool, 1, "/b")

    with pytest.raises(Busy, match=OWN_IN_USE):
        ask(pool, 1, "/c")


def test_a_team_without_a_tokenizer_gets_one_of_a_team_with_two(
    pool: TokenizerPool,
) -> None:
    taken = ask(pool, 1, "/a")
    ask(pool, 2, "/a")
    ask(pool, 1, "/b")
    ended = pool._processes[1, "/a"]._child

    ask(pool, 3, "/a")

    assert kept(pool) == [(1, "/b"), (2, "/a"), (3, "/a")]
    assert ended._process.wait(5) < 0
    with pytest.raises(Busy, match=UNLOADED):  # which requests it again
        taken.result(timeout=5)
    with pytest.raises(Busy, match=ALL_IN_USE):
        ask(pool, 1, "/a")


def test_no_team_waits_longer_than_a_turn(
    pool: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for team_id in (1, 2, 3):
        ask(pool, team_id, "/a")
    with pytest.raises(Busy):
        ask(pool, 4, "/a")

    pass_time(monkeypatch, 200)
    ask(pool, 4, "/a")

    assert kept(pool) == [(2, "/a"), (3, "/a"), (4, "/a")]


def test_more_requests_do_not_speed_up_a_team(
    pool: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for team_id in (1, 2, 3):
        ask(pool, team_id, "/a")
    for team_id in (4, 5, 5, 5):
        with pytest.raises(Busy):
            ask(pool, team_id, "/a")
    pass_time(monkeypatch, 200)

    for team_id in (5, 1):  # 1 has one, and wants a second
        with pytest.raises(Busy, match=OTHERS_FIRST):
            ask(pool, team_id, "/b")
    ask(pool, 4, "/a")
    ask(pool, 5, "/a")

    assert kept(pool) == [(3, "/a"), (4, "/a"), (5, "/a")]


def test_an_abandoned_request_does_not_block_others(
    pool: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for team_id in (1, 2, 3):
        ask(pool, team_id, "/a")
    with pytest.raises(Busy):
        ask(pool, 4, "/a")
    pass_time(monkeypatch, 200)
    monkeypatch.setattr(tokenizer_pool, "ABANDONED_SECONDS", -1.0)

    ask(pool, 5, "/a")

    assert (5, "/a") in kept(pool)


def test_a_waiting_page_shows_the_reason_and_polls(
    alice_client: Client,
    team: Team,
    pool: TokenizerPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [Row(prompt="3 plus 4?")]
    version = create_dataset_version(
        team=team, name="Sums", rows=rows, mapping={}, source={}, user=None
    )
    monkeypatch.setattr(token_preview, "tokenizers", pool)
    for team_id in (-1, -2, -3):
        ask(pool, team_id, "/a")

    address = f"/alpha/datasets/{version.dataset_id}/prompt"
    page = alice_client.post(address, {"model": "/a"}).text

    assert ALL_IN_USE in page
    assert "delay:1s" in page
