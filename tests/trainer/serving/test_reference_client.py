"""A run asks a reference server: what is sent, and what comes back."""

import re
import socket
import threading
import time

import pytest
import torch

from tests.trainer.questions import question
from tests.trainer.samples import make_batch
from trainer.serving.client import is_private
from trainer.serving.reference_client import (
    ServerReference,
    pack_answer,
    pack_question,
    unpack_question,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_ids": torch.tensor([[2, 36, 4]])}, "input_ids must be at least 0 and"),
        ({"input_ids": torch.tensor([[2, -1, 4]])}, "below 36; got -1 to 4"),
        ({"input_ids": torch.tensor([2, 3, 4])}, "'input_ids': (torch.int32, 1)"),
        ({"input_ids": torch.zeros(0, 3)}, "input_ids must not be empty"),
        ({"input_ids": torch.zeros(1, 9)}, "longer than this model's 8"),
        ({"places": torch.tensor([0, 3])}, "places must be at least 0 and below 3"),
        ({"targets": torch.tensor([3, 99])}, "targets must be at least 0"),
        ({"targets": torch.tensor([3])}, "places and targets equally"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"temperature": float("inf")}, "temperature must be above 0"),
    ],
)
def test_a_request_beyond_the_model_is_refused(changes, words):
    body = pack_question(question(**changes))

    with pytest.raises(ValueError, match=re.escape(words)):
        unpack_question(body, vocabulary=36, max_length=8)


def test_a_question_arrives_as_it_was_sent():
    sent = question(temperature=0.1)

    got = unpack_question(pack_question(sent), vocabulary=36, max_length=8)

    assert torch.equal(got.input_ids, sent.input_ids)
    assert torch.equal(got.places, sent.places)
    assert torch.equal(got.targets, sent.targets)
    assert got.temperature == sent.temperature


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.5])
def test_a_number_that_is_no_logprob_is_refused(value):
    """Infinity would stand for a token that the reference was not asked about."""
    (micro,) = make_batch(2).micro_batches(max_tokens=99, device=torch.device("cpu"))
    values = torch.full((len(micro.places),), -1.0)
    values[-1] = value
    body = pack_answer(values)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"

    with (
        talker(head.encode() + body) as url,
        pytest.raises(ValueError, match=rf"{url}.*log-prob"),
    ):
        client(url).add_logprobs([micro], temperature=1.0)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def client(url: str, *, patience: float = 1.0) -> ServerReference:
    return ServerReference(
        url, token="0123456789abcdef", fingerprint="x", patience_seconds=patience
    )


def test_an_unreachable_server_is_retried_and_then_named(capsys):
    url = f"http://127.0.0.1:{unused_port()}"
    started = time.monotonic()

    with pytest.raises(ValueError, match=r"\d+ s \(Connection"):
        client(url).check_model()

    assert time.monotonic() - started > 0.4
    assert capsys.readouterr().out.count("waiting for") == 1


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_incomplete_responses_are_retried(message):
    with talker(message) as url, pytest.raises(ValueError, match=r" \d+ s "):
        client(url).check_model()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not a reference server"),
        (b"HTTP/1.1 302 Go\r\nLocation: http://e.org\r\n\r\n", "returned 302"),
        (b"HTTP/1.1 500 No\r\n\r\n{", "returned 500"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 999_999,
            "larger than",
        ),
    ],
)
def test_other_answers_are_refused_at_once(message, words):
    with talker(message) as url, pytest.raises(ValueError, match=words):
        client(url, patience=60).check_model()


class talker:
    """Something on loopback that says the same to everyone."""

    def __init__(self, message: bytes) -> None:
        self._said = message
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._talk)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *args: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(20)

    def _talk(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(self._said)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8600", "must look like"),
        ("ftp://127.0.0.1", "must look like"),
        ("http://", "must look like"),
        ("http://127.0.0.1:99999", "must look like"),
        ("http://127.0.0.1:8600/path", "must look like"),
        ("http://me:secret@127.0.0.1:8600", "must look like"),
        ("http://8.8.8.8:8600", "the private network"),
        ("https://8.8.8.8:8600", "the private network"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url, words):
    with pytest.raises(ValueError, match=words):
        client(url)


def test_private_addresses_are_recognised():
    wrong = [
        (host, expected, found)
        for host, expected in [
            ("127.0.0.1", True),
            ("localhost", True),
            ("::1", True),
            ("10.1.2.3", True),
            ("192.168.0.9", True),
            ("fd00::1", True),
            ("8.8.8.8", False),
            ("0.0.0.0", False),  # noqa: S104 - that is what is refused
            ("::", False),
            ("169.254.169.254", False),
            ("fe80::1", False),
        ]
        if (found := is_private(host)) is not expected
    ]

    assert wrong == []
