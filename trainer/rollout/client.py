"""One rollout server, as the run that holds it sees it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from trainer.rollout.engine import Sampled, SamplingParams, SeededPrompt
from trainer.rollout.wire import (
    HOLD,
    HOLD_HEADER,
    LOAD,
    MODEL,
    PLACES,
    SAMPLE,
    WEIGHTS,
    Adapted,
    Order,
    Question,
    answer_bytes,
    pack_question,
    unpack_answer,
)
from trainer.serving.client import (
    REQUEST_SECONDS,
    SLACK_BYTES,
    Call,
    Connection,
    Kind,
    OpenAnswer,
    Refused,
)

_KIND = Kind(name="rollout server", part="rollout", command="rollout-server", port=8700)
# A step of long completions takes a server hours, in which it says nothing. What was
# asked of it before, if by a run that is gone, comes first.
_TURN_SECONDS = 6 * 3600.0


class Forgotten(Exception):
    """The server was started again: it has neither this run nor its weights."""


class RolloutClient:
    """Waits for a server that is away, in every question.

    Raises:
        ValueError: from any question: the server stayed away, or refused.
        Forgotten: from any but `hold`.
    """

    swaps = False  # it takes adapters alone

    def __init__(
        self, url: str, *, token: str, fingerprint: str, patience_seconds: float
    ) -> None:
        self._fingerprint = fingerprint
        self._connection = Connection(
            url, _KIND, token=token, patience_seconds=patience_seconds
        )
        self._held: OpenAnswer | None = None  # while it is open, the server is ours
        self._word = ""
        self._version = -1  # of the weights that it was sent last

    @property
    def url(self) -> str:
        return self._connection.url

    def hold(self) -> None:
        """Have it sample for this run and for no other."""
        self._check_model()
        # a server leased to this run still, by an older connection, takes this one
        headers = {HOLD_HEADER: self._word}
        try:
            held = self._connection.open(
                Call(method="POST", path=HOLD, headers=headers)
            )
        except Refused as refusal:
            if refusal.status != HTTPStatus.LOCKED:
                raise
            raise ValueError(
                f"The rollout server at {self.url} is used by another run. Wait until "
                "it ends, or start a server for this run."
            ) from None
        try:
            word = str(self._field(held.line, "hold"))
        except ValueError:
            held.close()
            raise
        self.close()
        self._held, self._word = held, word

    def close(self) -> None:
        """Let it be leased by another run."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def check_adapters(self, layers: Iterable[str], *, rank: int) -> None:
        """Ask whether it takes such adapters by themselves."""
        adapted = Adapted(layers=tuple(sorted(layers)), rank=rank)
        self.swaps = bool(self._field(self._ask(PLACES, adapted.pack()), "can_take"))

    def add_weights(self, part: bytes) -> None:
        """Send some of the weights, or adapters, that it is to sample with."""
        self._ask(WEIGHTS, part, seconds=REQUEST_SECONDS)

    def load(self, names: Sequence[str], *, rank: int, alpha: float) -> None:
        """Have it sample with what it was sent; a rank of 0: whole weights."""
        order = Order(names=tuple(names), rank=rank, alpha=alpha)
        reply = self._ask(LOAD, order.pack())
        version = self._field(reply, "version")
        if type(version) is not int:
            raise self._no_server()
        self._version = version

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: tuple[int, ...],
    ) -> list[Sampled]:
        question = Question(
            prompts=prompts, params=params, eos_ids=eos_ids, version=self._version
        )
        limit = answer_bytes(question) + SLACK_BYTES
        return unpack_answer(
            self._ask(SAMPLE, pack_question(question), limit=limit), question
        )

    def _ask(
        self,
        path: str,
        body: bytes,
        *,
        limit: int = SLACK_BYTES,
        seconds: float = _TURN_SECONDS,
    ) -> bytes:
        try:
            return self._connection.ask(
                Call(
                    method="POST",
                    path=path,
                    body=body,
                    headers={HOLD_HEADER: self._word},
                    limit=limit,
                    seconds=seconds,
                )
            )
        except Refused as refusal:
            if refusal.status in (HTTPStatus.LOCKED, HTTPStatus.CONFLICT):
                raise Forgotten from None
            raise

    def _field(self, reply: bytes, name: str) -> Any:
        try:
            return json.loads(reply)[name]
        except (ValueError, RecursionError, LookupError, TypeError):
            raise self._no_server() from None

    def _no_server(self) -> ValueError:
        return ValueError(
            f"The server at {self.url} is not a rollout server. Correct rollout.url."
        )

    def _check_model(self) -> None:
        """Refuse a server whose model is not the one that the run starts from."""
        reply = self._connection.ask(Call(method="GET", path=MODEL))
        self.max_length = int(self._field(reply, "max_length"))  # of no reference's
        if self._field(reply, "fingerprint") != self._fingerprint:
            raise ValueError(
                f"The rollout server at {self.url} serves another model than this "
                "run's. Start it with --model set to the run's model.path."
            )
