"""Records of a file with checked values, and the errors of invalid ones.

A record has the values of a row by column name, before the mapping.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dashboard.datasets.limits import (
    MAX_COLUMNS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_LINE_CHARS,
    MAX_NAME_CHARS,
    MAX_ROWS,
    SHOWN_PLACES,
    SHOWN_REFUSALS,
)

SHOWN_CHARS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An error of a row or file: position, value, problem and remedy."""

    problem: str
    remedy: str
    line: int | None = None  # from 1; None: the file as a whole
    row: int | None = None  # from 1, where a line may hold several
    column: str | None = None
    value: str = ""
    ends_file: bool = False  # nothing was read beyond it

    def as_json(self) -> dict[str, Any]:
        return {
            "line": self.line,
            "row": self.row,
            "column": self.column,
            "value": self.value,
            "problem": self.problem,
            "remedy": self.remedy,
        }

    @property
    def place(self) -> str:
        parts = [f"line {self.line:,}"] if self.line else ["the file"]
        if self.row is not None:
            parts.append(f"row {self.row:,}")
        if self.column is not None:
            parts.append(f'column "{self.column}"')
        return ", ".join(parts)

    def __str__(self) -> str:
        seen = f" Got {self.value}." if self.value else ""
        place = self.place[0].upper() + self.place[1:]
        return f"{place}: {self.problem}{seen} {self.remedy}"


@dataclass(slots=True)
class RefusalGroup:
    """The rows with the same problem: their number, and the first three."""

    first: list[Refusal]
    count: int = 0

    @property
    def problem(self) -> str:
        return self.first[0].problem

    @property
    def remedy(self) -> str:
        return self.first[0].remedy

    @property
    def column(self) -> str | None:
        return self.first[0].column

    @property
    def num_more(self) -> int:
        return self.count - len(self.first)

    def as_json(self) -> dict[str, Any]:
        return {"count": self.count, "first": [it.as_json() for it in self.first]}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> RefusalGroup:
        """Read what `as_json` made; or a single refusal, as older versions kept
        them.
        """
        if "first" not in tree:
            return cls([Refusal(**tree)], 1)
        return cls([Refusal(**item) for item in tree["first"]], tree["count"])

    def __str__(self) -> str:
        text = str(self.first[0])
        if self.count == 1:
            return text
        others = [refusal.place for refusal in self.first[1:]]
        if self.num_more:
            others.append(f"{self.num_more:,} more")
        return f"{text} Also: {'; '.join(others)}."


@dataclass(slots=True)
class Refusals:
    """Errors by problem, the first hundred problems; and the counts of rows."""

    groups: list[RefusalGroup] = field(default_factory=list)
    count: int = 0
    num_good: int = 0
    ends_file: bool = False  # the rest of the file was not read
    _by_problem: dict[tuple[str, str, str | None], RefusalGroup] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def num_rows(self) -> int:
        return self.num_good + self.count

    @property
    def num_shown(self) -> int:
        """The rows whose problem is among the groups."""
        return sum(group.count for group in self.groups)

    def add(self, refusal: Refusal) -> None:
        self.count += 1
        self.ends_file = self.ends_file or refusal.ends_file
        key = (refusal.problem, refusal.remedy, refusal.column)
        group = self._by_problem.get(key)
        if group is None:
            if len(self.groups) == SHOWN_REFUSALS:
                return
            group = self._by_problem[key] = RefusalGroup([])
            self.groups.append(group)
        group.count += 1
        if len(group.first) < SHOWN_PLACES:
            group.first.append(refusal)

    def as_json(self) -> dict[str, Any]:
        return {
            "groups": [group.as_json() for group in self.groups],
            "count": self.count,
            "num_good": self.num_good,
            "ends_file": self.ends_file,
        }

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Refusals:
        """Read what `as_json` made; older versions kept single refusals under shown."""
        fields = {**tree}
        listed = fields.pop("groups", None) or fields.pop("shown", [])
        fields.pop("shown", None)
        return cls(groups=[RefusalGroup.from_json(item) for item in listed], **fields)


