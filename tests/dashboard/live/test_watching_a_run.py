"""A page receives all events of its run, once and in order."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from channels.layers import get_channel_layer

from dashboard.live import consumer
from dashboard.live.messages import Position
from dashboard.live.pubsub import group_name
from dashboard.pages.sockets import RunConsumer
from dashboard.runs import stream
from dashboard.runs.models import Run
from dashboard.supervision.lease import claim_run
from dashboard.supervision.takeover import cut_history
from tests.dashboard.live.watching import in_thread, watch
from tests.dashboard.runs.stories import Story

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def story(run) -> Story:
    story = Story(run)
    story.start()
    return story


async def test_a_new_page_gets_a_snapshot_then_updates(alice, story):
    await in_thread(story.take_steps)(3)

    async with watch(story.run.id, alice) as viewer:
        first = await viewer.next_frame()
        await in_thread(story.take_steps)(1)
        second = await viewer.next_frame()

    assert first["type"] == "snapshot"
    assert first["curves"]["clock"]["steps"] == [1, 2, 3]
    assert first["run"]["state"] == "running"
    assert second["type"] == "batch"
    assert second["after"] == first["seq"]
    assert [step["step"] for step in second["steps"]] == [4]
    assert "reward/mean" in second["steps"][0]["values"]


async def test_a_page_that_has_something_gets_only_the_rest(alice, story):
    await in_thread(story.take_steps)(5)
    run = await Run.objects.aget(id=story.run.id)

    query = f"?after={run.seq - 2}&attempt={run.attempt}"
    async with watch(run.id, alice, query) as viewer:
        frame = await viewer.next_frame()

    assert frame["type"] == "batch"
    assert [step["step"] for step in frame["steps"]] == [4, 5]


async def test_a_page_that_has_everything_hears_so_at_once(alice, story):
    run = await Run.objects.aget(id=story.run.id)

    async with watch(
        run.id, alice, f"?after={run.seq}&attempt={run.attempt}"
    ) as viewer:
        message = await viewer.next(seconds=1)

    assert message == {"type": "ping", "seq": run.seq}


async def test_events_between_joining_and_reading_are_not_lost(
    alice, story, monkeypatch
):
    join = consumer.StreamConsumer._join

    async def join_late(self: consumer.StreamConsumer) -> None:
        await join(self)
        await in_thread(story.take_steps)(1)

    monkeypatch.setattr(consumer.StreamConsumer, "_join", join_late)

    async with watch(story.run.id, alice) as viewer:
        frame = await viewer.next_frame()

    assert frame["curves"]["clock"]["steps"] == [1]


async def test_a_notification_wakes_a_page_before_it_polls(alice, story, monkeypatch):
    monkeypatch.setattr(consumer, "POLL_SECONDS", 30.0)

    async with watch(story.run.id, alice) as viewer:
        await viewer.next_frame()
        await asyncio.sleep(0.3)
        await in_thread(story.take_steps)(1)
        frame = await viewer.next_frame()

    assert [step["step"] for step in frame["steps"]] == [1]


async def test_a_lost_notification_is_made_up_for_by_polling(alice, story, monkeypatch):
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(stream, "FRESH_SECONDS", 0.0)
    async with watch(story.run.id, alice) as viewer:
        await viewer.next_frame()
        monkeypatch.setattr("dashboard.live.pubsub._silent_until", float("inf"))
        await in_thread(story.take_steps)(1)
        frame = await viewer.next_frame()

    assert [step["step"] for step in frame["steps"]] == [1]


async def test_events_after_a_frame_wait_for_the_next(alice, story, monkeypatch):
    monkeypatch.setattr(consumer, "FRAME_SECONDS", 3_600.0)
    async with watch(story.run.id, alice) as viewer:
        assert (await viewer.next_frame())["type"] == "snapshot"
        for _ in range(4):
            await in_thread(story.take_steps)(1)

        assert await viewer.is_quiet_for(0.3)


async def test_a_run_is_read_no_oftener_than_a_page_is_sent_frames(story, monkeypatch):
    reads, read = [], stream.read_run

    def read_run(run_id: int) -> Run:
        reads.append(time.monotonic())
        return read(run_id)

    monkeypatch.setattr(stream, "read_run", read_run)
    shared = stream.Feed(story.run.id)

    for number in range(4):  # as many viewers, each with a newer notification
        await shared.read_after(Position(), notified_seq=1_000 + number)

    gaps = [later - earlier for earlier, later in pairwise(reads)]
    assert len(gaps) == 3
    assert min(gaps) > 0.9 * consumer.FRAME_SECONDS


async def test_a_gap_is_filled_on_request(alice, story):
    await in_thread(story.take_steps)(4)

    async with watch(story.run.id, alice) as viewer:
        snapshot = await viewer.next_frame()
        await viewer.ask(after=snapshot["seq"] - 3, attempt=snapshot["attempt"])
        frame = await viewer.next_frame()

    assert frame["type"] == "batch"
    assert [step["step"] for step in frame["steps"]] == [2, 3, 4]


async def test_another_attempt_brings_a_snapshot(alice, story):
    await in_thread(story.take_steps)(2)
    seq = (await Run.objects.aget(id=story.run.id)).seq

    async with watch(story.run.id, alice, f"?after={seq}&attempt=7") as viewer:
        frame = await viewer.next_frame()

    assert frame["type"] == "snapshot"
    assert frame["attempt"] == 1


async def test_a_resumed_run_rewinds_the_open_page(alice, story, monkeypatch):
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(stream, "FRESH_SECONDS", 0.0)
    await in_thread(story.take_steps)(4)

    async with watch(story.run.id, alice) as viewer:
        first = await viewer.next_frame()
        await in_thread(resume_after)(story.run, step=2)
        frame = await viewer.next_frame()
        while frame["type"] != "snapshot":
            frame = await viewer.next_frame()

    assert first["curves"]["clock"]["steps"] == [1, 2, 3, 4]
    assert frame["attempt"] == 2
    assert frame["curves"]["clock"]["steps"] == [1, 2]


async def test_no_stale_snapshot_after_a_rewind(alice, bob, story):
    await in_thread(story.take_steps)(4)
    await in_thread(Run.objects.filter(id=story.run.id).update)(
        state="queued", lease_until=None
    )
    claim = await in_thread(claim_run)(story.run.id, "worker-2")

    async with watch(story.run.id, alice) as early:
        assert (await early.next_frame())["run"]["last_step"] == 4
        await in_thread(cut_history)(claim, after=2, checkpoint=None)
        while (await early.next_frame())["run"]["last_step"] > 2:
            pass

        async with watch(story.run.id, bob) as late:
            frame = await late.next_frame()

    assert frame["run"]["last_step"] == 2
    assert frame["curves"]["clock"]["steps"] == [1, 2]
    [tail] = frame["curves"]["tails"]
    assert tail["clock"]["steps"] == [3, 4]


def resume_after(run: Run, *, step: int) -> None:
    """As a second claim leaves it: the later steps superseded, the attempt raised."""
    run.refresh_from_db()
    run.steps.filter(step__gt=step).update(superseded_by=2)
    Run.objects.filter(id=run.id).update(attempt=2, seq=run.seq + 1, last_step=step)


async def test_a_page_far_behind_gets_a_snapshot(alice, story):
    await Run.objects.filter(id=story.run.id).aupdate(seq=100_000)

    async with watch(story.run.id, alice, "?after=3&attempt=1") as viewer:
        frame = await viewer.next_frame()

    assert frame["type"] == "snapshot"


async def test_a_change_of_state_reaches_the_page(alice, story):
    async with watch(story.run.id, alice) as viewer:
        await viewer.next_frame()
        await in_thread(story.end)("failed", fail_reason="no model")
        frame = await viewer.next_frame()

    assert frame["run"]["state"] == "failed"
    assert frame["run"]["fail_reason"] == "no model"
    assert frame["run"]["has_ended"] is True


async def test_two_viewers_see_the_same(alice, bob, story):
    async with (
        watch(story.run.id, alice) as one,
        watch(story.run.id, bob) as other,
    ):
        await one.next_frame()
        await other.next_frame()
        await in_thread(story.take_steps)(1)

        assert await one.next_frame() == await other.next_frame()


@pytest.fixture
def reads(monkeypatch) -> Counter[str]:
    """How often each of the feed's reads was made."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        read = getattr(stream, name)

        def counting(*args: Any) -> Any:
            counted[name] += 1
            return read(*args)

        monkeypatch.setattr(stream, name, counting)

    for name in ("read_run", "read_batch", "read_snapshot"):
        count(name)
    return counted


