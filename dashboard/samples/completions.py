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
    found = Completion.objects.filter(
        group__run=run, group__superseded_by__isnull=True
    )
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
    """One page of what the filters find. Three queries; long texts are read last."""
    found = find_completions(run, form)
    counted = found.order_by().values("id")[: MAX_FOUND + 1].count()
    num_found = min(counted, MAX_FOUND)
    num_pages = max(1, -(-num_found // PAGE_SIZE))
    number = min(form.value("page"), num_pages)
    start = (number - 1) * PAGE_SIZE
    ids = _read_ids(found, form.value("sort"), start)
    return CompletionPage(
        completions=_read_completions(ids),
        number=number,
        num_pages=num_pages,
        first=start + 1 if ids else 0,
        num_found=num_found,
        is_cut=counted > MAX_FOUND,
    )


def _read_ids(found: QuerySet[Completion], sort: str, start: int) -> list[int]:
    ids = found.order_by(*ORDERS[sort]).values_list("id", flat=True)
    return list(ids[start : min(start + PAGE_SIZE, MAX_FOUND)])


def _read_completions(ids: list[int]) -> list[Completion]:
    rows = Completion.objects.select_related("group").in_bulk(ids)
    return [rows[i] for i in ids if i in rows]
