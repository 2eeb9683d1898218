"""Sampling with the model that is being trained, in the same process.

Each prompt goes through the model once and its cache is shared out to its group; rows
that have ended leave the batch; the log-probs of sampling come out with the tokens.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache

from trainer.console import print_traceback
from trainer.errors import is_out_of_memory
from trainer.host import tick
from trainer.model.budget import memory_of
from trainer.model.policy import Policy
from trainer.rollout.cache import (
    States,
    bytes_per_token,
    count_bytes,
    is_growing,
    is_recurrent,
    join_caches,
    load_states,
    make_cache,
    select_rows,
)
from trainer.rollout.decoder import (
    Decoding,
    DecodingMethod,
    decoding_methods,
    draw_next,
    is_gpu,
    make_decoder,
)
from trainer.rollout.engine import (
    FURTHER_OFF,
    CheckSchedule,
    Collected,
    OnGroup,
    OnSlowed,
    Request,
    Sampled,
    SamplingParams,
    Slowed,
    a_few,
    as_completion,
    describe_gap,
    has_any,
    ignore,
    logprob_gap,
    max_logprob_gap,
    refuse_gap,
)
from trainer.rollout.llama import LEAVING_SHARE, copied_bytes
from trainer.rollout.prefixes import PrefixStore, cpu_bytes, cut_prefill
from trainer.seeding import uniforms
from trainer.sizes.memory import SAMPLING_SHARE, fitting_rows
from trainer.tokenizers import decode_text, first_line
from trainer.types import Rollout

# Random numbers are drawn for so many tokens ahead.
_DRAWN_AHEAD = 64
# Prompt tokens, padding included, that go through the model at once.
_PREFILL_TOKENS = 16_384
# What the engine goes on with, as the run's warning says it.
_WAYS: dict[DecodingMethod, str] = {
    "shared": "CUDA graphs that read a group's prompt once",
    "flash": "CUDA graphs",
    "graph": "CUDA graphs without FlashAttention",
    "lean": "Cohort's decoder without CUDA graphs",
    "plain": "transformers' forward pass",
}
# Rows share prompts where a token of a layer reads so much less. A GPU of 3 TB/s reads
# it in 20 µs, about what a second attention and joining the two take; estimated, not
# measured on a GPU.
_LEAST_SAVED_BYTES = 64 * 2**20
_BYTES_PER_PENALISED_LOGIT = 13  # three more, and whether it was seen
_BYTES_PER_DRAWN_LOGIT = 20  # five float32 copies of the logits while a token is drawn
# A GPU is asked once in so many tokens how many rows have ended, since the question
# makes the host wait for all that the GPU still has to do.
_GPU_TOKENS_PER_LOOK = 16


@dataclass(frozen=True)
class _Rows:
    """Requests cut to at most so many completions, sampled together."""

    requests: list[Request]
    owners: list[tuple[int, int]]  # per completion: its request and its place there

    @property
    def seeds(self) -> list[int]:
        return [seed for request in self.requests for seed in request.seeds]


class TransformersEngine:
    """Samples from a policy in this process, with the weights that are trained.

    Of several processes each samples its share, from its whole copy of them.
    """

    has_memory_alone = True  # nothing trains on the device while it samples

    def __init__(
        self, policy: Policy, *, max_batch_rows: int, decoding: Decoding = "auto"
    ) -> None:
        self._trained, self._policy = policy, policy.whole
        self._ways = decoding_methods(policy.whole, decoding)  # the first is taken
        self._max_batch_rows = self._rows_at_once = max_batch_rows
        self._eos = torch.tensor(policy.eos_ids, device=policy.device)
        self.on_slowed: OnSlowed = lambda _slowed: None
        self.check = CheckSchedule()
        self._way = self._ways[0]  # which the newest rows are sampled in
        # what the first way computes, whether it pays or not
        self._is_measuring = False
        # Keys and values of what was sampled; None: requests never continue that.
        self.prefixes: PrefixStore | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._policy.tokenizer

    def sync_weights(self) -> None:
        """Drop the prefixes, and gather weights that are in parts."""
        self._trained.gather_whole()
        self.rest()
        if is_gpu(self._policy.device):  # where a graph may hold older weights
            self.check.after_sync()

    def rest(self) -> None:
        """Drop the prefixes: it holds nothing else while it does not sample."""
        if self.prefixes is not None:
            self.prefixes.clear()

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        collected = Collected(requests, on_group)
        self.collect(requests, params, collected)
        return collected.groups()

    def collect(
        self, requests: Sequence[Request], params: SamplingParams, collected: Collected
    ) -> None:
        """Sample what is not collected yet, each taken in as it ends."""
        self._rows_at_once = self._fitting_rows(requests, params)
        if self.check.begin(requests):
            self._check(requests, params)
            self.rest()  # states that a way it left has computed
        self._sample_all(requests, params, collected)

    def _fitting_rows(self, requests: Sequence[Request], params: SamplingParams) -> int:
        """Count the completions that a GPU's free memory holds at full length.

        Prefixes get what these leave. Beside an update, which has a GPU's memory to
        itself, they get none.
        """
        memory, prefixes = memory_of(self._policy.device), self.prefixes
        if memory is None or not self.has_memory_alone:
            if prefixes is not None:
                prefixes.resize(cpu_bytes() if memory is None else 0)
            return self._max_batch_rows
        longest = max(
            (
                len(request.token_ids) + params.limit(request.max_new_tokens)
                for request in requests
            ),
            default=0,
        )
        token_bytes, state_bytes = self._row_bytes
        # a layer's buffer is there twice while it grows
        row = 1.1 * token_bytes * longest + state_bytes
        penalised = params.repetition_penalty != 1
        row += (
            _BYTES_PER_DRAWN_LOGIT + _BYTES_PER_PENALISED_LOGIT * penalised
        ) * self._policy.head.weight.shape[0]
        wanted = min(
            self._max_batch_rows, sum(len(request.seeds) for request in requests)
        )
        is_recorded = self._ways[0] not in ("lean", "plain")
        copied = copied_bytes(self._policy) if is_recorded else 0
        free = memory.free_bytes(enough=wanted * row / SAMPLING_SHARE + copied) - copied
        if prefixes is None:
            return min(self._max_batch_rows, fitting_rows(free=free, row_bytes=row))
        free += prefixes.num_bytes
        rows = min(wanted, fitting_rows(free=free, row_bytes=row))
        prefixes.resize(SAMPLING_SHARE * free - rows * row)
        return rows

    @cached_property
    def _row_bytes(self) -> tuple[int, int]:
        """Bytes of a row's keys and values per token, and of its recurrent states."""
        model = self._policy.model
        cache = make_cache(model.config)
        if not is_recurrent(cache):
            return bytes_per_token(model.config, model.dtype), 0
        token = torch.zeros(1, 1, dtype=torch.long, device=self._policy.device)
        # in training, a layer that computes its activations again keeps no cache
        with self._policy.evaluating(), torch.inference_mode():
            self._policy.body(input_ids=token, past_key_values=cache, use_cache=True)
        return count_bytes(cache)

    def _check(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Leave ways to decode whose log-probs are not those of the policy's pass.

        Raises:
            ValueError: those of the last way are too far off to be trained on.
        """
        few, short = a_few(requests, params)
        limit, gap = max_logprob_gap(self._policy), self.measure_gap(few, short)
        if gap <= limit and self._ways[0] == "shared":
            # Where sharing would not pay, the next way is taken.
            ways, self._ways = self._ways, self._ways[1:]
            gap = self.measure_gap(few, short)
            if gap <= limit and self._ways == ways[1:]:
                self._ways = ways
        if gap <= limit:
            return
        ways, gaps = self._ways, [gap]
        for way in ways[1:]:
            self._ways = [way]
            try:
                gaps.append(self.measure_gap(few, short))
            except Exception as error:
                if way == ways[-1]:
                    raise
                print_traceback(error)
                gaps.append(math.inf)
        max_gap = max(limit, FURTHER_OFF * gaps[-1])
        kept = next((n for n, gap in enumerate(gaps) if gap <= max_gap), -1)
        self._ways = ways[kept:]
        taken = _WAYS[self._ways[0]]
        refuse_gap(gaps[kept], sampler=taken, remedy="Choose another model.")
        failed = "The faster sampling method" if kept else "The check of sampling"
        self.on_slowed(
            Slowed(
                code="engine_fallback",
                reason=describe_gap(gap),
                failed=failed,
                way=taken,
            )
        )

    def measure_gap(self, requests: Sequence[Request], params: SamplingParams) -> float:
        """Sample, and return mean |log π of an update's pass - log π of sampling|."""
        collected = Collected(requests, ignore)
        self._is_measuring = True
        try:
            self._sample_all(requests, params, collected)
        finally:
            self._is_measuring = False
        return logprob_gap(
            self._policy, requests, collected.groups(), temperature=params.temperature
        )

    def _sample_all(
        self, requests: Sequence[Request], params: SamplingParams, collected: Collected
    ) -> None:
        with self._policy.evaluating():
            while not collected.is_complete:
                self._sample_missing(requests, params, collected)

    def _sample_missing(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        collected: Collected,
    ) -> None:
        """Collect the rest, or what there is until a slower way has to be taken."""
        at_once = min(self._rows_at_once, self._max_batch_rows)
        for rows in _cut(requests, at_once, collected.found):
            slowed = self._collect_rows(rows, params, collected)
            if slowed is not None:
                # the failed batch's tensors went with the frames of its error
                torch.cuda.empty_cache()
                self.on_slowed(slowed)
                return

    def _collect_rows(
        self, rows: _Rows, params: SamplingParams, collected: Collected
    ) -> Slowed | None:
        """Collect completions as they end; the slower way to the rest, if one failed.

        Listeners are called outside of the `try`: their errors are not sampling's.
        """
        reports = self._sample_rows(rows, params, collected)
        while True:
            try:
                report = next(reports, None)
            except Exception as error:
                slowed = self._slower_way(error, num_rows=len(rows.owners))
                if slowed is None:
                    raise
                return slowed
            if report is None:
                return None
            report()

    def _slower_way(self, error: Exception, *, num_rows: int) -> Slowed | None:
        """Choose it, for all that is sampled from now on; None where there is none."""
        # a recording that is broken off says so, and only then why
        cause = error.__context__ or error
        if is_out_of_memory(cause) and self.prefixes:
            self.prefixes = None
            return Slowed(
                code="engine_fallback",
                reason=first_line(cause),
                failed="Keeping the keys and values of earlier turns",
                way="a prefill of the whole conversation in each turn",
            )
        if is_out_of_memory(cause) and num_rows > 1:
            self._max_batch_rows = num_rows // 2
            reason = first_line(cause)
            return Slowed(
                code="out_of_memory", reason=reason, rows=self._max_batch_rows
            )
        # sharing prompts may have been passed over
        failed = self._ways.index(self._way) + 1 if self._way in self._ways else 1
        if failed == len(self._ways) or not is_gpu(self._policy.device):
            return None
        print_traceback(error)
        del self._ways[:failed]
        reason = f"{type(cause).__name__}: {first_line(cause)}"
        return Slowed(code="engine_fallback", reason=reason, way=_WAYS[self._ways[0]])

    def _way_of(self, rows: _Rows) -> DecodingMethod:
        """Return the first way, or the next where sharing prompts would not pay."""
        way = self._ways[0]
        if way != "shared" or self._is_measuring:
            return way
        saved_tokens = sum(
            len(request.token_ids) * (len(request.seeds) - 1)
            for request in rows.requests
        )
        token_bytes, _ = self._row_bytes
        num_layers = self._policy.model.config.num_hidden_layers
        pays = saved_tokens * token_bytes >= _LEAST_SAVED_BYTES * num_layers
        return "shared" if pays else "flash"

    @torch.inference_mode()
    def _sample_rows(
        self, rows: _Rows, params: SamplingParams, collected: Collected
    ) -> Iterator[Callable[[], None]]:
        """Sample, and hand out what there is to report on the way, to be called."""
        policy, device = self._policy, self._policy.device
        self._way = self._way_of(rows)
        cache, hidden, padding = self._prefill(rows.requests)
        store = self.prefixes if is_growing(cache) else None
        sizes = torch.tensor([len(request.seeds) for request in rows.requests])
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        hidden = hidden[owner]
        positions = padding.sum(dim=1)[owner]  # of the next token
        own_limits = [
            params.limit(request.max_new_tokens)
            for request in rows.requests
            for _ in request.seeds
        ]
        max_new_tokens = max(own_limits)
        decoder = make_decoder(
            policy,
            cache,
            padding,
            owner,
            max_new_tokens=max_new_tokens,
            way=self._way,
        )

        prompts = [
            request.token_ids for request in rows.requests for _ in request.seeds
        ]
        written = _Written(len(owner), max_new_tokens, device)
        live = torch.arange(len(owner), device=device)  # rows still in the batch
        ended = torch.zeros(len(owner), dtype=torch.bool, device=device)
        reported = torch.zeros_like(ended)  # of those ended
        num_reported = 0
        draws = _Draws(rows.seeds, device)
        seen = self._seen(rows.requests, params)
        if seen is not None:
            seen = seen[owner]
        stop = _StopTexts(params.stop, policy.tokenizer)
        limits = torch.tensor(own_limits, device=device)
        by_text = torch.zeros_like(ended)  # rows that a stop text has ended

        def settle(which: torch.Tensor, num_steps: int) -> Callable[[], None]:
            """Return what takes in rows of the batch, after so many steps."""
            written.settle(live)
            completions = self._ended(
                live[which],
                written,
                rows,
                params.stop,
                limits=limits,
                by_text=by_text,
            )
            if store is not None and store.max_bytes:
                for row, number, (_, completion) in zip(
                    which.nonzero().flatten().tolist(),
                    live[which].tolist(),
                    completions,
                    strict=True,
                ):
                    prompt = prompts[number]
                    # its last token has no keys where no step followed it
                    kept = prompt + completion.token_ids[:num_steps]
                    first = padding.shape[1] - len(prompt)
                    span = slice(first, first + len(kept))
                    if kept not in store:
                        store.put(kept, decoder.states_of(row, span))
            return partial(collected.add_all, completions)

        check_every = _GPU_TOKENS_PER_LOOK if is_gpu(device) else 1
        for place in range(max_new_tokens):
            tick()
            chosen, logprob = draw_next(
                policy, hidden, draws.at(place)[live], params, seen=seen
            )
            written.add(chosen, logprob)
            if seen is not None:
                seen.scatter_(1, chosen[:, None], True)
            ended = ended | self._ends(chosen)
            if min(own_limits) <= place + 1:
                ended = ended | (limits[live] <= place + 1)
            if params.stop:
                stop.add(chosen)
            if place + 1 == max_new_tokens:
                break
            num_ended = 0
            if (place + 1) % check_every == 0:
                if params.stop:
                    is_stopped = stop.find(device)
                    newly = live[is_stopped & ~ended]
                    limits[newly], by_text[newly] = place + 1, True
                    ended = ended | is_stopped
                num_ended = int(ended.sum())
            if num_ended == len(live):
                break
            if num_ended > 0:
                num_left = max_new_tokens - place - 1
                leave = decoder.should_drop_ended(num_ended, len(live), num_left)
                if leave or num_ended - num_reported >= LEAVING_SHARE * len(live):
                    yield settle(ended & ~reported, place)
                    reported, num_reported = ended, num_ended
                if leave:
                    stay = (~ended).nonzero().squeeze(1)
                    decoder.keep(stay)
                    live, chosen, ended = live[stay], chosen[stay], ended[stay]
                    positions = positions[stay]
                    stop.keep(stay)
                    if seen is not None:
                        seen = seen[stay]
                    reported, num_reported = ended, 0
            hidden = decoder.step(chosen, positions)
            positions = positions + 1
        yield settle(~reported, place)

    def _seen(
        self, requests: Sequence[Request], params: SamplingParams
    ) -> torch.Tensor | None:
        """Mark each prompt's tokens, bool [P, V], where a penalty asks for them."""
        if params.repetition_penalty == 1:
            return None
        size = self._policy.head.weight.shape[0]
        seen = torch.zeros(len(requests), size, dtype=torch.bool)
        for row, request in zip(seen, requests, strict=True):
            row[list(request.token_ids)] = True
        return seen.to(self._policy.device)

    def _ends(self, chosen: torch.Tensor) -> torch.Tensor:
        if len(self._eos) == 1:  # isin takes five times as long
            return chosen == self._eos
        return torch.isin(chosen, self._eos)

    def _prefill(
        self, requests: Sequence[Request]
    ) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        """Put each prompt through the model once, from where its kept prefix ends.

        Returns:
            The cache; the last hidden states [P, H]; the left-padded mask [P, L].
        """
        prompts = [request.token_ids for request in requests]
        width = max(len(prompt) for prompt in prompts)
        device = self._policy.device
        ids = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        ).to(device)
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        ).to(device)
        kept: list[States] = [[] for _ in prompts]
        if self.prefixes is not None:
            kept = self.prefixes.take(prompts)
        # a recurrent state would take padding in, so equal lengths go together
        is_equal = is_recurrent(make_cache(self._policy.model.config))
        num_new = [
            len(prompt) - (states[0][0].shape[1] if states else 0)
            if states or is_equal
            else width
            for prompt, states in zip(prompts, kept, strict=True)
        ]
        spread = 1 if is_equal else 2
        places = cut_prefill(num_new, max_tokens=_PREFILL_TOKENS, spread=spread)
        parts = [
            self._prefill_part(
                ids[part],
                mask[part],
                [kept[place] for place in part],
                num_new[part[-1]],
            )
            for part in places
        ]
        hidden = torch.cat([part for _, part in parts])
        cache = join_caches([cache for cache, _ in parts])
        order = torch.tensor([place for part in places for place in part])
        if (order.diff() != 1).any():
            back = order.argsort().to(device)
            select_rows(cache, back)
            hidden = hidden[back]
        return cache, hidden, mask

    def _prefill_part(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        kept: Sequence[States],
        num_new: int,
    ) -> tuple[DynamicCache, torch.Tensor]:
        """Compute the last `num_new` tokens of each prompt.

        Those before are kept, or are padding where a layer is recurrent.
        """
        cache, body = make_cache(self._policy.model.config), self._policy.body
        if "past_key_values" not in inspect.signature(body.forward).parameters:
            raise ValueError(
                f"{type(self._policy.model).__name__} keeps no keys and values, so "
                "neither Cohort nor vLLM samples from it. Choose another model, or set "
                'rollout.source to "dataset".'
            )
        first = ids.shape[1] - num_new
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, first:]
        if is_recurrent(cache):
            mask = mask[:, first:]  # before them there is padding alone
        elif first > 0:
            load_states(cache, kept, mask[:, :first].sum(dim=1).tolist(), width=first)
        hidden = body(
            input_ids=ids[:, first:],
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )[0]
        return cache, hidden[:, -1]

    def _ended(
        self,
        ended: torch.Tensor,
        written: _Written,
        rows: _Rows,
        stop: tuple[str, ...],
        *,
        limits: torch.Tensor,
        by_text: torch.Tensor,
    ) -> list[tuple[tuple[int, int], Rollout]]:
        """Return the completions of some rows, without the tokens behind their end.

        `limits`: how many tokens each row has at most, or where a text ended it,
        `by_text`.
        """
        tokens = written.tokens[ended]
        ends = self._ends(tokens)
        counts = torch.where(
            ends.any(dim=1), ends.int().argmax(dim=1) + 1, ends.shape[1]
        ).minimum(limits[ended])
        tokenizer, eos_ids = self._policy.tokenizer, self._eos.tolist()
        return [
            (
                rows.owners[row],
                as_completion(
                    Sampled(
                        token_ids=tuple(ids[:count]), logprobs=tuple(logprobs[:count])
                    ),
                    tokenizer,
                    eos_ids,
                    stop,
                    is_ended=is_stopped,
                ),
            )
            for row, is_stopped, ids, logprobs, count in zip(
                ended.tolist(),
                by_text[ended].tolist(),
                tokens.tolist(),
                written.logprobs[ended].tolist(),
                counts.tolist(),
                strict=True,
            )
        ]


