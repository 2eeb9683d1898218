"""A reference that another process holds."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from trainer.batch import MicroBatch
from trainer.policy import Policy
from trainer.references.addresses import is_private
from trainer.references.wire import (
    BINARY,
    LOGPROBS,
    MODEL,
    MODEL_HEADER,
    Question,
    pack_question,
    unpack_answer,
)

# A server that was restarted needs minutes to load a large model.
PATIENCE_SECONDS = 600.0
_REQUEST_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 15.0
# safetensors' own header, and the sentences of refusals
_SLACK_BYTES = 65_536


class Away(Exception):
    """The server is not there, or not ready; it may be soon."""


class ServerReference:
    """Asks a reference server, and waits for it while it is away.

    Raises:
        ValueError: from any question: the server stayed away, or refused.
    """

    has_moved = False

    def __init__(
        self,
        url: str,
        *,
        token: str,
        fingerprint: str,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._url = url
        self._is_tls, self._host, self._port = _parts(url)
        self._fingerprint = fingerprint
        self._patience_seconds = patience_seconds
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": BINARY,
            MODEL_HEADER: fingerprint,
        }

    def check_model(self) -> None:
        """Refuse a server whose model is not the one that the run starts from."""
        self._check_reply(self._ask("GET", MODEL, b"", limit=_SLACK_BYTES))

    def _check_model(self) -> None:
        self._check_reply(self._try("GET", MODEL, b"", limit=_SLACK_BYTES))

    def _check_reply(self, reply: bytes) -> None:
        try:
            found = json.loads(reply)["fingerprint"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"What answers at {self._url} is no reference server. Correct "
                "reference.url."
            ) from None
        if found != self._fingerprint:
            raise ValueError(self._other_model())

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        for micro in micro_batches:
            question = Question(
                input_ids=micro.input_ids,
                places=micro.places,
                targets=micro.targets,
                temperature=temperature,
            )
            count = len(micro.places)
            reply = self._ask(
                "POST",
                LOGPROBS,
                pack_question(question),
                limit=4 * count + _SLACK_BYTES,
            )
            logprobs = unpack_answer(reply, count=count).to(micro.mask.device)
            micro.reference_logprobs = micro.spread(logprobs)

    def after_step(self, step: int, policy: Policy) -> None:
        """It stays as it is; configurations that want more are refused."""

    def save(self, folder: Path) -> None:
        raise AssertionError("a server's model never moves")

    def _ask(self, method: str, path: str, body: bytes, *, limit: int) -> bytes:
        pause, started = _FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            try:
                if pause > _FIRST_PAUSE_SECONDS and path != MODEL:
                    # Whatever is there now may have another token or model; it says so
                    # more surely to a question without a body.
                    self._check_model()
                return self._try(method, path, body, limit=limit)
            except Away as reason:
                waited = time.monotonic() - started
                if waited + pause > self._patience_seconds:
                    raise ValueError(
                        f"The reference server at {self._url} has been away for "
                        f"{waited:.0f} s ({reason}). Start it again with `python -m "
                        "trainer reference`, and resume the run."
                    ) from None
                if pause == _FIRST_PAUSE_SECONDS:
                    _say(f"waiting for the reference server at {self._url} ({reason})")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _try(self, method: str, path: str, body: bytes, *, limit: int) -> bytes:
        kind = (
            http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        )
        connection = kind(self._host, self._port, timeout=_REQUEST_SECONDS)
        try:
            connection.request(method, path, body=body, headers=self._headers)
            response = connection.getresponse()
            reply = response.read(limit + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Away(_reason(error)) from None
        finally:
            connection.close()
        if response.length:  # more was promised than came, or than was read
            if len(reply) > limit:
                raise ValueError(
                    f"The answer of {self._url} is larger than {limit} bytes. Correct "
                    "reference.url."
                )
            raise Away("it went away in the middle of an answer")
        self._check(response.status, reply)
        return reply

    def _check(self, status: int, reply: bytes) -> None:
        if status == HTTPStatus.OK:
            return
        sentence = _sentence(reply)
        if status in (
            HTTPStatus.SERVICE_UNAVAILABLE,
            HTTPStatus.BAD_GATEWAY,
            HTTPStatus.GATEWAY_TIMEOUT,
        ):
            raise Away(sentence)
        if status == HTTPStatus.UNAUTHORIZED:
            raise ValueError(
                f"The reference server at {self._url} does not accept the token. Give "
                "reference.token_file the file that it was started with."
            )
        if status == HTTPStatus.CONFLICT:
            raise ValueError(self._other_model())
        raise ValueError(
            f"The reference server at {self._url} refused with {status}: {sentence}"
        )

    def _other_model(self) -> str:
        return (
            f"The reference server at {self._url} holds another model than the one "
            "that this run starts from. Start it with --model set to the run's "
            "model.path."
        )


def _parts(url: str) -> tuple[bool, str, int]:
    """Whether it is encrypted, the host and the port of an address."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    is_plain = parts.path in ("", "/") and not (parts.query or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        port = -1
    if port == -1:
        raise ValueError(
            f'reference.url must look like http://127.0.0.1:8600; got "{url}".'
        )
    is_tls = parts.scheme == "https"
    assert parts.hostname is not None
    if not is_private(parts.hostname):
        raise ValueError(
            f"reference.url {url} leads out of the private network, where sampled "
            "texts and the token must not go. Put the server on this machine or a "
            "private network, or open a tunnel to it."
        )
    return is_tls, parts.hostname, port or (443 if is_tls else 80)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _sentence(reply: bytes) -> str:
    try:
        return str(json.loads(reply)["error"])[:500]
    except (ValueError, KeyError, TypeError):
        return "it gave no reason"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
