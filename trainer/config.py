"""What a run is told to do: one frozen, typed tree, refused early.

The web half imports this module, so it imports no torch. Every field has a default
(but for the model, the rows and the rules), a bound, a line of help and, where it is
a quantity, a unit; the launch form is made from exactly these.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.rewards.spec import Recipe, recipe_bounds


class Part(BaseModel):
    """A frozen part of the configuration; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _unit(name: str) -> dict[str, Any]:
    return {"unit": name}


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
        json_schema_extra=_unit("rows"),
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
        json_schema_extra=_unit("tokens"),
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
        json_schema_extra=_unit("prompts"),
    )
    group_size: int = Field(
        8,
        ge=2,
        le=1_024,
        description="Completions G of each prompt, compared with one another.",
        json_schema_extra=_unit("completions"),
    )
    max_new_tokens: int = Field(
        256,
        ge=1,
        le=131_072,
        description="A completion is cut here, and counted as truncated.",
        json_schema_extra=_unit("tokens"),
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
        json_schema_extra=_unit("completions"),
    )


class RewardConfig(Part):
    """The recipe that scores a completion."""

    recipe: Recipe = Field(description="Weighted rules; their sum is the reward.")


class AdvantageConfig(Part):
    """How rewards of a group become advantages."""

    baseline: Literal["mean", "leave_one_out", "none"] = Field(
        "mean", description="What is subtracted from each reward of a group."
    )
    scale: Literal["group_std", "batch_std", "mean", "none"] = Field(
        "group_std", description="What the difference is divided by."
    )
    ddof: Literal[0, 1] = Field(
        1,
        title="Degrees of freedom",
        description="1: divide by n-1 in the standard deviation (torch); 0: by n.",
    )
    eps: float = Field(
        1e-4,
        ge=0,
        le=1,
        title="Epsilon",
        description="Added to the divisor, so that it is never 0.",
    )
    credit: Literal["outcome", "process", "indicator", "ones"] = Field(
        "outcome",
        description="What a token is credited with: its completion's advantage, the "
        "steps still to come, whether the answer is right, or 1.",
    )
    indicator_threshold: float = Field(
        1.0,
        description="With credit = indicator, a reward of at least this is right.",
    )
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize",
        description="Normalise the weighted sum of the rules, or each rule first.",
    )
    singleton: Literal["zero", "raw"] = Field(
        "zero",
        description="Advantage of a group with one scored completion: 0, or its "
        "reward as it is.",
    )


class LossConfig(Part):
    """The objective of one update."""

    surrogate: Literal["clip", "reinforce", "gspo", "cispo"] = Field(
        "clip", description="How ratio and advantage are combined."
    )
    clip_low: float = Field(
        0.2, ge=0, le=1, description="The ratio is clipped below at 1 - this."
    )
    clip_high: float = Field(
        0.2, ge=0, le=10, description="The ratio is clipped above at 1 + this."
    )
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="Bounds the loss of a negative advantage at this many times it.",
    )
    aggregation: Literal[
        "token_mean",
        "sequence_mean_token_mean",
        "sequence_mean_token_sum",
        "constant",
    ] = Field("token_mean", description="How token losses become one number.")
    constant_length: int | None = Field(
        None,
        ge=1,
        description="Divisor of aggregation = constant; default: max_new_tokens.",
        json_schema_extra=_unit("tokens"),
    )
    kl_estimator: Literal["k1", "abs", "k2", "k3", "full"] = Field(
        "k3",
        title="KL estimator",
        description="How the distance to the reference is estimated.",
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        le=100,
        title="KL weight",
        description="Weight of the KL to the reference; 0 needs no reference model.",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", title="KL enters in", description="Where the KL enters."
    )
    kl_clamp: float | None = Field(
        None, gt=0, title="KL clamp", description="Bounds each token's KL value."
    )
    importance_correction: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
        | None
    ) = Field(
        None,
        description="Corrects for sampling log-probs that differ from the trainer's.",
    )
    importance_cap: float = Field(
        3.0, gt=1, le=100, description="Bound of the importance weight."
    )
    entropy_coef: float = Field(
        0.0, ge=0, le=10, description="Weight of the entropy bonus."
    )


class ReferenceConfig(Part):
    """The model the KL is measured against."""

    kind: Literal["auto", "none", "frozen"] = Field(
        "auto",
        title="Reference",
        description="auto: a frozen copy of the starting model when the KL weight "
        "is above 0, none otherwise.",
    )


class OptimConfig(Part):
    """Optimizer, schedule and how a batch is cut."""

    num_steps: int = Field(
        100,
        ge=1,
        le=10_000_000,
        title="Steps",
        description="Steps of the run; each samples, scores and updates once.",
        json_schema_extra=_unit("steps"),
    )
    learning_rate: float = Field(
        1e-6, gt=0, le=1, description="Peak learning rate of AdamW."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first moment decay.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's second moment decay.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's weight decay.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Shape of the learning rate after warm-up."
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        title="Warm-up",
        description="The learning rate rises from 0 over these steps.",
        json_schema_extra=_unit("steps"),
    )
    final_lr_fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        title="Final learning rate",
        description="Learning rate at the last step as a share of the peak.",
    )
    max_grad_norm: float | None = Field(
        1.0,
        gt=0,
        title="Largest gradient norm",
        description="The gradient is scaled down to this norm; empty: never.",
    )
    updates_per_batch: int = Field(
        1,
        ge=1,
        le=64,
        description="Passes over each batch of completions (mu).",
        json_schema_extra=_unit("updates"),
    )
    micro_batch_tokens: int = Field(
        8_192,
        ge=16,
        le=16_777_216,
        description="Tokens, padding included, that go through the model at once; "
        "it changes memory and speed, not the result.",
        json_schema_extra=_unit("tokens"),
    )


