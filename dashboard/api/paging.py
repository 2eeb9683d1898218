"""Pages by cursor: what is added meanwhile neither repeats a row nor hides one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from ninja import Query, Schema
from pydantic import Field

from dashboard.api.problems import refuse_field

Item = TypeVar("Item")
Row = TypeVar("Row", bound=Model)
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
LARGEST_ID = 2**63 - 1
Cursor = Annotated[
    str,
    Query(
        "",
        max_length=200,
        description="`next_cursor` of the page before; without it, the first page.",
    ),
]
Limit = Annotated[int, Query(DEFAULT_LIMIT, ge=1, le=MAX_LIMIT)]


class Page(Schema, Generic[Item]):
    items: list[Item]
    next_cursor: str | None = Field(
        default=None, description="Of the next page; null: this is the last."
    )
    total: int | None = Field(
        default=None, description="How many there are on all pages; null: not counted."
    )


def page_by(
    rows: QuerySet[Any],
    read: Callable[[Any], Any],
    *,
    cursor: str,
    limit: int,
    key: str = "-pk",
) -> Page[Any]:
    """Rows in the order of `key`, a number that is no row's but its own."""
    name, total = key.removeprefix("-"), rows.count()
    if cursor:
        after = "lt" if key.startswith("-") else "gt"
        rows = rows.filter(**{f"{name}__{after}": read_cursor(cursor)})
    found = list(rows.order_by(key)[: limit + 1])
    return cut(found, limit, read, lambda row: getattr(row, name), total=total)


def page_from(
    rows: QuerySet[Any], read: Callable[[Any], Any], *, cursor: str, limit: int
) -> Page[Any]:
    """Rows in an order of their own: the cursor says how many came before."""
    start, total = read_cursor(cursor) if cursor else 0, rows.count()
    shown = list(rows[start : start + limit])
    end = start + len(shown)
    more = write_cursor(end) if shown and end < total else None
    return Page(items=[read(row) for row in shown], next_cursor=more, total=total)


def cut(
    found: Sequence[Any],
    limit: int,
    read: Callable[[Any], Any],
    key_of: Callable[[Any], int],
    *,
    total: int | None = None,
) -> Page[Any]:
    """`found` has one more than the page holds, where there is a next one."""
    shown = found[:limit]
    more = write_cursor(key_of(shown[-1])) if len(found) > limit else None
    return Page(items=[read(row) for row in shown], next_cursor=more, total=total)


def write_cursor(place: int) -> str:
    return base64.urlsafe_b64encode(f"v1:{place}".encode()).decode().rstrip("=")


def read_cursor(text: str) -> int:
    try:
        padded = text.encode() + b"=" * (-len(text) % 4)
        version, _, place = base64.urlsafe_b64decode(padded).decode().partition(":")
    except (binascii.Error, UnicodeError):
        version, place = "", ""
    is_number = place.isascii() and place.isdigit() and len(place) <= 19
    if version != "v1" or not is_number or int(place) > LARGEST_ID:
        raise refuse_field(
            "query.cursor",
            f"This is no cursor: {text[:60]!r}. Send `next_cursor` of a page as it "
            "is, or none for the first page.",
        )
    return int(place)
