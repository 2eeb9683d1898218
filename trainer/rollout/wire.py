"""Messages between what samples, a rollout server or vLLM's process, and its clients.

A server gets them packed, over HTTP; a process of this one gets them as they are, over
a pipe, and weights through memory that both have.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save

from trainer.rollout.engine import Sampled, SamplingParams, SeededPrompt
from trainer.serving.client import check_range, pack, unpack


def in_parts(
    weights: Iterable[tuple[str, torch.Tensor]], *, num_bytes: int
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Lists of at most so many bytes, in order; a larger weight has one of its own."""
    part: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, weight in weights:
        if part and size + weight.nbytes > num_bytes:
            yield part
            part, size = [], 0
        part.append((name, weight))
        size += weight.nbytes
    if part:
        yield part


MODEL, HOLD, PLACES = "/model", "/hold", "/places"
WEIGHTS, LOAD, SAMPLE = "/weights", "/load", "/sample"
ROOM, REST = "/room", "/rest"  # of a process of this one alone
# its answers: of a completion, that it moves on, and the last one
ENDED, TICKED, DONE, REFUSED, FAILED = "ended", "ticked", "done", "refused", "failed"
HOLD_HEADER = "X-Hold"  # what the server answered to HOLD
_PART_BYTES = 64 * 2**20
ALIGNED_BYTES = 16  # that each weight in shared memory begins at a multiple of
_QUESTION = {
    "tokens": (torch.int32, 1),
    "lengths": (torch.int64, 1),
    "seeds": (torch.int64, 1),
    "eos_ids": (torch.int64, 1),
    "max_new_tokens": (torch.int64, 0),
    "temperature": (torch.float64, 0),
    "version": (torch.int64, 0),
}
_STOP = {"stop": (torch.uint8, 1)}  # sent if there are such texts
_LIMITS = {"limits": (torch.int64, 1)}  # sent if prompts differ in their limits
_ANSWER = {
    "tokens": (torch.int32, 1),
    "logprobs": (torch.float32, 1),
    "lengths": (torch.int64, 1),
    "version": (torch.int64, 0),
}
_BYTES_PER_TOKEN = 8  # an int32 and a float32


@dataclass(frozen=True, kw_only=True)
class Question:
    """Completions that are asked for, of the weights with this version."""

    prompts: Sequence[SeededPrompt]
    params: SamplingParams
    eos_ids: tuple[int, ...]
    version: int


class Forgotten(Exception):
    """The server was started again, or the child died: it has lost the weights."""


class Message(BaseModel):
    """The part of a message that is JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def pack(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def read(cls, body: bytes) -> Self:
        """ValueError where a body says something else."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise ValueError(
                f"The body is not a valid {cls.__name__}: {where or 'all'}: "
                f"{fault['msg']}"
            ) from None


class Order(Message):
    """The kind of weights that were sent: all of a model's, or adapters of a rank."""

    names: tuple[str, ...]
    rank: int = Field(ge=0)  # 0: whole weights
    alpha: float


class Adapted(Message):
    """Adapters that a run would send by themselves."""

    layers: tuple[str, ...]
    rank: int = Field(ge=1)


def pack_question(question: Question) -> bytes:
    prompts, params = question.prompts, question.params
    limits = [params.limit(prompt.max_new_tokens) for prompt in prompts]
    has_limits = any(limit < params.max_new_tokens for limit in limits)
    optional = (_STOP if params.stop else {}) | (_LIMITS if has_limits else {})
    return pack(
        _QUESTION | optional,
        tokens=[token for prompt in prompts for token in prompt.token_ids],
        lengths=[len(prompt.token_ids) for prompt in prompts],
        seeds=[prompt.seed % 2**63 for prompt in prompts],
        eos_ids=question.eos_ids,
        max_new_tokens=params.max_new_tokens,
        temperature=params.temperature,
        stop=list("\0".join(params.stop).encode()),
        limits=limits,
        version=question.version,
    )


