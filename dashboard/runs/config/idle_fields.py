"""Settings that do nothing while others stand as they do.

The launch form marks them "no effect"; launch.js reads the same table, so the marks
follow what is typed. An effect is one on training, or on the KL to a reference that
was asked for; a deviation that is only logged counts as none.

Beside the settings stand facts of the chosen reward, `recipe.…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dashboard.runs.config.fields import all_fields

ZERO = ("0",)
EMPTY = ("",)
OFF = ("",)
FRESH_RATIO = {
    "optim.updates_per_batch": ("1",),
    "optim.minibatches": ("1",),
    "loss.old_logprobs": ("policy",),
}
NOT_COMPARED = ("indicator", "ones", "preference")
NOT_PREFERENCE = ("outcome", "process", "indicator", "ones")
# As RunConfig.has_reference says it.
NO_REFERENCE = {
    "loss.kl_coef": ZERO,
    "reference.kind": ("auto", "none"),
    "advantage.credit": NOT_PREFERENCE,
}
# What a reward's composition decides, as `recipe_facts` tells it.
COMBINE, IS_ALONE = "recipe.combine", "recipe.is_one_rule"
FACTS = (COMBINE, IS_ALONE)
YES = "yes"
NOT_A_SERVER = ("auto", "none", "frozen", "base")


@dataclass(frozen=True, slots=True)
class Idle:
    """These settings do nothing when each of `when` has one of its values."""

    paths: tuple[str, ...]
    when: Mapping[str, tuple[str, ...]]
    reason: str


def _paths(part: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{part}.{name}" for name in names)


IDLE = (
    Idle(
        ("model.lora_alpha", "model.lora_targets"),
        {"model.lora_rank": ZERO},
        "the LoRA rank is 0",
    ),
    Idle(("model.tf32",), {"model.device": ("cpu",)}, "the model runs on a CPU"),
    Idle(
        ("data.completion_column",),
        {"rollout.source": ("policy", "start")},
        "completions are sampled",
    ),
    Idle(
        ("logging.tokens_every_steps",),
        {"logging.token_groups": ZERO},
        "token values are kept of no group",
    ),
    Idle(
        ("distributed.timeout_seconds",),
        {"distributed.num_processes": ("1",)},
        "there is one process",
    ),
    Idle(
        ("rollout.top_p", "rollout.top_k"),
        {"rollout.source": ("dataset",)},
        "nothing is sampled to train on",
    ),
    Idle(
        ("rollout.decoding",),
        {"rollout.engine": ("vllm", "vllm_server")},
        "vLLM decides how it decodes",
    ),
    Idle(
        ("rollout.cache_gib", "rollout.tensor_parallel_size", "rollout.sleep"),
        {"rollout.engine": ("transformers", "vllm_server")},
        "vLLM does not run in the trainer's process",
    ),
    Idle(
        ("rollout.url", "rollout.token_file"),
        {"rollout.engine": ("auto", "transformers", "vllm")},
        "the engine is not a server",
    ),
    Idle(
        ("rollout.max_batch_rows",),
        {"rollout.engine": ("vllm_server",)},
        "the server has a limit of its own",
    ),
    Idle(
        ("rollout.max_refills",),
        {"rollout.dynamic_sampling": ("off", "drop")},
        "dynamic sampling does not refill",
    ),
    Idle(
        ("reward.overlong_penalty",),
        {"reward.overlong_buffer_tokens": ZERO},
        "the overlong buffer is 0",
    ),
    Idle(
        ("reward.step_pattern", "reward.step_boundary", "reward.step_recipe"),
        {"advantage.credit": ("outcome", *NOT_COMPARED)},
        "credit is not process",
    ),
    Idle(
        _paths("advantage", "baseline", "scale", "combine", "singleton"),
        {"advantage.credit": NOT_COMPARED},
        "this credit does not compare rewards within a group",
    ),
    Idle(
        ("advantage.combine",),
        {"advantage.credit": ("process",)},
        "steps are compared by their whole rewards",
    ),
    Idle(
        ("advantage.combine",),
        {COMBINE: ("normalize_then_sum",)},
        "the reward compares each of its rules by itself already",
    ),
    Idle(
        ("advantage.combine",),
        {IS_ALONE: (YES,), "reward.overlong_buffer_tokens": ZERO},
        "the reward is one rule of weight 1",
    ),
    Idle(
        ("advantage.ddof", "advantage.eps"),
        {"advantage.credit": NOT_COMPARED, "advantage.whiten": OFF},
        "this credit does not compare rewards within a group",
    ),
    Idle(
        ("advantage.ddof",),
        {"advantage.scale": ("mean", "none"), "advantage.whiten": OFF},
        "nothing is divided by a standard deviation",
    ),
    Idle(
        ("advantage.eps",),
        {"advantage.scale": ("none",), "advantage.whiten": OFF},
        "nothing is divided",
    ),
    Idle(
        ("advantage.indicator_threshold",),
        {"advantage.credit": ("outcome", "process", "ones", "preference")},
        "credit is not indicator",
    ),
    Idle(
        ("advantage.preference_beta",),
        {"advantage.credit": NOT_PREFERENCE},
        "credit is not preference",
    ),
    Idle(
        _paths("loss", "clip_low", "clip_high"),
        {"loss.surrogate": ("reinforce",)},
        "reinforce has no ratio",
    ),
    Idle(
        _paths("loss", "dual_clip"),
        {"loss.surrogate": ("reinforce", "cispo")},
        "this surrogate has no second clip",
    ),
    Idle(
        _paths("loss", "old_logprobs"),
        {
            "loss.surrogate": ("reinforce",),
            "loss.importance_correction": EMPTY,
            "loss.kl_ratio": OFF,
        },
        "reinforce has no ratio",
    ),
    Idle(
        _paths("loss", "old_logprobs"),
        {
            "loss.surrogate": ("reinforce",),
            "loss.importance_correction": EMPTY,
            "loss.kl_coef": ZERO,
        },
        "reinforce has no ratio",
    ),
    Idle(
        _paths("loss", "clip_low", "clip_high", "dual_clip"),
        FRESH_RATIO,
        "with one update a batch the ratio is 1",
    ),
    Idle(
        _paths("loss", "importance_cap"),
        {"loss.importance_correction": EMPTY},
        "nothing is corrected",
    ),
    Idle(
        _paths("loss", "constant_length"),
        {
            "loss.aggregation": (
                "token_mean",
                "sequence_mean_token_mean",
                "sequence_mean_token_sum",
            )
        },
        "aggregation is not constant",
    ),
    Idle(
        _paths("loss", "kl_estimator", "kl_clamp"), NO_REFERENCE, "the KL weight is 0"
    ),
    Idle(
        _paths(
            "loss", "kl_in", "kl_ratio", "kl_aggregation", "kl_target", "kl_horizon"
        ),
        {"loss.kl_coef": ZERO},
        "the KL weight is 0",
    ),
    Idle(
        _paths("loss", "kl_aggregation", "kl_ratio"),
        {"loss.kl_in": ("reward",)},
        "the KL is taken off the rewards",
    ),
    Idle(
        _paths("loss", "kl_horizon"), {"loss.kl_target": EMPTY}, "there is no KL target"
    ),
    Idle(
        _paths("reference", "reset_every_steps", "mix_every_steps", "mix_alpha"),
        NO_REFERENCE,
        "there is no reference",
    ),
    Idle(
        ("reference.mix_alpha",),
        {"reference.mix_every_steps": ZERO},
        "the reference is never mixed",
    ),
    Idle(
        ("reference.url", "reference.token_file"),
        {"reference.kind": NOT_A_SERVER},
        "the reference is not a server",
    ),
    Idle(
        ("optim.final_lr_fraction",),
        {"optim.schedule": ("constant",)},
        "the learning rate stays",
    ),
    Idle(
        ("evaluation.samples_per_prompt", "evaluation.temperature"),
        {"evaluation.every_steps": ZERO},
        "nothing is evaluated",
    ),
)


def recipe_facts(recipe: Mapping[str, Any]) -> dict[str, str]:
    """What of a recipe's composition makes settings idle."""
    rules = recipe.get("rules") or [{}]
    combine = recipe.get("combine", "sum")
    # Normalised, one rule is the same with or without a sum, but for its weight.
    is_alone = (
        len(rules) == 1
        and combine == "sum"
        and rules[0].get("weight", 1.0) == 1
        and not recipe.get("clip")
        and not rules[0].get("schedule")
    )
    return {COMBINE: combine, IS_ALONE: YES if is_alone else ""}


def find_idle(
    texts: Mapping[str, str], facts: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The settings without effect in a form of these texts, and why."""
    known = {**dict.fromkeys(FACTS, ""), **(facts or {}), **texts}
    found: dict[str, str] = {}
    for idle in IDLE:
        if all(_is_one_of(path, known[path], idle.when[path]) for path in idle.when):
            for path in idle.paths:
                found.setdefault(path, idle.reason)
    return found


def _is_one_of(path: str, text: str, values: tuple[str, ...]) -> bool:
    if path in FACTS:
        return text in values
    return any(all_fields()[path].is_same(text, value) for value in values)


def describe_idle() -> list[dict[str, Any]]:
    """The table as launch.js reads it."""
    return [asdict(idle) for idle in IDLE]
