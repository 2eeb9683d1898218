"""Indices of the annotated completions in the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dashboard.accounts.models import User
from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.search.blocks import Block, read_column
from dashboard.completions.search.columns import Column
from dashboard.completions.search.filters import Selection
from dashboard.project.database import fetch_all
from dashboard.runs.models import Run

ANY = ("good", "bad", "tagged", "commented")
NO_INDICES = np.empty(0, np.int64)


class Label(NamedTuple):
    """A label of a completion, or of a whole group where position is None."""

    label: tuple[str, str]  # the form's field, and its value
    step: int
    group_id: int
    position: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelIndices:
    """Indices of the completions of a block, by label."""

    block: Block
    indices: dict[tuple[str, str], Column]


def narrow_to_annotated(
    selections: Sequence[Selection],
    run: Run,
    form: CompletionFilterForm,
    reader: User | None,
) -> list[Selection]:
    """Completions with this tag or annotation, by anyone or by the reader.

    Of a group's annotations only tags apply to its completions. Up to five queries,
    none without these filters.
    """
    tag, kind = (form.value(name) or "" for name in ("tag", "mark"))
    by_reader = form.value("by") == "me"
    if by_reader and not (tag or kind):
        kind = "any"
    if not (tag or kind):
        return list(selections)
    labels = labels_of_completions(read_labels(run, by=reader if by_reader else None))
    indices = {
        selection.block.pk: selection.indices
        for selection in locate([selection.block for selection in selections], labels)
    }
    narrowed = [
        selection.narrow(
            _is_annotated(selection, indices[selection.block.pk], tag=tag, kind=kind)
        )
        for selection in selections
        if selection.block.pk in indices
    ]
    return [selection for selection in narrowed if selection.count]


def _is_annotated(
    selection: Selection, indices: dict[tuple[str, str], Column], *, tag: str, kind: str
) -> Column:
    kinds = ANY if kind == "any" else (kind,)
    is_so = np.ones(selection.high - selection.low, bool)
    if tag:
        is_so &= _mask(selection, [indices.get(("tag", tag), NO_INDICES)])
    if kind:
        is_so &= _mask(selection, [indices.get(("mark", k), NO_INDICES) for k in kinds])
    return is_so


def _mask(selection: Selection, indices: Sequence[Column]) -> Column:
    is_so = np.zeros(selection.block.num_completions, bool)
    is_so[np.concatenate(indices)] = True
    return is_so[selection.low : selection.high]


LABELS = """
    SELECT label, name, step, group_id, position FROM (
        SELECT 'mark', CASE WHEN is_up THEN 'good' ELSE 'bad' END,
            group_id, position, user_id FROM samples_thumb
        UNION ALL SELECT 'tag', name::text, group_id, position, user_id FROM samples_tag
        UNION ALL SELECT 'mark', 'tagged', group_id, position, user_id FROM samples_tag
        UNION ALL SELECT 'mark', 'commented', group_id, position, user_id
            FROM samples_comment
    ) AS labels (label, name, group_id, position, user_id)
    JOIN samples_group ON samples_group.id = group_id
    WHERE run_id = %(run)s AND superseded_by IS NULL
    AND (%(user)s::int IS NULL OR user_id = %(user)s)"""


def read_labels(run: Run, *, by: User | None = None) -> list[Label]:
    """Read labels of the current history, by anyone or one user; one query."""
    return [
        Label((label, name), *at)
        for label, name, *at in fetch_all(
            LABELS, {"run": run.pk, "user": by.pk if by else None}, is_prepared=True
        )
    ]


def labels_of_completions(labels: Sequence[Label]) -> list[Label]:
    """Labels that apply to completions: of groups only tags."""
    return [
        label
        for label in labels
        if label.position is not None
        or label.label[0] == "tag"
        or label.label[1] == "tagged"
    ]


def locate(blocks: Sequence[Block], labels: Iterable[Label]) -> list[LabelIndices]:
    """Locate the labels in their blocks; up to two queries."""
    filled = [block for block in blocks if len(block.steps)]
    lasts = [int(block.steps["step"][-1]) for block in filled]
    by_block: dict[int, list[Label]] = {}
    for label in labels:
        row = int(np.searchsorted(lasts, label.step))
        if row < len(filled) and label.step >= filled[row].steps["step"][0]:
            by_block.setdefault(row, []).append(label)
    used = [filled[row] for row in by_block]
    if not used:
        return []
    ids, sizes = (read_column(used, name) for name in ("group_ids", "group_sizes"))
    return [
        LabelIndices(block=block, indices=_indices_of(of_block, group_ids, group_sizes))
        for block, of_block, group_ids, group_sizes in zip(
            used, by_block.values(), ids, sizes, strict=True
        )
    ]


def _indices_of(
    labels: Sequence[Label], group_ids: Column, group_sizes: Column
) -> dict[tuple[str, str], Column]:
    starts = np.cumsum(group_sizes, dtype=np.int64) - group_sizes
    rows = {group_id: row for row, group_id in enumerate(group_ids.tolist())}
    by_label: dict[tuple[str, str], set[int]] = {}
    for text_label in labels:
        row = rows.get(text_label.group_id)
        if row is None:
            continue
        start, size = int(starts[row]), int(group_sizes[row])
        positions = (
            range(size) if text_label.position is None else [text_label.position]
        )
        indices = by_label.setdefault(text_label.label, set())
        indices.update(start + position for position in positions if position < size)
    return {label: np.array(sorted(indices)) for label, indices in by_label.items()}
