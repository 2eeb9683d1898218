"""A process that holds a model and answers what its log-probs are, over HTTP."""

from __future__ import annotations

import hmac
import json
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainer.policy import Policy
from trainer.references.batching import Answerer, Busy
from trainer.references.wire import (
    BINARY,
    HEALTH,
    LOGPROBS,
    MODEL,
    MODEL_HEADER,
    pack_answer,
    unpack_question,
)

_JSON = "application/json"
_MAX_DISCARDED = 2**30


class ReferenceServer(ThreadingHTTPServer):
    """GET /healthz, and with the token GET /model and POST /logprobs."""

    daemon_threads = False  # closing waits until those who asked have their answers
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        *,
        model: Policy,
        fingerprint: str,
        token: str,
        max_batch_tokens: int,
        max_request_bytes: int,
    ) -> None:
        self.fingerprint = fingerprint
        self.authorization = f"Bearer {token}".encode()
        self.max_request_bytes = max_request_bytes
        self.vocabulary = model.head.weight.shape[0]
        self.max_length = _max_length(model)
        self.answerer = Answerer(model, max_tokens=max_batch_tokens)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)  # closes this again when it cannot listen

    def server_close(self) -> None:
        super().server_close()
        self.answerer.end()


class _Handler(BaseHTTPRequestHandler):
    """One request a connection. Nothing of a body is read before the token is right."""

    server: ReferenceServer
    server_version, sys_version = "reference", ""
    timeout = 30.0  # seconds without a byte; a slow sender cannot hold a thread

    def do_GET(self) -> None:
        if self.path == HEALTH:
            self._reply(HTTPStatus.OK, {"status": "ok"})
        elif not self._is_allowed():
            self._refuse_token()
        elif self.path == MODEL:
            self._reply(HTTPStatus.OK, {"fingerprint": self.server.fingerprint})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"There is no page {self.path}.")

    def do_POST(self) -> None:
        if not self._is_allowed():
            return self._refuse_token()
        given = self.headers.get("Content-Length", "")
        if not (given.isascii() and given.isdigit() and len(given) <= 15):
            return self._refuse(
                HTTPStatus.LENGTH_REQUIRED, "A question needs a Content-Length."
            )
        length, limit = int(given), self.server.max_request_bytes
        if length > limit:
            self._discard(length)
            return self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A question of {length} bytes is larger than this server takes "
                f"({limit} bytes). Lower optim.micro_batch_tokens, or start it with a "
                "larger --max-request-mib.",
            )
        body = self.rfile.read(length)
        if self.path != LOGPROBS:
            return self._refuse(HTTPStatus.NOT_FOUND, f"There is no page {self.path}.")
        if self.headers.get(MODEL_HEADER) != self.server.fingerprint:
            return self._refuse(HTTPStatus.CONFLICT, "This server holds another model.")
        return self._answer(body)

    def _discard(self, length: int) -> None:
        """Take in what is not wanted: closing on it would drop the refusal too."""
        left = min(length, _MAX_DISCARDED)
        while left > 0 and (part := self.rfile.read(min(left, 65_536))):
            left -= len(part)

    def _answer(self, body: bytes) -> None:
        try:
            question = unpack_question(
                body,
                vocabulary=self.server.vocabulary,
                max_length=self.server.max_length,
            )
        except ValueError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        try:
            answer = pack_answer(self.server.answerer.ask(question))
        except Busy:
            return self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many questions wait already."
            )
        except ValueError as error:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return self._send(HTTPStatus.OK, BINARY, answer)

    def _is_allowed(self) -> bool:
        # Compared in constant time: the time it takes tells nothing of the token.
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        return hmac.compare_digest(given, self.server.authorization)

    def _refuse_token(self) -> None:
        self._refuse(HTTPStatus.UNAUTHORIZED, "The token is not this server's.")

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._reply(status, {"error": sentence})

    def _reply(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send(status, _JSON, json.dumps(content).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A line for each of thousands of questions would tell nothing."""


def _max_length(model: Policy) -> int:
    config: Any = model.model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 2**20)
