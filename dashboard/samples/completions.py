from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F, OrderBy, QuerySet

from dashboard.runs.models import Run
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.models import Completion

PAGE_SIZE = 50
MAX_FOUND = 10_000  # counted and paged through; beyond it, the reader narrows

PLACE: list[str | OrderBy] = ["-group__step", "-group__prompt_index", "position"]
ORDERS: dict[str, list[str | OrderBy]] = {
    "-step": PLACE,
    "step": ["group__step", "group__prompt_index", "position"],
    "-reward": [F("reward").desc(nulls_last=True), "id"],
    "reward": [F("reward").asc(nulls_last=True), "id"],
    "-advantage": ["-advantage", "id"],
    "advantage": ["advantage", "id"],
    "-length": ["-num_tokens", "id"],
    "length": ["num_tokens", "id"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionPage:
    completions: list[Completion]
    number: int
    num_pages: int
    first: int  # 1 …, of the found
    num_found: int
    is_cut: bool  # more than num_found match

    @property
    def last(self) -> int:
        return self.first + len(self.completions) - 1


def find_completions(run: Run, form: CompletionFilterForm) -> QuerySet[Completion]:
    found = Completion.objects.filter(group__run=run, group__superseded_by__isnull=True)
    lookups = {
        "text": "text__icontains",
        "first_step": "group__step__gte",
        "last_step": "group__step__lte",
        "min_reward": "reward__gte",
        "max_reward": "reward__lte",
        "end": "end_reason",
        "prompt": "group__prompt_index",
    }
    given = {lookup: form.value(name) for name, lookup in lookups.items()}
    return found.filter(**{k: v for k, v in given.items() if v not in (None, "")})


def read_page(run: Run, form: CompletionFilterForm) -> CompletionPage:
    """One page of what the filters find. Two queries.

    All ids are read in one pass, as a second one, to count them, would search a
    million texts twice; the texts themselves are read for the page's rows only.
    """
    order = ORDERS[form.value("sort")]
    ids = list(
        find_completions(run, form)
        .order_by(*order)
        .values_list("id", flat=True)[: MAX_FOUND + 1]
    )
    is_cut = len(ids) > MAX_FOUND
    del ids[MAX_FOUND:]
    num_pages = max(1, -(-len(ids) // PAGE_SIZE))
    number = min(form.value("page"), num_pages)
    start = (number - 1) * PAGE_SIZE
    return CompletionPage(
        completions=_read_completions(ids[start : start + PAGE_SIZE]),
        number=number,
        num_pages=num_pages,
        first=start + 1 if ids else 0,
        num_found=len(ids),
        is_cut=is_cut,
    )


def _read_completions(ids: list[int]) -> list[Completion]:
    rows = Completion.objects.select_related("group").in_bulk(ids)
    return [rows[i] for i in ids if i in rows]
