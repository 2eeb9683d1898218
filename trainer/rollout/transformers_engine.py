"""Sampling with the model that is being trained, in the same process.

Each prompt goes through the model once and its cache is shared out to its group; rows
that have ended leave the batch; the log-probs of sampling come out with the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache

from trainer.groups import Completion
from trainer.policy import Policy
from trainer.rollout.cache import is_growing, join_caches, make_cache
from trainer.rollout.drawing import draw_tokens
from trainer.rollout.engine import Request, SamplingParams
from trainer.seeding import uniforms
from trainer.tokenizers import decode_text

# Ended rows leave when they are this share of the batch: sooner would copy the cache
# more often than it saves computing.
_ENDED_SHARE = 1 / 8
# Random numbers are drawn for so many tokens ahead.
_DRAWN_AHEAD = 64
# Prompt tokens, padding included, that go through the model at once.
_PREFILL_TOKENS = 16_384


@dataclass(frozen=True)
class _Rows:
    """Requests cut to at most so many completions, sampled together."""

    requests: list[Request]
    owners: list[tuple[int, int]]  # per completion: its request and its place there

    @property
    def seeds(self) -> list[int]:
        return [seed for request in self.requests for seed in request.seeds]


class TransformersEngine:
    """Samples from a policy through transformers' own forward pass."""

    def __init__(self, policy: Policy, *, max_batch_rows: int) -> None:
        self._policy = policy
        self._max_batch_rows = max_batch_rows
        self._eos = torch.tensor(policy.eos_ids, device=policy.device)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._policy.tokenizer

    def sync_weights(self) -> None:
        """Nothing to do: the engine samples from the policy itself."""

    def sample(
        self, requests: Sequence[Request], params: SamplingParams
    ) -> list[tuple[Completion, ...]]:
        found: dict[tuple[int, int], Completion] = {}
        was_training = self._policy.model.training
        self._policy.model.eval()  # else checkpointing would switch the cache off
        try:
            for rows in _cut(requests, self._max_batch_rows):
                sampled = self._sample_rows(rows, params)
                found.update(zip(rows.owners, sampled, strict=True))
        finally:
            self._policy.model.train(was_training)
        return [
            tuple(found[place, k] for k in range(len(request.seeds)))
            for place, request in enumerate(requests)
        ]

    @torch.inference_mode()
    def _sample_rows(self, rows: _Rows, params: SamplingParams) -> list[Completion]:
        policy, device = self._policy, self._policy.device
        cache, hidden, padding = self._prefill(rows.requests)
        sizes = torch.tensor([len(request.seeds) for request in rows.requests])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        cache.batch_select_indices(owner)
        hidden, padding = hidden[owner], padding[owner]
        width = int(padding.shape[1])
        lengths = padding.sum(dim=1)

        num_rows, max_new_tokens = len(owner), params.max_new_tokens
        tokens = torch.zeros(num_rows, max_new_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(num_rows, max_new_tokens, device=device)
        counts = torch.full((num_rows,), max_new_tokens, device=device)
        live = torch.arange(num_rows, device=device)  # rows still in the batch
        ended = torch.zeros(num_rows, dtype=torch.bool, device=device)
        draws = _Draws(rows.seeds, device)

        for place in range(max_new_tokens):
            chosen, logprob = draw_tokens(
                policy.logits(hidden),
                draws.at(place)[live],
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
            )
            tokens[live, place] = chosen
            logprobs[live, place] = logprob
            ends_here = torch.isin(chosen, self._eos) & ~ended
            counts[live[ends_here]] = place + 1
            ended = ended | ends_here
            num_ended = int(ended.sum())
            if num_ended == len(live) or place + 1 == max_new_tokens:
                break
            if num_ended >= _ENDED_SHARE * len(live):
                stay = (~ended).nonzero().squeeze(1)
                cache.batch_select_indices(stay)
                live, chosen, ended = live[stay], chosen[stay], ended[stay]
                padding, lengths = padding[stay], lengths[stay]
            hidden = self._decode(
                cache, chosen, padding, lengths + place, width + place
            )
        return self._completions(tokens, logprobs, counts)

    def _prefill(
        self, requests: Sequence[Request]
    ) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        """Put each prompt through the model once.

        Returns:
            The cache; the last hidden states [P, H]; the left-padded mask [P, L].
        """
        prompts = [request.prompt.token_ids for request in requests]
        width = max(len(prompt) for prompt in prompts)
        size = max(1, _PREFILL_TOKENS // width)
        device = self._policy.device
        ids = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        ).to(device)
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        ).to(device)
        parts = [
            self._prefill_part(ids[first : first + size], mask[first : first + size])
            for first in range(0, len(prompts), size)
        ]
        hidden = torch.cat([part for _, part in parts])
        return join_caches([cache for cache, _ in parts]), hidden, mask

    def _prefill_part(
        self, ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[DynamicCache, torch.Tensor]:
        cache = make_cache(self._policy.model.config)
        hidden = self._policy.body(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )[0]
        return cache, hidden[:, -1]

    def _decode(
        self,
        cache: DynamicCache,
        chosen: torch.Tensor,
        padding: torch.Tensor,
        positions: torch.Tensor,
        num_cached: int,
    ) -> torch.Tensor:
        """Hidden states [rows, H] after one more token of each row."""
        new = padding.new_ones(len(padding), num_cached + 1 - padding.shape[1])
        mask = torch.cat([padding, new], dim=1)
        if is_growing(cache):
            # ready-made, so that transformers need not derive it at every token
            mask = mask.bool()[:, None, None, :]
        hidden: torch.Tensor = self._policy.body(
            input_ids=chosen[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
        )[0]
        return hidden[:, -1]

    def _completions(
        self, tokens: torch.Tensor, logprobs: torch.Tensor, counts: torch.Tensor
    ) -> list[Completion]:
        completions = []
        eos = set(self._policy.eos_ids)
        for ids, values, count in zip(
            tokens.tolist(), logprobs.tolist(), counts.tolist(), strict=True
        ):
            token_ids = ids[:count]
            stops = token_ids[-1] in eos
            # The ending token itself is no part of the text.
            written = token_ids[:-1] if stops else token_ids
            completions.append(
                Completion(
                    text=decode_text(self._policy.tokenizer, written),
                    token_ids=tuple(token_ids),
                    logprobs=tuple(values[:count]),
                    end_reason="stop" if stops else "length",
                )
            )
        return completions


class _Draws:
    """Each row's random numbers, drawn some tokens ahead."""

    def __init__(self, seeds: list[int], device: torch.device) -> None:
        self._seeds = seeds
        self._device = device
        self._first = -_DRAWN_AHEAD
        self._values = torch.empty(0)

    def at(self, place: int) -> torch.Tensor:
        if not self._first <= place < self._first + _DRAWN_AHEAD:
            self._first = place
            drawn = uniforms(self._seeds, first=place, count=_DRAWN_AHEAD)
            self._values = torch.from_numpy(np.ascontiguousarray(drawn.T))
            self._values = self._values.to(self._device)
        return self._values[place - self._first]


def _cut(requests: Sequence[Request], max_rows: int) -> Iterator[_Rows]:
    """Requests in batches of like prompt length; a large group may span several."""
    order = sorted(
        range(len(requests)), key=lambda p: len(requests[p].prompt.token_ids)
    )
    pieces = [
        (place, range(first, min(first + max_rows, len(requests[place].seeds))))
        for place in order
        for first in range(0, len(requests[place].seeds), max_rows)
    ]
    batch = _Rows([], [])
    for place, span in pieces:
        if batch.owners and len(batch.owners) + len(span) > max_rows:
            yield batch
            batch = _Rows([], [])
        seeds = tuple(requests[place].seeds[k] for k in span)
        batch.requests.append(Request(prompt=requests[place].prompt, seeds=seeds))
        batch.owners.extend((place, k) for k in span)
    if batch.owners:
        yield batch
