"""What a rollout engine is asked and what it answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, runtime_checkable

import torch
from transformers import PreTrainedTokenizerBase

from trainer.algorithm.corrections import rounding_gap
from trainer.config import RolloutConfig
from trainer.model.packing import Batch, TrainingSample
from trainer.model.policy import Policy
from trainer.tokenizers import decode_text
from trainer.types import Rollout


@dataclass(frozen=True, kw_only=True)
class Request:
    """Token ids to continue once for each seed."""

    token_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    max_new_tokens: int | None = None  # if that is less than for all requests


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The way to choose a completion's tokens, and how many there are at most.

    `top_p`, `top_k`, `min_p` and `repetition_penalty` change the choice only: log-probs
    are those of the whole vocabulary at this temperature, so that a ratio to the
    policy's log-probs is 1 for an unchanged policy. Temperature 0 takes the likeliest
    token; log-probs are then those of temperature 1.

    `stop`: a completion ends with the token in which it has one of these texts.
    """

    max_new_tokens: int
    temperature: float
    top_p: float = 1.0  # 1: any token
    top_k: int = 0  # 0: any token
    min_p: float = 0.0  # 0: any token
    repetition_penalty: float = 1.0  # 1: none
    stop: tuple[str, ...] = ()

    def limit(self, own: int | None) -> int:
        """Return the most tokens of a completion that has a limit of its own or not."""
        return min(self.max_new_tokens, own or self.max_new_tokens)

    @classmethod
    def of(cls, rollout: RolloutConfig) -> Self:
        """Return those with which a run samples."""
        return cls(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            min_p=rollout.min_p,
            repetition_penalty=rollout.repetition_penalty,
            stop=tuple(rollout.stop),
        )


# Takes the place of a request and its completions, in order.
OnGroup = Callable[[int, tuple[Rollout, ...]], None]


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """An engine that samples on in a slower way, since the way before failed."""

    code: Literal["out_of_memory", "engine_fallback"]
    reason: str
    rows: int = 0  # out of memory: completions at a time from now on
    failed: str = "The faster sampling method"  # else what was left,
    way: str = ""  # and what it goes on with


OnSlowed = Callable[[Slowed], None]

# What is compared with the policy's own pass before a run samples: so many completions
# of so many tokens at most.
_CHECKED_ROWS, _CHECKED_TOKENS = 8, 48
_CHECKED_AT_ONCE = 4_096  # tokens in a pass
# A way is left whose log-probs are so many times further off than the slowest way's: a
# model whose slowest way is as far off has logits that rounding moves far.
FURTHER_OFF = 2.5
_REFUSED_GAP = 0.3  # nats: ratios of a third and more, by no update


def largest_gap(policy: Policy) -> float:
    """Return mean |log π_recomputed - log π_sampled| that rounding explains."""
    return rounding_gap(
        is_float32=policy.model.dtype == torch.float32,
        is_gpu=policy.device.type == "cuda",
    )


def max_logprob_gap(policy: Policy) -> float:
    """Allow twice as much: the mean of few tokens may be far from that of many."""
    return 2 * largest_gap(policy)


def a_few(
    requests: Sequence[Request], params: SamplingParams
) -> tuple[list[Request], SamplingParams]:
    """Return what is sampled of them to compare its log-probs with the policy's."""
    few = [
        Request(token_ids=request.token_ids, seeds=request.seeds[:1])
        for request in requests[:_CHECKED_ROWS]
    ]
    num_tokens = min(params.max_new_tokens, _CHECKED_TOKENS)
    return few, SamplingParams(
        max_new_tokens=num_tokens, temperature=params.temperature or 1.0
    )


class CheckSchedule:
    """When an engine's log-probs are compared with those of the policy's own pass.

    That is before it first samples, and again once it has taken new weights.
    """

    def __init__(self) -> None:
        self.is_due = True
        self._has_synced = False

    def after_sync(self) -> None:
        if not self._has_synced:
            self.is_due = self._has_synced = True

    def begin(self, requests: Sequence[Request]) -> bool:
        """Return whether to compare now, by some of these; then it is not due."""
        if not self.is_due or not requests:
            return False
        self.is_due = False
        return True


class LogprobsDiffer(ValueError):
    """An engine's log-probs are too far from the policy's to be trained on."""


def refuse_gap(gap: float, *, sampler: str, remedy: str) -> None:
    """Refuse to train on log-probs that are too far from the policy's.

    Raises:
        LogprobsDiffer: by more than 0.3 nats a token, or they are not finite.
    """
    if not gap <= _REFUSED_GAP:
        raise LogprobsDiffer(
            f"Log-probs from {sampler} differ by {gap:.2g} nats a token from the "
            f"training forward pass, and the limit is {_REFUSED_GAP}. {remedy}"
        )


def describe_gap(gap: float) -> str:
    return f"log-probs differ by {gap:.2g} nats from the training forward pass"


