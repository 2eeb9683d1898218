"""Scores a stored step with another recipe, by the code of a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from dashboard.analysis.rescoring.credit import (
    COMPLETION,
    GROUP,
    SCORE,
    SIGNALS,
    Numbers,
    Records,
    count_reordered,
    give_credit,
    numbers,
    ranks,
)
from dashboard.analysis.rescoring.models import RescoredStep, Rescoring
from dashboard.completions.models import Completion, Group
from dashboard.datasets.models import DatasetRow
from dashboard.project.database import clean_json, clean_text
from dashboard.runs.models import Run
from trainer.config import RunConfig
from trainer.rewards.rule import Sample, conversation, split_prefill
from trainer.rewards.scoring import OVERLONG, Score, add_usage, penalised, signal_of
from trainer.rewards.workers import GroupScorer

# Groups in memory together; judges are called for all of them at once.
GROUPS_AT_ONCE = 16
KEPT_FAILURES = 20  # of a step
LONGEST_ERROR = 500


class Refused(ValueError):
    """The step cannot be scored; the text is for the user."""


@dataclass(slots=True)
class ScoredGroup:
    """Only numbers: the texts are no longer in memory."""

    group: Group
    old: Numbers
    old_advantages: Numbers
    old_rules: list[dict[str, float | None]]
    lengths: list[float | None]  # the policy's tokens of each completion
    scores: list[Score] = field(default_factory=list)


def rescore_step(
    rescoring: Rescoring,
    step: int,
    config: RunConfig,
    scorer: GroupScorer,
    *,
    on_scored: Callable[[int], None] = lambda _: None,
) -> tuple[RescoredStep, dict[str, dict[str, int]]]:
    """Return the unsaved result of a step, and what judges took for it, by rule.

    Args:
        config: of the step, with the new recipe.
        on_scored: called with the number of completions scored since the last call.

    Raises:
        Refused: a row is missing, or is another one.
        ScoringFailed: a rule's process dies repeatedly on one completion.
    """
    pending = (
        Group.objects.current()
        .filter(run=rescoring.run_id, step=step)
        .order_by("prompt_index")
        .prefetch_related("packed_completions")
    )
    groups: list[ScoredGroup] = []
    waiting = pending.iterator(chunk_size=GROUPS_AT_ONCE)
    while part := list(islice(waiting, GROUPS_AT_ONCE)):
        scored = _score_part(rescoring, part, config, scorer)
        on_scored(sum(len(group.scores) for group in scored))
        groups += scored
    usage = add_usage(score for group in groups for score in group.scores)
    return _pack(rescoring, step, groups, config), usage


def _score_part(
    rescoring: Rescoring, part: list[Group], config: RunConfig, scorer: GroupScorer
) -> list[ScoredGroup]:
    rows = rows_of(rescoring.run, part)
    recipe, submitted = config.reward.recipe, []
    for group in part:
        completions = group.completions
        samples = samples_of(
            rescoring.run, group, rows.get(group.prompt_index), completions, config
        )
        result = scorer.submit(
            recipe,
            samples,
            name=f"row {group.prompt_index} of step {group.step}",
            step=group.step,
        )
        before = ScoredGroup(
            group=group,
            old=numbers([sampled.reward for sampled in completions]),
            old_advantages=numbers([sampled.advantage for sampled in completions]),
            old_rules=[
                dict(zip(group.rule_names, sampled.rule_scores, strict=False))
                for sampled in completions
            ],
            lengths=[sampled.num_tokens for sampled in completions],
        )
        submitted.append((before, completions, result))
    for scored, completions, result in submitted:
        scored.scores = [
            penalised(
                score,
                completion.num_tokens or 0,  # which only imported ones lack
                max_new_tokens=config.rollout.max_new_tokens,
                buffer=config.reward.overlong_buffer_tokens,
                penalty=config.reward.overlong_penalty,
            )
            for score, completion in zip(result().scores, completions, strict=True)
        ]
    return [scored for scored, _, _ in submitted]


def rows_of(run: Run, part: Sequence[Group]) -> dict[int, DatasetRow]:
    positions = [group.prompt_index for group in part]
    assert run.dataset_version, "not imported"
    return {
        row.position: row
        for row in run.dataset_version.rows.filter(position__in=positions)
    }


def samples_of(
    run: Run,
    group: Group,
    row: DatasetRow | None,
    completions: Sequence[Completion],
    config: RunConfig,
) -> list[Sample]:
    """Return the input of the rules. Refused if the row is not the group's."""
    version = run.dataset_version
    at = f"row {group.prompt_index} (line {group.prompt_index + 1})"
    if row is None:
        raise Refused(
            f"Step {group.step} has a group of {at}, but {version} has no such "
            "row. Cohort cannot score its completions."
        )
    answer, scored_by = row.answer_value, group.answer_value
    if clean_json(answer) != scored_by:
        raise Refused(
            f"In {version}, {at} has the answer {answer!r:.80}, but the group "
            f"of step {group.step} has {scored_by!r:.80}. The group was "
            "sampled from another row."
        )
    messages = conversation(
        row.prompt_value,
        row.columns,
        system_prompt=config.data.system_prompt,
        prompt_template=config.data.prompt_template,
        where=at,
    )
    answered, begun = split_prefill(messages, config.data.completion_prefix)
    if not group.prompt.endswith(begun):  # older runs began another message
        answered, begun = messages, ""
    return [
        Sample(
            group.prompt.removesuffix(begun),
            completion.policy_text,
            answer,
            row.columns,
            messages=answered,
            is_chat=not isinstance(row.prompt_value, str),
            begun=begun,
        )
        for completion in completions
    ]


