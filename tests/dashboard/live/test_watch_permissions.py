"""Only members of the run's team watch it, and only as long as they are."""

import pytest
from django.contrib.sessions.models import Session

from dashboard.accounts.models import Membership
from dashboard.live import consumer
from dashboard.live.messages import Position
from dashboard.runs.stream import MAX_ENCODED, feed_of
from tests.dashboard.live.watching import in_thread, refusal, watch

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_viewer_of_the_team_may(bob, run):
    async with watch(run.id, bob) as viewer:
        assert (await viewer.next_frame())["type"] == "snapshot"


async def test_non_members_get_not_found(charlie, run):
    assert await refusal(run.id, charlie) == 4404


async def test_a_run_that_is_not_there_is_refused_alike(alice, run):
    assert await refusal(run.id + 1, alice) == 4404
    assert await refusal(10**30, alice) == 4404


async def test_watching_requires_sign_in(run):
    assert await refusal(run.id, None) == 4401


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost:8888", "http://localhost.evil", "null"],
)
async def test_a_page_of_another_origin_is_refused(alice, run, origin):
    assert await refusal(run.id, alice, origin=origin) is None


async def test_an_origin_that_cannot_be_read_is_refused(alice, run):
    for origin in ("", "http://["):
        assert await refusal(run.id, alice, origin=origin) is None, origin


async def test_an_address_that_means_nothing_is_refused(alice, run):
    for query in (
        *("?after=x", "?after=-1", "?after=1&attempt=1.5"),
        *("?after=" + "9" * 5_000, "?" + "a&" * 2_000),
    ):
        assert await refusal(run.id, alice, query) == 4400, query[:40]


async def test_a_message_that_means_nothing_ends_the_socket(alice, run):
    for text in ("", "{", "[" * 999, "[]", '{"type": "x"}', "9" * 5_000):
        async with watch(run.id, alice) as viewer:
            await viewer.next_frame()
            await viewer.say(text)

            assert await viewer.until_closed() == 4400, text[:40]


async def test_access_that_ended_without_a_ring_is_noticed(alice, run, monkeypatch):
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.05)
    monkeypatch.setattr("dashboard.live.pubsub._silent_until", float("inf"))

    def sign_out() -> None:
        Session.objects.all().delete()

    def set_password() -> None:
        alice.set_password("another long secret")
        alice.save()

    def leave_the_team() -> None:
        Membership.objects.filter(user=alice).delete()

    for end in (sign_out, set_password, leave_the_team):
        async with watch(run.id, alice) as viewer:
            await viewer.next_frame()
            await in_thread(end)()

            assert await viewer.until_closed() == 4403, end.__name__


async def test_requests_do_not_pile_up(alice, run):
    async with watch(run.id, alice) as viewer:
        await viewer.next_frame()
        feed = feed_of(run.id)
        for attempt in range(100):
            await feed.read_after(Position(seq=7, attempt=attempt), None)

        assert len(feed._encoded) <= MAX_ENCODED
