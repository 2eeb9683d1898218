"""Rollout servers in threads, behind each a model that samples its weights' sum."""

import http.client
import threading
from collections.abc import Iterable
from typing import Any

import torch

from tests.trainer.vllm_models import requests_of
from trainer.model.loading import AdapterWeights
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, Sampled, SamplingParams, SeededPrompt
from trainer.rollout.server import RolloutServer
from trainer.rollout.server_engine import RolloutClient, VllmServerEngine
from trainer.rollout.wire import HOLD_HEADER

TOKEN = "0123456789abcdef"
WARM = SamplingParams(max_new_tokens=5, temperature=0.7)
VOCABULARY = 37


class Summing:
    """Its log-probs are the sum of the weights it has, so that they tell of them."""

    max_length, lora_rank = 64, 0
    off = 0.0  # nats that are added to log-probs

    def __init__(self, *, layers: frozenset[str] | None = None) -> None:
        self.layers = layers  # that may have adapters; None: any, if there is a rank
        self.loaded: list[str] = []
        self.total = self.base = 0.0
        self.fails = self.is_closed = False

    def sample(
        self,
        prompts: list[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: tuple[int, ...],
    ) -> list[Sampled]:
        if self.fails:
            raise RuntimeError("the engine fell over")
        length = params.max_new_tokens - 1
        return [
            Sampled(
                token_ids=(*([2 + prompt.seed % 7] * length), eos_ids[0]),
                logprobs=(self.total,) * (length + 1),
            )
            for prompt in prompts
        ]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.base = self.total = sum(w.double().sum().item() for _, w in weights)
        self.loaded.append("weights")

    def can_take(self, names: Iterable[str]) -> bool:
        return bool(self.lora_rank)

    def load_adapters(self, adapters: AdapterWeights) -> None:
        own = sum(t.double().sum().item() for _, t in adapters.tensors)
        self.total = self.base + own
        self.loaded.append(f"adapters {adapters.rank} {adapters.alpha:g}")

    def close(self) -> None:
        self.is_closed = True


class Sampling(Summing):
    """A model of its own that samples; a run compares its log-probs with its own."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._copy = policy.copied()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        own = dict(self._copy.weights())
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)

    def sample(
        self, prompts: list[SeededPrompt], params: SamplingParams, **_: Any
    ) -> list[Sampled]:
        engine = TransformersEngine(self._copy, max_batch_rows=64)
        asked = [
            Request(token_ids=each.token_ids, seeds=(each.seed,)) for each in prompts
        ]
        return [
            Sampled(
                token_ids=completion.token_ids,
                logprobs=tuple(value + self.off for value in completion.logprobs),
            )
            for (completion,) in engine.sample(asked, params)
        ]


class Served:
    """A server on loopback, in a thread."""

    def __init__(
        self,
        *,
        port: int = 0,
        limit: int = 2**20,
        sampler: Summing | None = None,
        fingerprint: str = "print",
    ) -> None:
        self.sampler = Summing() if sampler is None else sampler
        self.server = RolloutServer(
            ("127.0.0.1", port),
            sampler=self.sampler,
            fingerprint=fingerprint,
            vocabulary=VOCABULARY,
            token=TOKEN,
            max_request_bytes=2**20,
            max_weights_bytes=limit,
        )
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def ask(self, path: str, body: bytes = b"", *, word: str = "") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Authorization": f"Bearer {TOKEN}", HOLD_HEADER: word}
        try:
            connection.request("POST", path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def engine_of(
    policy: Policy,
    *urls: str,
    token: str = TOKEN,
    fingerprint: str = "print",
    patience_seconds: float = 5.0,
    **options: Any,
) -> VllmServerEngine:
    of_client: Any = {
        "token": token,
        "fingerprint": fingerprint,
        "patience_seconds": patience_seconds,
    }
    return VllmServerEngine(
        policy, [RolloutClient(url, **of_client) for url in urls], **options
    )


def total_of(policy: Policy) -> float:
    return sum(weight.double().sum().item() for _, weight in policy.weights())


def sampled_total(policy: Policy, engine: VllmServerEngine) -> float:
    groups = engine.sample(requests_of(policy, 2), WARM)
    (value,) = {value for group in groups for c in group for value in c.logprobs}
    return value
