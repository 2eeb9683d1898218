"""What a run's configuration makes of a recipe at a step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from trainer.config import RunConfig
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe


class StepSettings:
    """The configuration of each step, with a recipe in place of its own."""

    def __init__(self, config: dict[str, Any], spec: dict[str, Any] | None) -> None:
        """
        Args:
            config: a run's.
            spec: of the new recipe; None: each step's own.

        Raises:
            ValueError: one of them is not understood.
        """
        if "model" not in config:  # as exchange leaves it
            raise ValueError(
                "The run was imported, so its settings are not known, and its "
                "completions cannot be scored anew. Choose a run that was trained here."
            )
        self.recipe = None if spec is None else Recipe.model_validate(spec)
        self._stages = RunConfig.model_validate(config).stages

    @cached_property
    def _configs(self) -> list[RunConfig]:
        return [self._with_recipe(stage.config) for stage in self._stages]

    def _with_recipe(self, config: RunConfig) -> RunConfig:
        if self.recipe is None:
            return config
        reward = config.reward.model_copy(update={"recipe": self.recipe})
        return config.model_copy(update={"reward": reward})

    def at(self, step: int) -> RunConfig:
        """A step behind the last one, of settings that changed since, is the last's."""
        for stage, config in zip(self._stages, self._configs, strict=True):
            if step <= stage.last_step:
                return config
        return self._configs[-1]

    def recipes(self) -> Iterator[Recipe]:
        """Those that may be asked for."""
        if self.recipe is not None:
            yield self.recipe
            return
        yield from (config.reward.recipe for config in self._configs)


def asking_rules(recipe: Recipe) -> list[str]:
    """Rules that ask a judge about each completion, which costs money."""
    return [
        rule.name
        for rule in recipe.rules
        if RULES[rule.kind].batching is not None and rule.kind != "reward_model"
    ]


def check_recipe(recipe: Recipe) -> None:
    """ValueError where rules ask for what a rescoring has not."""
    for rule in recipe.rules:
        if rule.kind == "reward_model":
            raise ValueError(
                f'Rule "{rule.name}" asks a reward model, which is loaded in a run '
                "alone, where its memory is reckoned with. Leave the rule out."
            )


def why_no_advantages(config: RunConfig) -> str:
    """Empty where they follow from what is stored."""
    if config.advantage.credit == "process":
        return (
            "The run credits reasoning steps (advantage.credit = process), whose "
            "tokens are not stored."
        )
    if config.advantage.credit == "preference":
        return (
            "The run learns from pairs (advantage.credit = preference) by log-probs "
            "that are not stored."
        )
    if config.loss.kl_in == "reward" and config.loss.kl_coef > 0:
        return (
            "The run takes each completion's KL off its reward before it compares "
            "(loss.kl_in = reward), and that KL is not stored."
        )
    return ""
