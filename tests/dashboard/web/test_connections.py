"""Who sends no end of a request is not waited for."""

import asyncio
import logging
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

from dashboard.web import connections
from dashboard.web.connections import LimitedRequests, raise_file_limit
from tests.dashboard.web.test_budgets import until


class Hurried(LimitedRequests):
    check_seconds = 0.05
    max_wait_seconds = 0.2
    max_idle_seconds = 0.5


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers after all of the body, or 0.5 s later where the path says so."""
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        num_bytes += len(message["body"])
        more = message["more_body"]
    await asyncio.sleep(0.5 if scope["path"] == "/slow" else 0)
    length = [(b"content-length", str(len(str(num_bytes))).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": str(num_bytes).encode()})


@asynccontextmanager
async def serving() -> AsyncIterator[Any]:
    config = Config(echo, lifespan="off", log_config=None, timeout_keep_alive=60)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Hurried(config, state, {}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Any, Any]]:
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            yield reader, writer
        finally:
            writer.close()


async def drip(writer: Any, part: bytes) -> None:
    while not writer.is_closing():
        writer.write(part)
        await asyncio.sleep(0.01)


HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
BODY = HEAD + b"Content-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (HEAD, b""),
        (HEAD + b"X: ", b"x"),
        (BODY, b""),
        (BODY, b"x"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
    ],
    ids=["idle", "lines", "half a head", "slow head", "no body", "slow body", "chunk"],
)
async def test_unfinished_requests_time_out(begin, part):
    async with connected() as (reader, writer):
        writer.write(begin)
        dripping = asyncio.create_task(drip(writer, part))

        with suppress(ConnectionResetError):  # what was sent since comes too late
            assert await asyncio.wait_for(reader.read(), 5) == b""
        dripping.cancel()


async def test_active_clients_are_not_timed_out():
    async with connected() as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), 5)

        writer.write(HEAD + b"Content-Length: 60000\r\n\r\n")
        for _ in range(60):
            writer.write(b"x" * 1_000)
            await asyncio.sleep(0.01)
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"60000"), 5)


async def test_a_body_that_stops_is_not_waited_for_however_much_of_it_came():
    async with connected() as (reader, writer):
        writer.write(BODY + b"x" * 500_000)  # which grants 1,000 s

        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_an_address_has_a_bounded_number_of_connections(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    async with serving() as address:
        opened = [await asyncio.open_connection(*address) for _ in range(3)]
        assert await asyncio.wait_for(opened[2][0].read(), 5) == b""
        opened[0][1].close()
        await until(lambda: LimitedRequests.num_connections["127.0.0.1"] == 1)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), 5)
        for _, other in (*opened, (reader, writer)):
            other.close()


def test_a_client_that_closes_its_half_leaves_no_error_in_the_log(caplog):
    """With requests in its pipeline, on the loop that serves pages."""

    async def close_half() -> None:
        async with connected() as (reader, writer):
            writer.write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 5)
            await asyncio.sleep(0.6)  # the first answer is due

    uvloop.run(close_half())

    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_the_limit_of_open_files_is_raised_to_what_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
