"""What a run tells of its steps, as events."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.alarms import AlarmBoard
from trainer.config import RunConfig
from trainer.events import GroupScored, ScoredCompletion, StepFinished, Warned
from trainer.groups import Group, reward_std, signal_of
from trainer.log import EventLog
from trainer.metrics import (
    Stopwatch,
    completion_metrics,
    reward_metrics,
    signal_metrics,
    update_metrics,
)
from trainer.rewards.spec import recipe_bounds
from trainer.updates import UpdateResult


class Journal:
    """Turns the outcome of a step into events and warnings."""

    def __init__(self, log: EventLog, config: RunConfig) -> None:
        self._log = log
        self._config = config
        self._bounds = recipe_bounds(config.reward.recipe)
        self._alarms = AlarmBoard()

    def record_step(
        self,
        step: int,
        *,
        groups: Sequence[Group],
        advantages: torch.Tensor,
        updates: Sequence[UpdateResult],
        learning_rate: float,
        watch: Stopwatch,
    ) -> dict[str, float | None]:
        """Append a step's groups, metrics and warnings to the log."""
        if step % self._config.logging.groups_every_steps == 0:
            for group, row in zip(groups, advantages.tolist(), strict=True):
                self._record_group(step, group, row)
        metrics = self._metrics(groups, advantages, updates)
        metrics["lr"] = learning_rate
        num_tokens = sum(c.num_tokens for g in groups for c in g.completions)
        metrics |= watch.metrics(num_tokens=num_tokens)
        self._warn(step, metrics, updates)
        self._log.add(StepFinished, step=step, metrics=metrics)
        self._log.flush()
        return metrics

    def _metrics(
        self,
        groups: Sequence[Group],
        advantages: torch.Tensor,
        updates: Sequence[UpdateResult],
    ) -> dict[str, float | None]:
        config = self._config
        signals = [signal_of(group, bounds=self._bounds) for group in groups]
        rewards = reward_metrics(
            groups, config.reward.recipe, ddof=config.advantage.ddof
        )
        return (
            rewards
            | signal_metrics(signals)
            | {"advantage/abs_mean": advantages.abs().mean().item()}
            | completion_metrics(groups)
            | update_metrics(updates)
        )

    def _record_group(self, step: int, group: Group, advantages: list[float]) -> None:
        rewards = group.scored_rewards
        self._log.add(
            GroupScored,
            step=step,
            prompt_index=group.prompt.index,
            prompt=group.prompt.text,
            answer=group.prompt.row.answer,
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            reward_std=reward_std(group, ddof=self._config.advantage.ddof),
            signal=signal_of(group, bounds=self._bounds),
            completions=[
                ScoredCompletion(
                    text=completion.text,
                    num_tokens=completion.num_tokens,
                    end_reason=completion.end_reason,
                    reward=score.total,
                    rules=score.rules,
                    advantage=advantage,
                    mean_logprob=completion.mean_logprob,
                )
                for completion, score, advantage in zip(
                    group.completions, group.scores, advantages, strict=True
                )
            ],
        )

    def _warn(
        self,
        step: int,
        metrics: dict[str, float | None],
        updates: Sequence[UpdateResult],
    ) -> None:
        for rung in self._alarms.check(metrics):
            self._log.add(
                Warned,
                step=step,
                code=rung.alarm.code,
                message=rung.alarm.message,
                value=rung.value,
                threshold=rung.bound,
            )
        if any(result.is_skipped for result in updates):
            self._log.add(
                Warned,
                step=step,
                code="update_skipped",
                message="Loss or gradient was not finite; the update was skipped and "
                "the weights are as before. Lower the learning rate.",
            )
