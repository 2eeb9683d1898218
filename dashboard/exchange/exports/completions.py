"""A run's completions, each with what is known of its group and said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from django.db.models import F, Func, Q, QuerySet

from dashboard.exchange.exports.span import Span
from dashboard.exchange.exports.tables import Record, Table
from dashboard.runs.models import Run
from dashboard.samples.annotations.queries import Marks, marked_group_ids, read_marks
from dashboard.samples.completion import Completion
from dashboard.samples.models import Group

AT_ONCE = 50  # groups, whose completions are in memory together
_TAG = pa.struct({"name": pa.string(), "by": pa.string()})
_COMMENT = pa.struct({"text": pa.string(), "by": pa.string(), "at": pa.string()})
COLUMNS: dict[str, pa.DataType] = {
    "step": pa.int64(),
    "prompt_index": pa.int64(),
    "position": pa.int64(),
    "prompt": pa.string(),
    "answer": pa.string(),
    "completion": pa.string(),
    "reward": pa.float64(),
    "rules": pa.map_(pa.string(), pa.float64()),
    "advantage": pa.float64(),
    "num_tokens": pa.int64(),
    "end_reason": pa.string(),
    "mean_logprob": pa.float64(),
    "signal": pa.string(),
    "is_trained": pa.bool_(),
    "group_reward_mean": pa.float64(),
    "group_reward_std": pa.float64(),
    "good": pa.int64(),
    "bad": pa.int64(),
    "tags": pa.list_(_TAG),
    "comments": pa.list_(_COMMENT),
}


def completions_table(run: Run, span: Span) -> Table:
    """A row a completion, by step, prompt and position."""
    return Table(
        columns=COLUMNS,
        rows=_rows(run, span),
        maps={"rules": rule_names(run, span)},
    )


def groups_of(run: Run, span: Span) -> QuerySet[Group]:
    steps = (span.first, span.last)
    return Group.objects.current().filter(run=run, step__range=steps)


def rule_names(run: Run, span: Span) -> list[str]:
    """All that scored; one query."""
    named = groups_of(run, span).annotate(
        rule=Func(F("rule_names"), function="unnest", output_field=None)
    )
    return sorted(named.order_by().values_list("rule", flat=True).distinct())


def _rows(run: Run, span: Span) -> Iterator[Record]:
    marked = set(marked_group_ids(run))
    groups, behind = groups_of(run, span).order_by("step", "prompt_index"), Q()
    while found := list(
        groups.filter(behind).prefetch_related("packed_completions")[:AT_ONCE]
    ):
        said = marked & {group.pk for group in found}
        marks = read_marks(said, None) if said else {}
        for group in found:
            for completion in group.completions:
                own = marks.get((group.pk, completion.position))
                yield _row(group, completion, own or Marks())
        step, prompt = found[-1].step, found[-1].prompt_index
        behind = Q(step__gt=step) | Q(step=step, prompt_index__gt=prompt)


def _row(group: Group, completion: Completion, marks: Marks) -> Record:
    scores = map(_finite, completion.rule_scores)
    return {
        "step": group.step,
        "prompt_index": group.prompt_index,
        "position": completion.position,
        "prompt": group.prompt,
        "answer": group.answer,
        "completion": completion.text,
        "reward": _finite(completion.reward),
        "rules": dict(zip(group.rule_names, scores, strict=False)),
        "advantage": _finite(completion.advantage),
        "num_tokens": completion.num_tokens,
        "end_reason": completion.end_reason,
        "mean_logprob": _finite(completion.mean_logprob),
        "signal": group.signal,
        "is_trained": group.is_trained,
        "group_reward_mean": _finite(group.reward_mean),
        "group_reward_std": _finite(group.reward_std),
        "good": marks.num_up,
        "bad": marks.num_down,
        "tags": [{"name": t.name, "by": _name(t.user)} for t in marks.tags],
        "comments": [
            {"text": c.text, "by": _name(c.user), "at": c.created_at.isoformat()}
            for c in marks.comments
        ],
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN, which an outside trainer may log."""
    return value if value is not None and math.isfinite(value) else None


def _name(user: Any) -> str | None:
    return user.username if user else None
