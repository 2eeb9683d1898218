"""Sampling with an engine that another process holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainer.config import RunConfig
from trainer.fingerprint import model_fingerprint
from trainer.groups import Completion
from trainer.policy import Policy
from trainer.rollout.engine import OnGroup, Request, SamplingParams, ignore
from trainer.rollout.sampled import as_groups, seeded_prompts
from trainer.rollout.wire import (
    HOLD,
    HOLD_HEADER,
    LOAD,
    MODEL,
    PLACES,
    SAMPLE,
    WEIGHTS,
    Question,
    answer_bytes,
    pack_question,
    pack_weights,
    unpack_answer,
)
from trainer.serving.connection import (
    PATIENCE_SECONDS,
    SLACK_BYTES,
    Away,
    Connection,
    Kind,
    Refused,
)
from trainer.serving.token import read_token

_KIND = Kind(name="rollout server", part="rollout", command="rollout-server", port=8700)
# A step of long completions takes a server hours, in which it says nothing.
_SAMPLING_SECONDS = 6 * 3600.0
# In the middle of a question a server may be started again so often.
_MAX_JOINS = 3


class VllmServerEngine:
    """Samples from the weights that the server was sent last.

    Waits for a server that is away. One that was started again has lost the weights; it
    is sent them before it samples.

    Raises:
        ValueError: from anything: the server stayed away, or refused.
    """

    def __init__(
        self,
        policy: Policy,
        url: str,
        *,
        token: str,
        fingerprint: str,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._policy = policy
        self._fingerprint = fingerprint
        self._connection = Connection(
            url, _KIND, token=token, patience_seconds=patience_seconds
        )
        self._held: HTTPResponse | None = None  # while it is open, the server is ours
        self._word = ""
        self._swaps = False  # adapters alone are sent
        self._version = -1
        self._join()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._policy.tokenizer

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Completion, ...]]:
        """One answer has all completions, so `on_group` is told of none."""
        eos_ids = self._policy.eos_ids

        def ask() -> tuple[Question, bytes]:
            question = Question(
                prompts=seeded_prompts(requests),
                params=params,
                eos_ids=eos_ids,
                version=self._version,
            )
            return question, self._ask(
                SAMPLE,
                pack_question(question),
                limit=answer_bytes(question) + SLACK_BYTES,
                seconds=_SAMPLING_SECONDS,
            )

        question, answer = self._rejoining(ask)
        sampled = unpack_answer(answer, question)
        return as_groups(requests, sampled, tokenizer=self.tokenizer, eos_ids=eos_ids)

    def sync_weights(self) -> None:
        self._rejoining(self._send_policy)

    def rest(self) -> None:
        """Nothing to do: its memory is the server's."""

    def close(self) -> None:
        """Let the server be held by another run."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _rejoining(self, act: Callable[[], Any]) -> Any:
        """Do something with the server, which may have forgotten this run."""
        for _ in range(_MAX_JOINS):
            try:
                return act()
            except Refused as refusal:
                if refusal.status not in (HTTPStatus.LOCKED, HTTPStatus.CONFLICT):
                    raise
            self._join()
        return act()

    def _join(self) -> None:
        """Hold the server and send it the policy."""
        self._check_model()
        self._hold()
        adapters = self._policy.adapter_weights()
        self._swaps = False
        if adapters is not None:
            layers = json.dumps(sorted(adapters.layers)).encode()
            reply = self._ask(PLACES, layers)
            if json.loads(reply)["can_take"]:
                self._send(self._policy.base_weights(), rank=0, alpha=0.0)
                self._swaps = True
        self._send_policy()

    def _check_model(self) -> None:
        """Refuse a server whose model is not the one that the run starts from."""
        url = self._connection.url
        try:
            found = json.loads(self._connection.ask("GET", MODEL))
            fingerprint, _ = found["fingerprint"], int(found["max_length"])
        except Refused:
            raise
        except (ValueError, KeyError, TypeError) as error:
            if not isinstance(error, json.JSONDecodeError | KeyError | TypeError):
                raise
            raise ValueError(
                f"What answers at {url} is no rollout server. Correct rollout.url."
            ) from None
        if fingerprint != self._fingerprint:
            raise ValueError(
                f"The rollout server at {url} holds another model than the one that "
                "this run starts from. Start it with --model set to the run's "
                "model.path."
            )

    def _hold(self) -> None:
        self.close()
        try:
            self._held, line = self._connection.open("POST", HOLD)
        except Away:
            self._check_model()  # which waits for it
            self._held, line = self._connection.open("POST", HOLD)
        except Refused as refusal:
            if refusal.status != HTTPStatus.LOCKED:
                raise
            raise ValueError(
                f"The rollout server at {self._connection.url} is held by another run. "
                "Wait for its end, or start a server for this one."
            ) from None
        self._word = str(json.loads(line)["hold"])

    def _send_policy(self) -> None:
        if self._swaps:
            adapters = self._policy.adapter_weights()
            assert adapters is not None
            self._send(adapters.tensors, rank=adapters.rank, alpha=adapters.alpha)
        else:
            self._send(self._policy.weights(), rank=0, alpha=0.0)

    def _send(
        self, weights: Iterable[tuple[str, torch.Tensor]], *, rank: int, alpha: float
    ) -> None:
        names: list[str] = []

        def named() -> Iterable[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                names.append(name)
                yield name, weight

        for part in pack_weights(named()):
            self._ask(WEIGHTS, part)
        order = {"names": names, "rank": rank, "alpha": alpha}
        reply = self._ask(LOAD, json.dumps(order).encode())
        self._version = int(json.loads(reply)["version"])

    def _ask(self, path: str, body: bytes, **options: Any) -> bytes:
        return self._connection.ask(
            "POST", path, body, headers={HOLD_HEADER: self._word}, **options
        )


def rollout_server(
    config: RunConfig,
    policy: Policy,
    engine: type[VllmServerEngine] = VllmServerEngine,
) -> VllmServerEngine:
    """The server that `config.rollout` names, with the policy's weights.

    Raises:
        ValueError: it is not there, holds another model, or another run holds it.
    """
    url, token_file = config.rollout.url, config.rollout.token_file
    assert url is not None
    assert token_file is not None
    return engine(
        policy,
        url,
        token=read_token(Path(token_file)),
        fingerprint=model_fingerprint(
            config.model.path, revision=config.model.revision
        ),
    )
