"""`python -m trainer presets`: lists the presets, or compares them in a table."""

from __future__ import annotations

import argparse
import sys

from trainer.config import RunConfig
from trainer.presets.preset import load_preset, preset_names
from trainer.rewards.spec import Recipe

_AGGREGATIONS = {
    "token_mean": "mean of all tokens",
    "sequence_mean_token_mean": "mean of each completion's token mean",
    "sequence_mean_token_sum": "mean of each completion's token sum",
    "constant": "sum ÷ (completions × {:,})",
}
_BASELINES = {
    "mean": "r − mean",
    "leave_one_out": "r − mean of others",
    "length_weighted": "r − mean by length",
    "none": "r",
}
_WITHOUT_BOUNDS = {
    "reinforce": "log-prob, no ratio",
    "sapo": "sapo, τ {0.sapo_tau_positive:g} and {0.sapo_tau_negative:g}",
    "vespo": "vespo",
}
_CORRECTIONS = {
    "importance_correction": "{0.importance_correction} ≤ {0.importance_cap:g}",
    "importance_floor": "≥ {0.importance_floor:g}",
    "geometric_mask": "mean gap ≤ {0.geometric_mask:g}",
    "off_policy_mask": "mean fall ≤ {0.off_policy_mask:g} if A < 0",
    "sampler_penalty": "{0.sampler_penalty:g} × squared log-ratio",
}
_DYNAMIC_SAMPLING = {"off": "kept", "drop": "dropped", "refill": "replaced"}
_SCALES = {"group_std": "std", "batch_std": "batch std", "mean": "mean", "none": ""}


