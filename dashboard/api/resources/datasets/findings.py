"""What is found in a version's rows: lengths, repeats, changes, leaks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.paging import Cursor, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.resources.datasets.schemas import RowOut, find_version
from dashboard.api.schemas import LARGEST_ID, Id, Input
from dashboard.datasets.findings.changes import read_changes
from dashboard.datasets.findings.differences import find_difference
from dashboard.datasets.findings.finding import ask_again
from dashboard.datasets.findings.leaks import find_leak, read_leaks
from dashboard.datasets.findings.statistics import find_statistics
from dashboard.datasets.findings.statistics_text import summarize_tokens
from dashboard.datasets.findings.token_lengths import find_token_lengths
from dashboard.datasets.forms.tokens import TokenForm
from dashboard.datasets.models import DatasetRow, Finding, TokenLengths

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


class TokensOut(FindingOut):
    model: str = Field(examples=["Qwen/Qwen3-0.6B"])
    limit: int = Field(examples=[512])


class TokensIn(Input):
    model: str = Field(min_length=1, max_length=500, examples=["Qwen/Qwen3-0.6B"])
    limit: Annotated[int, Field(ge=1, le=131_072)] = Field(
        default=512, description="A prompt's, in tokens."
    )


@router.post(
    "/dataset-versions/{version_id}/token-lengths",
    response={200: TokensOut, 202: TokensOut},
    auth=WRITE,
    summary="Count prompts in tokens",
)
def count_dataset_tokens(
    request: HttpRequest, version_id: Id, payload: TokensIn
) -> Status[TokensOut]:
    """By a model's tokenizer, of at most 50,000 rows; counted once, then kept.

    202: a worker counts; ask again.
    """
    version = find_version(access_of(request).team, version_id)
    form = TokenForm(payload.model_dump())
    refuse_errors(form, place="body")
    found = find_token_lengths(version, form.cleaned_data["model"])
    ask_again(found, team_id=version.dataset.team_id)
    result = _summary(found, payload.limit) if found.is_done else None
    out = TokensOut(**_finding(found, result), model=found.model, limit=payload.limit)
    return Status(200 if found.is_done else 202, out)


def _summary(found: TokenLengths, limit: int) -> dict[str, Any]:
    summary = summarize_tokens(found, limit)
    return {
        "num_looked": summary.num_looked,
        "num_longer": summary.num_longer,
        "lengths": summary.lengths,
    }


class ChangeOut(Schema):
    old: RowOut | None = Field(description="null: it was added.")
    new: RowOut | None = Field(description="null: it was removed.")


class ChangesOut(FindingOut):
    old_version_id: int = Field(examples=[11])
    kind: str = Field(examples=["changed"])
    items: list[ChangeOut]
    next_cursor: str | None
    total: int = Field(description="Of this kind; 0 until it is done.")


@router.get(
    "/dataset-versions/{version_id}/changes",
    response=ChangesOut,
    summary="Compare two versions",
)
def dataset_changes(
    request: HttpRequest,
    version_id: Id,
    cursor: Cursor,
    old: Annotated[
        int | None,
        Query(
            None,
            ge=1,
            le=LARGEST_ID,
            description="Another version of the dataset; without it, the one before.",
        ),
    ],
    kind: Annotated[Literal["changed", "added", "removed"], Query("changed")],
) -> ChangesOut:
    """Rows that differ, twenty of a kind at a time; `result` counts them all."""
    team = access_of(request).team
    new = find_version(team, version_id)
    others = new.dataset.versions.select_related("dataset").order_by("-number")
    others = others.filter(pk=old) if old else others.filter(number__lt=new.number)
    before = others.exclude(pk=new.pk).first()
    if before is None:
        said = f"{new.dataset} has no such version to compare {new} with. Name another."
        raise refuse_field("query.old", said)
    before.dataset = new.dataset
    found = find_difference(before, new)
    out = ChangesOut(
        **_finding(found, found.result),
        old_version_id=before.pk,
        kind=kind,
        items=[],
        next_cursor=None,
        total=0,
    )
    if found.is_done:
        page = read_changes(found, kind, read_cursor(cursor) if cursor else 0)
        out.items = [
            ChangeOut(old=_row(each.old), new=_row(each.new)) for each in page.changes
        ]
        out.total = page.total
        out.next_cursor = write_cursor(page.last) if page.last < page.total else None
    return out


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


def _row(row: DatasetRow | None) -> RowOut | None:
    return RowOut.of(row) if row else None
