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
        json_schema_extra=unit("tokens"),
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