class _Written:
    """Tokens and log-probs of all rows, [rows, max_new_tokens].

    Those of the rows in the batch are kept apart, place by place, until some leave it.
    """

    def __init__(
        self, num_rows: int, max_new_tokens: int, device: torch.device
    ) -> None:
        self.tokens = torch.zeros(
            num_rows, max_new_tokens, dtype=torch.long, device=device
        )
        self.logprobs = torch.zeros(num_rows, max_new_tokens, device=device)
        self._new: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._first = 0  # place of the first that is new

    def add(self, chosen: torch.Tensor, logprob: torch.Tensor) -> None:
        self._new.append((chosen, logprob))

    def settle(self, live: torch.Tensor) -> None:
        """Put what is new where it belongs; `live` are the rows that wrote it."""
        tokens, logprobs = zip(*self._new, strict=True)
        span = slice(self._first, self._first + len(self._new))
        self.tokens[live, span] = torch.stack(tokens, dim=1)
        self.logprobs[live, span] = torch.stack(logprobs, dim=1)
        self._first += len(self._new)
        self._new = []


class _StopTexts:
    """Finds rows that have written a text which ends a completion."""

    def __init__(
        self, texts: tuple[str, ...], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        # A token is a byte at least, and may begin before the text or end behind it.
        longest = max((len(text.encode()) for text in texts), default=0)
        self._last = deque[torch.Tensor](maxlen=longest + _GPU_TOKENS_PER_LOOK)

    def add(self, chosen: torch.Tensor) -> None:
        self._last.append(chosen)

    def keep(self, stay: torch.Tensor) -> None:
        self._last = deque((chosen[stay] for chosen in self._last), self._last.maxlen)

    def find(self, device: torch.device) -> torch.Tensor:
        """Tell of each row whether its last tokens have a text; bool [rows]."""
        rows = torch.stack(tuple(self._last), dim=1).tolist()
        return torch.tensor(
            [has_any(decode_text(self._tokenizer, ids), self._texts) for ids in rows],
            device=device,
        )


class _Draws:
    """The rows' random numbers, drawn some tokens ahead."""

    def __init__(self, seeds: list[int], device: torch.device) -> None:
        self._seeds = seeds
        self._device = device
        self._first = -_DRAWN_AHEAD
        self._values = torch.empty(0)

    def at(self, place: int) -> torch.Tensor:
        if not self._first <= place < self._first + _DRAWN_AHEAD:
            self._first = place
            drawn = uniforms(
                self._seeds, first=place, count=_DRAWN_AHEAD, device=self._device
            )
            self._values = drawn.T.contiguous()
        return self._values[place - self._first]


def _cut(
    requests: Sequence[Request],
    max_rows: int,
    taken: Container[tuple[int, int]] = (),
) -> Iterator[_Rows]:
    """Requests in batches of like prompt length; a large group may span several.

    Completions in `taken`, by their request and their place there, are left out.
    """
    order = sorted(range(len(requests)), key=lambda p: len(requests[p].token_ids))
    batch = _Rows([], [])
    for place in order:
        wanted = range(len(requests[place].seeds))
        missing = [k for k in wanted if (place, k) not in taken]
        for first in range(0, len(missing), max_rows):
            span = missing[first : first + max_rows]
            if batch.owners and len(batch.owners) + len(span) > max_rows:
                yield batch
                batch = _Rows([], [])
            seeds = tuple(requests[place].seeds[k] for k in span)
            batch.requests.append(replace(requests[place], seeds=seeds))
            batch.owners.extend((place, k) for k in span)
    if batch.owners:
        yield batch
