"""A WebSocket client of raw bytes: whatever nobody's library would send."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from dashboard.live.deflate import SharedDeflateProtocol
from tests.fixtures_app import free_port

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MAX_SIZE = 16_384  # as every start of the pages has it
DEFLATE = "permessage-deflate; client_max_window_bits"
MASK = b"\x12\x34\x56\x78"
HANDSHAKE = {
    "Host": "127.0.0.1",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": base64.b64encode(bytes(range(16))).decode(),
    "Sec-WebSocket-Version": "13",
}


def frame(
    opcode: int,
    data: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: int | None = None,
) -> bytes:
    """`length`: told instead of the true one."""
    size = len(data) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    bit = masked << 7
    if size < 126:
        head += bytes([bit | size])
    elif size < 2**16:
        head += bytes([bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([bit | 127]) + struct.pack("!Q", size)
    if not masked:
        return head + data
    hidden = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(data))
    return head + MASK + hidden


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


@dataclass(slots=True)
class Heard:
    """All that the server said until it hung up, or had been asked enough."""

    frames: list[tuple[int, bytes]] = field(default_factory=list)
    compressed: list[bool] = field(default_factory=list)
    has_hung_up: bool = False

    def __add__(self, other: Heard) -> Heard:
        return Heard(
            self.frames + other.frames,
            self.compressed + other.compressed,
            self.has_hung_up or other.has_hung_up,
        )

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        return [one for one in self.frames if one[0] != CLOSE]

    @property
    def code(self) -> int | None:
        """Of its Close; 1005: it had none (RFC 6455, 7.1.5)."""
        for opcode, data in self.frames:
            if opcode == CLOSE:
                return struct.unpack("!H", data[:2])[0] if data else 1005
        return None


class Wire:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._buffer = b""

    def shake(self, changes: dict[str, str | None], path: str = "/") -> str:
        """The answer's head; a header of None is left out."""
        told = {n: v for n, v in (HANDSHAKE | changes).items() if v is not None}
        lines = [f"GET {path} HTTP/1.1", *(f"{n}: {v}" for n, v in told.items())]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        while b"\r\n\r\n" not in self._buffer:
            data = self.socket.recv(65_536)
            assert data, self._buffer
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def send(self, data: bytes, *, at_once: bool = True) -> None:
        pieces = [data] if at_once else [bytes([byte]) for byte in data]
        for piece in pieces:
            try:
                self.socket.sendall(piece)
            except OSError:  # it hung up already: what it said is read yet
                return

    def close_sending(self) -> None:
        """As a browser that went away; what it was told is still read."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def hear(self, num_messages: int | None = None) -> Heard:
        """Until so many messages came, or, without a number, it hangs up."""
        heard = Heard()
        while num_messages is None or len(heard.messages) < num_messages:
            head = self._read(2)
            if head is None:
                heard.has_hung_up = True
                return heard
            size = head[1] & 127
            assert not head[1] & 128, "a server masks nothing (RFC 6455, 5.1)"
            if size > 125:
                size = int.from_bytes(self._read(2 if size == 126 else 8) or b"", "big")
            data = self._read(size)
            assert data is not None
            heard.frames.append((head[0] & 15, data))
            heard.compressed.append(bool(head[0] & 0x40))
            if head[0] & 15 == CLOSE:  # else it waits for the answer
                self.send(frame(CLOSE, data))
        return heard

    def _read(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._buffer += data
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found


async def echo(scope: object, receive: object, send: object) -> None:
    """Says what it is told, as the live protocol itself never does."""
    await receive()  # type: ignore[operator]
    await send({"type": "websocket.accept"})  # type: ignore[operator]
    while (message := await receive())["type"] == "websocket.receive":  # type: ignore[operator]
        kind = "text" if message.get("text") is not None else "bytes"
        await send({"type": "websocket.send", kind: message[kind]})  # type: ignore[operator]


@contextmanager
def echo_server() -> Iterator[int]:
    """Its port; uvicorn with our protocol and our bound, on a thread of its own."""
    port = free_port()
    config = uvicorn.Config(
        echo,  # type: ignore[arg-type]
        port=port,
        ws=SharedDeflateProtocol,
        ws_max_size=MAX_SIZE,
        lifespan="off",
        log_level="critical",
    )
    server = uvicorn.Server(config)
    started = threading.Event()

    async def serve() -> None:
        task = asyncio.create_task(server._serve())
        while not server.started:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        started.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()
