"""Writes a step's groups, completions and tokens to the event log."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from cohort.mismatch import round_numbers
from trainer.alerts.conditions import FIRST
from trainer.alerts.evaluator import Metrics, Recovered, RuleEvaluator, Triggered
from trainer.alerts.rules import BY_CODE, meaningless_rules
from trainer.algorithm.loss import compares_with_the_old_policy
from trainer.config import RunConfig
from trainer.console import print_line
from trainer.data import uses_chat_template
from trainer.events import (
    CallRecord,
    GroupScored,
    MeasuredCompletion,
    MismatchMeasured,
    ScoredCompletion,
    StepFinished,
    TokenNumbers,
    TokensMeasured,
    TurnRecord,
    Warned,
)
from trainer.gathering import differs
from trainer.metric_names import MAX_OWN_METRICS, keep_first
from trainer.model.token_values import NAMES, TokenValues
from trainer.output.log import EventLog
from trainer.output.metrics import Stopwatch, own_metrics, share_of_waits, step_metrics
from trainer.rewards.rule import Notes, cut_notes
from trainer.rewards.scoring import Score, add_usage, signal_of, usage_metrics
from trainer.rewards.spec import Recipe
from trainer.run.outcome import StepOutcome
from trainer.serving.client import server_metrics
from trainer.tokenizers import decode_text, special_ids
from trainer.types import Group, Rollout, ToolCall, reward_std

# Told of a group, in a line of 5 MB at most. Beyond, long completions are cut.
MAX_TOKENS = 65_536


def choose_groups(
    groups: Sequence[Group], config: RunConfig, *, step: int
) -> list[int]:
    """Return indices of the groups whose token values a step stores, in the batch's
    order.

    Groups with different rewards come first: the others have advantage 0. Within both
    kinds they are spread evenly over the batch, and so over its minibatches.
    """
    if not config.logging.keeps_tokens(step):
        return []
    teaching = [
        index for index, group in enumerate(groups) if differs(group, config, step=step)
    ]
    others = sorted(set(range(len(groups))) - set(teaching))
    count = config.logging.token_groups
    chosen = _spread(teaching, count)
    return sorted(chosen + _spread(others, count - len(chosen)))


def _spread(places: Sequence[int], count: int) -> list[int]:
    """Take at most `count` of them, at even distances, from the first on.

    >>> _spread([0, 2, 3, 5, 8, 9], 2)
    [0, 5]
    """
    count = min(count, len(places))
    return [places[turn * len(places) // count] for turn in range(count)]


def places_of(groups: Sequence[Group], chosen: Sequence[int]) -> list[range]:
    """Return places in the step's batch of the completions of each of some groups."""
    ends = list(accumulate((len(group.completions) for group in groups), initial=0))
    return [range(ends[index], ends[index + 1]) for index in chosen]


def describe_tokens(
    group: Group, values: Sequence[TokenValues], tokenizer: PreTrainedTokenizerBase
) -> list[MeasuredCompletion]:
    """Return what the log tells of a group's tokens: of at most MAX_TOKENS, fairly
    shared.
    """
    pieces = _Pieces(tokenizer)
    lengths = [completion.num_tokens for completion in group.completions]
    limit = fair_limit(lengths, room=MAX_TOKENS)
    described = []
    for completion, own in zip(group.completions, values, strict=True):
        ids = list(completion.token_ids[:limit])
        described.append(
            MeasuredCompletion(
                num_tokens=completion.num_tokens,
                ids=ids,
                pieces=[pieces.text(token_id) for token_id in ids],
                special=[
                    at for at, token_id in enumerate(ids) if token_id in pieces.special
                ],
                clipped=_signs(own.clipped, limit),
                **{
                    name: _numbers(getattr(own, name), limit)
                    for name in NAMES
                    if name != "clipped"
                },
            )
        )
    return described


def fair_limit(lengths: Sequence[int], *, room: int) -> int:
    """Return the largest L for which Σ min(length, L) ≤ room: short ones leave theirs.

    >>> fair_limit([2, 9, 9], room=12)
    5
    """
    for turn, length in enumerate(ordered := sorted(lengths)):
        share = room // (len(ordered) - turn)
        if length > share:
            return share
        room -= length
    return max(lengths, default=0)


def _numbers(values: torch.Tensor | None, limit: int) -> TokenNumbers | None:
    """Rounded to 5 significant digits; None for what is no number, or has none."""
    if values is None:
        return None
    numbers = [
        float(f"{value:.5g}") if math.isfinite(value) else None
        for value in values[:limit].tolist()
    ]
    is_absent = bool(numbers) and all(number is None for number in numbers)
    return None if is_absent else numbers


