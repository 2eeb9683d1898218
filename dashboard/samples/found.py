"""A page of what filters find, of which all is counted up to a bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

PAGE_SIZE = 50
MAX_FOUND = 10_000  # counted and paged through; beyond it, the reader narrows


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPage:
    number: int
    num_pages: int
    first: int  # 1 …, of the found
    num_shown: int
    num_found: int
    is_cut: bool  # more than num_found match
    ids: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.first + self.num_shown - 1


def find_page(found: QuerySet[Any], number: int) -> FoundPage:
    """The page of this number, or the last one. One query.

    All ids are read in one pass, as a second one, to count them, would search a
    million texts twice; the texts themselves are read for the page's rows only.
    """
    ids = list(found.values_list("id", flat=True)[: MAX_FOUND + 1])
    is_cut = len(ids) > MAX_FOUND
    del ids[MAX_FOUND:]
    num_pages = max(1, -(-len(ids) // PAGE_SIZE))
    number = min(number, num_pages)
    start = (number - 1) * PAGE_SIZE
    shown = ids[start : start + PAGE_SIZE]
    return FoundPage(
        ids=shown,
        num_shown=len(shown),
        number=number,
        num_pages=num_pages,
        first=start + 1 if ids else 0,
        num_found=len(ids),
        is_cut=is_cut,
    )