def comparison_table() -> str:
    """Markdown: a row for each point, a column for each preset."""
    names = preset_names()
    points = [
        describe(load_preset(name).config(model="any", rows="any")) for name in names
    ]
    rows = [["", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    rows += [[point, *(preset[point] for preset in points)] for point in points[0]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def describe(config: RunConfig) -> dict[str, str]:
    """Say each point of the comparison for a configuration."""
    advantage, loss, optim = config.advantage, config.loss, config.optim
    rollout, reference = config.rollout, config.reference
    compares = advantage.credit in ("outcome", "process")
    deviation = group_of_one = "–"
    divides = compares or advantage.credit == "pass_at_k"
    if divides and advantage.scale in ("group_std", "batch_std"):
        deviation = "n − 1" if advantage.ddof else "n"
    if compares:
        group_of_one = {"zero": "0", "raw": "its reward"}[advantage.singleton]

    ratio = _WITHOUT_BOUNDS.get(loss.surrogate, "").format(loss) or _listed(
        f"{loss.surrogate} −{loss.clip_low:g}, +{loss.clip_high:g}",
        loss.dual_clip and f"dual {loss.dual_clip:g}",
        loss.old_logprobs == "sampling" and "to the sampler",
    )
    corrections = _listed(
        *(
            text.format(loss)
            for name, text in _CORRECTIONS.items()
            if getattr(loss, name)
        )
    )
    aggregation = _AGGREGATIONS[loss.aggregation].format(
        config.loss_of_run.constant_length
    )
    left_out = _listed(
        loss.mask_truncated and "truncated", loss.mask_end_token and "end token"
    )
    tokens = "completion" + (", prompt" if loss.include_prompt else "")
    tokens += f" without {left_out}" if left_out else ""

    kl = kind = "none"
    if loss.kl_coef != 0:
        estimator = loss.kl_estimator + (" × ratio" if loss.kl_ratio else "")
        kl = _listed(
            f"{loss.kl_coef:g} × {estimator} in the {loss.kl_in}",
            loss.kl_clamp and f"within ±{loss.kl_clamp:g}",
            loss.kl_aggregation not in (None, loss.aggregation)
            and _AGGREGATIONS[loss.kl_aggregation],
        )
        reads = {
            "column": f" that reads {reference.context_column}",
            "best_of_group": " that reads the best of group",
        }
        every = reference.reset_every_steps
        kind = _listed(
            ("teacher" if reference.model else reference.kind)
            + reads.get(reference.context, ""),
            every and f"reset every {every:,}",
            reference.mix_every_steps and f"mixed by {reference.mix_alpha:g}",
        )

    passes, minibatches = optim.updates_per_batch, optim.minibatches
    every, norm = optim.reset_every_steps, optim.max_grad_norm
    buffer = config.reward.overlong_buffer_tokens
    reward, steps = _recipe(config.reward.recipe), config.reward.step_recipe
    return {
        "Advantage": _advantage(config),
        "Deviation divides by": deviation,
        "Group of one completion": group_of_one,
        "Groups with equal rewards": _DYNAMIC_SAMPLING[rollout.dynamic_sampling],
        "Ratio and clip": ratio,
        "Sampler correction": corrections or "none",
        "Loss aggregation": aggregation,
        "Tokens": tokens,
        "KL": kl,
        "Reference": kind,
        "Updates per batch": _listed(
            f"{passes * minibatches}",
            minibatches > 1 and f"{minibatches} minibatches",
            passes > 1 and f"{passes} passes",
        ),
        "Prompts × completions": f"{rollout.prompts_per_step:,} × {rollout.group_size}",
        "Temperature": _listed(
            f"{rollout.temperature:g}",
            rollout.top_p < 1 and f"top-p {rollout.top_p:g}",
            rollout.top_k and f"top-k {rollout.top_k}",
            config.logprob_temperature != rollout.temperature
            and f"log-probs at {config.logprob_temperature:g}",
        ),
        "New tokens": _listed(
            f"{rollout.max_new_tokens:,}",
            buffer
            and f"the last {buffer:,} cost up to {config.reward.overlong_penalty:g}",
        ),
        "Learning rate": _listed(
            f"{optim.learning_rate:g} {optim.schedule}",
            optim.warmup_steps and f"warm-up {optim.warmup_steps:,}",
            optim.weight_decay and f"decay {optim.weight_decay:g}",
            every and f"reset every {every:,}",
        ),
        "Max gradient norm": "none" if norm is None else f"{norm:g}",
        "Reward": f"{reward}; each step {_recipe(steps)}" if steps else reward,
    }


def _listed(*parts: str | float | None) -> str:
    """Join the parts that there are with commas."""
    return ", ".join(str(part) for part in parts if part)


def _advantage(config: RunConfig) -> str:
    advantage = config.advantage
    match advantage.credit:
        case "ones":
            return "1"
        case "indicator":
            return f"1 if r ≥ {advantage.indicator_threshold:g}, else 0"
        case "preference":
            return f"best against worst, β {advantage.preference_beta:g}"
        case "pass_at_k_analytic":
            k, threshold = advantage.pass_k, advantage.indicator_threshold
            return f"normalised pass@{k} of r ≥ {threshold:g}"
    shown = _BASELINES[advantage.baseline]
    if advantage.credit == "pass_at_k":
        shown = f"gain in best of {advantage.pass_k}"
    divisor = _SCALES[advantage.scale]
    if divisor:
        eps = f" + {advantage.eps:g}" if advantage.eps else ""
        shown = f"({shown}) / ({divisor}{eps})" if eps else f"({shown}) / {divisor}"
    if advantage.credit == "process":
        return f"sum over later steps of {shown}"
    return shown


def _recipe(recipe: Recipe) -> str:
    terms = [
        rule.kind if rule.weight == 1 else f"{rule.weight:g} {rule.kind}"
        for rule in recipe.rules
    ]
    if recipe.combine == "sum":
        return " + ".join(terms)
    return f"{recipe.combine} of {', '.join(terms)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", action="store_true", help="compare the presets in a Markdown table"
    )


def main(args: argparse.Namespace) -> int:
    if args.table:
        sys.stdout.write(comparison_table())
        return 0
    for name in preset_names():
        preset = load_preset(name)
        sys.stdout.write(f"{name:<21} {preset.title}: {preset.summary}\n")
    return 0
