"""RFC 6455 and RFC 7692, frame by frame, against our protocol in a real server.

The groups are those of Autobahn's test suite, which itself cannot be run: its newest
release, 25.10.1, is written for Python 2, and PyPI and Debian 12 have none. What is
expected is each RFC's word.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from tests.inputs.wire import (
    BINARY,
    CLOSE,
    CONT,
    DEFLATE,
    MAX_SIZE,
    PING,
    PONG,
    TEXT,
    Heard,
    Wire,
    closing,
    echo_server,
    frame,
)

# The library's own conformance, which a change of ours cannot break.
pytestmark = pytest.mark.slow

PROTOCOL, NO_UTF8, TOO_BIG = 1002, 1007, 1009  # RFC 6455, 7.4.1
CUT = "κόσμε".encode()
SURROGATE = b"\xce\xba\xed\xa0\x80edited"
BEYOND = b"\xce\xba\xf4\x90\x80\x80edited"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with echo_server() as port:
        yield port


def open_wire(port: int, extensions: str | None = None) -> Wire:
    wire = Wire(port)
    head = wire.shake({"Sec-WebSocket-Extensions": extensions})
    assert head.startswith("HTTP/1.1 101"), head
    return wire


def tell(
    port: int,
    data: bytes,
    *,
    num_messages: int = 0,
    at_once: bool = True,
    extensions: str = "",
) -> Heard:
    """What is said to this and, once so many messages came, to a Close behind it."""
    wire = open_wire(port, extensions or None)
    wire.send(data, at_once=at_once)
    heard = wire.hear(num_messages)
    wire.send(closing(1000))
    heard += wire.hear()
    wire.socket.close()
    return heard


def pack(data: bytes, **options: int) -> bytes:
    packer = zlib.compressobj(**({"wbits": -15} | options))  # type: ignore[arg-type]
    packed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
    return packed.removesuffix(b"\x00\x00\xff\xff")


SAID_AGAIN = [
    # 1: framing
    *((f"1.1 text of {n}", frame(TEXT, b"*" * n), [(TEXT, b"*" * n)])
      for n in (0, 1, 125, 126, 127, 128, 4_096, MAX_SIZE)),
    *((f"1.2 bytes of {n}", frame(BINARY, b"\xfe" * n), [(BINARY, b"\xfe" * n)])
      for n in (0, 125, 126, MAX_SIZE)),
    # 2: pings and pongs
    ("2.1 an empty ping", frame(PING), [(PONG, b"")]),
    ("2.2 a ping with bytes", frame(PING, b"\x00\xff\xfe"), [(PONG, b"\x00\xff\xfe")]),
    ("2.4 a ping of 125", frame(PING, b"*" * 125), [(PONG, b"*" * 125)]),
    ("2.7 a pong unasked", frame(PONG, b"a"), []),
    ("2.9 a pong, then a ping", frame(PONG, b"a") + frame(PING, b"b"), [(PONG, b"b")]),
    ("2.10 ten pings", b"".join(frame(PING, b"%d" % n) for n in range(10)),
     [(PONG, b"%d" % n) for n in range(10)]),
    # 5: fragments
    ("5.3 two fragments", frame(TEXT, b"a", fin=False) + frame(CONT, b"b"), [(TEXT, b"ab")]),
    ("5.6 a ping between", frame(TEXT, b"a", fin=False) + frame(PING, b"p") + frame(CONT, b"b"),
     [(PONG, b"p"), (TEXT, b"ab")]),
    ("5.19 empty ones between", frame(BINARY, fin=False) + frame(CONT, fin=False) * 5
     + frame(CONT, b"b"), [(BINARY, b"b")]),
    # 6: UTF-8
    ("6.2 every script", frame(TEXT, "Hello-µ@ßöäüàá-UTF-8!! 😀".encode()),
     [(TEXT, "Hello-µ@ßöäüàá-UTF-8!! 😀".encode())]),
    ("6.2.4 a character in two fragments", frame(TEXT, CUT[:1], fin=False) + frame(CONT, CUT[1:]),
     [(TEXT, CUT)]),
    ("6.22 no characters", frame(TEXT, "\ufffe\uffff".encode()), [(TEXT, "\ufffe\uffff".encode())]),
    ("6.5 a NUL", frame(TEXT, b"\0"), [(TEXT, b"\0")]),
]  # fmt: skip
REFUSED = [
    # 2
    ("2.5 a ping of 126", frame(PING, b"*" * 126), PROTOCOL),
    # 3: reserved bits, which nothing gave a meaning to
    *((f"3 text with bits {rsv}", frame(TEXT, b"a", rsv=rsv), PROTOCOL) for rsv in range(1, 8)),
    ("3.5 a ping with a bit", frame(PING, rsv=4), PROTOCOL),
    ("3.7 a close with a bit", frame(CLOSE, rsv=2), PROTOCOL),
    # 4: opcodes that nobody defined
    *((f"4 opcode {n}", frame(n, b"a"), PROTOCOL) for n in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
    ("4 opcode 3 after a message", frame(TEXT, b"a") + frame(3), PROTOCOL),
    # 5
    ("5.1 a ping in fragments", frame(PING, b"a", fin=False) + frame(CONT, b"b"), PROTOCOL),
    ("5.9 more of nothing", frame(CONT, b"a"), PROTOCOL),
    ("5.10 more of nothing, unfinished", frame(CONT, b"a", fin=False), PROTOCOL),
    ("5.18 a text within a text", frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), PROTOCOL),
    ("5.1 a close in fragments", frame(CLOSE, fin=False), PROTOCOL),
    # 5.1 of the RFC: a client masks
    ("a text without a mask", frame(TEXT, b"a", masked=False), PROTOCOL),
    # 6
    ("6.3 a surrogate", frame(TEXT, SURROGATE), NO_UTF8),
    ("6.4 beyond Unicode", frame(TEXT, BEYOND), NO_UTF8),
    ("6.4 beyond Unicode, in fragments", frame(TEXT, BEYOND[:2], fin=False) + frame(CONT, BEYOND[2:]), NO_UTF8),
    ("6.6 cut short", frame(TEXT, CUT[:-1]), NO_UTF8),
    ("6.8 a first byte alone", frame(TEXT, b"\xf8"), NO_UTF8),
    ("6.14 a byte of none", frame(TEXT, b"\x80"), NO_UTF8),
    ("6.18 overlong", frame(TEXT, b"\xc0\xaf"), NO_UTF8),
    ("6.20 overlong of four", frame(TEXT, b"\xf0\x80\x80\xaf"), NO_UTF8),
    # 7: closing
    ("7.3.2 a code of one byte", frame(CLOSE, b"\x03"), PROTOCOL),
    ("7.3.6 a reason of 124", closing(1000, b"*" * 124), PROTOCOL),
    ("7.5 a reason that is no UTF-8", closing(1000, SURROGATE), NO_UTF8),
    *((f"7.9 code {code}", closing(code), PROTOCOL)
      for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)),
    # 9: limits
    ("9 one more than may be", frame(TEXT, b"*" * (MAX_SIZE + 1)), TOO_BIG),
    ("9 one more, in fragments", frame(TEXT, b"*" * 9_000, fin=False) + frame(CONT, b"*" * 9_000), TOO_BIG),
    ("9 a petabyte told", frame(BINARY, length=2**50), TOO_BIG),
    # RFC 6455, 5.2 knows no such length; that it is too big is as true.
    ("9 2 to the 63 told", frame(BINARY, length=2**63), TOO_BIG),
]  # fmt: skip
PACKED = [
    ("12 a packed text", frame(TEXT, pack(b"a" * 999), rsv=4), [(TEXT, b"a" * 999)]),
    ("12 a text unpacked", frame(TEXT, b"plain"), [(TEXT, b"plain")]),
    ("13 a packed nothing", frame(TEXT, b"\x00", rsv=4), [(TEXT, b"")]),
    ("13 stored as it is", frame(TEXT, pack(b"abc", level=0), rsv=4), [(TEXT, b"abc")]),
    ("13 in many blocks", frame(TEXT, b"".join(pack(bytes([c])) + b"\x00\x00\xff\xff" for c in b"abc")
     .removesuffix(b"\x00\x00\xff\xff"), rsv=4), [(TEXT, b"abc")]),
    ("13 in fragments", frame(TEXT, pack(b"abc")[:2], rsv=4, fin=False) + frame(CONT, pack(b"abc")[2:]),
     [(TEXT, b"abc")]),
    ("13 a ping between", frame(BINARY, pack(b"abc")[:2], rsv=4, fin=False) + frame(PING, b"p")
     + frame(CONT, pack(b"abc")[2:]), [(PONG, b"p"), (BINARY, b"abc")]),
    ("13 ended by a last block", frame(TEXT, zlib.compressobj(wbits=-15).flush() + b"\x00", rsv=4),
     [(TEXT, b"")]),
    ("13 just what may be", frame(TEXT, pack(b"a" * MAX_SIZE), rsv=4), [(TEXT, b"a" * MAX_SIZE)]),
]  # fmt: skip
BADLY_PACKED = [
    ("13 not packed at all", frame(TEXT, b"\xff\xff\xff\xff", rsv=4), {PROTOCOL, NO_UTF8}),
    ("13 a distance too far back", frame(TEXT, b"\x4b\x04\x82\xff\x07", rsv=4), {PROTOCOL, NO_UTF8}),
    ("13 no UTF-8 inside", frame(TEXT, pack(SURROGATE), rsv=4), {NO_UTF8}),
    ("13 a bit on a later fragment", frame(TEXT, pack(b"a"), rsv=4, fin=False) + frame(CONT, b"", rsv=4), {PROTOCOL}),
    ("13 a packed ping", frame(PING, pack(b"a"), rsv=4), {PROTOCOL}),
    ("13 another bit", frame(TEXT, b"a", rsv=2), {PROTOCOL}),
    ("13 a bomb", frame(TEXT, pack(b"a" * 10_000_000), rsv=4), {TOO_BIG}),
    ("13 a bomb in fragments", frame(TEXT, pack(b"a" * 9_000), rsv=4, fin=False)
     + frame(CONT, pack(b"a" * 10_000_000)), {TOO_BIG}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("_", "sent", "expected"), SAID_AGAIN, ids=lambda x: str(x)[:40]
)
def test_what_may_be_sent_is_said_again(
    port: int, _: str, sent: bytes, expected: list[tuple[int, bytes]]
) -> None:
    heard = tell(port, sent, num_messages=len(expected))

    assert heard.messages == expected
    assert (heard.code, heard.has_hung_up) == (1000, True)


def test_it_may_come_byte_by_byte(port: int) -> None:
    sent = frame(TEXT, CUT[:3], fin=False) + frame(PING, b"p") + frame(CONT, CUT[3:])

    heard = tell(port, sent, num_messages=2, at_once=False)

    assert heard.messages == [(PONG, b"p"), (TEXT, CUT)]
    assert heard.code == 1000


@pytest.mark.parametrize(("_", "sent", "code"), REFUSED, ids=lambda x: str(x)[:40])
def test_what_may_not_be_sent_ends_the_socket_with_its_reason(
    port: int, _: str, sent: bytes, code: int
) -> None:
    heard = tell(port, sent)

    assert (heard.code, heard.has_hung_up) == (code, True)


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 3000, 3999, 4000, 4999])
def test_a_close_is_answered_with_its_own_code(port: int, code: int) -> None:
    heard = tell(
        port, closing(code, "Grüße".encode()) + frame(PING) + frame(TEXT, b"a")
    )

    assert heard.messages == []  # nothing is said behind a Close
    assert (heard.code, heard.has_hung_up) == (code, True)


def test_a_close_within_a_message_is_a_close(port: int) -> None:
    sent = frame(TEXT, b"a", fin=False) + closing(1000) + frame(CONT, b"b")

    heard = tell(port, sent)

    assert (heard.messages, heard.code, heard.has_hung_up) == ([], 1000, True)


def test_a_close_without_a_code_is_answered(port: int) -> None:
    heard = tell(port, frame(CLOSE))

    assert heard.code in (1000, 1005)
    assert heard.has_hung_up


@pytest.mark.parametrize(("_", "sent", "expected"), PACKED, ids=lambda x: str(x)[:40])
@pytest.mark.parametrize(
    "extensions", [DEFLATE, f"{DEFLATE}; client_no_context_takeover"]
)
def test_what_is_packed_is_read(
    port: int, extensions: str, _: str, sent: bytes, expected: list[tuple[int, bytes]]
) -> None:
    heard = tell(port, sent, num_messages=len(expected), extensions=extensions)

    data = [
        (opcode, zlib.decompressobj(wbits=-15).decompress(data + b"\x00\x00\xff\xff"))
        if is_packed
        else (opcode, data)
        for (opcode, data), is_packed in zip(
            heard.frames, heard.compressed, strict=True
        )
        if opcode != CLOSE
    ]
    assert data == expected
    assert (heard.code, heard.has_hung_up) == (1000, True)


@pytest.mark.parametrize(
    ("_", "sent", "codes"), BADLY_PACKED, ids=lambda x: str(x)[:40]
)
def test_what_is_badly_packed_ends_the_socket_with_its_reason(
    port: int, _: str, sent: bytes, codes: set[int]
) -> None:
    heard = tell(port, sent, extensions=DEFLATE)

    assert heard.code in codes
    assert heard.has_hung_up


def test_a_message_may_refer_to_the_one_before(port: int) -> None:
    """The client keeps its window from message to message (RFC 7692, 7.1.1.2)."""
    packer = zlib.compressobj(wbits=-12)
    text = b"the quick brown fox jumps over the lazy dog" * 20
    sent = b""
    for _ in range(3):
        packed = packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH)
        sent += frame(TEXT, packed.removesuffix(b"\x00\x00\xff\xff"), rsv=4)

    heard = tell(port, sent, num_messages=3, extensions=DEFLATE)

    assert len(heard.messages) == 3
    assert len({data for _, data in heard.messages}) == 1  # each packed by itself
    assert heard.code == 1000


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ("permessage-deflate; server_max_window_bits=10", "server_max_window_bits=10"),
        ("permessage-deflate; client_max_window_bits=9", "client_max_window_bits=9"),
        (
            "permessage-deflate; server_no_context_takeover",
            "server_no_context_takeover",
        ),
        ("permessage-deflate; server_max_window_bits=7", None),
        ("permessage-deflate; server_max_window_bits=16", None),
        ("permessage-deflate; server_max_window_bits=010", None),
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; client_max_window_bits=x", None),
        ("permessage-deflate; client_no_context_takeover=1", None),
        ("permessage-deflate; colour=red", None),
        ("permessage-deflate; client_max_window_bits; client_max_window_bits", None),
        ("permessage-deflate; colour, permessage-deflate", "permessage-deflate"),
        ("x-webkit-deflate-frame", None),
    ],
)
def test_only_what_the_rfc_knows_is_agreed_on(
    port: int, offered: str, agreed: str | None
) -> None:
    """RFC 7692, 7.1: an offer with anything else is declined."""
    wire = Wire(port)
    head = wire.shake({"Sec-WebSocket-Extensions": offered})
    wire.socket.close()

    told = [line for line in head.split("\r\n") if "extensions" in line.lower()]
    assert head.startswith("HTTP/1.1 101")
    assert (agreed in told[0]) if agreed else told == []


@pytest.mark.parametrize(
    "changes",
    [
        {"Sec-WebSocket-Key": None},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": "!" * 24},
        {"Sec-WebSocket-Version": "12"},
        {"Sec-WebSocket-Version": None},
        {"Sec-WebSocket-Extensions": "permessage-deflate; ="},
        {"Sec-WebSocket-Extensions": ";;;,"},
    ],
)
def test_a_handshake_that_is_none_is_refused(
    port: int, changes: dict[str, str | None]
) -> None:
    wire = Wire(port)

    head = wire.shake(changes)

    wire.socket.close()
    assert head.split(" ")[1] in ("400", "426"), head
