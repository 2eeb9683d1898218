"""Reference model in another process: client and message format.

Bodies are safetensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import torch

from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.serving.client import (
    PATIENCE_SECONDS,
    SLACK_BYTES,
    Call,
    Connection,
    HeldServer,
    Kind,
    Refused,
    check_range,
    hold_server,
    pack,
    unpack,
)

LOGPROBS, MODEL = "/logprobs", "/model"
MODEL_HEADER = "X-Model"  # the fingerprint that the trainer expects


@dataclass(frozen=True, kw_only=True)
class Question:
    """The tokens of some sequences that are asked for. Padding is on the right.

    `places` are positions in the flattened [B·L] whose next token is asked for, as in a
    `MicroBatch`; `targets` are those tokens.
    """

    input_ids: torch.Tensor  # [B, L] int64
    places: torch.Tensor  # [N] int64
    targets: torch.Tensor  # [N] int64
    temperature: float


_QUESTION = {
    "input_ids": (torch.int32, 2),
    "places": (torch.int64, 1),
    "targets": (torch.int32, 1),
    "temperature": (torch.float64, 0),
}
_ANSWER = {"logprobs": (torch.float32, 1)}


def pack_question(question: Question) -> bytes:
    return pack(
        _QUESTION,
        input_ids=question.input_ids,
        places=question.places,
        targets=question.targets,
        temperature=question.temperature,
    )


def unpack_question(body: bytes, *, vocabulary: int, max_length: int) -> Question:
    """Return the question in a body that anyone may have sent.

    Raises:
        ValueError: it is none, or it asks for tokens or lengths the model has not.
    """
    tensors = unpack(body, _QUESTION)
    ids, places = tensors["input_ids"].long(), tensors["places"]
    targets, temperature = tensors["targets"].long(), tensors["temperature"].item()
    if ids.numel() == 0 or places.shape != targets.shape:
        raise ValueError(
            "input_ids must not be empty, and places and targets equally many; got "
            f"{list(ids.shape)}, {list(places.shape)} and {list(targets.shape)}."
        )
    if ids.shape[1] > max_length:
        raise ValueError(
            f"A sequence of {ids.shape[1]} tokens is longer than this model's "
            f"{max_length}."
        )
    check_range("input_ids", ids, vocabulary)
    check_range("targets", targets, vocabulary)
    check_range("places", places, ids.numel())
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite; got {temperature}.")
    return Question(
        input_ids=ids, places=places, targets=targets, temperature=temperature
    )


def pack_answer(logprobs: torch.Tensor) -> bytes:
    return pack(_ANSWER, logprobs=logprobs)


def unpack_answer(body: bytes, *, count: int) -> torch.Tensor:
    """Return log-probs [N], float32; ValueError when that is not what came."""
    logprobs = unpack(body, _ANSWER)["logprobs"]
    if len(logprobs) != count:
        raise ValueError(
            f"The response must have {count} log-probs; got {len(logprobs)}."
        )
    return logprobs


_KIND = Kind(
    name="reference server",
    part="reference",
    command="python -m trainer reference",
    port=8600,
)
_ASK_MODEL = Call(method="GET", path=MODEL)


_HIGHEST = 1e-3  # nats, that rounding adds to a probability of 1


class RemoteReference:
    """A reference in another process, which stays as it is."""

    vocabulary: int | None = None  # of a teacher, which may have fewer tokens
    _connection: Connection

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        """Fill in each micro-batch's `reference_logprobs`."""
        for micro in micro_batches:
            (other,) = micro.for_reference(vocabulary=self.vocabulary)
            values = self.logprobs(other, temperature=temperature)
            if not ((values > -math.inf) & (values <= _HIGHEST)).all():
                raise ValueError(
                    f"The {self._connection.kind.name} at {self._connection.url} "
                    "returned a log-prob that is above 0 or not a number. Check its "
                    "model and data type."
                )
            values = other.spread(values.to(micro.mask.device))
            micro.take_reference([other], [values])

    def logprobs(self, micro: MicroBatch, *, temperature: float) -> torch.Tensor:
        """Return log-probs [N] of a micro-batch's tokens, in the order of `places`."""
        raise NotImplementedError

    def after_step(self, step: int, policy: Policy) -> None:
        """Stay as it is; configurations that want more are refused."""


class ServerReference(RemoteReference):
    """Asks a reference server, and waits for it while it is away.

    Raises:
        ValueError: from any question: the server stayed away, or refused.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        fingerprint: str,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._fingerprint = fingerprint
        self._held: HeldServer | None = None
        self._connection = Connection(
            url,
            _KIND,
            token=token,
            headers={MODEL_HEADER: fingerprint},
            patience_seconds=patience_seconds,
        )

    def check_model(self) -> None:
        """Refuse a server whose model is not the one that the run starts from."""
        reply = self._connection.ask(_ASK_MODEL)
        self._check_reply(reply)
        self._held = hold_server(
            self._connection, reply, count_requests=self._count_requests
        )

    def _count_requests(self) -> int:
        reply = self._connection.try_once(_ASK_MODEL)
        return self._connection.read_field(reply, "num_requests", int)

    def _check_model(self) -> None:
        self._check_reply(self._connection.try_once(_ASK_MODEL))

    def _check_reply(self, reply: bytes) -> None:
        fingerprint = self._connection.read_field(reply, "fingerprint", str)
        if fingerprint != self._fingerprint:
            raise ValueError(self._other_model())

    def logprobs(self, micro: MicroBatch, *, temperature: float) -> torch.Tensor:
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
        if self._held is not None:
            self._held.num_own += 1
        return unpack_answer(reply, count=count)

    def _other_model(self) -> str:
        return (
            f"The reference server at {self._connection.url} serves another model "
            "than the run's reference. Start it with --model set to the run's "
            "reference.model or, without one, its model.path."
        )
