"""The groups of a run list as rows: what each is, and what its runs came to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.accounts.templatetags.numbers import sig4
from dashboard.runs.charts.direction import direction_of
from dashboard.runs.config.fields import write_number
from dashboard.runs.table.cells import Row
from dashboard.runs.table.columns import Column
from dashboard.runs.table.keys import CONFIG
from dashboard.runs.table.tree import quote

MAX_OPEN = 20
JSON_WORDS = {"true": "yes", "false": "no"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Average:
    """A column over the runs of a group that have a value."""

    column: Column
    text: str = ""
    note: str = ""


@dataclass(kw_only=True, slots=True)
class RunGroupRow:
    keys: tuple[str, ...]
    values: tuple[str | None, ...]
    num_runs: int
    averages: list[Average]
    is_open: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def token(self) -> str:
        """As `open=` has it."""
        return json.dumps(self.values, ensure_ascii=False, separators=(",", ":"))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Key and value, as they are shown."""
        return [
            (key.removeprefix(CONFIG), _shown(value, key))
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    @property
    def label(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.parts)

    def query(self, text: str) -> str:
        """The group as a query, within the one that is there."""
        terms = [
            f"{key}:{'none' if value is None else quote(_shown(value, key))}"
            for key, value in zip(self.keys, self.values, strict=True)
        ]
        return " ".join([*([f"({text})"] if text else []), *terms])


def _shown(value: str | None, key: str) -> str:
    if value is None:
        return "none"
    return write_text(value) if key.startswith(CONFIG) else value


def read_group(
    row: dict[str, Any], keys: Sequence[str], columns: Sequence[Column]
) -> RunGroupRow:
    metrics = [column for column in columns if column.metric]
    values = tuple(row[f"key_{i}"] for i in range(len(keys)))
    own = dict(zip(keys, values, strict=True))
    return RunGroupRow(
        keys=tuple(keys),
        values=values,
        num_runs=row["num_runs"],
        averages=[
            _average(row, i, column, metrics, own) for i, column in enumerate(columns)
        ],
    )


def _average(
    row: dict[str, Any],
    place: int,
    column: Column,
    metrics: Sequence[Column],
    own: dict[str, str | None],
) -> Average:
    if column.metric:
        return _of_metric(row, metrics.index(column), column)
    if column.key in own:
        return Average(column=column, text=_shown(own[column.key], column.key))
    if column.setting and row[f"having_{place}"]:
        different = row[f"different_{place}"]
        if different == 1:
            return Average(column=column, text=write_text(row[f"only_{place}"]))
        return Average(column=column, note=f"{different:,} values")
    return Average(column=column)


def write_text(text: str) -> str:
    """A setting's value as pages write it, from the text that JSON has of it."""
    try:
        return write_number(float(text))
    except ValueError:
        return JSON_WORDS.get(text, text)


def _of_metric(row: dict[str, Any], place: int, column: Column) -> Average:
    """The mean, and beside it the best, or the ends where neither is better."""
    num = row[f"num_{place}"]
    if not num:
        return Average(column=column, note="n 0")
    low, high = sig4(row[f"low_{place}"]), sig4(row[f"high_{place}"])
    direction = direction_of(column.metric)
    ends = f"best {high if direction == 'higher' else low}"
    if direction is None:
        ends = f"{low} to {high}"
    return Average(
        column=column, text=sig4(row[f"mean_{place}"]), note=f"{ends}, n {num:,}"
    )


def read_open(tokens: Sequence[str], num_keys: int) -> set[tuple[str | None, ...]]:
    found = set()
    for token in tokens[:MAX_OPEN]:
        try:
            values = json.loads(token[:4_000])
        except (ValueError, RecursionError):
            continue
        if isinstance(values, list) and len(values) == num_keys:
            found.add(tuple(v if v is None else str(v) for v in values))
    return found
