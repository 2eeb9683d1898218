"""A frame is compressed once, and every browser can read it."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from dashboard.live.deflate import SharedDeflateProtocol, deflate
from dashboard.local.processes import web
from tests.fixtures_app import ROOT, free_port

TEXT = json.dumps(
    {"steps": [{"step": n, "values": {"reward/mean": n}} for n in range(99)]}
)


async def repeat_after(_scope: object, receive: object, send: object) -> None:
    """An application that sends a long text, then whatever it is told."""
    await receive()  # type: ignore[operator]
    await send({"type": "websocket.accept"})  # type: ignore[operator]
    await send({"type": "websocket.send", "text": TEXT})  # type: ignore[operator]
    while (message := await receive())["type"] == "websocket.receive":  # type: ignore[operator]
        await send({"type": "websocket.send", "text": message["text"]})  # type: ignore[operator]


@pytest.fixture
async def address() -> AsyncIterator[str]:
    port = free_port()
    config = uvicorn.Config(
        repeat_after,  # type: ignore[arg-type]
        port=port,
        ws=SharedDeflateProtocol,
        lifespan="off",
        log_level="error",
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    yield f"ws://127.0.0.1:{port}/"
    server.should_exit = True
    await task


def offer(**parameters: bool | int) -> list[ClientPerMessageDeflateFactory]:
    return [ClientPerMessageDeflateFactory(**parameters)]  # type: ignore[arg-type]


async def test_any_client_reads_what_it_is_sent(address: str) -> None:
    for extensions in (
        offer(client_max_window_bits=True),  # Chromium, Firefox
        offer(),
        offer(server_max_window_bits=10),
        offer(server_no_context_takeover=True, client_no_context_takeover=True),
        None,
    ):
        async with connect(
            address, extensions=extensions, compression=None, proxy=None
        ) as socket:
            assert await socket.recv() == TEXT
            for said in ("", "short", TEXT, TEXT[::-1]):
                await socket.send(said)
                assert await socket.recv() == said


async def test_a_second_socket_costs_no_second_compression(address: str) -> None:
    deflate.cache_clear()
    for _ in range(3):
        async with connect(address, proxy=None) as socket:
            assert await socket.recv() == TEXT

    assert deflate.cache_info().misses == 1
    assert deflate.cache_info().hits == 2


def test_what_is_sent_is_smaller() -> None:
    packed = deflate(TEXT.encode(), 15)

    assert len(packed) < len(TEXT) / 5
    assert zlib.decompressobj(wbits=-15).decompress(packed) == TEXT.encode()


def test_every_start_of_the_pages_compresses_once() -> None:
    name = f"{SharedDeflateProtocol.__module__}:{SharedDeflateProtocol.__name__}"

    assert name in web(data=ROOT, port=1).arguments
    assert f'"--ws", "{name}"' in (ROOT / "docker/web.Dockerfile").read_text()
