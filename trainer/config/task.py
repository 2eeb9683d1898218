"""The model, its prompts, how it is sampled and how it is rewarded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.config.part import Part, unit
from trainer.rewards.spec import Recipe


class ModelConfig(Part):
    """The language model the policy starts from."""

    path: str = Field(
        min_length=1,
        title="Model",
        description="A folder with a saved model and tokenizer, or a hub id.",
    )
    revision: str | None = Field(
        None, description="Branch, tag or commit when the model comes from a hub."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        title="Number format",
        description="Number format of the weights. auto: bfloat16 on a GPU that has "
        "it, float32 elsewhere.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs. auto: a GPU when there is one."
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Recompute activations in the backward pass: less memory, about "
        "a third more time.",
    )


class DataConfig(Part):
    """The prompts, and which of them are held out for evaluation."""

    rows: str = Field(
        min_length=1,
        description="JSONL file; each line has prompt, answer and columns.",
    )
    num_eval_rows: int = Field(
        64,
        ge=0,
        le=100_000,
        title="Held-out prompts",
        description="Rows drawn by the seed, never trained on, used for evaluation.",
        json_schema_extra=unit("rows"),
    )
    system_prompt: str | None = Field(
        None, description="Put before every prompt, as the chat template does."
    )
    prompt_template: str | None = Field(
        None,
        description="Text with {prompt} and any column in braces; default: the "
        "prompt as it is.",
    )
    completion_prefix: str = Field(
        "", description="Text the completion is made to continue, such as <think>."
    )
    chat_template: Literal["auto", "none"] = Field(
        "auto",
        description="auto: use the tokenizer's chat template when it has one.",
    )
    max_prompt_tokens: int = Field(
        512,
        ge=1,
        le=131_072,
        title="Longest prompt",
        description="A longer prompt is refused before the run starts.",
        json_schema_extra=unit("tokens"),
    )


class RolloutConfig(Part):
    """How completions are sampled."""

    engine: Literal["transformers"] = Field(
        "transformers", description="Which program samples the completions."
    )
    prompts_per_step: int = Field(
        16,
        ge=1,
        le=65_536,
        description="Distinct prompts P sampled in each step.",
        json_schema_extra=unit("prompts"),
    )
    group_size: int = Field(
        8,
        ge=2,
        le=1_024,
        description="Completions G of each prompt, compared with one another.",
        json_schema_extra=unit("completions"),
    )
    max_new_tokens: int = Field(
        256,
        ge=1,
        le=131_072,
        description="A completion is cut here, and counted as truncated.",
        json_schema_extra=unit("tokens"),
    )
    temperature: float = Field(
        1.0,
        gt=0,
        le=5,
        description="Divides the logits, when sampling and in the log-probs alike.",
    )
    max_batch_rows: int = Field(
        512,
        ge=1,
        le=65_536,
        title="Completions at a time",
        description="At most this many completions are sampled at the same time.",
        json_schema_extra=unit("completions"),
    )


class RewardConfig(Part):
    """The recipe that scores a completion."""

    recipe: Recipe = Field(description="Weighted rules; their sum is the reward.")