class EvaluationConfig(Part):
    """Held-out evaluation during the run."""

    every_steps: int = Field(
        20,
        ge=0,
        title="Evaluate every",
        description="Evaluate every so many steps, before the first and after the "
        "last; 0: never.",
        json_schema_extra=_unit("steps"),
    )
    samples_per_prompt: int = Field(
        1,
        ge=1,
        le=1_024,
        json_schema_extra=_unit("completions"),
        title="Samples per held-out prompt",
        description="Completions sampled for each held-out prompt.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=5,
        title="Evaluation temperature",
        description="Sampling temperature; 0: the likeliest token.",
    )


class CheckpointConfig(Part):
    """When the run is saved."""

    every_steps: int = Field(
        20,
        ge=0,
        title="Checkpoint every",
        description="Save every so many steps; 0: only at the end and on stop.",
        json_schema_extra=_unit("steps"),
    )
    keep_last: int = Field(
        2,
        ge=1,
        le=1_000,
        title="Checkpoints kept",
        description="Older checkpoints are deleted.",
        json_schema_extra=_unit("checkpoints"),
    )


class LoggingConfig(Part):
    """What the event log carries."""

    groups_every_steps: int = Field(
        1,
        ge=1,
        title="Keep groups every",
        description="Groups with all their completions are kept every so many steps.",
        json_schema_extra=_unit("steps"),
    )


class DistributedConfig(Part):
    """Processes and threads."""

    num_threads: int | None = Field(
        None,
        ge=1,
        le=1_024,
        title="Threads",
        description="CPU threads of the trainer; empty: as many as there are cores.",
        json_schema_extra=_unit("threads"),
    )


class RunConfig(Part):
    """One GRPO run, whole."""

    seed: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="Fixes data order, held-out rows and sampling.",
    )
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    reference: ReferenceConfig = ReferenceConfig()
    optim: OptimConfig = OptimConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    distributed: DistributedConfig = DistributedConfig()

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        for complaint in self._unsupported():
            raise ValueError(complaint)
        if self.loss.kl_coef > 0 and self.reference.kind == "none":
            raise ValueError(
                f"A KL weight of {self.loss.kl_coef:g} needs a reference model, but "
                'reference.kind is "none". Set it to "auto", or the weight to 0.'
            )
        if self.optim.warmup_steps >= self.optim.num_steps:
            raise ValueError(
                f"Warm-up of {self.optim.warmup_steps} steps leaves nothing of a run "
                f"of {self.optim.num_steps} steps. Make it shorter than the run."
            )
        return self

    def _unsupported(self) -> Iterator[str]:
        """Settings that a run's loop cannot honour."""
        if self.advantage.credit == "process":
            yield (
                'advantage.credit = "process" needs a reward for each reasoning step, '
                'which no rule gives. Use "outcome".'
            )
        if self.loss.kl_estimator == "full":
            yield (
                'loss.kl_estimator = "full" needs the probabilities of the whole '
                "vocabulary, but only those of sampled tokens are kept. Use "
                '"k3".'
            )
        if (
            self.loss.kl_in == "reward"
            and self.loss.kl_coef > 0
            and self.advantage.combine == "normalize_then_sum"
        ):
            yield (
                'loss.kl_in = "reward" takes the KL off the summed reward, but '
                'advantage.combine = "normalize_then_sum" never sums rewards. Use '
                '"sum_then_normalize", or kl_in = "loss".'
            )
        lowest = recipe_bounds(self.reward.recipe)[0]
        penalised = self.loss.kl_in == "reward" and self.loss.kl_coef > 0
        if self.advantage.scale == "mean" and (lowest < 0 or penalised):
            yield (
                'advantage.scale = "mean" divides by the group\'s mean reward, which '
                f"must not be negative; this recipe can give {lowest:g}"
                f'{" less the KL" if penalised else ""}. Use "group_std".'
            )

    @property
    def loss_of_run(self) -> LossConfig:
        """The objective with what it takes from other parts filled in."""
        length = self.loss.constant_length or self.rollout.max_new_tokens
        return self.loss.model_copy(update={"constant_length": length})

    @property
    def completions_per_step(self) -> int:
        return self.rollout.prompts_per_step * self.rollout.group_size


def load_config(path: Path) -> RunConfig:
    """Read a run's configuration from TOML or, by its suffix, JSON."""
    text = path.read_text(encoding="utf-8")
    tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return RunConfig.model_validate(tree)


def read_config(path: Path) -> RunConfig:
    """`load_config` with every fault as one ValueError for the user, a line each."""
    try:
        return load_config(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not valid {path.suffix[1:]}: {error}") from None
    except ValidationError as error:
        raise ValueError(
            "\n".join(
                f"{path.name}, {'.'.join(str(at) for at in fault['loc']) or 'all'}: "
                f"{fault['msg'].removeprefix('Value error, ')}"
                for fault in error.errors()
            )
        ) from None
