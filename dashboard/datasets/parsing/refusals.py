"""What is said about a row that cannot be imported."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dashboard.datasets.limits import MAX_LINE_CHARS, SHOWN_REFUSALS

SHOWN_CHARS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Where, what was seen, what is wrong with it, what to do."""

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
class Refusals:
    """The first hundred, and how many there are among how many good rows."""

    shown: list[Refusal] = field(default_factory=list)
    count: int = 0
    num_good: int = 0
    ends_file: bool = False  # rows may have been lost that nobody has seen

    @property
    def num_rows(self) -> int:
        return self.num_good + self.count

    @property
    def can_be_left_out(self) -> bool:
        return self.num_good > 0 and not self.ends_file

    def add(self, refusal: Refusal) -> None:
        self.count += 1
        self.ends_file = self.ends_file or refusal.ends_file
        if len(self.shown) < SHOWN_REFUSALS:
            self.shown.append(refusal)

    def as_json(self) -> dict[str, Any]:
        return {
            "shown": [refusal.as_json() for refusal in self.shown],
            "count": self.count,
            "num_good": self.num_good,
            "ends_file": self.ends_file,
        }

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Refusals:
        """What `as_json` made."""
        return cls(**{**tree, "shown": [Refusal(**item) for item in tree["shown"]]})


class ImportRefused(ValueError):
    """Rows were refused, so nothing was imported."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(str(refusals.shown[0]))
        self.refusals = refusals


def quote(value: Any) -> str:
    """A value as a page can show it: short, on one line, always valid text."""
    if isinstance(value, str):
        text = json.dumps(value[: SHOWN_CHARS + 1], ensure_ascii=False)
    else:
        text = _written(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def num_chars_of(value: Any) -> int:
    """How long it is as JSON; 8 MiB for what JSON cannot hold."""
    try:
        return len(json.dumps(value, ensure_ascii=False, default=repr))
    except (RecursionError, ValueError):
        return MAX_LINE_CHARS


def _written(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"
