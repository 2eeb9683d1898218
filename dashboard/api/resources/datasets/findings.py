"""What is found in a version's rows: lengths, repeats, leaks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, access_of
from dashboard.api.paging import Cursor, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.resources.datasets.schemas import RowOut, find_version
from dashboard.api.schemas import LARGEST_ID, Id
from dashboard.datasets.findings.leaks import find_leak, read_leaks
from dashboard.datasets.findings.statistics import find_statistics
from dashboard.datasets.models import Finding

router = Router(tags=["Datasets"], auth=READ)
OtherVersion = Annotated[int, Query(ge=1, le=LARGEST_ID)]


class FindingOut(Schema):
    is_done: bool = Field(description="False: a worker looks; ask again.")
    problem: str = Field(description="Why nothing will be found.", examples=[""])
    num_looked: int = Field(description="Rows, so far.")
    num_wanted: int
    result: dict[str, Any] | None = Field(description="Once it is done.")


def _finding(found: Finding, result: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "is_done": found.is_done,
        "problem": found.problem,
        "num_looked": found.num_looked,
        "num_wanted": found.num_wanted,
        "result": result,
    }


@router.get(
    "/dataset-versions/{version_id}/statistics",
    response=FindingOut,
    summary="Read a version's statistics",
)
def dataset_statistics(request: HttpRequest, version_id: Id) -> FindingOut:
    """Lengths in characters, answers, columns, and rows that are alike."""
    found = find_statistics(find_version(access_of(request).team, version_id))
    return FindingOut(**_finding(found, found.result))


class LeakOut(Schema):
    held_out: RowOut
    trained_on: RowOut
    similarity: float | None = Field(description="Of near ones.", examples=[0.91])


class LeaksOut(FindingOut):
    kind: str = Field(examples=["exact"])
    items: list[LeakOut]
    next_cursor: str | None
    total: int = Field(description="Of this kind; 0 until it is done.")


@router.get(
    "/dataset-versions/{version_id}/leaks",
    response=LeaksOut,
    summary="Look for leaks between versions",
)
def dataset_leaks(
    request: HttpRequest,
    version_id: Id,
    cursor: Cursor,
    against: Annotated[
        OtherVersion,
        Query(..., description="The version that is trained on.", examples=[11]),
    ],
    kind: Annotated[Literal["exact", "words", "near"], Query("exact")],
) -> LeaksOut:
    """Rows of this held-out version that are in another: the same, in the same words,
    or nearly so. Twenty of a kind at a time; `result` counts them all."""
    team = access_of(request).team
    version, other = find_version(team, version_id), find_version(team, against)
    if version == other:
        said = "A version is not looked for in itself. Name another one."
        raise refuse_field("query.against", said)
    found = find_leak(version, other)
    out = LeaksOut(
        **_finding(found, found.result), kind=kind, items=[], next_cursor=None, total=0
    )
    if found.is_done:
        page = read_leaks(found, kind, read_cursor(cursor) if cursor else 0)
        out.items = [
            LeakOut(
                held_out=RowOut.of(pair.held_out),
                trained_on=RowOut.of(pair.trained_on),
                similarity=pair.similarity,
            )
            for pair in page.pairs
        ]
        out.total = page.total
        out.next_cursor = write_cursor(page.last) if page.last < page.total else None
    return out
