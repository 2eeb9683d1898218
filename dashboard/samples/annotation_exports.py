"""What people said of a run's groups, as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from dashboard.runs.models import Run
from dashboard.samples.annotations import Marks, marked_group_ids, read_marks
from dashboard.samples.models import Completion, Group

AT_ONCE = 50  # groups, whose completions are in memory together


def annotation_lines(run: Run) -> Iterator[str]:
    """A line for each group and completion that something was said of."""
    for group, completions, marks in _read(run):
        for place in [None, *completions]:
            said = marks.get((group.pk, place))
            if said is None:
                continue
            row = {**_place_of(run, group), "position": place}
            if place is not None:
                row |= _completion(group, completions[place])
            yield _line({**row, **_said(said)})


def preference_lines(run: Run) -> Iterator[str]:
    """Pairs as DPO learns from, in TRL's columns: prompt, chosen, rejected.

    Of a group each completion that more people judged good than bad, with each that
    more judged bad than good; the same text is no pair.
    """
    for group, completions, marks in _read(run):
        balance = {
            place: marks[group.pk, place].balance
            for place in completions
            if (group.pk, place) in marks
        }
        chosen = [completions[place] for place, sum_ in balance.items() if sum_ > 0]
        rejected = [completions[place] for place, sum_ in balance.items() if sum_ < 0]
        for good in chosen:
            for bad in rejected:
                if good.text == bad.text:
                    continue
                yield _line(
                    {
                        "prompt": group.prompt,
                        "chosen": good.text,
                        "rejected": bad.text,
                        "chosen_reward": _finite(good.reward),
                        "rejected_reward": _finite(bad.reward),
                        **_place_of(run, group),
                        "chosen_position": good.position,
                        "rejected_position": bad.position,
                    }
                )


def _read(
    run: Run,
) -> Iterator[tuple[Group, dict[int, Completion], dict[Any, Marks]]]:
    marked = Group.objects.filter(pk__in=marked_group_ids(run))
    ids = list(marked.order_by("step", "prompt_index").values_list("pk", flat=True))
    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        marks = read_marks(part, None)
        groups = Group.objects.prefetch_related("packed_completions").in_bulk(part)
        for group in (groups[pk] for pk in part if pk in groups):
            yield group, {c.position: c for c in group.completions}, marks


def _place_of(run: Run, group: Group) -> dict[str, Any]:
    return {
        "run": run.name,
        "run_id": run.pk,
        "step": group.step,
        "prompt_index": group.prompt_index,
    }


def _completion(group: Group, completion: Completion) -> dict[str, Any]:
    scores = map(_finite, completion.rule_scores)
    return {
        "prompt": group.prompt,
        "answer": group.answer,
        "completion": completion.text,
        "reward": _finite(completion.reward),
        "advantage": _finite(completion.advantage),
        "num_tokens": completion.num_tokens,
        "end_reason": completion.end_reason,
        "rules": dict(zip(group.rule_names, scores, strict=False)),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN, which an outside trainer may log."""
    return value if value is not None and math.isfinite(value) else None


def _said(marks: Marks) -> dict[str, Any]:
    return {
        "good": marks.num_up,
        "bad": marks.num_down,
        "tags": [{"name": tag.name, "by": _name(tag.user)} for tag in marks.tags],
        "comments": [
            {
                "text": comment.text,
                "by": _name(comment.user),
                "at": comment.created_at.isoformat(),
            }
            for comment in marks.comments
        ],
    }


def _name(user: Any) -> str | None:
    return user.username if user else None


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


EXPORTS: dict[str, Callable[[Run], Iterator[str]]] = {
    "annotations": annotation_lines,
    "preferences": preference_lines,
}
