"""What of a run's settings decides which charts it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import RunConfig

MAIN_SET = "heldout"


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    rules: tuple[str, ...]
    scheduled: tuple[str, ...]  # of the rules those whose weight moves
    eval_sets: tuple[str, ...]
    has_reference: bool
    samples_kl: bool  # where there is none
    has_dual_clip: bool
    has_penalty: bool  # for length
    samples_again: bool  # or drops groups
    is_stale: bool  # trains on what an older policy sampled


def traits_of(config: RunConfig) -> Traits:
    """All phases together: a chart is there if one of them fills it."""
    configs = [stage.config for stage in config.stages]
    rules = [rule for one in configs for rule in one.reward.recipe.rules]
    moving = [rule.name for rule in rules if rule.schedule]
    return Traits(
        rules=tuple(dict.fromkeys(rule.name for rule in rules)),
        scheduled=tuple(dict.fromkeys(moving)),
        eval_sets=_eval_sets(configs),
        has_reference=any(one.has_reference for one in configs),
        samples_kl=any(one.samples_kl for one in configs),
        has_dual_clip=any(one.loss.dual_clip is not None for one in configs),
        has_penalty=any(one.reward.overlong_buffer_tokens > 0 for one in configs),
        samples_again=any(one.rollout.dynamic_sampling != "off" for one in configs),
        is_stale=any(
            one.rollout.source == "start"
            or one.rollout.one_step_off
            or one.optim.minibatches * one.optim.updates_per_batch > 1
            for one in configs
        ),
    )


def _eval_sets(configs: Sequence[RunConfig]) -> tuple[str, ...]:
    evaluated = [one for one in configs if one.evaluation.every_steps > 0]
    own = [MAIN_SET for one in evaluated if one.data.num_eval_rows > 0]
    further = [name for one in evaluated for name in one.evaluation.sets]
    return tuple(dict.fromkeys([*own, *further]))
