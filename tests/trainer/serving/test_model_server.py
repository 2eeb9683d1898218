"""A model server's door: those who do not know the token cost it little."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from tests.trainer.waiting import wait_until
from trainer.serving.client import Call, Connection, Kind, notice_silence
from trainer.serving.server import ModelServer, RequestHandler

TOKEN = "0123456789abcdef"
KIND = Kind(name="echo server", part="echo", command="echo", port=1)


class Echo(RequestHandler):
    def answer_post(self, body: bytes) -> None:
        self.send(HTTPStatus.OK, "text/plain", body)


class Served:
    def __init__(self, *, port: int = 0) -> None:
        self.server = ModelServer(
            ("127.0.0.1", port), Echo, token=TOKEN, max_request_bytes=1000
        )
        self.port = self.server.server_port
        self._thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        self._thread.start()

    def end(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def connection(self, token: str = TOKEN) -> Connection:
        url = f"http://127.0.0.1:{self.port}"
        return Connection(url, KIND, token=token, patience_seconds=10.0)

    def client(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()


ECHO = Call(method="POST", path="/", body=b"hello")


def test_an_unauthenticated_client_is_disconnected_however_slowly_it_writes(served):
    served.server.handshake_seconds = 0.3
    with served.client() as client:
        client.settimeout(0.05)

        def is_let_go() -> bool:
            try:
                client.sendall(b"G")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_let_go)


def test_unauthenticated_clients_do_not_delay_shutdown():
    served = Served()
    with served.client() as client:
        client.sendall(b"GET / HT")
        wait_until(lambda: bool(served.server._unauthenticated))
        began = time.monotonic()

        served.end()

        assert time.monotonic() < began + 5


def test_the_number_of_unauthenticated_clients_is_limited(served):
    served.server.max_unauthenticated = 2
    clients = [served.client() for _ in range(2)]
    wait_until(lambda: len(served.server._unauthenticated) == 2)

    with served.client() as third:
        assert third.recv(1) == b""

    for client in clients:
        client.close()
    assert served.connection().ask(ECHO) == b"hello"  # waits until there is room
    wait_until(lambda: not served.server._unauthenticated)


def test_a_client_with_the_token_may_be_slow(served):
    served.server.handshake_seconds = 0.1
    head = f"POST / HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n"
    with served.client() as friend:
        friend.sendall(head.encode() + b"\r\n")
        time.sleep(0.5)
        friend.sendall(b"hello")

        answer = http.client.HTTPResponse(friend)
        answer.begin()

        assert answer.read() == b"hello"


def test_an_answer_that_stays_open_is_waited_for_too(capsys):
    served = Served()
    served.end()
    connection = served.connection()
    again: list[Served] = []
    late = threading.Timer(0.3, lambda: again.append(Served(port=served.port)))
    late.start()

    answer = connection.open(ECHO)

    assert answer.line == b"hello"
    assert "the echo server" in capsys.readouterr().out
    answer.close()
    again[0].end()


def test_a_silent_host_is_noticed_within_a_minute():
    with socket.socket() as connection:
        notice_silence(connection)

        tcp, options = socket.IPPROTO_TCP, socket
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle = connection.getsockopt(tcp, options.TCP_KEEPIDLE)
        pause = connection.getsockopt(tcp, options.TCP_KEEPINTVL)
        assert idle + pause * connection.getsockopt(tcp, options.TCP_KEEPCNT) <= 60
