"""No one takes a process's last socket from others; one that ends leaves nothing."""

import gc

import pytest
from django.db import OperationalError

from dashboard.live import consumer
from dashboard.live.messages import PROTOCOL
from dashboard.live.pubsub import ACCESS, _subscriptions
from dashboard.pages.sockets import RunConsumer
from tests.dashboard.live.watching import come, refusal, watch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _two_each(monkeypatch) -> None:
    monkeypatch.setattr(consumer, "MAX_SOCKETS", 2)


def num_listeners() -> int:
    subscription = _subscriptions.get(ACCESS)
    return len(subscription._listeners) if subscription else 0


async def test_sockets_are_limited_per_person(alice, bob, run):
    async with watch(run.id, alice), watch(run.id, alice):
        assert await refusal(run.id, alice) == 4429
        async with watch(run.id, bob) as viewer:
            assert (await viewer.next_frame())["type"] == "snapshot"

    async with watch(run.id, alice) as viewer:  # the two are closed
        assert (await viewer.next_frame())["type"] == "snapshot"


async def test_a_rejected_socket_uses_no_slot(alice, charlie, run):
    for _ in range(3):
        assert await refusal(run.id, charlie) == 4404
        async with watch(run.id, alice, f"?protocol={PROTOCOL + 1}") as viewer:
            assert await viewer.until_closed() == 4426

    assert not +consumer._num_open
    assert num_listeners() == 0


def num_consumers() -> int:
    gc.collect()
    return sum(isinstance(one, RunConsumer) for one in gc.get_objects())


async def test_a_page_that_left_is_forgotten(alice, charlie, run):
    async def visit() -> None:
        async with watch(run.id, alice) as viewer:
            await viewer.next_frame()
        await refusal(run.id, charlie)

    await visit()
    before = num_consumers()
    for _ in range(2):
        await visit()

    assert num_consumers() <= before
    assert f"run-{run.id}" not in _subscriptions


async def test_a_database_that_fails_as_a_page_comes_leaves_nothing(
    alice, run, monkeypatch
):
    async def fail(_self: RunConsumer) -> None:
        raise OperationalError("the server is away")

    monkeypatch.setattr(RunConsumer, "find_refusal", fail)
    viewer = await come(run.id, alice)

    with pytest.raises(OperationalError):
        await viewer.connect()

    assert num_listeners() == 0


async def test_a_subscription_that_fails_as_a_page_comes_leaves_nothing(
    alice, run, monkeypatch
):
    async def fail(_self: RunConsumer) -> None:
        raise RuntimeError("no subscription")

    monkeypatch.setattr(RunConsumer, "_join", fail)
    for _ in range(3):
        viewer = await come(run.id, alice)
        with pytest.raises(RuntimeError):
            await viewer.connect()

    assert num_listeners() == 0
    assert not +consumer._num_open


async def test_a_message_that_breaks_a_socket_leaves_nothing(alice, run, monkeypatch):
    async def fail(*_: object, **__: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(RunConsumer, "receive", fail)
    viewer = await come(run.id, alice)
    await viewer.connect()
    await viewer.next_frame()

    await viewer.say("x")
    with pytest.raises(OSError, match="gone"):
        await viewer.app.wait(timeout=5)

    assert num_listeners() == 0
    assert not +consumer._num_open
