"""One subscription in a process for all pages of a run."""

import asyncio
from typing import Any

from channels.layers import get_channel_layer
from redis.exceptions import ConnectionError as RedisGone

from dashboard.live import pubsub
from dashboard.live.pubsub import Subscription, subscribe

GROUP = "run-7000001"


class Page:
    """Hears numbers, and lets one wait for them."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[int] = asyncio.Queue()

    def receive(self, seq: int) -> None:
        self.received.put_nowait(seq)

    async def next(self) -> int:
        return await asyncio.wait_for(self.received.get(), 5)


async def notify(seq: int) -> None:
    layer = get_channel_layer()
    assert layer is not None
    await layer.group_send(GROUP, {"type": "run.wake", "run": 7_000_001, "seq": seq})


def members() -> tuple[Any, str]:
    """Redis, and the key under which it keeps who is in the group."""
    layer = get_channel_layer()
    assert layer is not None
    return layer.connection(layer.consistent_hash(GROUP)), layer._group_key(GROUP)


async def num_members() -> int:
    redis, key = members()
    found: int = await redis.zcard(key)
    return found


async def test_all_pages_are_notified_through_one_channel():
    pages = [Page() for _ in range(3)]
    for page in pages:
        await subscribe(GROUP).join(page.receive)

    await notify(5)

    assert [await page.next() for page in pages] == [5, 5, 5]
    assert await num_members() == 1
    for page in pages:
        await subscribe(GROUP).leave(page.receive)


async def test_the_last_listener_closes_the_channel():
    received, left = Page(), Page()
    own = Subscription(GROUP)
    await own.join(received.receive)
    await own.join(left.receive)

    await own.leave(left.receive)
    await notify(6)

    assert await received.next() == 6
    assert left.received.empty()
    await own.leave(received.receive)
    assert await num_members() == 0


async def test_a_page_that_comes_after_the_last_has_left_hears_again():
    own, page = Subscription(GROUP), Page()
    await own.join(page.receive)
    await own.leave(page.receive)
    await own.join(page.receive)

    await notify(7)

    assert await page.next() == 7
    await own.leave(page.receive)


async def test_a_returning_redis_is_joined_again(monkeypatch):
    layer: Any = get_channel_layer()
    receive, has_failed = layer.receive, asyncio.Event()

    async def fail_once(channel: str) -> Any:
        if not has_failed.is_set():
            has_failed.set()
            raise RedisGone("gone")
        return await receive(channel)

    monkeypatch.setattr(layer, "receive", fail_once)
    monkeypatch.setattr(pubsub, "RETRY_SECONDS", 0.01)
    own, page = Subscription(GROUP), Page()
    await own.join(page.receive)
    await has_failed.wait()

    await notify(8)

    assert await page.next() == 8
    await own.leave(page.receive)


async def test_groups_lost_by_redis_are_joined_again(monkeypatch):
    monkeypatch.setattr(pubsub, "RENEW_SECONDS", 0.05)
    own, page = Subscription(GROUP), Page()
    await own.join(page.receive)
    redis, key = members()

    await redis.delete(key)
    while not await num_members():  # noqa: ASYNC110 - Redis has no event
        await asyncio.sleep(0.01)
    await notify(9)

    assert await page.next() == 9
    await own.leave(page.receive)


async def test_an_unresponsive_redis_delays_no_page(monkeypatch):
    layer: Any = get_channel_layer()

    async def never(*_: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(layer, "group_add", never)
    monkeypatch.setattr(pubsub, "JOIN_SECONDS", 0.05)
    own, page = Subscription(GROUP), Page()

    await asyncio.wait_for(own.join(page.receive), 30)

    await own.leave(page.receive)
