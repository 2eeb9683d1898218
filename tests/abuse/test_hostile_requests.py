"""Malformed requests and handshakes, sent directly to the socket."""

import re
import socket
from contextlib import closing, suppress
from urllib.parse import urlsplit

from dashboard.web.connections import MAX_HEAD_BYTES

HANG_SECONDS = 5
KEY = b"Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\nSec-WebSocket-Version: 13\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
LONG = b"x" * 9_000
MANY = b"".join(b"X-%d: a\r\n" % i for i in range(300))


def connect(live_app: str) -> socket.socket:
    at = urlsplit(live_app)
    found = socket.create_connection((at.hostname or "", at.port or 0), HANG_SECONDS)
    found.settimeout(HANG_SECONDS)
    return found


def ask(live_app: str, raw: bytes, *, until: bytes = b"") -> tuple[int, bool]:
    """The status, 0 for none, and whether the server hung up in time."""
    said, is_closed = b"", False
    with closing(connect(live_app)) as client:
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(raw)
        try:
            while not is_closed and not (until and until in said):
                part = client.recv(65536)
                said += part
                is_closed = not part
        except ConnectionResetError:
            is_closed = True
        except TimeoutError:
            pass
    found = re.match(rb"HTTP/1\.1 (\d+) ", said)
    return (int(found[1]) if found else 0), is_closed


def handshake(path: bytes, more: bytes = b"", body: bytes = b"") -> bytes:
    head = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path
    if b"Origin:" not in more:
        more += b"Origin: http://127.0.0.1\r\n"
    return head + UPGRADE + KEY + more + b"\r\n" + body


SOCKET = b"/ws/runs/1/"
HANDSHAKES = {
    "a line of 9,000 bytes": handshake(SOCKET, b"X: " + LONG + b"\r\n"),
    "a path of 9,000 bytes": handshake(b"/" + LONG),
    "a path of 100,000 bytes": handshake(b"/" + b"x" * 100_000),
    "300 headers": handshake(SOCKET, MANY),
    "a body": handshake(SOCKET, b"Content-Length: 5\r\n", b"hello"),
    "a body to come": handshake(SOCKET, b"Content-Length: 5\r\n"),
    "a body in pieces": handshake(
        SOCKET, b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"
    ),
    "an unknown path": handshake(b"/ws/"),
    "a page's path": handshake(b"/healthz"),
    "a path that is no number": handshake(b"/ws/runs/x/"),
    "a path of a huge number": handshake(b"/ws/runs/" + b"9" * 400 + b"/"),
    "a path of bytes": handshake(b"/ws/runs/\xff\xfe/"),
    "a path of odd escapes": handshake(b"/ws/runs/%ff%00/"),
    "an absolute path": handshake(b"http://127.0.0.1/ws/runs/1/"),
    "an asterisk": handshake(b"*"),
    "no key": b"GET /ws/runs/1/ HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n",
    "an odd key": handshake(SOCKET).replace(b"AAEC", b"\xff\xff--"),
    "another version": handshake(SOCKET).replace(b"Version: 13", b"Version: 12"),
    "two hosts": handshake(SOCKET, b"Host: b\r\n"),
    "an odd origin": handshake(SOCKET, b"Origin: http://[\r\n"),
    "an origin of bytes": handshake(SOCKET, b"Origin: \xff\xfe\r\n"),
    "cookies of bytes": handshake(SOCKET, b"Cookie: cohort_session=\xff\x80; =;;\r\n"),
    "odd protocols": handshake(SOCKET, b"Sec-WebSocket-Protocol: \xff, ,,\r\n"),
    "odd extensions": handshake(SOCKET, b'Sec-WebSocket-Extensions: ;;="\r\n'),
    "HTTP/1.0": handshake(SOCKET).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a POST": handshake(SOCKET).replace(b"GET", b"POST"),
}