def logprob_gap(
    policy: Policy,
    requests: Sequence[Request],
    groups: Sequence[Sequence[Rollout]],
    *,
    temperature: float,
) -> float:
    """Return mean |log π of an update's pass - log π of sampling|, nats a token."""
    batch = Batch(
        tuple(
            TrainingSample(
                prompt_ids=request.token_ids,
                completion_ids=completion.token_ids,
                sampling_logprobs=completion.logprobs,
            )
            for request, group in zip(requests, groups, strict=True)
            for completion in group
        )
    )
    gaps = []
    with torch.no_grad(), policy.evaluating():
        for micro in batch.micro_batches(
            max_tokens=_CHECKED_AT_ONCE, device=policy.device
        ):
            logprobs, _ = policy.logprobs(micro, temperature=temperature)
            gaps.append(
                (logprobs - micro.sampling_logprobs).abs()[micro.completion_mask > 0]
            )
    return torch.cat(gaps).mean().item()


def ignore(index: int, completions: tuple[Rollout, ...]) -> None:
    """Serve callers that want all groups at the end."""


class RolloutEngine(Protocol):
    """Samples completions from the policy as it is now."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The meaning of its completions' token ids."""

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        """Sample for each request one completion per seed, in order.

        A completion follows from its seed alone: not from what is sampled beside it,
        as far as the engine's arithmetic allows.

        Args:
            requests: what to sample.
            params: how.
            on_group: told of a request once all its completions have ended, while
                others have not, in the calling thread. An engine that gets all of them
                at once tells of none.
        """

    def sync_weights(self) -> None:
        """Make the engine sample from the policy's present weights."""

    def rest(self) -> None:
        """Give back what memory can be done without until something is sampled."""


@runtime_checkable
class JointEngine(Protocol):
    """An engine that all processes of a run ask together."""

    def is_needed_by_any(self, *, own: bool) -> bool:
        """Return whether this process or another one will ask again."""


@dataclass(frozen=True, kw_only=True)
class SeededPrompt:
    """A completion that is asked for."""

    token_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int | None = None  # as of its request


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A completion as tokens, with the log-probs it was drawn with."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def longest_of(
    prompts: Sequence[SeededPrompt], params: SamplingParams
) -> tuple[int, int]:
    """Return the tokens of a prompt and of its completion that are most together."""
    pairs = (
        (len(prompt.token_ids), params.limit(prompt.max_new_tokens))
        for prompt in prompts
    )
    return max(pairs, key=sum)


def as_completion(
    sampled: Sampled,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Sequence[int],
    stop: Sequence[str] = (),
    *,
    is_ended: bool = False,
) -> Rollout:
    """Return a completion as the trainer has it, of one that ends with such a token or
    not; what is behind the first of the texts `stop` is cut off.

    `is_ended`: such a text ended it, though bytes before it may hide it in the whole.
    """
    ids, logprobs = sampled.token_ids, sampled.logprobs
    has_end_token = ids[-1] in eos_ids
    # The ending token itself is no part of the text.
    written = ids[:-1] if has_end_token else ids
    text = decode_text(tokenizer, written)
    if is_stopped := has_any(text, stop):
        # A token too many has the text, a token too few has not.
        count = 1 + bisect_left(
            range(1, len(written)),
            True,
            key=lambda count: has_any(decode_text(tokenizer, written[:count]), stop),
        )
        ids, logprobs, has_end_token = ids[:count], logprobs[:count], False
        text = decode_text(tokenizer, ids)
    is_stopped = is_stopped or (is_ended and not has_end_token)
    return Rollout.of_one_turn(
        text=text,
        token_ids=ids,
        logprobs=logprobs,
        end_reason="stop" if has_end_token or is_stopped else "length",
        is_stopped_by_text=is_stopped,
    )


def has_any(text: str, stop: Sequence[str]) -> bool:
    return any(part in text for part in stop)


class Collected:
    """The completions of some requests that have ended so far."""

    def __init__(self, requests: Sequence[Request], on_group: OnGroup) -> None:
        self.found: dict[tuple[int, int], Rollout] = {}  # by request and place there
        self.error: Exception | None = None  # that its listener raised
        self._missing = [len(request.seeds) for request in requests]
        self._sizes = tuple(self._missing)
        self._on_group = on_group

    @property
    def is_complete(self) -> bool:
        return not any(self._missing)

    def add(self, owner: tuple[int, int], completion: Rollout) -> None:
        """Take in one; with the last of its request, tell of the group."""
        index, _ = owner
        self.found[owner] = completion
        self._missing[index] -= 1
        if self._missing[index] == 0:
            try:
                self._on_group(index, self._group(index))
            except Exception as error:
                self.error = error
                raise

    def add_all(self, ended: Sequence[tuple[tuple[int, int], Rollout]]) -> None:
        for owner, completion in ended:
            self.add(owner, completion)

    def groups(self) -> list[tuple[Rollout, ...]]:
        """Return all of them, in the order of the requests."""
        return [self._group(index) for index in range(len(self._sizes))]

    def _group(self, index: int) -> tuple[Rollout, ...]:
        return tuple(self.found[index, k] for k in range(self._sizes[index]))
