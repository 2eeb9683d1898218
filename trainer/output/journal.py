"""What a run tells of its steps, as events."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from trainer.alarms import AlarmBoard
from trainer.config import RunConfig
from trainer.events import (
    GroupScored,
    ScoredCompletion,
    StepFinished,
    TokensMeasured,
    Warned,
)
from trainer.outcome import StepOutcome
from trainer.output.log import EventLog
from trainer.output.metrics import Stopwatch, step_metrics
from trainer.output.token_details import describe_tokens
from trainer.rewards.logs import Notes, cut_notes
from trainer.rewards.scoring import Score
from trainer.rewards.spec import recipe_bounds
from trainer.types import Group, reward_std, signal_of


class Journal:
    """Turns the outcome of a step into events and warnings."""

    def __init__(self, log: EventLog, tokenizer: PreTrainedTokenizerBase) -> None:
        self._log = log
        self._tokenizer = tokenizer
        self.step = 0  # the one that is told of
        self.alarms = AlarmBoard()

    def warn(
        self,
        code: str,
        message: str,
        *,
        value: float | None = None,
        threshold: float | None = None,
    ) -> None:
        """Add a warning of the step at hand."""
        self._log.add(
            Warned,
            step=self.step,
            code=code,
            message=message,
            value=value,
            threshold=threshold,
        )

    def record_step(
        self, outcome: StepOutcome, config: RunConfig, watch: Stopwatch
    ) -> dict[str, float | None]:
        """Append a step's groups, metrics and warnings to the log."""
        if config.logging.keeps_groups(self.step):
            self._record_groups(outcome, config)
            self._record_tokens(outcome)
        metrics = step_metrics(outcome, config, step=self.step)
        metrics |= watch.metrics(num_tokens=outcome.gathered.num_sampled_tokens)
        self._ring(metrics, config)
        if any(result.is_skipped for result in outcome.updates):
            self.warn(
                "update_skipped",
                "Loss or gradient was not finite; the update was skipped and the "
                "weights are as before. Lower the learning rate.",
            )
        self._log.add(StepFinished, step=self.step, metrics=metrics)
        self._log.flush()
        return metrics

    def _ring(self, metrics: dict[str, float | None], config: RunConfig) -> None:
        for rung in self.alarms.check(metrics, without=_meaningless(config)):
            self.warn(
                rung.alarm.code,
                rung.alarm.message,
                value=rung.value,
                threshold=rung.bound,
            )

    def _record_groups(self, outcome: StepOutcome, config: RunConfig) -> None:
        gathered = outcome.gathered
        num_groups = len(gathered.groups) + len(gathered.dropped)
        for group, row in zip(
            gathered.groups, outcome.advantages.tolist(), strict=True
        ):
            self._record_group(group, row, config, num_groups, is_trained=True)
        for group in gathered.dropped:
            nothing = [0.0] * len(group.completions)
            self._record_group(group, nothing, config, num_groups, is_trained=False)

    def _record_tokens(self, outcome: StepOutcome) -> None:
        for place, values in outcome.tokens.items():
            group = outcome.gathered.groups[place]
            self._log.add(
                TokensMeasured,
                step=self.step,
                prompt_index=group.prompt.index,
                completions=describe_tokens(group, values, self._tokenizer),
            )

    def _record_group(
        self,
        group: Group,
        advantages: Sequence[float],
        config: RunConfig,
        num_groups: int,
        *,
        is_trained: bool,
    ) -> None:
        rewards = group.scored_rewards
        said = [notes_of(score) for score in group.scores]
        self._log.add(
            GroupScored,
            step=self.step,
            prompt_index=group.prompt.index,
            prompt=group.prompt.text,
            answer=group.prompt.row.answer,
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            reward_std=reward_std(group, ddof=config.advantage.ddof),
            signal=signal_of(
                group, bounds=recipe_bounds(config.reward.recipe, step=self.step)
            ),
            is_trained=is_trained,
            num_notes=sum(len(part) for notes in said for part in notes),
            completions=[
                ScoredCompletion(
                    text=completion.text,
                    num_tokens=completion.num_tokens,
                    end_reason=completion.end_reason,
                    reward=score.total,
                    rules=score.rules,
                    advantage=advantage,
                    mean_logprob=completion.mean_logprob,
                    logs=notes.logs,
                    errors=notes.errors,
                )
                for completion, score, advantage, notes in zip(
                    group.completions,
                    group.scores,
                    advantages,
                    cut_notes(said, num_groups=num_groups),
                    strict=True,
                )
            ],
        )


def notes_of(score: Score) -> Notes:
    """What rules said of a completion; that one does not apply to its row is none."""
    return Notes(score.logs, {name: score.errors[name] for name in score.failed})


def _meaningless(config: RunConfig) -> set[str]:
    """Alarms that say nothing about a run that compares no completions."""
    compares = config.advantage.credit in ("outcome", "process", "preference")
    return set() if compares else {"dead_groups"}