async def test_all_viewers_of_a_run_share_one_read(alice, story, reads, monkeypatch):
    monkeypatch.setattr(consumer, "POLL_SECONDS", 60.0)
    async with AsyncExitStack() as stack:
        viewers = [
            await stack.enter_async_context(watch(story.run.id, alice))
            for _ in range(4)
        ]
        for viewer in viewers:
            assert (await viewer.next_frame())["type"] == "snapshot"
        assert reads["read_snapshot"] == 1
        await asyncio.sleep(0.5)
        reads.clear()

        await in_thread(story.take_steps)(1)
        frames = [await viewer.next_frame() for viewer in viewers]

    assert {frame["type"] for frame in frames} == {"batch"}
    assert reads == {"read_run": 1, "read_batch": 1}


async def test_viewers_that_poll_share_a_look_too(alice, story, reads, monkeypatch):
    assert stream.FRESH_SECONDS >= 1
    monkeypatch.setattr(stream, "FRESH_SECONDS", 3_600.0)
    monkeypatch.setattr(consumer, "POLL_SECONDS", 0.02)
    looks, have_read = Counter[int](), asyncio.Event()
    read_after = RunConsumer.read_after

    async def counted(
        self: RunConsumer, position: Position, notified_seq: int | None
    ) -> tuple[Position, str] | None:
        looks[id(self)] += 1
        if len(looks) == 3 and min(looks.values()) >= 4:
            have_read.set()
        return await read_after(self, position, notified_seq)

    monkeypatch.setattr(RunConsumer, "read_after", counted)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(watch(story.run.id, alice))
        await asyncio.wait_for(have_read.wait(), 30)

    assert reads["read_run"] == 1


