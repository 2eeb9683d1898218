"""Which rows of a version, and in which order: as the address of its page says it."""

from __future__ import annotations

from typing import Annotated

from django.http import QueryDict
from ninja import Query
from pydantic import Field

from dashboard.api.filters import refuse_errors
from dashboard.api.problems import refuse_field
from dashboard.api.schemas import LARGEST_STEP, Input
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row_filters import RowFilterForm

Text = Annotated[str, Query("", max_length=500)]
Length = Annotated[int | None, Query(None, ge=0, le=LARGEST_STEP)]


class RowFilters(Input):
    q: Text = Field("", description="What prompt or answer holds, in any case.")
    answer: Text = Field("", description="yes: has one; no: has none")
    kind: Text = Field("", description="Of the prompt: text or chat")
    min_chars: Length
    max_chars: Length = Field(None, description="Of the prompt.")
    column: Text = Field("", description="An extra column, with `value`.")
    value: Text
    sort: Annotated[str, Query("", max_length=1_010)] = Field(
        "",
        description="position, prompt_length, answer, answer_length or column:NAME; "
        "`-` before it turns it round.",
    )


def read_view(version: DatasetVersion, filters: RowFilters) -> RowFilterForm:
    """The page's own form; what is wrong names its field."""
    if filters.column and filters.column not in version.mapping.get("columns", []):
        columns = ", ".join(version.mapping.get("columns", [])) or "none"
        raise refuse_field(
            "query.column",
            f"{version} has no extra column {filters.column[:60]!r}. It has: "
            f"{columns[:300]}.",
        )
    query = QueryDict(mutable=True)
    given = filters.model_dump()
    query.update({n: str(v) for n, v in given.items() if v not in (None, "")})
    view = RowFilterForm.read(version, query)
    refuse_errors(view)
    return view