class ImportRefused(ValueError):
    """Rows have errors, so nothing was imported."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(str(refusals.groups[0]))
        self.refusals = refusals


def quote(value: Any) -> str:
    """Shorten the value for a page: on one line, valid text."""
    if isinstance(value, str):
        text = json.dumps(value[: SHOWN_CHARS + 1], ensure_ascii=False)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=repr)
        except (RecursionError, ValueError):
            text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def excerpt(text: str, at: int = 0) -> str:
    """Return the part of a line around its character `at`, as the file has it."""
    start = 0 if at < SHOWN_CHARS - 10 else at - SHOWN_CHARS // 2
    part = text[start : start + SHOWN_CHARS].replace("\x00", "\\0")
    part = part.encode("utf-8", "backslashreplace").decode()
    before = "…" if start else ""
    after = "…" if len(text.rstrip()) > start + SHOWN_CHARS else ""
    return before + " ".join(part.split()) + after


def num_chars_of(value: Any) -> int:
    """Return its length as JSON; MAX_LINE_CHARS if JSON cannot represent it."""
    try:
        return len(json.dumps(value, ensure_ascii=False, default=repr))
    except (RecursionError, ValueError):
        return MAX_LINE_CHARS


@dataclass(frozen=True, slots=True)
class OddValue:
    """A value that Python cannot represent, such as a date before the year 1."""

    kind: str
    why: str


class Unusable(ValueError):
    """A value that cannot be stored, with the problem and a remedy."""

    def __init__(self, problem: str, remedy: str, value: Any) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.value = value


class NotJson(Unusable):
    """A value that JSON does not have: bytes, or a number that is not finite."""


def check_value(value: Any) -> None:
    """Raise Unusable if the value, or one inside it, cannot be stored."""
    if isinstance(value, str):  # as most are
        _check_text(value)
        return
    # A stack instead of recursion, as a hostile file may be deeply nested.
    pending = [(value, 0)]
    while pending:
        inner, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise too_deep("")
        if isinstance(inner, dict):
            for key in inner:
                _check_leaf(key)
            pending += [(child, depth + 1) for child in inner.values()]
        elif isinstance(inner, list):
            pending += [(child, depth + 1) for child in inner]
        else:
            _check_leaf(inner)


def _check_leaf(value: Any) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        check_float(value)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        # A digit is 3.32 bits; counting them exactly would cost as much as printing.
        if value.bit_length() > MAX_DIGITS * 3.32:
            raise too_many_digits("a whole number")
    else:
        kind = value.kind if isinstance(value, OddValue) else type(value).__name__
        raise NotJson(
            f"JSON cannot represent a value of type {kind}.",
            "Write the column as text or numbers, or remove it.",
            value.why if isinstance(value, OddValue) else repr(value),
        )


def _check_text(text: str) -> None:
    if len(text) > MAX_LINE_CHARS:
        raise Unusable(
            f"The text has {len(text):,} characters; the limit is {MAX_LINE_CHARS:,}.",
            "Shorten it, or remove the column.",
            text,
        )
    if broken := broken_text(text):
        raise Unusable(
            f"The text contains {broken}.", "Remove that character from the row.", text
        )


def broken_text(text: str) -> str | None:
    """Return what in a text PostgreSQL or UTF-8 cannot store."""
    if "\x00" in text:
        return "a NUL character"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"an unpaired surrogate (U+{ord(text[error.start]):04X})"
    return None


def check_float(value: float) -> None:
    if not math.isfinite(value):
        raise NotJson(
            "The number is not finite.",
            "Use null instead of NaN or infinity.",
            value,
        )


def too_deep(value: str) -> Unusable:
    return Unusable(
        f"Lists and objects are nested more than {MAX_DEPTH} levels deep.",
        "Flatten the value, or remove the column.",
        value,
    )


def too_many_digits(value: str) -> Unusable:
    return Unusable(
        f"The number has more than {MAX_DIGITS:,} digits.",
        "Write it as text, in quotes.",
        value,
    )


@dataclass(frozen=True, slots=True)
class Record:
    line: int
    values: dict[str, Any]
    row: int | None = None  # from 1, where a line may hold several


Parsed = Record | Refusal


def refuse_names(line: int, names: list[str]) -> Refusal | None:
    """Return why these are not valid column names."""
    if len(names) > MAX_COLUMNS:
        return Refusal(
            line=line,
            value=f"{len(names):,} columns",
            problem=f"A row can have at most {MAX_COLUMNS:,} columns.",
            remedy="Keep only the columns that the prompt and the rules need.",
        )
    for name in names:
        if len(name) > MAX_NAME_CHARS or not _is_plain(name):
            if not name.strip():
                problem, remedy = "A column has no name.", "Give every column a name."
            elif len(name) > MAX_NAME_CHARS:
                problem = f"A column name is longer than {MAX_NAME_CHARS} characters."
                remedy = "Shorten it."
            else:
                problem = f"A column name contains {broken_text(name)}."
                remedy = "Rename the column."
            return Refusal(line=line, value=quote(name), problem=problem, remedy=remedy)
    return None


# Rows share their names, and there may be a million rows.
@lru_cache(MAX_COLUMNS)
def _is_plain(name: str) -> bool:
    return bool(name.strip()) and not broken_text(name)


def bounded(parsed: Iterator[Parsed]) -> Iterator[Parsed]:
    """End with a refusal if the file has no rows, or too many."""
    count = 0
    for item in parsed:
        count += 1
        if count > MAX_ROWS:
            yield Refusal(
                line=item.line,
                row=item.row,
                problem=f"A file can have at most {MAX_ROWS:,} rows.",
                remedy="Split it into several datasets.",
                ends_file=True,
            )
            return
        yield item
    if count == 0:
        yield Refusal(
            problem="The file has no rows.",
            remedy="Check that it is the right file and complete.",
            ends_file=True,
        )
