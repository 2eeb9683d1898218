"""Who writes the completions that a step trains on."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from trainer.config import RunConfig
from trainer.data import Prompt, PromptRenderer
from trainer.model.policy import Policy
from trainer.model.reference import load_start
from trainer.rewards.rule import column_of
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import (
    OnGroup,
    OnSlowed,
    RolloutEngine,
    ignore,
)
from trainer.rollout.episodes import EngineSource, make_sampler
from trainer.tokenizers import decode_text
from trainer.types import Rollout


class DatasetSource:
    """Completions that the rows bring along: supervised fine-tuning.

    No one sampled them, so their log-probs are 0 and must not be used.
    """

    idle_seconds = 0.0

    def __init__(
        self, policy: Policy, config: RunConfig, prompts: Sequence[Prompt]
    ) -> None:
        """
        Raises:
            ValueError: a prompt's row has no text in `data.completion_column`.
        """
        self._renderer = PromptRenderer(
            policy.tokenizer, config.data, num_embeddings=policy.num_embeddings
        )
        self._column = config.data.completion_column
        self._limit = config.rollout.max_new_tokens
        own = policy.tokenizer.eos_token_id
        self._eos = own if isinstance(own, int) else policy.eos_ids[0]
        self._tokenizer = policy.tokenizer
        for prompt in prompts:
            self._text(prompt)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    def complete(
        self, prompts: Sequence[Prompt], step: int, *, on_group: OnGroup = ignore
    ) -> list[tuple[Rollout, ...]]:
        return [(self._completion(prompt),) for prompt in prompts]

    def sync_weights(self) -> None:
        """Do nothing: no model writes these."""

    def _completion(self, prompt: Prompt) -> Rollout:
        text = self._text(prompt)
        token_ids = (*self._renderer.continuation(prompt, text), self._eos)
        is_cut = len(token_ids) > self._limit
        if is_cut:
            token_ids = token_ids[: self._limit]
            text = decode_text(self._tokenizer, token_ids)
        return Rollout.of_one_turn(
            text=text,
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            end_reason="length" if is_cut else "stop",
        )

    def _text(self, prompt: Prompt) -> str:
        text = column_of(prompt.row.columns, self._column)
        if not isinstance(text, str) or not text:
            there = ", ".join(sorted(prompt.row.columns)) or "none"
            raise ValueError(
                f"Row {prompt.index} (line {prompt.index + 1}) has no completion in "
                f'column "{self._column}" (value: {text!r:.80}; its columns: '
                f"{there}). Set data.completion_column, fill the column, or drop the "
                "row."
            )
        return text


# What gives each prompt of a step its completions.
CompletionSource = EngineSource | DatasetSource


def start_source(
    start: Policy, config: RunConfig, *, on_slowed: OnSlowed
) -> EngineSource:
    """Samples from a model that stands still."""
    engine = TransformersEngine(
        start,
        max_batch_rows=config.rollout.max_batch_rows,
        decoding=config.rollout.decoding,
    )
    engine.on_slowed = on_slowed
    return make_sampler(engine, config)


def make_source(
    config: RunConfig,
    *,
    policy: Policy,
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    on_slowed: OnSlowed = lambda _slowed: None,
) -> CompletionSource:
    """Return the source that a run or phase asks for.

    Args:
        config: of the run or phase.
        policy: the policy being trained.
        engine: samples from it.
        prompts: all that may be trained on.
        on_slowed: told when an engine made here goes on in a slower way.

    Raises:
        ValueError: a row lacks its completion, or the starting model cannot be loaded.
    """
    match config.rollout.source:
        case "policy":
            return make_sampler(engine, config)
        case "start":
            return start_source(load_start(config, policy), config, on_slowed=on_slowed)
        case "dataset":
            return DatasetSource(policy, config, prompts)
