"""Sampling with vLLM in the trainer's process, from a copy of the policy."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from trainer.model.policy import Policy
from trainer.rollout.collecting import Collected
from trainer.rollout.engine import OnGroup, Request, SamplingParams, ignore
from trainer.rollout.sampled import Sampled, as_completion, seeded_prompts
from trainer.rollout.vllm import VllmSampler
from trainer.types import Completion


class VllmEngine:
    """Samples from the weights that the policy had when they were last synchronised.

    Adapters are handed over by themselves where vLLM has a place for each, beside the
    weights under them, which are handed over once; elsewhere they are merged.
    """

    def __init__(self, policy: Policy, sampler: VllmSampler) -> None:
        self._policy = policy
        self._sampler = sampler
        adapters = policy.adapter_weights()
        self._swaps = adapters is not None and sampler.can_take(adapters.layers)
        if self._swaps:
            sampler.load_weights(policy.base_weights())
        self.sync_weights()

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
        collected = Collected(requests, on_group)
        eos_ids = self._policy.eos_ids
        owners = [
            (place, k)
            for place, request in enumerate(requests)
            for k in range(len(request.seeds))
        ]

        def collect(number: int, sampled: Sampled) -> None:
            completion = as_completion(sampled, self.tokenizer, eos_ids)
            collected.add(owners[number], completion)

        self._sampler.sample(
            seeded_prompts(requests), params, eos_ids=eos_ids, on_ended=collect
        )
        return collected.groups()

    def sync_weights(self) -> None:
        if self._swaps:
            adapters = self._policy.adapter_weights()
            assert adapters is not None
            self._sampler.load_adapters(adapters)
        else:
            self._sampler.load_weights(self._policy.weights())

    def rest(self) -> None:
        self._sampler.sleep()

    def close(self) -> None:
        self._sampler.close()
