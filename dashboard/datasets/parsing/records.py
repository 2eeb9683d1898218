"""A record is a line's values by column name, before any column has a role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dashboard.datasets.limits import MAX_COLUMNS, MAX_NAME_CHARS, MAX_ROWS
from dashboard.datasets.parsing.refusals import Refusal, quote
from dashboard.datasets.parsing.values import broken_text


@dataclass(frozen=True, slots=True)
class Record:
    line: int
    values: dict[str, Any]
    row: int | None = None  # from 1, where a line may hold several


Parsed = Record | Refusal


def refuse_names(line: int, names: list[str]) -> Refusal | None:
    """Why these cannot be a record's columns."""
    if len(names) > MAX_COLUMNS:
        return Refusal(
            line=line,
            value=f"{len(names):,} columns",
            problem=f"A row may have {MAX_COLUMNS:,} columns at most.",
            remedy="Keep only the columns that the prompt and the rules need.",
        )
    for name in names:
        if len(name) > MAX_NAME_CHARS or not _is_plain(name):
            return _refuse_name(line, name)
    return None


# Rows share their names, and there may be a million rows.
@lru_cache(MAX_COLUMNS)
def _is_plain(name: str) -> bool:
    return bool(name.strip()) and not broken_text(name)


def _refuse_name(line: int, name: str) -> Refusal:
    if not name.strip():
        problem, remedy = "A column has no name.", "Give every column a name."
    elif len(name) > MAX_NAME_CHARS:
        problem = f"A column's name is longer than {MAX_NAME_CHARS} characters."
        remedy = "Shorten it."
    else:
        problem = f"A column's name holds {broken_text(name)}."
        remedy = "Rename the column."
    return Refusal(line=line, value=quote(name), problem=problem, remedy=remedy)


def bounded(parsed: Iterator[Parsed]) -> Iterator[Parsed]:
    """End with a refusal when the file holds no row, or too many."""
    count = 0
    for item in parsed:
        count += 1
        if count > MAX_ROWS:
            yield Refusal(
                line=item.line,
                row=item.row,
                problem=f"A file may hold {MAX_ROWS:,} rows at most.",
                remedy="Split it into several datasets.",
                ends_file=True,
            )
            return
        yield item
    if count == 0:
        yield Refusal(
            problem="The file holds no rows.",
            remedy="Check that it is the right file and was saved whole.",
            ends_file=True,
        )
