"""A reference that another process holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.serving.client import (
    PATIENCE_SECONDS,
    SLACK_BYTES,
    Call,
    Connection,
    Kind,
    Refused,
)
from trainer.serving.reference_wire import (
    LOGPROBS,
    MODEL,
    MODEL_HEADER,
    Question,
    pack_question,
    unpack_answer,
)

_KIND = Kind(name="reference server", part="reference", command="reference", port=8600)
_ASK_MODEL = Call(method="GET", path=MODEL)


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
        self._fingerprint = fingerprint
        self._connection = Connection(
            url,
            _KIND,
            token=token,
            headers={MODEL_HEADER: fingerprint},
            patience_seconds=patience_seconds,
        )

    def check_model(self) -> None:
        """Refuse a server whose model is not the one that the run starts from."""
        self._check_reply(self._connection.ask(_ASK_MODEL))

    def _check_model(self) -> None:
        self._check_reply(self._connection.try_once(_ASK_MODEL))

    def _check_reply(self, reply: bytes) -> None:
        try:
            found = json.loads(reply)["fingerprint"]
        except (ValueError, RecursionError, LookupError, TypeError):
            raise ValueError(
                f"What answers at {self._connection.url} is no reference server. "
                "Correct reference.url."
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
            try:
                reply = self._connection.ask(
                    Call(
                        method="POST",
                        path=LOGPROBS,
                        body=pack_question(question),
                        limit=4 * count + SLACK_BYTES,
                    ),
                    # Whatever is there after an absence may have another token or
                    # model; it says so more surely to a question without a body.
                    on_return=self._check_model,
                )
            except Refused as refusal:
                if refusal.status == HTTPStatus.CONFLICT:
                    raise ValueError(self._other_model()) from None
                raise
            logprobs = unpack_answer(reply, count=count).to(micro.mask.device)
            micro.reference_logprobs = micro.spread(logprobs)

    def after_step(self, step: int, policy: Policy) -> None:
        """It stays as it is; configurations that want more are refused."""

    def save(self, folder: Path) -> None:
        raise AssertionError("a server's model never moves")

    def _other_model(self) -> str:
        return (
            f"The reference server at {self._connection.url} holds another model than "
            "the one that this run starts from. Start it with --model set to the run's "
            "model.path."
        )
