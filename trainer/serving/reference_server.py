"""A process that holds a model and answers what its log-probs are, over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from trainer.model.policy import Policy
from trainer.serving.reference_batching import Answerer, Busy
from trainer.serving.reference_wire import (
    LOGPROBS,
    MODEL,
    MODEL_HEADER,
    pack_answer,
    unpack_question,
)
from trainer.serving.server import BINARY, Door, ModelServer


class ReferenceServer(ModelServer):
    """GET /healthz, and with the token GET /model and POST /logprobs."""

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
        self.vocabulary = model.head.weight.shape[0]
        self.max_length = _max_length(model)
        self.answerer = Answerer(model, max_tokens=max_batch_tokens)
        super().__init__(
            address, _Door, token=token, max_request_bytes=max_request_bytes
        )

    def server_close(self) -> None:
        super().server_close()
        self.answerer.end()


class _Door(Door):
    server: ReferenceServer
    server_version = "reference"
    remedy = (
        "Lower optim.micro_batch_tokens, or start it with a larger --max-request-mib."
    )

    def answer_get(self) -> None:
        if self.path == MODEL:
            self.reply(HTTPStatus.OK, {"fingerprint": self.server.fingerprint})
        else:
            self.refuse_page()

    def answer_post(self, body: bytes) -> None:
        if self.path != LOGPROBS:
            return self.refuse_page()
        if self.headers.get(MODEL_HEADER) != self.server.fingerprint:
            return self.refuse(HTTPStatus.CONFLICT, "This server holds another model.")
        try:
            question = unpack_question(
                body,
                vocabulary=self.server.vocabulary,
                max_length=self.server.max_length,
            )
        except ValueError as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        try:
            answer = pack_answer(self.server.answerer.ask(question))
        except Busy:
            return self.refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many questions wait already."
            )
        except ValueError as error:
            return self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return self.send(HTTPStatus.OK, BINARY, answer)


def _max_length(model: Policy) -> int:
    config: Any = model.model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 2**20)
