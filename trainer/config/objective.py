"""How rewards become advantages, and advantages a loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.config.part import NoEffect, Part, When, about

# Values of settings, and the reasons that they are for others to have no effect.
WITHOUT_PAIRS: When = {"advantage.credit": ["outcome", "process", "indicator", "ones"]}
# As RunConfig.has_reference says it.
WITHOUT_REFERENCE: When = {
    "loss.kl_coef": [0],
    "reference.kind": ["auto", "none"],
    **WITHOUT_PAIRS,
}
WITHOUT_WEIGHTS: When = {
    "loss.surrogate": ["reinforce"],
    "loss.importance_correction": [None],
}
NOT_WHITENED: When = {"advantage.whiten": [False]}
WITHOUT_GROUPS: When = {"advantage.credit": ["indicator", "ones", "preference"]}
_NOT_COMPARED = "this credit does not compare rewards within a group"
NOT_COMPARED: NoEffect = {_NOT_COMPARED: WITHOUT_GROUPS}
NOT_NORMALIZED: NoEffect = {_NOT_COMPARED: WITHOUT_GROUPS | NOT_WHITENED}
NO_RATIO: NoEffect = {"reinforce has no ratio": {"loss.surrogate": ["reinforce"]}}
RATIO_IS_1: NoEffect = {
    "this run updates once per batch, so the ratio is 1": {
        "optim.updates_per_batch": [1],
        "optim.minibatches": [1],
        "loss.old_logprobs": ["policy"],
    }
}
NO_KL: NoEffect = {"the KL weight is 0": {"loss.kl_coef": [0]}}
KL_OF_REWARD: NoEffect = {"the KL is taken off the rewards": {"loss.kl_in": ["reward"]}}
NO_REFERENCE: NoEffect = {"there is no reference": WITHOUT_REFERENCE}
NO_SERVER: NoEffect = {
    "the reference is not a server": {
        "reference.kind": ["auto", "none", "frozen", "base"]
    }
}
MEANS = {
    "token_mean": "mean over the batch's tokens",
    "sequence_mean_token_mean": "mean of each sequence's mean",
    "sequence_mean_token_sum": "mean of each sequence's sum",
}


class AdvantageConfig(Part):
    """How rewards of a group become advantages."""

    baseline: Literal["mean", "leave_one_out", "none"] = Field(
        "mean",
        description="Baseline that is subtracted from each reward of a group.",
        json_schema_extra=about(
            section="Within a group",
            choices={
                "mean": "the group's mean reward",
                "leave_one_out": "the mean of the others",
                "none": "nothing",
            },
            no_effect=NOT_COMPARED,
        ),
    )
    scale: Literal["group_std", "batch_std", "mean", "none"] = Field(
        "group_std",
        description="Divisor of the difference.",
        json_schema_extra=about(
            choices={
                "group_std": "the group's standard deviation",
                "batch_std": "the batch's standard deviation",
                "mean": "the group's mean reward",
                "none": "nothing",
            },
            no_effect=NOT_COMPARED,
        ),
    )
    ddof: Literal[0, 1] = Field(
        1,
        title="Degrees of freedom",
        description="1: divide by n-1 in the standard deviation (torch); 0: by n.",
        json_schema_extra=about(
            choices={"0": "divide by n", "1": "divide by n - 1"},
            no_effect=NOT_NORMALIZED
            | {
                "nothing is divided by a standard deviation": {
                    "advantage.scale": ["mean", "none"]
                }
                | NOT_WHITENED
            },
        ),
    )
    eps: float = Field(
        1e-4,
        ge=0,
        le=1,
        title="Epsilon",
        description="Added to the divisor, so that it is never 0.",
        json_schema_extra=about(
            no_effect=NOT_NORMALIZED
            | {"nothing is divided": {"advantage.scale": ["none"]} | NOT_WHITENED}
        ),
    )
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize",
        description="Normalise the weighted sum of the rules, or each rule first.",
        json_schema_extra=about(
            choices={
                "sum_then_normalize": "the weighted sum of the rules",
                "normalize_then_sum": "each rule by itself (GDPO)",
            },
            no_effect=NOT_COMPARED
            | {
                "steps are compared by their whole rewards": {
                    "advantage.credit": ["process"]
                },
                "the reward compares each of its rules by itself already": {
                    "recipe.combine": ["normalize_then_sum"]
                },
                "the reward is one rule of weight 1": {
                    "recipe.is_one_rule": ["yes"],
                    "reward.overlong_buffer_tokens": [0],
                },
            },
        ),
    )
    singleton: Literal["zero", "raw"] = Field(
        "zero",
        description="Advantage of a group with one scored completion: 0, or its "
        "reward as it is.",
        json_schema_extra=about(
            choices={"zero": "0", "raw": "the reward itself"}, no_effect=NOT_COMPARED
        ),
    )
    whiten: bool = Field(
        False,
        description="Normalise the advantages once more over the whole batch, to mean "
        "0 and standard deviation 1 (the last step of arXiv:2601.05242).",
    )
    credit: Literal["outcome", "process", "indicator", "ones", "preference"] = Field(
        "outcome",
        description="What a token is credited with: its completion's advantage, the "
        "steps still to come, whether the answer is right, 1, or DPO's pull between "
        "a group's best and worst completion.",
        json_schema_extra=about(
            section="Credit of a token",
            choices={
                "outcome": "its completion's advantage",
                "process": "the reasoning steps still to come",
                "indicator": "1 where the answer is right",
                "ones": "1 everywhere",
                "preference": "best against worst, as in DPO",
            },
        ),
    )
    indicator_threshold: float = Field(
        1.0,
        description="With credit = indicator, a reward of at least this is right.",
        json_schema_extra=about(
            no_effect={
                "credit is not indicator": {
                    "advantage.credit": ["outcome", "process", "ones", "preference"]
                }
            }
        ),
    )
    preference_beta: float = Field(
        0.1,
        gt=0,
        le=100,
        description="With credit = preference, DPO's beta (arXiv:2305.18290).",
        json_schema_extra=about(no_effect={"credit is not preference": WITHOUT_PAIRS}),
    )


class LossConfig(Part):
    """The objective of one update."""

    surrogate: Literal["clip", "reinforce", "gspo", "cispo"] = Field(
        "clip",
        description="Surrogate objective: how ratio and advantage are combined.",
        json_schema_extra=about(
            section="Ratio and clipping",
            choices={
                "clip": "PPO's clipped ratio",
                "reinforce": "no ratio",
                "gspo": "one ratio a sequence",
                "cispo": "clipped weights, no token dropped",
            },
        ),
    )
    clip_low: float = Field(
        0.2,
        ge=0,
        le=1,
        description="The ratio is clipped below at 1 - this.",
        json_schema_extra=about(no_effect=NO_RATIO | RATIO_IS_1),
    )
    clip_high: float = Field(
        0.2,
        ge=0,
        le=10,
        description="The ratio is clipped above at 1 + this.",
        json_schema_extra=about(no_effect=NO_RATIO | RATIO_IS_1),
    )
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="Dual clip: caps the loss at this multiple of a negative "
        "advantage.",
        json_schema_extra=about(
            no_effect={
                "this surrogate has no second clip": {
                    "loss.surrogate": ["reinforce", "cispo"]
                }
            }
            | RATIO_IS_1
        ),
    )
    old_logprobs: Literal["policy", "sampling"] = Field(
        "policy",
        title="Old log-probs",
        description="What the ratio compares with: the policy before the batch's "
        "first update, or what the rollout engine reported.",
        json_schema_extra=about(
            choices={
                "policy": "the policy before the batch",
                "sampling": "as sampled, in one pass less",
            },
            no_effect={
                "reinforce has no ratio": WITHOUT_WEIGHTS | {"loss.kl_ratio": [False]},
                "reinforce has no ratio, and the KL weight is 0": WITHOUT_WEIGHTS
                | {"loss.kl_coef": [0]},
            },
        ),
    )
    importance_correction: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
        | None
    ) = Field(
        None,
        description="Corrects for sampling log-probs that differ from the trainer's.",
        json_schema_extra=about(
            section="Sampling that differs from training",
            choices={
                "": "no correction",
                "token_truncate": "weights of tokens, capped",
                "token_mask": "tokens past the cap dropped",
                "sequence_truncate": "weights of sequences, capped",
                "sequence_mask": "sequences past the cap dropped",
            },
        ),
    )
    importance_cap: float = Field(
        3.0,
        gt=1,
        le=100,
        description="Bound of the importance weight.",
        json_schema_extra=about(
            no_effect={"nothing is corrected": {"loss.importance_correction": [None]}}
        ),
    )
    aggregation: Literal[
        "token_mean",
        "sequence_mean_token_mean",
        "sequence_mean_token_sum",
        "constant",
    ] = Field(
        "token_mean",
        description="How token losses become one number.",
        json_schema_extra=about(
            section="Tokens that count",
            choices=MEANS | {"constant": "sum over a fixed length"},
        ),
    )
    constant_length: int | None = Field(
        None,
        ge=1,
        description="Divisor of aggregation = constant; default: max_new_tokens.",
        json_schema_extra=about(
            unit="tokens",
            no_effect={"aggregation is not constant": {"loss.aggregation": [*MEANS]}},
        ),
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
    kl_coef: float = Field(
        0.0,
        ge=0,
        le=100,
        title="KL weight",
        description="Penalty for moving away from the reference model. 0 turns it "
        "off; KL is then measured on a sample of tokens.",
        json_schema_extra=about(main=7),
    )
    kl_estimator: Literal["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+"] = (
        Field(
            "k3",
            title="KL estimator",
            description="How the distance to the reference is estimated. A + takes "
            "the value of the named estimator and the gradient of k2; full sums over "
            "the vocabulary.",
            json_schema_extra=about(
                section="Distance to the reference",
                choices={
                    "k1": "log-ratio",
                    "abs": "its size",
                    "k2": "half its square",
                    "k3": "unbiased, never negative",
                    "full": "over the whole vocabulary",
                    "k1+": "k1 with the gradient of k2",
                    "abs+": "abs with the gradient of k2",
                    "k3+": "k3 with the gradient of k2",
                },
                no_effect={"the KL weight is 0": WITHOUT_REFERENCE},
            ),
        )
    )
    kl_ratio: bool = Field(
        False,
        title="KL times ratio",
        description="Each token's KL in the loss is weighed by its ratio, which makes "
        "its gradient that of the divergence (arXiv:2512.02556), as TRL does.",
        json_schema_extra=about(no_effect=NO_KL | KL_OF_REWARD),
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        title="KL enters in",
        description="Where the KL enters.",
        json_schema_extra=about(
            choices={"loss": "a term beside the loss", "reward": "off each reward"},
            no_effect=NO_KL,
        ),
    )
    kl_aggregation: (
        Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"]
        | None
    ) = Field(
        None,
        title="KL aggregation",
        description="How token KLs in the loss become one number; empty: as token "
        "losses do.",
        json_schema_extra=about(
            choices={"": "as the losses of tokens"} | MEANS,
            no_effect=NO_KL | KL_OF_REWARD,
        ),
    )
    kl_clamp: float | None = Field(
        None,
        gt=0,
        title="KL clamp",
        description="Bounds each token's KL value.",
        json_schema_extra=about(no_effect={"the KL weight is 0": WITHOUT_REFERENCE}),
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        title="KL target",
        description="The KL weight follows the measured KL to this many nats a "
        "completion (arXiv:1909.08593); empty: it stays.",
        json_schema_extra=about(unit="nats", no_effect=NO_KL),
    )
    kl_horizon: int = Field(
        10_000,
        ge=1,
        title="KL horizon",
        description="Completions over which the KL weight adapts.",
        json_schema_extra=about(
            unit="completions",
            no_effect=NO_KL | {"there is no KL target": {"loss.kl_target": [None]}},
        ),
    )
    entropy_coef: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Weight of the entropy bonus.",
        json_schema_extra=about(section="Entropy"),
    )


class ReferenceConfig(Part):
    """The model the KL is measured against."""

    kind: Literal["auto", "none", "frozen", "base", "server"] = Field(
        "auto",
        title="Reference",
        description="frozen: a copy of the starting model; base: the model with its "
        "LoRA adapters switched off; server: another process. auto: frozen or base; "
        "with a KL weight of 0 for a sample of the tokens. none: KL is not measured.",
        json_schema_extra=about(
            section="Which model",
            choices={
                "auto": "what the KL weight asks for",
                "none": "no reference",
                "frozen": "a copy of the start",
                "base": "the model without its adapters",
                "server": "another process",
            },
        ),
    )
    url: str | None = Field(
        None,
        title="Server",
        description="Address of a reference server, such as http://127.0.0.1:8600.",
        json_schema_extra=about(no_effect=NO_SERVER),
    )
    token_file: str | None = Field(
        None,
        description="File with the token that the reference server asks for.",
        json_schema_extra=about(no_effect=NO_SERVER),
    )
    reset_every_steps: int = Field(
        0,
        ge=0,
        title="Reset every",
        description="The policy becomes its own reference every so many steps, an "
        "outer iteration of arXiv:2402.03300; 0: never.",
        json_schema_extra=about(
            unit="steps", section="A reference that moves", no_effect=NO_REFERENCE
        ),
    )
    mix_every_steps: int = Field(
        0,
        ge=0,
        title="Mix every",
        description="The reference moves towards the policy every so many steps "
        "(arXiv:2404.09656); 0: never.",
        json_schema_extra=about(unit="steps", no_effect=NO_REFERENCE),
    )
    mix_alpha: float = Field(
        0.6,
        gt=0,
        le=1,
        title="Mixing share",
        description="Share of the policy in the mixed reference.",
        json_schema_extra=about(
            no_effect=NO_REFERENCE
            | {"the reference is never mixed": {"reference.mix_every_steps": [0]}}
        ),
    )
