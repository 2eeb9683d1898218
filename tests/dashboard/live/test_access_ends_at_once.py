"""A socket ends when its person may no longer look, not half a minute later."""

import pytest
from django.contrib.sessions.models import Session

from dashboard.accounts.members import deactivate, end_sessions, remove_member
from dashboard.accounts.models import Membership, User
from dashboard.live import consumer
from tests.dashboard.live.watching import in_thread, watch

pytestmark = pytest.mark.django_db(transaction=True)


def _remove(alice: User, bob: User) -> None:
    remove_member(by=_place(alice), member=_place(bob))


def _deactivate(alice: User, bob: User) -> None:
    deactivate(by=_place(alice), member=_place(bob))


def _end_sessions(alice: User, bob: User) -> None:
    end_sessions(bob)


def _set_password(alice: User, bob: User) -> None:
    bob.set_password("another long secret")
    bob.save(update_fields=["password"])


def _place(user: User) -> Membership:
    return Membership.objects.select_related("team", "user").get(user=user)


@pytest.mark.parametrize("act", [_remove, _deactivate, _end_sessions, _set_password])
async def test_the_socket_ends(act, alice, bob, run, monkeypatch):
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 3_600)

    async with watch(run.id, bob) as viewer, watch(run.id, alice) as other:
        await viewer.next_frame()
        await other.next_frame()
        await in_thread(act)(alice, bob)

        assert await viewer.until_closed() == 4403
        assert await other.is_quiet_for(0.3)


async def test_access_that_ends_during_the_handshake_ends_the_socket(
    alice, bob, run, monkeypatch
):
    """The page joins before it looks, so the notification arrives."""
    monkeypatch.setattr(consumer, "RECHECK_SECONDS", 3_600)
    join = consumer.StreamConsumer._join

    async def join_late(self: consumer.StreamConsumer) -> None:
        await in_thread(Session.objects.all().delete)()
        await join(self)

    monkeypatch.setattr(consumer.StreamConsumer, "_join", join_late)

    async with watch(run.id, bob) as viewer:
        assert await viewer.until_closed() == 4403


async def test_a_role_that_changes_ends_nothing(alice, bob, run):
    async with watch(run.id, bob) as viewer:
        await viewer.next_frame()
        place = await in_thread(_place)(bob)
        place.role = "member"
        await in_thread(place.save)()

        assert await viewer.is_quiet_for(0.3)
