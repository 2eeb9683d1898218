"""How rewards become advantages, and advantages a loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.config.part import Part, unit


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
    credit: Literal["outcome", "process", "indicator", "ones", "preference"] = Field(
        "outcome",
        description="What a token is credited with: its completion's advantage, the "
        "steps still to come, whether the answer is right, 1, or DPO's pull between "
        "a group's best and worst completion.",
    )
    indicator_threshold: float = Field(
        1.0,
        description="With credit = indicator, a reward of at least this is right.",
    )
    preference_beta: float = Field(
        0.1,
        gt=0,
        le=100,
        description="With credit = preference, DPO's beta (arXiv:2305.18290).",
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
    whiten: bool = Field(
        False,
        description="Normalise the advantages once more over the whole batch, to mean "
        "0 and standard deviation 1 (the last step of arXiv:2601.05242).",
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
        json_schema_extra=unit("tokens"),
    )
    kl_estimator: Literal["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+"] = (
        Field(
            "k3",
            title="KL estimator",
            description="How the distance to the reference is estimated. A + takes "
            "the value of the named estimator and the gradient of k2; full sums over "
            "the vocabulary.",
        )
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        le=100,
        title="KL weight",
        description="Weight of the KL to the reference; with 0 it is only measured, on "
        "a sample of the tokens.",
    )
    kl_aggregation: (
        Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"]
        | None
    ) = Field(
        None,
        title="KL aggregation",
        description="How token KLs in the loss become one number; empty: as token "
        "losses do.",
    )
    kl_ratio: bool = Field(
        False,
        title="KL times ratio",
        description="Each token's KL in the loss is weighed by its ratio, which makes "
        "its gradient that of the divergence (arXiv:2512.02556), as TRL does.",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", title="KL enters in", description="Where the KL enters."
    )
    kl_clamp: float | None = Field(
        None, gt=0, title="KL clamp", description="Bounds each token's KL value."
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        title="KL target",
        description="The KL weight follows the measured KL to this many nats a "
        "completion (arXiv:1909.08593); empty: it stays.",
        json_schema_extra=unit("nats"),
    )
    kl_horizon: int = Field(
        10_000,
        ge=1,
        title="KL horizon",
        description="Completions over which the KL weight adapts.",
        json_schema_extra=unit("completions"),
    )
    old_logprobs: Literal["policy", "sampling"] = Field(
        "policy",
        title="Old log-probs",
        description="What the ratio compares with: the policy before the batch's "
        "first update, or what the rollout engine reported.",
    )
    mask_truncated: bool = Field(
        False,
        description="Completions cut at max_new_tokens teach nothing.",
    )
    mask_end_token: bool = Field(
        False,
        description="The token that ends a completion teaches nothing.",
    )
    include_prompt: bool = Field(
        False,
        description="The loss covers the tokens of the prompt too, as in rlox's code.",
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

    kind: Literal["auto", "none", "frozen", "base", "server"] = Field(
        "auto",
        title="Reference",
        description="frozen: a copy of the starting model; base: the model with its "
        "LoRA adapters switched off; server: another process. auto: frozen or base; "
        "with a KL weight of 0 for a sample of the tokens. none: KL is not measured.",
    )
    reset_every_steps: int = Field(
        0,
        ge=0,
        title="Reset every",
        description="The policy becomes its own reference every so many steps, an "
        "outer iteration of arXiv:2402.03300; 0: never.",
        json_schema_extra=unit("steps"),
    )
    mix_every_steps: int = Field(
        0,
        ge=0,
        title="Mix every",
        description="The reference moves towards the policy every so many steps "
        "(arXiv:2404.09656); 0: never.",
        json_schema_extra=unit("steps"),
    )
    mix_alpha: float = Field(
        0.6,
        gt=0,
        le=1,
        title="Mixing share",
        description="Share of the policy in the mixed reference.",
    )
    url: str | None = Field(
        None,
        title="Server",
        description="Address of a reference server, such as http://127.0.0.1:8600.",
    )
    token_file: str | None = Field(
        None,
        description="File with the token that the reference server asks for.",
    )
