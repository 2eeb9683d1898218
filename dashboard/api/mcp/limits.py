"""Answers that fit into an assistant's context: what is cut is counted in the answer.

Texts are cut first, then items (`num_left_out`), then other lists (`cut_lists`, by
name). An answer stays valid JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.api.problems import Problem
from dashboard.api.schemas import read_cursor

MAX_CHARS = 12_000
MOST_CHARS = 40_000
DIGITS = 5
# Of a text that is cut, one length after the other is tried.
TEXT_CHARS = (MOST_CHARS, 4_000, 2_000, 1_000, 500, 250)
PAGE_SIZE = 50  # of the API's pages that are read


@dataclass(kw_only=True)
class Listing:
    """Items of one page of the API from `start` on, and the fields around them."""

    name: str
    items: Sequence[dict[str, Any]]
    start: int
    page: str = ""  # the cursor of their page
    following: str | None = None  # the cursor of the next page
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
    if cursor and not (start.isascii() and start.isdigit() and len(start) < 7):
        read_cursor("?")  # refuses it, as the API does
    if page:
        read_cursor(page)
    return page, int(start or 0)


def write_answer(answer: dict[str, Any] | Listing, max_chars: int = MAX_CHARS) -> str:
    """Write an answer as JSON of at most `max_chars`."""
    if isinstance(answer, Listing):
        answer = _leave_out_items(answer, max_chars)
    for most in TEXT_CHARS:
        text = write(shorten(answer, most))
        if len(text) <= max_chars:
            return text
    return _cut_lists(json.loads(text), max_chars)


def _leave_out_items(listing: Listing, max_chars: int) -> dict[str, Any]:
    """Return as many items as fit with the shortest texts, but one at least."""
    num_items = max(0, min(listing.limit, len(listing.items) - listing.start))
    for number in range(num_items, -1, -1):
        tree = listing.first(number)
        if number < num_items:
            tree["num_left_out"] = num_items - number
        text = write(shorten(tree, TEXT_CHARS[-1]))
        if number <= 1 or len(text) <= max_chars:
            break
    return tree


def write(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), default=str)


def shorten(tree: Any, most: int) -> Any:
    """Round numbers, leave out what is absent, and cut longer texts in the middle."""
    match tree:
        case float():
            return float(f"{tree:.{DIGITS}g}")
        case str() if len(tree) > most:
            head, tail = tree[: most * 2 // 3], tree[most * 2 // 3 - most :]
            num_left_out = f"{len(tree) - most:,}"
            return f"{head} … {num_left_out} characters left out … {tail}"
        case dict():
            return {
                name: shorten(value, most)
                for name, value in tree.items()
                if value is not None or name == "next"  # null: the last page
            }
        case list() | tuple():
            return [shorten(value, most) for value in tree]
    return tree


def _cut_lists(tree: dict[str, Any], max_chars: int) -> str:
    """Halve the longest lists and objects until the answer fits.

    All of one length are halved, since they may be columns of one table.
    """
    cut_lists: Counter[str] = Counter()
    while len(text := write(tree | {"cut_lists": cut_lists})) > max_chars:
        parts = list(_list_parts(tree))
        longest = max((len(part) for _, part in parts), default=0)
        if longest < 2:
            raise Problem(
                422,
                f"The answer exceeds {max_chars:,} characters. Ask for less.",
                code="mcp.answer_too_long",
            )
        for path, part in parts:
            if len(part) == longest:
                keys = list(part) if isinstance(part, dict) else range(longest)
                for key in reversed(keys[-(-longest // 2) :]):
                    del part[key]
                    cut_lists[path] += 1
    return text


def _list_parts(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List the lists and objects within a tree, by names of fields."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            name = f"{path}.{key}" if isinstance(tree, dict) else path
            yield name.removeprefix("."), value
            yield from _list_parts(value, name)
