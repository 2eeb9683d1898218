"""What a page may send to the real consumer: nothing, or what it asks for."""

import base64
import contextlib
import socket
import struct
from dataclasses import dataclass, field

import hypothesis
import pytest
from django.conf import settings
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dashboard.accounts.models import Team
from dashboard.live.messages import BAD_MESSAGE
from tests.dashboard.runs.stories import queue_run
from tests.inputs.parsers.row import JSON, dumped, shaped

pytestmark = pytest.mark.slow
NUM_EXAMPLES = 20_000
TEXT, BINARY, CLOSE = 1, 2, 8
TOO_BIG, NO_UTF8, PROTOCOL = 1009, 1007, 1002
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
) -> bytes:
    size = len(data)
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
class Received:
    """All frames of the server until it closed the connection."""

    frames: list[tuple[int, bytes]] = field(default_factory=list)
    is_closed: bool = False

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

    def shake(self, changes: dict[str, str], path: str) -> str:
        """Returns the head of the response."""
        headers = HANDSHAKE | changes
        lines = [f"GET {path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        while b"\r\n\r\n" not in self._buffer:
            data = self.socket.recv(65_536)
            assert data, self._buffer
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def send(self, data: bytes) -> None:
        with contextlib.suppress(
            OSError
        ):  # closed by the server: its frames are read later
            self.socket.sendall(data)

    def close_sending(self) -> None:
        """As a browser that was closed; frames of the server are still read."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def receive(self) -> Received:
        """Until the server closes the connection."""
        received = Received()
        while head := self._read(2):
            size = head[1] & 127
            assert not head[1] & 128, "a server masks nothing (RFC 6455, 5.1)"
            if size > 125:
                size = int.from_bytes(self._read(2 if size == 126 else 8) or b"", "big")
            data = self._read(size)
            assert data is not None
            received.frames.append((head[0] & 15, data))
            if head[0] & 15 == CLOSE:  # the server waits for the reply
                self.send(frame(CLOSE, data))
        received.is_closed = True
        return received

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


REQUESTS = shaped(type=st.just("after"), seq=st.integers(), attempt=st.integers())
SENT = st.one_of(
    (JSON | REQUESTS).map(dumped).map(str.encode).map(lambda d: frame(TEXT, d)),
    st.binary(max_size=200).map(lambda data: frame(TEXT, data)),
    st.binary(max_size=200).map(lambda data: frame(BINARY, data)),
    st.binary(max_size=40),  # no frames at all
    st.builds(
        frame,
        st.integers(0, 15),
        st.binary(max_size=130),
        fin=st.booleans(),
        rsv=st.integers(0, 7),
        masked=st.booleans(),
    ),
)


class Page:
    """Opens the socket of a run, like a signed-in browser."""

    def __init__(self, app: str, client: Client, team: Team) -> None:
        name = settings.SESSION_COOKIE_NAME
        self.port = int(app.rpartition(":")[2])
        self.path = f"/ws/runs/{queue_run(team).id}/"
        self.headers = {
            "Host": f"127.0.0.1:{self.port}",
            "Origin": app,
            "Cookie": f"{name}={client.cookies[name].value}",
        }

    def open(self, query: str = "") -> tuple[Wire, str]:
        wire = Wire(self.port)
        return wire, wire.shake(self.headers, self.path + query)

    def send(self, sent: bytes, *, goes_away: bool = False) -> Received:
        """Send, and read until the server closes the connection."""
        wire, head = self.open()
        assert " 101 " in head, head
        wire.send(sent)
        if goes_away:  # otherwise the server waits after a partial or valid frame
            wire.close_sending()
        received = wire.receive()
        wire.socket.close()
        return received


@pytest.fixture
def page(live_app, alice_client, team) -> Page:
    return Page(live_app, alice_client, team)


REFUSED = [
    (frame(TEXT, b"{}"), BAD_MESSAGE),
    (frame(TEXT, b""), BAD_MESSAGE),
    (frame(TEXT, b"[" * 900), BAD_MESSAGE),
    (frame(TEXT, b'{"type": "after", "seq": -1}'), BAD_MESSAGE),
    (frame(TEXT, b'{"type": "after", "seq": 1e400}'), BAD_MESSAGE),
    (frame(TEXT, b'{"type": "after", "seq": ' + b"9" * 500 + b"}"), BAD_MESSAGE),
    (frame(TEXT, b"x" * 1_001), BAD_MESSAGE),
    (frame(BINARY, b'{"type": "after", "seq": 1}'), BAD_MESSAGE),
    (frame(TEXT, b"x" * 16_385), TOO_BIG),
    (frame(TEXT, b"\xff"), NO_UTF8),
    (frame(3, b"x"), PROTOCOL),
    (closing(4999), 4999),
]
INVALID_QUERIES = (
    "after=x",
    "after=-1",
    "after=1&attempt=x",
    "after=" + "9" * 5_000,
    "&".join(["a=1"] * 1_100),
)


def test_an_invalid_message_closes_the_socket_with_a_reason(page):
    received = [page.send(sent) for sent, _ in REFUSED]

    values = [(one.code, one.is_closed) for one in received]
    assert values == [(code, True) for _, code in REFUSED]


def test_an_invalid_url_opens_no_socket(page):
    for query in INVALID_QUERIES:
        wire, head = page.open(f"?{query}")
        wire.socket.close()
        assert " 403 " in head, query[:20]


@pytest.mark.soak
def test_the_server_survives_any_message(page):
    @hypothesis.settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SENT)
    def survives(sent: bytes) -> None:
        received = page.send(sent, goes_away=True)

        assert received.is_closed
        assert received.code not in (1006, 1011)  # the server itself failed
        assert all(opcode != CLOSE for opcode, _ in received.frames[:-1])

    survives()

    wire, head = page.open()
    wire.socket.close()
    assert " 101 " in head
