"""Open pages hear what is written as it is written, and only the team's own."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.accounts.models import User
from dashboard.datasets.models import DatasetRow
from dashboard.probes.chat.news import change
from dashboard.probes.chat.services import ask, stop
from dashboard.probes.models import Chat
from dashboard.runs.models import Checkpoint
from tests.dashboard.checkpoints.saved import Saving
from tests.dashboard.live.watching import in_thread, refusal, watch

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/ws/chats/%d/"


@pytest.fixture
def chat(saving: Saving, alice: User) -> Chat:
    pk = saving.save().pk
    return ask(
        checkpoint=Checkpoint.objects.select_related("run__team").get(pk=pk),
        user=alice,
        row=DatasetRow(position=None, prompt="1+1=", answer=None, columns={}),
        num_samples=1,
        max_new_tokens=6,
        temperature=1.0,
        seed=5,
    )


def write(chat: Chat, *texts: str | None, end_reason: str | None = None) -> None:
    """As the desk does, of the checkpoint and its base."""
    answers: list[dict[str, Any]] = [
        {
            "completions": [
                None
                if text is None
                else {"text": text, "num_tokens": len(text), "end_reason": end_reason}
            ]
        }
        for text in texts
    ]
    assert change(chat.pk, Chat.objects.all(), answers=answers)


async def test_a_page_is_sent_only_what_is_new(chat: Chat, bob: User) -> None:
    await in_thread(write)(chat, "so", None)

    async with watch(chat.pk, bob, path=PATH) as viewer:
        first = await viewer.next_frame()
        await in_thread(write)(chat, "so far", "ba")
        second = await viewer.next_frame()
        await in_thread(write)(chat, "so far", "bad", end_reason="stop")
        third = await viewer.next_frame()

    assert first["type"] == "snapshot"
    assert [(t["text"], t["is_whole"]) for t in first["texts"]] == [("so", True)]
    assert (second["type"], second["after"]) == ("batch", first["seq"])
    assert [(t["model"], t["text"], t["is_whole"]) for t in second["texts"]] == [
        (0, " far", False),
        (1, "ba", True),
    ]
    assert [t["num_tokens"] for t in second["texts"]] == [6, 2]
    # What has ended is on the page that is fetched because the shape is another.
    assert third["texts"] == []
    assert len({first["shape"], second["shape"], third["shape"]}) == 3


async def test_an_answer_that_begins_anew_replaces_what_was_there(
    chat: Chat, alice: User
) -> None:
    await in_thread(write)(chat, "a first try", None)

    async with watch(chat.pk, alice, path=PATH) as viewer:
        await viewer.next_frame()
        await in_thread(write)(chat, "other", None)
        frame = await viewer.next_frame()

    assert [(t["text"], t["is_whole"]) for t in frame["texts"]] == [("other", True)]


async def test_a_page_that_comes_back_is_sent_all(chat: Chat, alice: User) -> None:
    await in_thread(write)(chat, "so far", None)

    async with watch(chat.pk, alice, "?after=1&epoch=1", path=PATH) as viewer:
        frame = await viewer.next_frame()

    assert frame["type"] == "snapshot"
    assert [t["text"] for t in frame["texts"]] == ["so far"]


async def test_a_stop_is_heard_at_once(chat: Chat, alice: User) -> None:
    async with watch(chat.pk, alice, path=PATH) as viewer:
        assert (await viewer.next_frame())["is_open"]
        await in_thread(stop)(chat, alice)
        frame = await viewer.next_frame()

    assert not frame["is_open"]


async def test_strangers_hear_nothing(chat: Chat, charlie: User) -> None:
    assert await refusal(chat.pk, None, path=PATH) == 4401
    assert await refusal(chat.pk, charlie, path=PATH) == 4404
    assert await refusal(chat.pk + 1, charlie, path=PATH) == 4404
