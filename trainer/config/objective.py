"""Settings of advantages and reference."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.config.part import NoEffect, Part, When, about

# Values of settings, and the reasons that they are for others to have no effect.
WITHOUT_PAIRS: When = {
    "advantage.credit": [
        *("outcome", "process", "indicator", "ones", "pass_at_k", "pass_at_k_analytic")
    ]
}
# As RunConfig.has_reference says it.
WITHOUT_REFERENCE: When = {
    "loss.kl_coef": [0],
    "reference.kind": ["auto", "none"],
    "reference.model": [None],
    "reference.context": ["none"],
    **WITHOUT_PAIRS,
}
# Of whitening by tokens the constants are fixed.
NOT_WHITENED: When = {"advantage.whiten": ["no", "tokens"]}
WITHOUT_GROUPS: When = {"advantage.credit": ["indicator", "ones", "preference"]}
_NOT_COMPARED = "this credit does not compare rewards within a group"
NOT_COMPARED: NoEffect = {_NOT_COMPARED: WITHOUT_GROUPS}
PASS_AT_K = ["pass_at_k", "pass_at_k_analytic"]
_HAS_SCALE = "this credit has a scale of its own"
WITHOUT_SCALE: When = {"advantage.credit": ["pass_at_k_analytic"]}
NOT_NORMALIZED: NoEffect = {
    _NOT_COMPARED: WITHOUT_GROUPS | NOT_WHITENED,
    _HAS_SCALE: WITHOUT_SCALE | NOT_WHITENED,
}
OF_SUBSETS: NoEffect = {
    "pass@k compares subsets of a group": {"advantage.credit": PASS_AT_K}
}
NO_REFERENCE: NoEffect = {"there is no reference": WITHOUT_REFERENCE}
NO_CONTEXT: NoEffect = {
    "the reference reads the policy's prompt": {"reference.context": ["none"]}
}
NO_SERVER: NoEffect = {
    "the reference is not a server": {
        "reference.kind": ["auto", "none", "frozen", "base"]
    }
}


class AdvantageConfig(Part):
    """Advantages from the rewards of a group."""

    baseline: Literal["mean", "leave_one_out", "length_weighted", "none"] = Field(
        "mean",
        description="Baseline subtracted from each reward of a group.",
        json_schema_extra=about(
            section="Within a group",
            choices={
                "mean": "the group's mean reward",
                "leave_one_out": "the mean of the other rewards",
                "length_weighted": "the mean weighted by tokens (OPO)",
                "none": "nothing",
            },
            no_effect=NOT_COMPARED | OF_SUBSETS,
        ),
    )
    scale: Literal["group_std", "batch_std", "mean", "none"] = Field(
        "group_std",
        description="Divisor of the reward minus its baseline.",
        json_schema_extra=about(
            choices={
                "group_std": "the group's standard deviation",
                "batch_std": "the batch's standard deviation",
                "mean": "the group's mean reward",
                "none": "nothing",
            },
            no_effect=NOT_COMPARED | {_HAS_SCALE: WITHOUT_SCALE},
        ),
    )
    ddof: Literal[0, 1] = Field(
        1,
        title="Degrees of freedom",
        description=(
            "1: divide by n - 1 in the standard deviation (PyTorch's default). 0: by n."
        ),
        json_schema_extra=about(
            choices={"0": "divide by n", "1": "divide by n - 1"},
            no_effect=NOT_NORMALIZED
            | {
                "no standard deviation is used": {"advantage.scale": ["mean", "none"]}
                | NOT_WHITENED
            },
        ),
    )
    eps: float = Field(
        1e-4,
        ge=0,
        le=1,
        title="Epsilon",
        description="Added to the divisor to avoid a division by 0.",
        json_schema_extra=about(
            no_effect=NOT_NORMALIZED
            | {"nothing is divided": {"advantage.scale": ["none"]} | NOT_WHITENED}
        ),
    )
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize",
        description=(
            "Normalise the weighted sum of the rules, or each rule before the sum."
        ),
        json_schema_extra=about(
            choices={
                "sum_then_normalize": "the weighted sum of the rules",
                "normalize_then_sum": "each rule separately (GDPO)",
            },
            no_effect=NOT_COMPARED
            | {
                "steps are compared by their total rewards": {
                    "advantage.credit": ["process"]
                },
                "subsets are compared by their total rewards": {
                    "advantage.credit": PASS_AT_K
                },
                "the reward already normalises each rule": {
                    "recipe.combine": ["normalize_then_sum"]
                },
                "the reward has one rule of weight 1": {
                    "recipe.is_one_rule": ["yes"],
                    "reward.overlong_buffer_tokens": [0],
                },
            },
        ),
    )
    singleton: Literal["zero", "raw"] = Field(
        "zero",
        description="Advantage of a group with one scored completion: 0, or its "
        "reward.",
        json_schema_extra=about(
            choices={"zero": "0", "raw": "the reward"},
            no_effect=NOT_COMPARED | OF_SUBSETS,
        ),
    )
    whiten: Literal["no", "completions", "tokens"] = Field(
        "no",
        description="Normalise the advantages again over the whole batch, to mean 0 "
        "and standard deviation 1 (the last step of arXiv:2601.05242).",
        json_schema_extra=about(
            choices={
                "no": "as they are",
                "completions": "each completion counts once, or each token with "
                "process credit",
                "tokens": "each token counts once, as in verl's REINFORCE++",
            },
            was_switch=("no", "completions"),
        ),
    )
    weight: float = Field(
        1.0,
        ge=0,
        le=100,
        title="Advantage weight",
        description="Multiplies all advantages. 0 trains on the KL and the entropy "
        "bonus alone: with a teacher (reference.model), this is distillation.",
    )
    credit: Literal[
        "outcome",
        "pass_at_k",
        "pass_at_k_analytic",
        "process",
        "indicator",
        "ones",
        "preference",
    ] = Field(
        "outcome",
        description="Advantage of a token. outcome: that of its completion. "
        "pass_at_k: what its completion adds to the best of k (arXiv:2505.15201). "
        "pass_at_k_analytic: normalised success of subsets of k with its completion "
        "(arXiv:2508.10751). process: the sum over later reasoning steps. indicator: "
        "1 if the answer is correct. ones: 1. preference: DPO's gradient on a group's "
        "best and worst completion.",
        json_schema_extra=about(
            section="Credit assignment",
            choices={
                "outcome": "the completion's advantage",
                "pass_at_k": "what it adds to the best of k",
                "pass_at_k_analytic": "normalised pass@k of correct answers",
                "process": "sum over later reasoning steps",
                "indicator": "1 if the answer is correct",
                "ones": "always 1",
                "preference": "DPO on the best and the worst",
            },
        ),
    )
    pass_k: int = Field(
        4,
        ge=2,
        le=1_024,
        title="k of pass@k",
        description="Completions in each subset, with credit = pass_at_k or "
        "pass_at_k_analytic.",
        json_schema_extra=about(
            unit="completions",
            no_effect={
                "credit is not pass@k": {
                    "advantage.credit": [
                        *("outcome", "process", "indicator", "ones", "preference")
                    ]
                }
            },
        ),
    )
    indicator_threshold: float = Field(
        1.0,
        description="Lowest reward of a correct answer, with credit = indicator or "
        "pass_at_k_analytic.",
        json_schema_extra=about(
            no_effect={
                "credit counts no correct answers": {
                    "advantage.credit": [
                        *("outcome", "pass_at_k", "process", "ones", "preference")
                    ]
                }
            }
        ),
    )
    preference_beta: float = Field(
        0.1,
        gt=0,
        le=100,
        description="DPO's beta, with credit = preference (arXiv:2305.18290).",
        json_schema_extra=about(no_effect={"credit is not preference": WITHOUT_PAIRS}),
    )

    @property
    def is_pass_at_k(self) -> bool:
        """True if subsets of a group are compared by the best completion in each."""
        return self.credit in PASS_AT_K


class ReferenceConfig(Part):
    """Reference model of the KL divergence."""

    kind: Literal["auto", "none", "frozen", "base", "server"] = Field(
        "auto",
        title="Reference",
        description="frozen: a copy of the starting model, or the teacher. base: the "
        "model with its LoRA adapters disabled. server: a reference server. auto: "
        "frozen or base; with a KL weight of 0, only on a sample of the tokens. "
        "none: KL is not measured.",
        json_schema_extra=about(
            section="Reference model",
            choices={
                "auto": "depends on the KL weight",
                "none": "no reference",
                "frozen": "a copy of the starting model, or the teacher",
                "base": "the model without its adapters",
                "server": "a reference server",
            },
        ),
    )
    model: str | None = Field(
        None,
        min_length=1,
        title="Teacher",
        description="Another model as the reference: a folder, or a Hugging Face model "
        "ID. Its tokenizer must have the same tokens. Empty: the starting model.",
    )
    revision: str | None = Field(
        None,
        title="Teacher revision",
        description="Branch, tag or commit of a Hugging Face model.",
        json_schema_extra=about(
            no_effect={"the run has no teacher": {"reference.model": [None]}}
        ),
    )
    url: str | None = Field(
        None,
        title="Reference server",
        description="URL of the reference server, such as http://127.0.0.1:8600.",
        json_schema_extra=about(no_effect=NO_SERVER),
    )
    token_file: str | None = Field(
        None,
        title="Token file of the reference server",
        description="File with its token.",
        json_schema_extra=about(no_effect=NO_SERVER),
    )
    protocol: Literal["cohort", "vllm"] = Field(
        "cohort",
        title="Server protocol",
        description="Protocol of the reference server. vllm needs a teacher, and "
        "log-probs at temperature 1.",
        json_schema_extra=about(
            choices={
                "cohort": "python -m trainer reference",
                "vllm": "vllm serve, by prompt_logprobs",
            },
            no_effect=NO_SERVER,
        ),
    )
    context: Literal["none", "column", "best_of_group"] = Field(
        "none",
        title="Privileged context",
        description="What the reference reads beside the prompt, which makes it a "
        "teacher with the same weights: a column of the row (arXiv:2601.18734), or "
        "the best other completion of the group (arXiv:2601.20802).",
        json_schema_extra=about(
            section="Privileged context",
            choices={
                "none": "the prompt alone",
                "column": "a column of the row",
                "best_of_group": "the group's best other completion",
            },
        ),
    )
    context_column: str = Field(
        "solution",
        min_length=1,
        description="Column with the context, or answer. Completions of rows without "
        "it are not compared with the reference.",
        json_schema_extra=about(
            no_effect=NO_CONTEXT
            | {"the context is a completion": {"reference.context": ["best_of_group"]}}
        ),
    )
    context_threshold: float = Field(
        1.0,
        description="Lowest reward of a completion that becomes the context. "
        "Completions of groups without one are not compared with the reference.",
        json_schema_extra=about(
            no_effect=NO_CONTEXT
            | {"the context is a column": {"reference.context": ["column"]}}
        ),
    )
    context_template: str = Field(
        "{prompt}\n\nA correct solution:\n{context}\n\nSolve the task yourself.",
        min_length=1,
        description="The reference's prompt, with {prompt} and {context} in braces.",
        json_schema_extra=about(is_long=True, no_effect=NO_CONTEXT),
    )
    max_prompt_tokens: int = Field(
        4_096,
        ge=1,
        le=131_072,
        title="Teacher prompt limit",
        description="Longest prompt with its context. A run with a longer column does "
        "not start; a longer completion is no context.",
        json_schema_extra=about(unit="tokens", no_effect=NO_CONTEXT),
    )
    reset_every_steps: int = Field(
        0,
        ge=0,
        title="Reset the reference every",
        description="Steps between resets of the reference to the policy, an outer "
        "iteration of arXiv:2402.03300. 0: never.",
        json_schema_extra=about(
            unit="steps", section="Reference updates", no_effect=NO_REFERENCE
        ),
    )
    mix_every_steps: int = Field(
        0,
        ge=0,
        title="Mix every",
        description="Steps between mixes of the policy into the reference "
        "(arXiv:2404.09656). 0: never.",
        json_schema_extra=about(unit="steps", no_effect=NO_REFERENCE),
    )
    mix_alpha: float = Field(
        0.6,
        gt=0,
        le=1,
        title="Mix weight",
        description="Weight of the policy in each mix.",
        json_schema_extra=about(
            no_effect=NO_REFERENCE
            | {"the reference is never mixed": {"reference.mix_every_steps": [0]}}
        ),
    )

    @property
    def is_teacher(self) -> bool:
        """True if the reference knows more than a copy of the run's own weights."""
        return self.model is not None or self.context != "none"