def request(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([line, b"Host: 127.0.0.1", *headers, b"", b""])


GET = b"GET /sign-in/ HTTP/1.1"
POST = b"POST /sign-in/ HTTP/1.1"
CHUNKED = request(POST, b"Transfer-Encoding: chunked")
REQUESTS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "an odd method": request(b"BREW /sign-in/ HTTP/1.1"),
    "CONNECT": request(b"CONNECT example.org:443 HTTP/1.1"),
    "an asterisk": request(b"OPTIONS * HTTP/1.1"),
    "an absolute address": request(b"GET http://127.0.0.1/healthz HTTP/1.1"),
    "an odd address": request(b"GET http://[/ HTTP/1.1"),
    "a path of bytes": request(b"GET /\xff\xfe HTTP/1.1"),
    "odd escapes": request(b"GET /%ff%00%zz%/ HTTP/1.1"),
    "a path of 100,000 bytes": request(b"GET /" + b"x" * 100_000 + b" HTTP/1.1"),
    "a query of 60,000 bytes": request(b"GET /?" + b"x" * 60_000 + b" HTTP/1.1"),
    "a header of 100,000 bytes": request(GET, b"X: " + b"x" * 100_000),
    "a header without an end": GET + b"\r\nX: " + b"x" * 5_000_000,
    "10,000 headers": request(GET, *[b"X: a"] * 10_000),
    "a name of nothing": request(GET, b": a"),
    "a NUL in a header": request(GET, b"X: a\0b"),
    "a folded header": request(GET, b"X: a", b" b"),
    "a header of bytes": request(GET, b"X-Request-ID: \xff\xfe", b"Accept: \xff"),
    "lines alone": b"\r\n" * 200_000,
    "a length below zero": request(POST, b"Content-Length: -1"),
    "a length of text": request(POST, b"Content-Length: x"),
    "a length of 400 digits": request(POST, b"Content-Length: " + b"9" * 400),
    "two lengths": request(POST, b"Content-Length: 1", b"Content-Length: 2") + b"a",
    "a length and pieces": request(
        POST, b"Content-Length: 1", b"Transfer-Encoding: chunked"
    ),
    "an odd piece": CHUNKED + b"zz\r\n",
    "a piece of 400 digits": CHUNKED + b"f" * 400 + b"\r\n",
    "a trailer without an end": CHUNKED + b"0\r\nX: " + b"x" * 5_000_000,
    "trailers without an end": CHUNKED + b"0\r\n" + b"X: a\r\n" * 900_000,
    "a piece's extension without an end": CHUNKED + b"1;" + b"x" * 5_000_000,
    "an expectation": request(POST, b"Expect: 100-continue", b"Content-Length: 0"),
    "another upgrade": request(GET, b"Connection: Upgrade", b"Upgrade: h2c"),
}  # fmt: skip


def test_any_handshake_gets_a_response_and_is_closed(live_app, web_processes):
    begin = web_processes.log.stat().st_size

    found = {name: ask(live_app, raw) for name, raw in HANDSHAKES.items()}

    assert {(400 <= status < 500, closed) for status, closed in found.values()} == {
        (True, True)
    }, found
    too_long = {
        name: found[name][0] for name in ("a line of 9,000 bytes", "300 headers")
    }
    assert too_long == dict.fromkeys(too_long, 431)
    assert found["an unknown path"][0] == 403
    assert b"Traceback" not in web_processes.log.read_bytes()[begin:]


def test_any_request_gets_a_response_or_is_closed(live_app, web_processes):
    begin = web_processes.log.stat().st_size

    found = {
        name: ask(live_app, raw, until=b"\r\n\r\n") for name, raw in REQUESTS.items()
    }

    wrong = {n: it for n, it in found.items() if it[0] >= 500 or it == (0, False)}
    assert wrong == {}
    assert b"Traceback" not in web_processes.log.read_bytes()[begin:]


def test_an_endless_header_is_refused_early(live_app):
    begun = GET + b"\r\nHost: 127.0.0.1\r\nX: " + b"x" * MAX_HEAD_BYTES
    ended = begun[: MAX_HEAD_BYTES // 2] + b"\r\n\r\n"

    assert ask(live_app, begun) == (431, True)
    assert ask(live_app, ended, until=b"\r\n\r\n") == (200, False)
