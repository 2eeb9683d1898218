"""A vLLM server as the teacher: the log-probs of prompts, by its own HTTP API.

`/v1/completions` takes token ids, and with `prompt_logprobs` 0 returns the log-prob of
each, whatever the temperature. The server computes them beside its memory plan, so a
question has few sequences, and fewer after a fault.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import torch

from trainer.model.packing import MicroBatch, TrainingSample
from trainer.serving.client import (
    PATIENCE_SECONDS,
    SLACK_BYTES,
    Call,
    Connection,
    Kind,
    Refused,
    hold_server,
)
from trainer.serving.reference_client import RemoteReference

_KIND = Kind(name="vLLM server", part="reference", command="vllm serve", port=8000)
_ASK_MODELS = Call(method="GET", path="/v1/models", limit=2**20)
_SEQUENCES = 8  # of a question
_TOKEN_BYTES = 512  # of an answer: a number and the token's text, escaped


class VllmReference(RemoteReference):
    """Asks a vLLM server for log-probs at temperature 1, and waits for it.

    Raises:
        ValueError: from any question: the server stayed away, or refused.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        model: str,
        longest: int,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """`model`: as the server names it, unless it has only one. `longest`: tokens
        of the longest sequence that it is asked about.
        """
        self._model, self._longest = model, longest
        self._name = ""  # as the server calls the model
        self._num_sequences = _SEQUENCES
        self._connection = Connection(
            url, _KIND, token=token, patience_seconds=patience_seconds
        )

    def check_model(self) -> None:
        """Refuse a server without the model, or with too short a context."""
        self._check_reply(self._connection.ask(_ASK_MODELS))
        hold_server(self._connection, b"{}")  # it tells no GPUs

    def _check_model(self) -> None:
        self._check_reply(self._connection.try_once(_ASK_MODELS))

    def _check_reply(self, reply: bytes) -> None:
        models = [
            model
            for model in self._connection.read_field(reply, "data", list)
            if isinstance(model, dict) and isinstance(model.get("id"), str)
        ]
        named = [
            model
            for model in models
            if self._model in (model["id"], model.get("root")) or len(models) == 1
        ]
        if not named:
            names = ", ".join(model["id"] for model in models)[:200] or "none"
            raise ValueError(
                f"The vLLM server at {self._connection.url} does not serve "
                f"{self._model} (its models: {names}). Start it with --served-model-"
                "name set to the run's reference.model."
            )
        self._name = named[0]["id"]
        limit = named[0].get("max_model_len")
        if isinstance(limit, int) and limit <= self._longest:  # it writes a token too
            raise ValueError(
                f"The vLLM server at {self._connection.url} takes up to {limit:,} "
                f"tokens, but the run needs {self._longest + 1:,}. Start it with "
                f"--max-model-len {self._longest + 1}."
            )

    def logprobs(self, micro: MicroBatch, *, temperature: float) -> torch.Tensor:
        """Return log-probs by several questions, of fewer sequences after a fault."""
        assert temperature == 1
        values, done = list[float](), 0
        while done < len(micro.samples):
            rows = slice(done, done + self._num_sequences)
            try:
                values += self._ask_once(micro.samples[rows], micro.firsts[rows])
                done = rows.stop
            except Refused as refusal:
                is_fault = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                if not is_fault or self._num_sequences == 1:
                    raise
                self._num_sequences //= 2
        return torch.tensor(values)

    def _ask_once(
        self, samples: Sequence[TrainingSample], firsts: Sequence[int]
    ) -> list[float]:
        prompts = [[*sample.prompt_ids, *sample.completion_ids] for sample in samples]
        question = {
            "model": self._name,
            "prompt": prompts,
            "max_tokens": 1,
            "prompt_logprobs": 0,
        }
        num_tokens = sum(map(len, prompts))
        call = Call(
            method="POST",
            path="/v1/completions",
            body=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
            limit=_TOKEN_BYTES * num_tokens + SLACK_BYTES,
        )
        # whatever is there after an absence may serve another model
        reply = self._connection.ask(call, on_return=self._check_model)
        choices = self._connection.read_field(reply, "choices", list)
        values: list[float] = []
        with suppress(LookupError, TypeError, ValueError, OverflowError):
            choices.sort(key=lambda choice: choice["index"])
            for ids, first, choice in zip(prompts, firsts, choices, strict=True):
                values += _read_logprobs(ids, choice["prompt_logprobs"])[first - 1 :]
            return values
        raise ValueError(
            f"The vLLM server at {self._connection.url} returned no log-probs of the "
            "prompt. Use vLLM 0.8 or newer."
        )


def _read_logprobs(ids: Sequence[int], by_place: Any) -> list[float]:
    """Return the log-prob of each token but the first; an error if one has none."""
    return [
        float(found[str(token)]["logprob"])
        for token, found in zip(ids[1:], by_place[1:], strict=True)
    ]
