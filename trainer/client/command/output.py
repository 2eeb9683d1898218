"""What `cohort` prints: results to standard output, all else to standard error."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any


def say(text: str) -> None:
    """A result, without what would move a terminal's cursor or hide text."""
    sys.stdout.write(f"{plain(text)}\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    """One object on one line."""
    sys.stdout.write(json.dumps(tree_of(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def tree_of(value: Any) -> Any:
    """As the API gave it.

    >>> from trainer.client.api.records import Person
    >>> tree_of([Person("alice", "Alice")])
    [{'username': 'alice', 'name': 'Alice'}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        own = [one for one in fields(value) if one.name != "client"]
        return {one.name: tree_of(getattr(value, one.name)) for one in own}
    if isinstance(value, Mapping):
        return {name: tree_of(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [tree_of(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value


def plain(text: str) -> str:
    """
    >>> plain("a\\x1b[31mb\\tc")
    'a\\\\x1b[31mb\\tc'
    """
    return "".join(one if _is_plain(one) else _escaped(one) for one in text)


def _is_plain(one: str) -> bool:
    # Cc: controls, Cf: what is not seen and may turn text round, Cs: no characters.
    return one in "\n\t" or unicodedata.category(one) not in ("Cc", "Cf", "Cs")


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()


def short(text: str, length: int) -> str:
    """On one line.

    >>> short("1 + 1\\n= 2", 6)
    '1 + 1…'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def say_table(
    titles: Sequence[str], rows: Iterable[Sequence[Any]], *, right: str = ""
) -> None:
    """`right`: titles of columns that hold numbers, with spaces between."""
    texts = [[plain(" ".join(str(cell).split())) for cell in row] for row in rows]
    table = [list(titles), *texts]
    widths = [max(_width(row[i]) for row in table) for i in range(len(titles))]
    numbers = [title in right.split() for title in titles]
    for row in table:
        cells = [
            _pad(cell, width, to_right=is_number)
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()


def _pad(cell: str, width: int, *, to_right: bool) -> str:
    space = " " * (width - _width(cell))
    return space + cell if to_right else cell + space


def _width(text: str) -> int:
    """Columns of a terminal: wide letters take two."""
    return sum(
        0
        if unicodedata.combining(one)
        else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )
