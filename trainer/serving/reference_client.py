"""Reference model in another process: client and message format.

Bodies are safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

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

LOGPROBS, MODEL = "/logprobs", "/model"
MODEL_HEADER = "X-Model"  # the fingerprint that the trainer expects


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which tokens of some sequences are asked for. Padding is on the right.

    `places` are positions in the flattened [B·L] whose next token is asked for, as in a
    `MicroBatch`; `targets` are those tokens.
    """

    input_ids: torch.Tensor  # [B, L] int64
    places: torch.Tensor  # [N] int64
    targets: torch.Tensor  # [N] int64
    temperature: float


def pack_question(question: Question) -> bytes:
    return save(
        {
            "input_ids": question.input_ids.to("cpu", torch.int32).contiguous(),
            "places": question.places.cpu(),
            "targets": question.targets.to("cpu", torch.int32),
            "temperature": torch.tensor([question.temperature], dtype=torch.float64),
        }
    )


def unpack_question(body: bytes, *, vocabulary: int, max_length: int) -> Question:
    """The question in a body that anyone may have sent.

    Raises:
        ValueError: it is none, or it asks for tokens or lengths the model has not.
    """
    tensors = _tensors(body)
    if set(tensors) != {"input_ids", "places", "targets", "temperature"}:
        raise ValueError(
            "A request has the tensors input_ids, places, targets and temperature; "
            f"got {sorted(tensors)}."
        )
    if any(t.is_floating_point() for n, t in tensors.items() if n != "temperature"):
        raise ValueError("input_ids, places and targets must be whole numbers.")
    ids, places = tensors["input_ids"].long(), tensors["places"].long()
    targets, temperature = tensors["targets"].long(), tensors["temperature"]
    if (
        ids.dim() != 2
        or ids.numel() == 0
        or places.dim() != 1
        or places.shape != targets.shape
    ):
        raise ValueError(
            "input_ids must be [B, L] and not empty, places and targets [N]; got "
            f"{list(ids.shape)}, {list(places.shape)} and {list(targets.shape)}."
        )
    if ids.shape[1] > max_length:
        raise ValueError(
            f"A sequence of {ids.shape[1]} tokens is longer than this model's "
            f"{max_length}."
        )
    _check_range("input_ids", ids, vocabulary)
    _check_range("targets", targets, vocabulary)
    _check_range("places", places, ids.numel())
    if temperature.shape != (1,) or not 0 < temperature.item() < float("inf"):
        raise ValueError("temperature must be one number above 0.")
    return Question(
        input_ids=ids,
        places=places,
        targets=targets,
        temperature=temperature.item(),
    )


def pack_answer(logprobs: torch.Tensor) -> bytes:
    return save({"logprobs": logprobs.float().cpu()})


def unpack_answer(body: bytes, *, count: int) -> torch.Tensor:
    """Log-probs [N], float32; ValueError when that is not what came."""
    logprobs = _tensors(body).get("logprobs")
    if (
        logprobs is None
        or logprobs.shape != (count,)
        or logprobs.dtype != torch.float32
    ):
        raise ValueError(f"The response does not contain {count} log-probs.")
    return logprobs


def _tensors(body: bytes) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load(body)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"The body is not a valid safetensors file: {error}") from None
    return tensors


def _check_range(name: str, values: torch.Tensor, end: int) -> None:
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < end:
        raise ValueError(
            f"{name} must be at least 0 and below {end}; got "
            f"{int(values.min())} to {int(values.max())}."
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
                f"The server at {self._connection.url} is not a reference server. "
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
        raise AssertionError("a server's model never changes")

    def _other_model(self) -> str:
        return (
            f"The reference server at {self._connection.url} serves another model "
            "than this run's starting model. Start it with --model set to the run's "
            "model.path."
        )
