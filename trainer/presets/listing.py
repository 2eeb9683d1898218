"""`python -m trainer presets`: lists the presets, or compares them in a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from trainer.config import RunConfig
from trainer.presets.preset import load_preset, preset_names
from trainer.rewards.spec import Recipe

_AGGREGATIONS = {
    "token_mean": "mean of all tokens",
    "sequence_mean_token_mean": "mean of each completion's token mean",
    "sequence_mean_token_sum": "mean of each completion's token sum",
    "constant": "sum ÷ (completions × constant)",
}
_BASELINES = {"mean": "r − mean", "leave_one_out": "r − mean of others", "none": "r"}
_SCALES = {"group_std": "std", "batch_std": "batch std", "mean": "mean", "none": ""}


def comparison_table() -> str:
    """Markdown: a row for each point, a column for each preset."""
    names = preset_names()
    configs = [load_preset(name).config(model="any", rows="any") for name in names]
    rows = [["", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    rows += [
        [point, *(describe(config) for config in configs)]
        for point, describe in POINTS.items()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _advantage(config: RunConfig) -> str:
    advantage = config.advantage
    match advantage.credit:
        case "ones":
            return "1"
        case "indicator":
            return f"1 if r ≥ {advantage.indicator_threshold:g}, else 0"
        case "preference":
            return f"best against worst, β {advantage.preference_beta:g}"
    shown = _BASELINES[advantage.baseline]
    divisor = _SCALES[advantage.scale]
    if divisor:
        eps = f" + {advantage.eps:g}" if advantage.eps else ""
        shown = f"({shown}) / ({divisor}{eps})" if eps else f"({shown}) / {divisor}"
    if advantage.credit == "process":
        return f"sum over later steps of {shown}"
    return shown


def _deviation(config: RunConfig) -> str:
    divides = config.advantage.scale in ("group_std", "batch_std")
    if not (_compares(config) and divides):
        return "–"
    return "n − 1" if config.advantage.ddof else "n"


def _single(config: RunConfig) -> str:
    if not _compares(config):
        return "–"
    return {"zero": "0", "raw": "its reward"}[config.advantage.singleton]


def _compares(config: RunConfig) -> bool:
    return config.advantage.credit in ("outcome", "process")


def _dead_groups(config: RunConfig) -> str:
    shown = {"off": "kept", "drop": "dropped", "refill": "replaced"}
    return shown[config.rollout.dynamic_sampling]


def _surrogate(config: RunConfig) -> str:
    loss = config.loss
    if loss.surrogate == "reinforce":
        return "log-prob, no ratio"
    shown = f"{loss.surrogate} −{loss.clip_low:g}, +{loss.clip_high:g}"
    return f"{shown}, dual {loss.dual_clip:g}" if loss.dual_clip else shown


def _aggregation(config: RunConfig) -> str:
    shown = _AGGREGATIONS[config.loss.aggregation]
    if config.loss.aggregation != "constant":
        return shown
    return shown.replace("constant", f"{config.loss_of_run.constant_length:,}")


def _kl(config: RunConfig) -> str:
    loss = config.loss
    if loss.kl_coef == 0:
        return "none"
    shown = f"{loss.kl_coef:g} × {loss.kl_estimator} in the {loss.kl_in}"
    if loss.kl_clamp:
        shown += f", within ±{loss.kl_clamp:g}"
    if loss.kl_aggregation not in (None, loss.aggregation):
        shown += f", {_AGGREGATIONS[loss.kl_aggregation]}"
    return shown


def _reference(config: RunConfig) -> str:
    if config.loss.kl_coef == 0:
        return "none"
    every = config.reference.reset_every_steps
    return config.reference.kind + (f", reset every {every:,}" if every else "")


def _updates(config: RunConfig) -> str:
    optim = config.optim
    shown = f"{optim.updates_per_batch * optim.minibatches}"
    if optim.minibatches > 1:
        shown += f", {optim.minibatches} minibatches"
    passes = optim.updates_per_batch
    return f"{shown}, {passes} passes" if passes > 1 else shown


def _group(config: RunConfig) -> str:
    return f"{config.rollout.prompts_per_step:,} × {config.rollout.group_size}"


def _sampling(config: RunConfig) -> str:
    rollout = config.rollout
    shown = f"{rollout.temperature:g}"
    if rollout.top_p < 1:
        shown += f", top-p {rollout.top_p:g}"
    if rollout.top_k:
        shown += f", top-k {rollout.top_k}"
    if config.logprob_temperature != rollout.temperature:
        shown += f", log-probs at {config.logprob_temperature:g}"
    return shown


def _length(config: RunConfig) -> str:
    shown = f"{config.rollout.max_new_tokens:,}"
    buffer = config.reward.overlong_buffer_tokens
    if not buffer:
        return shown
    return f"{shown}, the last {buffer:,} cost up to {config.reward.overlong_penalty:g}"


def _mask(config: RunConfig) -> str:
    loss = config.loss
    left_out = ["truncated"] if loss.mask_truncated else []
    left_out += ["end token"] if loss.mask_end_token else []
    shown = "completion" + (", prompt" if loss.include_prompt else "")
    return f"{shown} without {', '.join(left_out)}" if left_out else shown


def _optimizer(config: RunConfig) -> str:
    optim = config.optim
    shown = f"{optim.learning_rate:g} {optim.schedule}"
    if optim.warmup_steps:
        shown += f", warm-up {optim.warmup_steps:,}"
    if optim.weight_decay:
        shown += f", decay {optim.weight_decay:g}"
    if optim.reset_every_steps:
        shown += f", reset every {optim.reset_every_steps:,}"
    return shown


def _grad_norm(config: RunConfig) -> str:
    norm = config.optim.max_grad_norm
    return "none" if norm is None else f"{norm:g}"


def _reward(config: RunConfig) -> str:
    shown = _recipe(config.reward.recipe)
    steps = config.reward.step_recipe
    return f"{shown}; each step {_recipe(steps)}" if steps else shown


def _recipe(recipe: Recipe) -> str:
    terms = [
        rule.kind if rule.weight == 1 else f"{rule.weight:g} {rule.kind}"
        for rule in recipe.rules
    ]
    if recipe.combine == "sum":
        return " + ".join(terms)
    return f"{recipe.combine} of {', '.join(terms)}"


POINTS: dict[str, Callable[[RunConfig], str]] = {
    "Advantage": _advantage,
    "Deviation divides by": _deviation,
    "Group of one completion": _single,
    "Groups with equal rewards": _dead_groups,
    "Ratio and clip": _surrogate,
    "Loss aggregation": _aggregation,
    "Tokens": _mask,
    "KL": _kl,
    "Reference": _reference,
    "Updates per batch": _updates,
    "Prompts × completions": _group,
    "Temperature": _sampling,
    "New tokens": _length,
    "Learning rate": _optimizer,
    "Max gradient norm": _grad_norm,
    "Reward": _reward,
}


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
