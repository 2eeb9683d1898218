"""Settings of the loss."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from trainer.config.objective import WITHOUT_REFERENCE
from trainer.config.part import NoEffect, Part, When, about

WITHOUT_WEIGHTS: When = {
    "loss.surrogate": ["reinforce"],
    "loss.importance_correction": [None],
    "loss.geometric_mask": [None],
}
NO_CORRECTION: NoEffect = {
    "no importance correction": {"loss.importance_correction": [None]}
}
OLD_IS_SAMPLING: NoEffect = {
    "old log-probs are the rollout engine's": {"loss.old_logprobs": ["sampling"]}
}
Surrogate = Literal[
    "clip",
    "reinforce",
    "gspo",
    "cispo",
    "dppo_tv",
    "dppo_kl",
    "sapo",
    "gmpo",
    "vespo",
]
SURROGATES: tuple[str, ...] = get_args(Surrogate)
NO_COVARIANCE: NoEffect = {
    "no tokens are chosen by covariance": {"loss.covariance": [None]}
}
IS_KL_COV: NoEffect = {"KL-Cov has no bounds": {"loss.covariance": ["kl"]}}
NO_BOUNDS: NoEffect = {
    "reinforce has no ratio": {"loss.surrogate": ["reinforce"]},
    "this surrogate has no bounds": {"loss.surrogate": ["sapo", "vespo"]},
}
NOT_SAPO: NoEffect = {
    "the surrogate is not SAPO": {
        "loss.surrogate": [name for name in SURROGATES if name != "sapo"]
    }
}
NOT_VESPO: NoEffect = {
    "the surrogate is not VESPO": {
        "loss.surrogate": [name for name in SURROGATES if name != "vespo"]
    }
}
_ONE_UPDATE: When = {
    "optim.updates_per_batch": [1],
    "optim.minibatches": [1],
    "loss.old_logprobs": ["policy"],
}
RATIO_IS_1: NoEffect = {
    "this run updates once per batch, so the ratio is 1": _ONE_UPDATE
}
# VESPO's ratio has the correction of a sequence in it.
WEIGHT_IS_1: NoEffect = {
    "this run updates once per batch, so the weight is 1": _ONE_UPDATE
    | {"loss.importance_correction": [None, "token_truncate", "token_mask"]}
}
# DPPO's ratio against the rollout engine has a cap without a correction.
_NOT_DPPO = [name for name in SURROGATES if not name.startswith("dppo")]
NO_CAP: NoEffect = {
    why: when | {"loss.surrogate": _NOT_DPPO}
    for why, when in (NO_CORRECTION | OLD_IS_SAMPLING).items()
}
NO_KL: NoEffect = {"the KL weight is 0": {"loss.kl_coef": [0]}}
KL_OF_REWARD: NoEffect = {
    "the KL is subtracted from the rewards": {"loss.kl_in": ["reward"]}
}
MEANS = {
    "token_mean": "mean over the batch's tokens",
    "sequence_mean_token_mean": "mean of each sequence's mean",
    "sequence_mean_token_sum": "mean of each sequence's sum",
}


class LossConfig(Part):
    """Objective, clipping, aggregation and KL penalty."""

    surrogate: Surrogate = Field(
        "clip",
        description="Surrogate objective: how ratio and advantage are combined.",
        json_schema_extra=about(
            section="Ratio and clipping",
            choices={
                "clip": "PPO's clipped ratio",
                "reinforce": "no ratio",
                "gspo": "one ratio per sequence",
                "cispo": "clipped importance weights, all tokens kept",
                "dppo_tv": "tokens masked by how far their probability moves",
                "dppo_kl": "tokens masked by their KL from the rollout engine",
                "sapo": "a soft gate in place of clipping",
                "gmpo": "the geometric mean of a sequence's ratios",
                "vespo": "one soft weight per sequence",
            },
        ),
    )
    clip_low: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Lower clipping bound: the ratio is at least 1 minus this. For "
        "GMPO of the log-ratio, for DPPO of the distance from the rollout engine.",
        json_schema_extra=about(no_effect=NO_BOUNDS | IS_KL_COV | RATIO_IS_1),
    )
    clip_high: float = Field(
        0.2,
        ge=0,
        le=10,
        description="Upper clipping bound: the ratio is at most 1 plus this.",
        json_schema_extra=about(no_effect=NO_BOUNDS | IS_KL_COV | RATIO_IS_1),
    )
    sapo_tau_positive: float = Field(
        1.0,
        gt=0,
        le=100,
        title="SAPO temperature",
        description="Steepness of SAPO's gate where the advantage is positive.",
        json_schema_extra=about(no_effect=NOT_SAPO | RATIO_IS_1),
    )
    sapo_tau_negative: float = Field(
        1.05,
        gt=0,
        le=100,
        title="SAPO temperature, negative",
        description="Steepness of SAPO's gate where the advantage is negative.",
        json_schema_extra=about(no_effect=NOT_SAPO | RATIO_IS_1),
    )
    vespo_power: float = Field(
        2.0,
        ge=0,
        le=100,
        title="VESPO power",
        description="k of VESPO's weight W^k·exp(λ(1 − W)).",
        json_schema_extra=about(no_effect=NOT_VESPO | WEIGHT_IS_1),
    )
    vespo_decay: float = Field(
        3.0,
        gt=0,
        le=100,
        title="VESPO decay",
        description="λ of VESPO's weight.",
        json_schema_extra=about(no_effect=NOT_VESPO | WEIGHT_IS_1),
    )
    vespo_power_negative: float = Field(
        3.0,
        ge=0,
        le=100,
        title="VESPO power, negative",
        description="k of VESPO's weight where the advantage is negative.",
        json_schema_extra=about(no_effect=NOT_VESPO | WEIGHT_IS_1),
    )
    vespo_decay_negative: float = Field(
        2.0,
        gt=0,
        le=100,
        title="VESPO decay, negative",
        description="λ of VESPO's weight where the advantage is negative.",
        json_schema_extra=about(no_effect=NOT_VESPO | WEIGHT_IS_1),
    )
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="Dual clip: caps the loss at this multiple of a negative "
        "advantage.",
        json_schema_extra=about(
            no_effect={
                "this surrogate has no dual clip": {
                    "loss.surrogate": [
                        name for name in SURROGATES if name not in ("clip", "gspo")
                    ]
                }
            }
            | IS_KL_COV
            | RATIO_IS_1
        ),
    )
    old_logprobs: Literal["policy", "sampling"] = Field(
        "policy",
        title="Old log-probs",
        description="Denominator of the ratio: log-probs of the policy before the "
        "batch's first update, or as the rollout engine returned them.",
        json_schema_extra=about(
            choices={
                "policy": "of the policy before the batch",
                "sampling": "of the engine, saves a forward pass",
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
            section="Importance correction",
            choices={
                "": "no correction",
                "token_truncate": "token weights, capped",
                "token_mask": "tokens out of bounds masked",
                "sequence_truncate": "sequence weights, capped",
                "sequence_mask": "sequences out of bounds masked",
            },
            no_effect=OLD_IS_SAMPLING,
        ),
    )
    importance_cap: float = Field(
        3.0,
        gt=1,
        le=10_000,
        description="Upper bound of the importance weight, and of DPPO's ratio.",
        json_schema_extra=about(no_effect=NO_CAP),
    )
    importance_floor: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Lower bound of the importance weight. With masked tokens, this is "
        "IcePop (arXiv:2510.18855).",
        json_schema_extra=about(no_effect=NO_CORRECTION | OLD_IS_SAMPLING),
    )
    geometric_mask: float | None = Field(
        None,
        gt=0,
        le=20,
        description="Mask completions whose mean log-prob differs more than this from "
        "the rollout engine's.",
        json_schema_extra=about(unit="nats", no_effect=OLD_IS_SAMPLING),
    )
    off_policy_mask: float | None = Field(
        None,
        gt=0,
        le=20,
        title="Off-policy mask",
        description="Mask tokens with a negative advantage in completions whose mean "
        "log-prob has fallen more than this below the rollout engine's "
        "(arXiv:2512.02556).",
        json_schema_extra=about(unit="nats"),
    )
    sampler_penalty: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Weight of the squared log-ratio between policy and rollout "
        "engine, added to each token's loss.",
    )
    aggregation: Literal[
        "token_mean",
        "sequence_mean_token_mean",
        "sequence_mean_token_sum",
        "constant",
    ] = Field(
        "token_mean",
        description="How token losses are averaged.",
        json_schema_extra=about(
            section="Loss aggregation",
            choices=MEANS | {"constant": "sum divided by a constant length"},
        ),
    )
    constant_length: int | None = Field(
        None,
        ge=1,
        description="Divisor for aggregation = constant. Default: max_new_tokens.",
        json_schema_extra=about(
            unit="tokens",
            no_effect={"aggregation is not constant": {"loss.aggregation": [*MEANS]}},
        ),
    )
    mask_truncated: bool = Field(
        False,
        description="Leave completions truncated at max_new_tokens out of the loss.",
    )
    mask_end_token: bool = Field(
        False,
        description="Leave the end-of-sequence token out of the loss.",
    )
    include_prompt: bool = Field(
        False,
        description="Include the prompt's tokens in the loss, as rlox does.",
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        le=100,
        title="KL weight",
        description="KL penalty. 0: only measured.",
        json_schema_extra=about(main=7),
    )
    kl_estimator: Literal["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+"] = (
        Field(
            "k3",
            title="KL estimator",
            description="Estimator of the KL divergence from the reference. With + "
            "the value is that estimator's, the gradient is k2's; "
            "full sums over the vocabulary.",
            json_schema_extra=about(
                section="KL divergence",
                choices={
                    "k1": "log-ratio",
                    "abs": "absolute log-ratio",
                    "k2": "half the squared log-ratio",
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
        title="KL bias correction",
        description="Multiply each token's KL in the loss by its ratio, and by its "
        "importance weight if there is a correction, for an unbiased gradient of the "
        "divergence (arXiv:2512.02556).",
        json_schema_extra=about(no_effect=NO_KL | KL_OF_REWARD),
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        title="KL penalty in",
        description="Add the KL penalty to the loss, or subtract it from the rewards.",
        json_schema_extra=about(
            choices={
                "loss": "added to the loss",
                "reward": ("subtracted from each reward"),
            },
            no_effect=NO_KL,
        ),
    )
    kl_aggregation: (
        Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"]
        | None
    ) = Field(
        None,
        title="KL aggregation",
        description="How token KL is averaged in the loss. Empty: same as token "
        "losses.",
        json_schema_extra=about(
            choices={"": "same as token loss"} | MEANS,
            no_effect=NO_KL | KL_OF_REWARD,
        ),
    )
    kl_clamp: float | None = Field(
        None,
        gt=0,
        title="KL clamp",
        description="Largest absolute KL of a token.",
        json_schema_extra=about(no_effect={"the KL weight is 0": WITHOUT_REFERENCE}),
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        title="KL target",
        description="Adapt the KL weight to keep the KL at this many nats per "
        "completion (arXiv:1909.08593). Empty: constant weight.",
        json_schema_extra=about(unit="nats", no_effect=NO_KL),
    )
    kl_horizon: int = Field(
        10_000,
        ge=1,
        title="KL horizon",
        description="Horizon of the adaptive KL weight.",
        json_schema_extra=about(
            unit="completions",
            no_effect=NO_KL | {"no KL target is set": {"loss.kl_target": [None]}},
        ),
    )
    entropy_coef: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Weight of the entropy bonus.",
        json_schema_extra=about(section="Entropy"),
    )
    entropy_target: float | None = Field(
        None,
        gt=0,
        le=20,
        description="Raise the entropy weight by 0.005 a step while the entropy is "
        "below this, lower it while above, and give no bonus while above "
        "(arXiv:2505.22312).",
        json_schema_extra=about(unit="nats per token"),
    )
    top_entropy_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a minibatch's tokens, those with the highest entropy, "
        "that have a policy loss (arXiv:2506.01939).",
    )
    covariance: Literal["clip", "kl"] | None = Field(
        None,
        description="Hold back tokens whose advantage and log-prob are high together, "
        "which lower the entropy most (arXiv:2505.22617).",
        json_schema_extra=about(
            choices={
                "": "no token is held back",
                "clip": "Clip-Cov: some have no policy loss",
                "kl": "KL-Cov: a penalty on their change, and no clipping",
            },
        ),
    )
    covariance_share: float = Field(
        2e-4,
        gt=0,
        le=1,
        description="Share of a minibatch's tokens that are chosen by covariance.",
        json_schema_extra=about(no_effect=NO_COVARIANCE),
    )
    covariance_low: float = Field(
        1.0,
        ge=0,
        le=1_000,
        description="Lower bound of the covariances that tokens are drawn from.",
        json_schema_extra=about(no_effect=NO_COVARIANCE | IS_KL_COV),
    )
    covariance_high: float = Field(
        5.0,
        gt=0,
        le=1_000,
        description="Upper bound of the covariances that tokens are drawn from.",
        json_schema_extra=about(no_effect=NO_COVARIANCE | IS_KL_COV),
    )
    covariance_coef: float = Field(
        1.0,
        gt=0,
        le=100,
        title="Covariance penalty",
        description="Weight of KL-Cov's absolute log-ratio between the policy and the "
        "old one.",
        json_schema_extra=about(
            no_effect=NO_COVARIANCE
            | {"Clip-Cov has no penalty": {"loss.covariance": ["clip"]}}
            | RATIO_IS_1
        ),
    )

    @property
    def corrects_ratio(self) -> bool:
        """A correction of sequences that is part of VESPO's own weight."""
        correction = self.importance_correction or ""
        return self.surrogate == "vespo" and correction.startswith("sequence")

    @property
    def gap_settings(self) -> list[str]:
        """Settings that compare the policy's log-probs with the rollout engine's."""
        names = "importance_correction", "geometric_mask", "off_policy_mask"
        found = [name for name in names if getattr(self, name) is not None]
        return found + ["sampler_penalty"] * (self.sampler_penalty > 0)

    @property
    def is_dppo(self) -> bool:
        return self.surrogate in ("dppo_tv", "dppo_kl")