async def test_a_forged_ring_sends_nothing(alice, story):
    layer = get_channel_layer()
    assert layer is not None

    async with watch(story.run.id, alice) as viewer:
        await viewer.next_frame()
        message = {"type": "run.wake", "run": story.run.id, "seq": 10**9}
        await layer.group_send(group_name(story.run.id), message)

        assert await viewer.is_quiet_for(0.3)


async def test_groups_wake_no_page_before_their_step(alice, story, monkeypatch):
    monkeypatch.setattr(consumer, "POLL_SECONDS", 30.0)

    async with watch(story.run.id, alice) as viewer:
        await viewer.next_frame()
        await in_thread(story.score_group)()
        assert await viewer.is_quiet_for(0.3)

        await in_thread(story.take_steps)(1)
        frame = await viewer.next_frame()

    assert [step["step"] for step in frame["steps"]] == [1]


@pytest.mark.slow
async def test_a_page_idle_for_12_seconds_still_hears(alice, story):
    async with watch(story.run.id, alice) as viewer:
        await viewer.next_frame()
        await asyncio.sleep(12)
        await in_thread(story.take_steps)(1)
        frame = await viewer.next_frame()

    assert [step["step"] for step in frame["steps"]] == [1]


async def test_frequent_requests_cause_no_extra_reads(alice, story, monkeypatch):
    await in_thread(story.take_steps)(30)
    run = await Run.objects.aget(id=story.run.id)
    read_after, reads = RunConsumer.read_after, list[Position]()

    async def counted(
        self: RunConsumer, position: Position, notified_seq: int | None
    ) -> tuple[Position, str] | None:
        reads.append(position)
        await asyncio.sleep(0.02)  # time to ask for something else
        return await read_after(self, position, notified_seq)

    monkeypatch.setattr(RunConsumer, "read_after", counted)
    monkeypatch.setattr(consumer, "FRAME_SECONDS", 60.0)
    async with watch(
        run.id, alice, f"?after={run.seq}&attempt={run.attempt}"
    ) as viewer:
        for number in range(40):
            await viewer.ask(after=number % 20, attempt=run.attempt)
            await asyncio.sleep(0.005)

    assert len(reads) <= 3
