"""Answers that fit into an assistant's context: what is cut is counted in the answer.

Texts are cut first, then items, then other lists. An answer stays valid JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.api.problems import Problem
from dashboard.api.schemas import read_cursor, write_cursor

MAX_CHARS = 12_000
MOST_CHARS = 40_000
DIGITS = 5
# Of a text that is cut, one length after the other is tried.
TEXT_CHARS = (4_000, 2_000, 1_000, 500, 250)
PAGE_SIZE = 50  # of the API's pages that are read


@dataclass(kw_only=True)
class Listing:
    """Items of one page of the API from `start` on, and the fields around them."""

    name: str
    items: Sequence[dict[str, Any]]
    start: int
    page: str  # the cursor of their page
    following: str | None  # the cursor of the next page
    limit: int
    fields: dict[str, Any] = field(default_factory=dict)

    def first(self, number: int) -> dict[str, Any]:
        """Return the answer with this many items, and the cursor of the next ones."""
        end = self.start + number
        cursor = self.following and f"{self.following}.0"
        if end < len(self.items):
            cursor = f"{self.page}.{end}"
        chosen = self.items[self.start : end]
        return {**self.fields, self.name: list(chosen), "next": cursor}


def read_place(cursor: str) -> tuple[str, int]:
    """Return the cursor of the API's page and the place in it."""
    page, _, start = cursor.rpartition(".")
    if cursor and not (start.isascii() and start.isdigit() and int(start) < PAGE_SIZE):
        read_cursor("?")  # refuses it, as the API does
    if page:
        read_cursor(page)
    return page, int(start or 0)


def list_by_number(
    name: str, items: Sequence[dict[str, Any]], cursor: str, limit: int
) -> Listing:
    """Page a list that is not paged in the API."""
    start = read_cursor(cursor.rpartition(".")[0]) if cursor else 0
    following = start + PAGE_SIZE
    return Listing(
        name=name,
        items=items[start:following],
        start=read_place(cursor)[1],
        page=write_cursor(start),
        following=write_cursor(following) if following < len(items) else None,
        limit=limit,
        fields={"num_found": len(items)},
    )


def write_answer(answer: dict[str, Any] | Listing, max_chars: int = MAX_CHARS) -> str:
    """Write an answer as JSON of at most `max_chars`."""
    if isinstance(answer, Listing):
        text = _write_listing(answer, max_chars)
    else:
        text = _fit_texts(_tidy(answer), max_chars)
    if len(text) > max_chars:
        text = _cut_lists(json.loads(text), max_chars)
    return text


def _write_listing(listing: Listing, max_chars: int) -> str:
    wanted = max(0, min(listing.limit, len(listing.items) - listing.start))
    for number in range(wanted, 0, -1):
        answer = _tidy(listing.first(number))
        if number < wanted:
            answer["num_left_out"] = wanted - number
        answer.setdefault("next", None)
        text = _fit_texts(answer, max_chars)
        if len(text) <= max_chars:
            return text
    return write({"next": None} | _tidy(listing.first(min(wanted, 1))))


def write(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), default=str)


def _tidy(tree: Any) -> Any:
    """Round numbers, and leave out what is absent."""
    match tree:
        case bool():
            return tree
        case float():
            return float(f"{tree:.{DIGITS}g}")
        case dict():
            return {n: _tidy(v) for n, v in tree.items() if v is not None}
        case list() | tuple():
            return [_tidy(value) for value in tree]
    return tree


def _fit_texts(tree: Any, max_chars: int) -> str:
    text = write(tree)
    for most in TEXT_CHARS:
        if len(text) <= max_chars:
            break
        text = write(cut_texts(tree, most))
    return text


def cut_texts(tree: Any, most: int) -> Any:
    """Leave the head and the tail of each longer text."""
    match tree:
        case str() if len(tree) > most:
            head, tail = most * 2 // 3, most - most * 2 // 3
            num_left_out = f"{len(tree) - most:,}"
            return (
                f"{tree[:head]} … {num_left_out} characters left out … {tree[-tail:]}"
            )
        case dict():
            return {name: cut_texts(value, most) for name, value in tree.items()}
        case list():
            return [cut_texts(value, most) for value in tree]
    return tree


def _cut_lists(tree: dict[str, Any], max_chars: int) -> str:
    """Halve the longest list or object until the answer fits."""
    num_left_out = 0
    while len(text := write(tree | {"num_left_out": num_left_out})) > max_chars:
        longest: Any = max(_containers(tree), key=len, default=[])
        if len(longest) < 2:
            raise Problem(
                422,
                f"The answer exceeds {max_chars:,} characters. Ask for less.",
                code="mcp.answer_too_long",
            )
        keys = list(longest) if isinstance(longest, dict) else range(len(longest))
        for key in reversed(keys[-(-len(longest) // 2) :]):
            del longest[key]
            num_left_out += 1
    return text


def _containers(tree: Any) -> Iterator[Any]:
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, dict | list):
            yield value
            yield from _containers(value)
