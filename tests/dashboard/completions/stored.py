"""A group's completions, put into its row and changed there."""

from collections.abc import Sequence
from typing import Any

from dashboard.completions.models import Completion, Group, GroupCompletions
from dashboard.runs.models import Run

# By the field of a Completion.
COLUMNS = {
    "text": "texts",
    "num_tokens": "num_tokens",
    "end_reason": "end_reasons",
    "reward": "rewards",
    "advantage": "advantages",
    "mean_logprob": "mean_logprobs",
}


def store_completions(group: Group, rows: Sequence[dict[str, Any]]) -> None:
    """Each with a Completion's fields but its group and position."""
    columns: dict[str, Any] = {
        column: [row.get(name) for row in rows] for name, column in COLUMNS.items()
    }
    GroupCompletions.objects.create(
        group_id=group.pk,  # which does not hold on to it
        num_bytes=sum(len(row["text"].encode()) for row in rows),
        rule_scores=[score for row in rows for score in row["rule_scores"]],
        **columns,
    )


def change_completions(
    group: Group | None = None, *, position: int | None = None, **values: Any
) -> None:
    """Of a group or of all there are, at one position or at all."""
    wanted = Group.objects.all() if group is None else Group.objects.filter(pk=group.pk)
    for found in wanted.select_related("packed_completions"):
        stored, width = found.packed_completions, len(found.rule_names)
        for name, value in values.items():
            for place in range(len(stored.texts)):
                if position not in (None, place):
                    continue
                if name == "rule_scores":
                    stored.rule_scores[place * width : (place + 1) * width] = value
                else:
                    getattr(stored, COLUMNS[name])[place] = value
        stored.num_bytes = sum(len(text.encode()) for text in stored.texts)
        stored.save()


def completions_of(run: Run) -> list[Completion]:
    """Of superseded groups too."""
    groups = Group.objects.filter(run=run).select_related("packed_completions")
    return [each for group in groups.order_by("pk") for each in group.completions]
