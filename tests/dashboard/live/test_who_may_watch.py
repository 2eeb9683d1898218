"""Only members of the run's team watch it, and only as long as they are."""

from __future__ import annotations

import pytest
from django.contrib.sessions.models import Session

from dashboard.accounts.models import Membership, Team, User
from dashboard.live import consumer
from dashboard.live.messages import Position
from dashboard.runs.models import Run
from dashboard.runs.stream.feed import MAX_ENCODED, feed_of
from tests.dashboard.live.watching import in_thread, refusal, watch
from tests.dashboard.runs.stories import queue_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(team: Team) -> Run:
    return queue_run(team)


async def test_a_viewer_of_the_team_may(bob: User, run: Run) -> None:
    async with watch(run.id, bob) as viewer:
        assert (await viewer.next_frame())["type"] == "snapshot"


async def test_a_stranger_is_told_there_is_no_such_run(charlie: User, run: Run) -> None:
    assert await refusal(run.id, charlie) == 4404


async def test_a_run_that_is_not_there_is_refused_alike(alice: User, run: Run) -> None:
    assert await refusal(run.id + 1, alice) == 4404


async def test_nobody_watches_without_signing_in(run: Run) -> None:
    assert await refusal(run.id, None) == 4401


async def test_another_sites_page_is_refused(alice: User, run: Run) -> None:
    assert await refusal(run.id, alice, origin="http://evil.example") is None


@pytest.mark.parametrize(
    "origin", ["http://localhost:8888", "null", "", "http://[", "http://localhost.evil"]
)
async def test_another_programs_page_on_this_machine_is_refused(
    alice: User, run: Run, origin: str
) -> None:
    assert await refusal(run.id, alice, origin=origin) is None


@pytest.mark.parametrize(
    "query",
    [
        *("?after=x", "?after=-1", "?after=1&epoch=1.5"),
        *("?after=" + "9" * 5_000, "?" + "a&" * 2_000),
    ],
)
async def test_an_address_that_means_nothing_is_refused(
    alice: User, run: Run, query: str
) -> None:
    assert await refusal(run.id, alice, query) == 4400


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 999, "[]", '{"type": "x"}', "9" * 5_000]
)
async def test_a_message_that_means_nothing_ends_the_socket(
    alice: User, run: Run, text: str
) -> None:
    async with watch(run.id, alice) as viewer:
        await viewer.next_frame()
        await viewer.say(text)

        assert await viewer.until_closed() == 4400


async def test_leaving_the_team_ends_the_socket(
    alice: User, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.1)

    async with watch(run.id, alice) as viewer:
        await viewer.next_frame()
        await in_thread(Membership.objects.filter(user=alice).delete)()

        assert await viewer.until_closed() == 4403


async def test_a_new_password_ends_the_sockets_of_old_sessions(
    alice: User, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.1)

    async with watch(run.id, alice) as viewer:
        await viewer.next_frame()
        alice.set_password("another long secret")
        await in_thread(alice.save)()

        assert await viewer.until_closed() == 4403


async def test_signing_out_ends_the_socket(
    alice: User, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.1)

    async with watch(run.id, alice) as viewer:
        await viewer.next_frame()
        await in_thread(Session.objects.all().delete)()

        assert await viewer.until_closed() == 4403


async def test_a_run_of_a_number_beyond_all_bounds_is_refused(alice: User) -> None:
    assert await refusal(10**30, alice) == 4404


async def test_what_was_asked_for_is_not_kept_without_bound(
    alice: User, run: Run
) -> None:
    async with watch(run.id, alice) as viewer:
        await viewer.next_frame()
        feed = feed_of(run.id)
        for epoch in range(100):
            await feed.read_after(Position(seq=7, epoch=epoch), None)

        assert len(feed._encoded) <= MAX_ENCODED
