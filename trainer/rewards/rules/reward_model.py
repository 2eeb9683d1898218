"""The rule of a reward model.

Models run in a process of their own, because rules import no torch. All scoring
processes of a run share it, so each model is in memory once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trainer.rewards.child import Child, NoReply
from trainer.rewards.rule import (
    Batching,
    Example,
    Outcome,
    Params,
    Rule,
    Sample,
    Unscorable,
)
from trainer.rewards.session import Session, current_session

# Reading torch takes some seconds, a large model's weights minutes, more from a hub.
_LOAD_SECONDS = 1_800.0
_ANSWER_SECONDS = 600.0
# Where the hub's files lie, and which GPU is ours. The token is for private models.
_KEPT = (
    "HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN",
    "HF_TOKEN_PATH", "XDG_CACHE_HOME", "HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "LOCAL_RANK",
)  # fmt: skip


class NoScores(Exception):
    """The model could not be asked; the text says why."""


class Classifiers:
    """The process, which starts with the first question. Any thread may ask."""

    def __init__(self, module: str = "trainer.model.classifier") -> None:
        self._module = module
        self._child: Child | None = None
        self._loaded: set[str] = set()
        self._lock = Lock()

    def scores(
        self,
        settings: Mapping[str, Any],
        conversations: Sequence[Sequence[Mapping[str, str]]],
    ) -> list[float]:
        """Return a number for each conversation; without any, the model is loaded.

        Raises:
            NoScores: the model cannot be loaded, or its process was lost twice.
        """
        question = {"settings": settings, "conversations": conversations}
        with self._lock:
            try:
                reply = self._ask(question)
            except NoReply:
                try:
                    reply = self._ask(question)
                except NoReply as loss:
                    raise NoScores(
                        f"The process of the reward model {settings['path']} ended "
                        f"twice: {loss}. Check the free memory, set its device to "
                        "cpu, or lower batch_tokens."
                    ) from None
        if "problem" in reply:
            raise NoScores(reply["problem"])
        scores: list[float] = reply["scores"]
        return scores

    def close(self) -> None:
        child = self._child
        if child is not None:
            child.kill()  # a thread that waits for it learns of that
        with self._lock:
            self._let_go()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        key = repr(question["settings"])
        try:
            if self._child is None:
                kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
                self._child = Child(self._module, environment=kept)
                self._child.read(timeout_seconds=_LOAD_SECONDS)
            self._child.write(question)
            seconds = _ANSWER_SECONDS if key in self._loaded else _LOAD_SECONDS
            reply = self._child.read(timeout_seconds=seconds)
        except NoReply:
            self._let_go()
            raise
        self._loaded.add(key)
        return reply

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None
        self._loaded.clear()


class RewardModelParams(Params):
    path: str = Field(
        min_length=1,
        max_length=500,
        title="Model",
        description="Folder or Hugging Face ID of a sequence or token classifier. "
        "Only safetensors weights are loaded; no remote code is run.",
    )
    revision: str | None = Field(
        None,
        max_length=200,
        description=("Branch, tag or commit of a Hugging Face model."),
    )
    head: Literal["sequence", "token"] = Field(
        "sequence",
        title="Head",
        description="sequence: one score per completion. token: one score per "
        "token, and the last score counts, as in process reward models.",
    )
    label: str = Field(
        "",
        max_length=200,
        description="Name or index of the label that is the score. Empty for a model "
        "with one label.",
    )
    score_as: Literal["sigmoid", "probability", "raw"] = Field(
        "sigmoid",
        description="sigmoid: 1 / (1 + e^-x) of the label's logit. probability: its "
        "softmax probability. raw: the logit, clipped to the bounds below.",
    )
    low: float = Field(-10.0, ge=-1e6, le=1e6, description="Lowest raw score.")
    high: float = Field(10.0, ge=-1e6, le=1e6, description="Highest raw score.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto: the policy's GPU, or the CPU if there is none.",
    )
    max_tokens: int = Field(
        4_096,
        ge=1,
        le=1_000_000,
        description="Maximum length of a text. The rest is truncated.",
        json_schema_extra={"unit": "tokens"},
    )
    batch_tokens: int = Field(
        16_384,
        ge=1,
        le=10_000_000,
        description="Tokens per batch, padding included.",
        json_schema_extra={"unit": "tokens"},
    )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low is {self.low:g} and high is {self.high:g}; high must be greater."
            )
        return self


def score_by_model(
    samples: Sequence[Sample], params: RewardModelParams
) -> list[Outcome]:
    """Return the model's number for each completion, as its conversation's last
    message.
    """
    session = current_session()
    try:
        if not session.is_run:
            raise NoScores(
                "Reward models are loaded only in a run. Train for a step to see the "
                "scores, or use python -m trainer score."
            )
        scores = _ask(samples, params, session)
    except NoScores as error:
        session.warn(str(error))
        return [Unscorable(str(error)) for _ in samples]
    return [_cut(score, params) for score in scores]


def check_model(params: RewardModelParams) -> None:
    """Load it, for a run that begins.

    Raises:
        ValueError: it cannot be.
    """
    try:
        _ask([], params, current_session())
    except NoScores as error:
        raise ValueError(str(error)) from None


def _ask(
    samples: Sequence[Sample], params: RewardModelParams, session: Session
) -> list[float]:
    classifiers = session.keep(Classifiers, Classifiers)
    settings = params.model_dump(exclude={"low", "high"})
    return classifiers.scores(settings, [_conversation(sample) for sample in samples])


def _conversation(sample: Sample) -> list[dict[str, Any]]:
    messages = [dict(message) for message in sample.messages]
    messages = messages or [{"role": "user", "content": sample.prompt}]
    reply = sample.before + sample.text
    return [*messages, {"role": "assistant", "content": reply}]


def _cut(score: float, params: RewardModelParams) -> Outcome:
    if score != score:
        return Unscorable(f"The reward model {params.path} returned NaN.")
    low, high = _bounds(params)
    return min(max(score, low), high)


def _bounds(params: RewardModelParams) -> tuple[float, float]:
    return (params.low, params.high) if params.score_as == "raw" else (0.0, 1.0)


RULE = Rule(
    kind="reward_model",
    title="Reward model",
    summary="A classifier trained on preferences, or on correct and wrong steps, "
    "scores the completion.",
    params_model=RewardModelParams,
    # The process computes for one call at a time, of as much as there is by then.
    batching=Batching(
        score=score_by_model,
        most_at_once=lambda params: 256,
        num_calls=lambda params: 1,
    ),
    bounds=_bounds,
    example_pass=Example(
        sample=Sample("Why is the sky blue?", "Air scatters blue light most."),
        params={"path": "models/reward"},
    ),
    example_fail=Example(
        sample=Sample("Why is the sky blue?", "It mirrors the sea."),
        params={"path": "models/reward"},
    ),
    check=check_model,
)