def _pack(
    rescoring: Rescoring, step: int, groups: list[ScoredGroup], config: RunConfig
) -> RescoredStep:
    credit = give_credit(
        [group.scores for group in groups],
        [group.group.is_trained for group in groups],
        config,
        step=step,
        lengths=[group.lengths for group in groups],
    )
    names = _rule_names(config)
    completions, records = [], []
    for index, group in enumerate(groups):
        new = numbers([score.total for score in group.scores])
        advantages = (
            np.full(len(new), np.nan)
            if credit.advantages is None
            else numbers(list(credit.advantages[index]))
        )
        completions.append(_completions_of(group, new, advantages))
        records.append(
            _group_of(group, new, config, is_trained=credit.is_trained[index])
        )
    scores = [score for group in groups for score in group.scores]
    old = [rules for group in groups for rules in group.old_rules]
    failures = list(_failures(groups))
    return RescoredStep(
        rescoring=rescoring,
        step=step,
        num_completions=len(scores),
        groups=np.array(records, GROUP).tobytes(),
        completions=b"".join(part.tobytes() for part in completions),
        rule_names=names,
        scores=_table([score.rules for score in scores], names),
        old_scores=_table(old, names),
        num_failures=len(failures),
        failures=failures[:KEPT_FAILURES],
        problem=credit.problem,
    )


def _rule_names(config: RunConfig) -> list[str]:
    names = [rule.name for rule in config.reward.recipe.rules]
    has_penalty = config.reward.overlong_buffer_tokens > 0
    return [*names, OVERLONG] if has_penalty and OVERLONG not in names else names


def _table(rules: list[dict[str, float | None]], names: list[str]) -> bytes:
    return (
        numbers([scores.get(name) for scores in rules for name in names])
        .astype(SCORE)
        .tobytes()
    )


def _completions_of(scored: ScoredGroup, new: Numbers, advantages: Numbers) -> Records:
    records = np.zeros(len(new), COMPLETION)
    records["step"], records["prompt"] = scored.group.step, scored.group.prompt_index
    records["position"], records["group_size"] = np.arange(len(new)), len(new)
    records["old"], records["new"] = scored.old, new
    records["old_advantage"], records["new_advantage"] = (
        scored.old_advantages,
        advantages,
    )
    records["old_rank"], records["new_rank"] = ranks(scored.old), ranks(new)
    return records


def _group_of(
    scored: ScoredGroup, new: Numbers, config: RunConfig, *, is_trained: bool
) -> tuple[Any, ...]:
    group = scored.group
    signal = signal_of(scored.scores, config.reward.recipe, step=group.step)
    return (
        *(group.step, group.prompt_index, len(new)),
        *(SIGNALS.index(group.signal), SIGNALS.index(signal)),
        *(group.is_trained, is_trained),
        *count_reordered(scored.old, new),
    )


def _failures(groups: list[ScoredGroup]) -> Iterator[dict[str, Any]]:
    for scored in groups:
        for position, score in enumerate(scored.scores):
            for rule in score.failed:
                yield {
                    "prompt": scored.group.prompt_index,
                    "position": position,
                    "rule": rule,
                    "error": clean_text(score.errors[rule])[:LONGEST_ERROR],
                }