def _signs(values: torch.Tensor | None, limit: int) -> Any:
    numbers = _numbers(values, limit)
    if numbers is None:
        return None
    return [None if number is None else int(number) for number in numbers]


class _Pieces:
    """The text of each token alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.special = special_ids(tokenizer)
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        if token_id not in self._texts:
            self._texts[token_id] = self._decode(token_id)
        return self._texts[token_id]

    def _decode(self, token_id: int) -> str:
        text = decode_text(self._tokenizer, [token_id])
        spelled = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(spelled, str) or text.startswith("▁"):
            return text
        # SentencePiece's decoders take a space off whatever a text begins with.
        spaces = len(spelled) - len(spelled.lstrip("▁"))
        return " " * (spaces - (len(text) - len(text.lstrip(" ")))) + text


class Journal:
    """Turns the outcome of a step into events and warnings."""

    def __init__(self, log: EventLog, tokenizer: PreTrainedTokenizerBase) -> None:
        self._log = log
        self._tokenizer = tokenizer
        self.step = 0  # the one that is being written
        self.rules = RuleEvaluator(BY_CODE)
        self._own_names: set[str] = set()
        self._recipe: Recipe | None = None
        self._silent: set[str] = set()  # its rules that have given no score
        self._num_read = 0  # steps

    def warn(
        self,
        code: str,
        message: str,
        *,
        value: float | None = None,
        threshold: float | None = None,
    ) -> None:
        """Add a warning of the step at hand, and print it."""
        print_line(f"warning at step {self.step}: {message}")
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
            groups, rows = outcome.gathered.sampled, outcome.advantages.tolist()
            for place, group in enumerate(groups):
                is_trained = place < len(rows)
                self._record_group(
                    group,
                    rows[place] if is_trained else [0.0] * len(group.completions),
                    config,
                    len(groups),
                    is_trained=is_trained,
                    age=outcome.age,
                )
            for index, values in outcome.tokens.items():
                group = outcome.gathered.groups[index]
                self._log.add(
                    TokensMeasured,
                    step=self.step,
                    prompt_index=group.prompt.index,
                    completions=describe_tokens(group, values, self._tokenizer),
                )
        self._record_mismatch(outcome, config)
        metrics = step_metrics(outcome, config, step=self.step)
        metrics |= watch.metrics(num_tokens=outcome.gathered.num_sampled_tokens)
        metrics |= share_of_waits(metrics) | server_metrics()
        metrics |= self.own_metrics(outcome.first_round)
        scores = (s for group in outcome.gathered.sampled for s in group.scores)
        metrics |= usage_metrics(add_usage(scores))
        without = meaningless_rules(config)
        self._warn_of(self.rules.step(self.step, metrics, without=without))
        self._warn_of_silence(outcome.first_round, config.reward.recipe)
        if any(result.is_skipped for result in outcome.updates):
            self.warn(
                "update_skipped",
                "Loss or gradient was not finite, so the run skipped the update. "
                "Lower the learning rate.",
            )
        self._log.add(StepFinished, step=self.step, metrics=metrics)
        self._log.flush()
        return metrics

    def _record_mismatch(self, outcome: StepOutcome, config: RunConfig) -> None:
        measured = outcome.mismatch
        if measured is None:
            return
        is_old = len(outcome.minibatches) == 1 or compares_with_the_old_policy(
            config.loss
        )
        is_known = measured.gaps.any()
        groups = outcome.gathered.groups if is_known else []
        self._log.add(
            MismatchMeasured,
            step=self.step,
            against="old" if is_old else "current",
            incomparable=config.incomparable or (None if is_known else "unknown"),
            age=outcome.age,
            prompts=[group.prompt.index for group in groups],
            sizes=[len(group.completions) for group in groups],
            advantages=round_numbers(outcome.advantages.ravel()) if is_known else [],
            **measured.tree(),
        )

    def own_metrics(self, groups: Sequence[Group]) -> dict[str, float | None]:
        """Return metrics of the first names that functions gave; others are warned of
        once.
        """
        values_by_name = own_metrics(
            score for group in groups for score in group.scores
        )
        was_full = len(self._own_names) == MAX_OWN_METRICS
        kept = keep_first(values_by_name, self._own_names, limit=MAX_OWN_METRICS)
        if len(kept) < len(values_by_name) and not was_full:
            rules = [name.split("/")[1] for name in {*self._own_names, *values_by_name}]
            [(rule, count)] = Counter(rules).most_common(1)
            self.warn(
                "too_many_metrics",
                f'Rule "{rule}" returned {count:,} different names of metrics; the run '
                f"keeps the first {MAX_OWN_METRICS:,} of all rules. Return the same "
                "names each time.",
                value=count,
                threshold=MAX_OWN_METRICS,
            )
        return kept

    def _warn_of_silence(self, groups: Sequence[Group], recipe: Recipe) -> None:
        """Once, of rules that gave no score in a recipe's first steps, as where the
        answer's column is wrongly mapped; others hide it, as groups have rewards.
        """
        if recipe != self._recipe:
            self._recipe, self._num_read = recipe, 0
            self._silent = {rule.name for rule in recipe.rules}
        self._num_read += 1
        if self._num_read > FIRST:
            return
        scores = [score for group in groups for score in group.scores]
        self._silent -= {n for s in scores for n, v in s.rules.items() if v is not None}
        is_all = len(self._silent) == len(recipe.rules)  # then no group has a score
        if self._num_read < FIRST or is_all:
            return
        reads = []
        for name in sorted(self._silent):
            why = Counter(s.errors[name] for s in scores if name in s.errors)
            for reason, _ in why.most_common(1):
                reads.append(f'Rule "{name}" gave no score in {FIRST} steps: {reason}')
        if reads:
            self.warn("rule_unscored", "\n".join(reads))

    def judge_evaluation(self, metrics: Metrics) -> None:
        """Warn of what an evaluation shows beside the steps before it."""
        self._warn_of(self.rules.evaluation(self.step, metrics))

    def _warn_of(self, changes: Iterable[Triggered[str] | Recovered[str]]) -> None:
        for change in changes:
            if isinstance(change, Recovered):
                continue
            rule = BY_CODE[change.key[0]]
            reads = rule.condition.describe(change.metric)
            message = f"{rule.name}: {reads}. {rule.why}"
            self.warn(rule.code, message, value=change.value, threshold=change.bound)

    def _record_group(
        self,
        group: Group,
        advantages: Sequence[float],
        config: RunConfig,
        num_groups: int,
        *,
        is_trained: bool,
        age: int | None,
    ) -> None:
        rewards = group.scored_rewards
        values = [notes_of(score) for score in group.scores]
        is_played = any(completion.is_episode for completion in group.completions)
        self._log.add(
            GroupScored,
            step=self.step,
            prompt_index=group.prompt.index,
            prompt=group.prompt.text,
            begun=group.prompt.begun,
            messages=list(group.prompt.messages)
            if is_played and uses_chat_template(self._tokenizer, config.data)
            else [],
            answer=group.prompt.row.answer,
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            reward_std=reward_std(group, ddof=config.advantage.ddof),
            signal=signal_of(group.scores, config.reward.recipe, step=self.step),
            is_trained=is_trained,
            age=age,
            num_notes=sum(len(part) for notes in values for part in notes),
            completions=[
                ScoredCompletion(
                    text=completion.text,
                    num_tokens=completion.num_policy_tokens,
                    end_reason=completion.end_reason,
                    reward=score.total,
                    rules=score.rules,
                    advantage=advantage,
                    mean_logprob=completion.mean_logprob,
                    logs=notes.logs,
                    errors=notes.errors,
                    turns=turn_records(completion),
                )
                for completion, score, advantage, notes in zip(
                    group.completions,
                    group.scores,
                    advantages,
                    cut_notes(values, num_groups=num_groups),
                    strict=True,
                )
            ],
        )


# Of a call's arguments and of its result in an event; of a completion's calls fewer
# each, if there are many.
_MAX_CALL_CHARS, _MAX_CALLS_CHARS = 2_000, 65_536


def turn_records(completion: Rollout) -> list[TurnRecord]:
    """Return where the turns of an episode are in its text; of one turn none."""
    if not completion.is_episode:
        return []
    records, char, token = [], 0, 0
    num_calls = sum(len(turn.calls) for turn in completion.turns)
    limit = min(_MAX_CALL_CHARS, _MAX_CALLS_CHARS // max(num_calls, 1))
    for turn in completion.turns:
        token += len(turn.token_ids)
        for start, end, call in turn.messages:
            records.append(
                TurnRecord(
                    author=turn.author if call is None else "tool",
                    name="" if call is None else call.name[:limit],
                    start=char + start,
                    end=char + end,
                    token_end=token,
                    seconds=turn.seconds if call is None else call.seconds,
                    reward=turn.reward,
                    calls=[] if call is None else [_call_record(call, limit)],
                )
            )
        char += len(turn.text)
    return records


def _call_record(call: ToolCall, limit: int) -> CallRecord:
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return CallRecord(
        name=call.name[:limit],
        arguments=arguments[:limit],
        result=call.result[:limit],
        error=call.error[:limit],
    )


def notes_of(score: Score) -> Notes:
    """Return what rules said of a completion; that one does not apply to its row is
    none.
    """
    return Notes(score.logs, {name: score.errors[name] for name in score.failed})