def unpack_question(body: bytes, *, vocabulary: int) -> Question:
    """Return the question in a body that anyone may have sent.

    Raises:
        ValueError: it is none, or it asks for tokens that the model has not.
    """
    names = unpack(body).keys()
    has_stop, has_limits = "stop" in names, "limits" in names
    optional = (_STOP if has_stop else {}) | (_LIMITS if has_limits else {})
    tensors = unpack(body, _QUESTION | optional)
    lengths, tokens = tensors["lengths"], tensors["tokens"]
    if (
        len(lengths) == 0
        or len(lengths) != len(tensors["seeds"])
        or int(lengths.min()) < 1
        or int(lengths.max()) > len(tokens)
        or int(lengths.sum()) != len(tokens)
    ):
        raise ValueError("lengths must match the prompts in tokens.")
    check_range("tokens", tokens, vocabulary)
    check_range("eos_ids", tensors["eos_ids"], vocabulary)
    stop = bytes(tensors["stop"].tolist()).decode() if has_stop else ""
    temperature, num_new = tensors["temperature"].item(), tensors["max_new_tokens"]
    if not 0 <= temperature < math.inf or int(num_new) < 1:
        raise ValueError("temperature must be at least 0, max_new_tokens at least 1.")
    limits = tensors["limits"].tolist() if has_limits else [None] * len(lengths)
    if len(limits) != len(lengths) or (has_limits and min(limits) < 1):
        raise ValueError("limits must have a number of at least 1 for each prompt.")
    return Question(
        prompts=[
            SeededPrompt(token_ids=tuple(ids.tolist()), seed=seed, max_new_tokens=limit)
            for ids, seed, limit in zip(
                tokens.split(lengths.tolist()),
                tensors["seeds"].tolist(),
                limits,
                strict=True,
            )
        ],
        params=SamplingParams(
            max_new_tokens=int(num_new),
            temperature=temperature,
            stop=tuple(filter(None, stop.split("\0"))),
        ),
        eos_ids=tuple(tensors["eos_ids"].tolist()),
        version=int(tensors["version"]),
    )


def pack_answer(sampled: Sequence[Sampled], *, version: int) -> bytes:
    return pack(
        _ANSWER,
        tokens=[token for sample in sampled for token in sample.token_ids],
        logprobs=[value for sample in sampled for value in sample.logprobs],
        lengths=[len(sample.token_ids) for sample in sampled],
        version=version,
    )


def unpack_answer(body: bytes, question: Question) -> list[Sampled]:
    """Return the completions that were asked for.

    Raises:
        ValueError: that is not what came, or other weights sampled it.
    """
    tensors = unpack(body, _ANSWER)
    version, lengths = tensors["version"].item(), tensors["lengths"].tolist()
    if version != question.version:
        raise ValueError(
            f"The completions are from weights {version}, but the policy has version "
            f"{question.version}."
        )
    tokens, logprobs = tensors["tokens"], tensors["logprobs"]
    if (
        len(lengths) != len(question.prompts)
        or not all(
            1 <= count <= question.params.limit(prompt.max_new_tokens)
            for count, prompt in zip(lengths, question.prompts, strict=True)
        )
        or not sum(lengths) == len(tokens) == len(logprobs)
    ):
        raise ValueError(
            f"The response does not contain {len(question.prompts)} completions."
        )
    return [
        Sampled(token_ids=tuple(ids.tolist()), logprobs=tuple(values.tolist()))
        for ids, values in zip(
            tokens.split(lengths), logprobs.split(lengths), strict=True
        )
    ]


def answer_bytes(question: Question) -> int:
    """Return the most that an answer's numbers take."""
    num_tokens = len(question.prompts) * question.params.max_new_tokens
    return _BYTES_PER_TOKEN * (num_tokens + len(question.prompts))


@dataclass(frozen=True, kw_only=True)
class Part:
    """Weights that lie one behind the other in memory that two processes have."""

    fields: tuple[tuple[str, torch.dtype, torch.Size], ...]
    is_adapters: bool  # else weights of the model

    def places(self, memory: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each one's place in the memory, with its name."""
        start = 0
        for name, dtype, shape in self.fields:
            size = shape.numel() * dtype.itemsize
            yield name, memory[start : start + size].view(dtype).view(shape)
            start += size + -size % ALIGNED_BYTES


def map_file(file: int, size: int) -> torch.Tensor:
    """Return the bytes of a file as memory, which all that map it have."""
    os.truncate(file, size)
    return torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)


def pack_weights(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[bytes]:
    """Bodies of about 64 MiB; a larger weight has one of its own."""
    for part in in_parts(weights, num_bytes=_PART_BYTES):
        # copies, as safetensors refuses weights that share their memory
        yield save({n: w.detach().to("cpu", copy=True).contiguous() for n, w in part})
