"""Viewers of a run, through the real socket stack, Redis and PostgreSQL."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.conf import settings
from django.test import Client

from dashboard.accounts.models import User
from dashboard.asgi import application


def in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Runs it where its connection is its own, as another process would."""
    return database_sync_to_async(function, thread_sensitive=False)


def cookie_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"


class Viewer:
    """One socket. channels' own communicator would want the daphne server."""

    def __init__(self, path: str, headers: list[tuple[bytes, bytes]], query: str):
        self.app = ApplicationCommunicator(
            application,
            {
                "type": "websocket",
                "path": path,
                "query_string": query.removeprefix("?").encode(),
                "headers": headers,
                "subprotocols": [],
            },
        )

    async def connect(self) -> dict[str, Any]:
        """The answer, or what the application raised, without waiting for the time."""
        await self.app.send_input({"type": "websocket.connect"})
        answer = asyncio.ensure_future(self.app.receive_output(timeout=5))
        ended = self.app.future
        await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.exception() is not None:
            answer.cancel()
            ended.result()
        reported: dict[str, Any] = await answer
        return reported

    async def say(self, text: str) -> None:
        await self.app.send_input({"type": "websocket.receive", "text": text})

    async def ask(self, *, after: int, attempt: int) -> None:
        await self.say(json.dumps({"type": "after", "seq": after, "attempt": attempt}))

    async def next(self, seconds: float = 5) -> dict[str, Any]:
        output = await self.app.receive_output(seconds)
        assert output["type"] == "websocket.send", output
        message: dict[str, Any] = json.loads(output["text"])
        return message

    async def next_frame(self) -> dict[str, Any]:
        """The next message that is not a ping."""
        while True:
            message = await self.next()
            if message["type"] != "ping":
                return message

    async def until_seq(self, seq: int) -> list[dict[str, Any]]:
        frames = [await self.next_frame()]
        while frames[-1]["seq"] < seq:
            frames.append(await self.next_frame())
        return frames

    async def until_closed(self) -> int:
        while True:
            output = await self.app.receive_output(timeout=5)
            if output["type"] == "websocket.close":
                return int(output["code"])

    async def is_quiet_for(self, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return bool(await self.app.receive_nothing(timeout=0.05))

    async def leave(self) -> None:
        await self.app.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.app.wait(timeout=5)


async def come(
    run_id: int,
    user: User | None,
    query: str = "",
    *,
    origin: str = "http://localhost",
    path: str = "/ws/runs/%d/",
) -> Viewer:
    headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
    if user is not None:
        cookie = await in_thread(cookie_of)(user)
        headers.append((b"cookie", cookie.encode()))
    return Viewer(path % run_id, headers, query)


@asynccontextmanager
async def watch(
    run_id: int, user: User, query: str = "", **given: str
) -> AsyncIterator[Viewer]:
    viewer = await come(run_id, user, query, **given)
    answer = await viewer.connect()
    assert answer["type"] == "websocket.accept", answer
    try:
        yield viewer
    finally:
        await viewer.leave()


async def refusal(
    run_id: int, user: User | None, query: str = "", **given: str
) -> int | None:
    """The close code; None when it was refused without one."""
    viewer = await come(run_id, user, query, **given)
    answer = await viewer.connect()
    assert answer["type"] == "websocket.close", answer
    return answer.get("code")
