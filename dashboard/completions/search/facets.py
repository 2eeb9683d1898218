"""The number of matches of each further filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.http import QueryDict

from dashboard.completions.flags import ENDS, EPISODE_ENDS, SURPRISES, FlagFilter
from dashboard.completions.forms import MARKS
from dashboard.completions.search.annotated import Label, labels_of_completions, locate
from dashboard.completions.search.blocks import read_column
from dashboard.completions.search.columns import FLAGS, MOST_TALLIED, Column
from dashboard.completions.search.filters import Selection

NUM_RANGES = 8
MOST_TAGS = 12
VALUES = np.arange(256)
RARE_ENDS = {"unknown", *EPISODE_ENDS}


@dataclass(frozen=True, kw_only=True, slots=True)
class FacetValue:
    label: str
    count: int
    query: str  # of the URL that adds or removes it
    is_chosen: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Facet:
    title: str
    values: list[FacetValue]


class Facets:
    """Facets of these selections; their links keep the other filters."""

    def __init__(
        self,
        selections: Sequence[Selection],
        query: QueryDict,
        outcomes: Mapping[str, FlagFilter],
    ) -> None:
        self._selections, self._outcomes = selections, outcomes
        self._query = query
        # Counts by value of FLAGS, [3, 256], of each selection.
        parts = [selection for selection in selections if not selection.is_whole]
        columns = [
            read_column([selection.block for selection in parts], name)
            for name in FLAGS
        ]
        counted: dict[int, Column] = {}
        for selection, *bits in zip(parts, *columns, strict=True):
            indices = selection.indices()
            values = [column.take(indices) for column in bits]
            counted[id(selection)] = np.stack(
                [np.bincount(some, minlength=256) for some in values]
            )
        self._tallies = [
            counted.get(id(selection), selection.block.tallies)
            for selection in selections
        ]

    def all(self, marks: Sequence[Label]) -> list[Facet]:
        facets = [
            self._of_flags("Outcome", "outcome", self._outcomes),
            self._of_flags("Unusual", "surprise", SURPRISES),
            self._of_flags("Finish", "end", ENDS),
            self._of_rules(),
            self._of_steps(),
            *self._of_marks(marks),
        ]
        return [facet for facet in facets if facet.values]

    def _of_flags(
        self, title: str, field: str, filters: Mapping[str, FlagFilter]
    ) -> Facet:
        kinds = sum((tally[0] for tally in self._tallies), np.zeros(256, int))
        counted = [
            (name, label, _count(kinds, mask, value))
            for name, (label, mask, value) in filters.items()
        ]
        counted = [entry for entry in counted if entry[0] not in RARE_ENDS or entry[2]]
        return Facet(title=title, values=self._of_field(field, counted))

    def _of_field(
        self, field: str, counted: Iterable[tuple[str, str, int]]
    ) -> list[FacetValue]:
        """List values; a field has one: other values would have no matches."""
        chosen = self._query.get(field, "")
        return [
            self._value(label, count, {field: value})
            for value, label, count in counted
            if chosen in ("", "any", value)
        ]

    def _of_rules(self) -> Facet:
        chosen = self._query.get("rule", "")
        names = {
            name
            for selection in self._selections
            for name in selection.block.rule_names
        }
        full: Counter[str] = Counter()
        none: Counter[str] = Counter()
        for selection, (_, is_full, is_none) in zip(
            self._selections, self._tallies, strict=True
        ):
            for row, name in enumerate(selection.block.rule_names[:MOST_TALLIED]):
                if chosen in ("", name):
                    full[name] += _count(is_full, 1 << row, 1 << row)
                    none[name] += _count(is_none, 1 << row, 1 << row)
        values = []
        for name in full:
            # The other bound stays, and this one if it is tighter.
            at_least = {"rule": name, "min_score": "1"}
            at_most = {"rule": name, "max_score": "0"}
            if self._bound("min_score", 1) <= 1:
                values.append(self._value(f"{name} at least 1", full[name], at_least))
            if self._bound("max_score", 0) >= 0:
                values.append(self._value(f"{name} at most 0", none[name], at_most))
        title = "Rule scores"
        if len(names) > MOST_TALLIED and not chosen:
            title = f"Rule scores ({len(full)} of {len(names)} rules)"
        return Facet(title=title, values=values)

    def _bound(self, field: str, default: float) -> float:
        try:
            return float(self._query.get(field) or default)
        except ValueError:
            return default

    def _of_steps(self) -> Facet:
        numbers: list[Column] = [np.empty(0, np.int64)]
        nums: list[Column] = [np.empty(0, np.int64)]
        for selection in self._selections:
            ends = selection.block.step_ends
            if selection.is_whole:
                of_steps = np.diff(ends, prepend=0)
            elif selection.mask is None:
                of_steps = np.diff(
                    np.clip(ends, selection.low, selection.high), prepend=selection.low
                )
            else:
                running = np.append(0, np.cumsum(selection.mask, dtype=np.int64))
                inside = np.clip(ends, selection.low, selection.high) - selection.low
                of_steps = np.diff(running[inside], prepend=0)
            is_some = of_steps > 0
            numbers.append(selection.block.steps["step"][is_some].astype(np.int64))
            nums.append(of_steps[is_some])
        steps, counts = np.concatenate(numbers), np.concatenate(nums)
        if not len(steps) or steps[0] == steps[-1]:
            return Facet(title="Steps", values=[])
        first, last = int(steps[0]), int(steps[-1])
        width = -(-(last - first + 1) // NUM_RANGES)
        in_range = np.bincount((steps - first) // width, counts).astype(int)
        values = []
        for i, count in enumerate(in_range.tolist()):
            low = first + i * width
            high = min(low + width - 1, last)
            label = f"{low:,}" if low == high else f"{low:,}–{high:,}"
            chosen = {"first_step": str(low), "last_step": str(high)}
            values.append(self._value(label, count, chosen))
        return Facet(title="Steps", values=values)

    def _of_marks(self, marks: Sequence[Label]) -> list[Facet]:
        by_block = {selection.block.pk: selection for selection in self._selections}
        counts: Counter[tuple[str, str]] = Counter()
        for marked in locate(
            [selection.block for selection in self._selections],
            labels_of_completions(marks),
        ):
            selection = by_block[marked.block.pk]
            for label, indices in marked.indices.items():
                inside = indices[
                    (indices >= selection.low) & (indices < selection.high)
                ]
                if selection.mask is not None:
                    inside = inside[selection.mask[inside - selection.low]]
                counts[label] += len(inside)
        tags = [(name, n) for (field, name), n in counts.items() if field == "tag"]
        tags.sort(key=lambda tag: (-tag[1], tag[0]))
        most_used = [(name, name, n) for name, n in tags[:MOST_TAGS]]
        cut = f"{MOST_TAGS} of {len(tags)} tags" if len(tags) > MOST_TAGS else "Tags"
        marks_of_users = [(name, label, counts["mark", name]) for name, label in MARKS]
        return [
            Facet(title=cut, values=self._of_field("tag", most_used)),
            Facet(
                title="Annotation",
                values=self._of_field(
                    "mark", [mark for mark in marks_of_users if mark[2]]
                ),
            ),
        ]

    def _value(self, label: str, count: int, chosen: dict[str, str]) -> FacetValue:
        query = self._query.copy()
        is_chosen = all(query.get(name, "") == value for name, value in chosen.items())
        for name, value in chosen.items():
            query[name] = "" if is_chosen and name != "rule" else value
        if is_chosen and not (query.get("min_score") or query.get("max_score")):
            query.pop("rule", None)
        for name in ("page", "start", "before"):
            query.pop(name, None)
        for name in [name for name, value in query.items() if not value]:
            del query[name]
        return FacetValue(
            label=label, count=count, query=f"?{query.urlencode()}", is_chosen=is_chosen
        )


def _count(tally: Column, mask: int, value: int) -> int:
    return int(tally[(VALUES & mask) == value].sum())
