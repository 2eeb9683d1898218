"""What a rescoring found as a file, a line for each completion."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dashboard.datasets.row_exports import defused
from dashboard.rescoring.models import RescoredStep, Rescoring
from dashboard.rescoring.records import COMPLETION, GROUP, SCORE, SIGNALS, unpack

COLUMNS = (
    *("run_id", "step", "prompt_index", "position"),
    *("old_reward", "new_reward", "old_rank", "new_rank"),
    *("old_advantage", "new_advantage", "old_signal", "new_signal"),
)
TYPES = {"jsonl": "application/jsonl", "csv": "text/csv"}
RENAMED = {"prompt_index": "prompt", "old_reward": "old", "new_reward": "new"}


def jsonl_lines(rescoring: Rescoring) -> Iterator[str]:
    for row, rules in _rows(rescoring):
        line = json.dumps({**row, "rules": rules}, ensure_ascii=False, allow_nan=False)
        yield line + "\n"


def csv_lines(rescoring: Rescoring) -> Iterator[str]:
    """With a mark at the beginning by which spreadsheets know UTF-8."""
    writer = csv.writer(_Line())
    names = _rule_names(rescoring)
    heads = [*COLUMNS, *(f"{when} {name}" for name in names for when in ("old", "new"))]
    yield "\ufeff" + writer.writerow([defused(head) for head in heads])
    for row, rules in _rows(rescoring):
        cells = [row[name] for name in COLUMNS]
        for name in names:
            scores = rules.get(name, {})
            cells += [scores.get("old"), scores.get("new")]
        yield writer.writerow(cells)


WRITERS = {"jsonl": jsonl_lines, "csv": csv_lines}


def _rule_names(rescoring: Rescoring) -> list[str]:
    """Of all steps, in the order in which they come."""
    parts = rescoring.scored.order_by("step").values_list("rule_names", flat=True)
    return list(dict.fromkeys(name for names in parts for name in names))


def _rows(rescoring: Rescoring) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for step in rescoring.scored.order_by("step").iterator(chunk_size=20):
        yield from _rows_of(rescoring, step)


def _rows_of(
    rescoring: Rescoring, step: RescoredStep
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    groups = unpack(bytes(step.groups), GROUP)
    completions = unpack(bytes(step.completions), COMPLETION)
    shape = (-1, len(step.rule_names))
    old = unpack(bytes(step.old_scores), SCORE).reshape(shape)
    new = unpack(bytes(step.scores), SCORE).reshape(shape)
    signals = np.repeat(np.arange(len(groups)), groups["num_completions"])
    for place, each in enumerate(completions):
        group = groups[signals[place]]
        row: dict[str, Any] = {"run_id": rescoring.run_id}
        for name in COLUMNS[1:10]:
            row[name] = _value(each[RENAMED.get(name, name)])
        for name in ("old_rank", "new_rank"):
            row[name] = row[name] or None
        row["old_signal"] = SIGNALS[group["old_signal"]]
        row["new_signal"] = SIGNALS[group["new_signal"]]
        yield (
            row,
            {
                name: {"old": _value(old[place, at]), "new": _value(new[place, at])}
                for at, name in enumerate(step.rule_names)
            },
        )


def _value(value: Any) -> Any:
    found = value.item()
    is_none = isinstance(found, float) and not math.isfinite(found)
    return None if is_none else found


class _Line:
    """What csv writes to: `writerow` gives the line back."""

    def write(self, line: str) -> str:
        return line
