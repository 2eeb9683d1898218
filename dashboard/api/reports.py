"""Reports: read, saved and exported."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http.response import HttpResponseBase
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.analysis.comments import comments_on
from dashboard.analysis.reports import services
from dashboard.analysis.reports.models import MAX_TITLE, Report
from dashboard.analysis.reports.rendering import html_of
from dashboard.analysis.reports.services import (
    MAX_CHARS,
    check,
    find_reports,
    get_report,
    own_hosts,
)
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import (
    Problem,
    WrongField,
    or_conflict,
    or_refuse,
    refuse_field,
)
from dashboard.api.schemas import (
    FILE,
    CommentOut,
    Cursor,
    Done,
    Id,
    Input,
    Limit,
    Page,
    Person,
    S,
    StepIn,
    fill,
    page_by,
    page_from,
)
from dashboard.web.edits import EditConflict

router = Router(tags=["Reports"], auth=READ)
TEXT = "The reward jumps at step 40.\n\n::chart runs=7 metric=reward/mean\n"


class ReportOut(Schema):
    id: int = Field(examples=[5])
    title: str = Field(examples=["Why the reward jumped"])
    number: int = Field(description="Number of the newest version.", examples=[3])
    is_public: bool = Field(description="Whether a public link is active.")
    created_by: Person | None
    created_at: datetime
    saved_by: Person | None
    saved_at: datetime


def _report(shape: type[S], report: Report) -> S:
    people = {"created_by": report.created_by, "saved_by": report.saved_by}
    by = {name: Person.of(user) for name, user in people.items()}
    return fill(shape, report, **by)


class ReportDetail(ReportOut):
    text: str = Field(
        description="Markdown; lines that begin with `::` are blocks.",
        examples=[TEXT],
    )


@router.get("", response=Page[ReportOut], summary="List reports")
def reports(
    request: ApiRequest,
    cursor: Cursor,
    limit: Limit,
    q: Annotated[
        str,
        Query(
            "", max_length=200, description="Words that the title or text must contain."
        ),
    ],
) -> Page[Any]:
    """Last saved first."""
    reports_ = find_reports(request.auth.team, q)
    reports_ = reports_.select_related("created_by", "saved_by")
    return page_from(
        reports_, lambda row: _report(ReportOut, row), cursor=cursor, limit=limit
    )


@router.get("/{report_id}", response=ReportDetail, summary="Get a report")
def report(request: ApiRequest, report_id: Id) -> ReportDetail:
    """Return the text; `/reports/{report_id}/export.html` renders the blocks."""
    return _report(ReportDetail, get_report(request.auth.team, report_id))


@router.get(
    "/{report_id}/comments",
    response=Page[CommentOut],
    summary="List a report's comments",
)
def report_comments(
    request: ApiRequest, report_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """Oldest first."""
    comments = comments_on(get_report(request.auth.team, report_id))
    return page_by(comments, CommentOut.of, cursor=cursor, limit=limit, key="pk")


class ReportIn(Input):
    title: str = Field(max_length=4 * MAX_TITLE, examples=["Why the reward jumped"])
    text: str = Field(default="", max_length=4 * MAX_CHARS, examples=[TEXT])


@router.post("", response={201: ReportDetail}, auth=WRITE, summary="Create a report")
def create_report(request: ApiRequest, payload: ReportIn) -> Status[ReportDetail]:
    """URLs of this server's pages become blocks, as in the editor."""
    _check(payload.title, payload.text)
    with or_conflict():  # as many as a team may have
        made = services.create_report(
            team=request.auth.team,
            user=request.auth.user,
            title=payload.title,
            text=payload.text,
            hosts=own_hosts(request),
        )
    return Status(201, _report(ReportDetail, made))


class ReportSaveIn(Input):
    number: StepIn = Field(
        description="The version you edited. 409 if a newer one exists.",
        examples=[3],
    )
    title: str | None = Field(default=None, max_length=4 * MAX_TITLE)
    text: str | None = Field(default=None, max_length=4 * MAX_CHARS)


@router.patch(
    "/{report_id}", response=ReportDetail, auth=WRITE, summary="Save a report"
)
def save_report(
    request: ApiRequest, report_id: Id, payload: ReportSaveIn
) -> ReportDetail:
    """Saves a new version. Omitted fields keep their values."""
    report_ = get_report(request.auth.team, report_id)
    title = report_.title if payload.title is None else payload.title
    text = report_.text if payload.text is None else payload.text
    _check(title, text)
    try:
        services.save_report(
            report=report_,
            user=request.auth.user,
            number=payload.number,
            title=title,
            text=text,
            hosts=own_hosts(request),
        )
    except EditConflict as error:
        newest = get_report(request.auth.team, report_id)
        raise Problem(
            409,
            f"{newest.saved_by or 'Another member'} saved version {newest.number} of "
            "this report in the meantime, so nothing was changed. Read that version, "
            "then send its number.",
            code="reports.changed",
            errors=[
                WrongField("body.number", f"The newest version is {newest.number}.")
            ],
            conflicts=[
                clash
                for clash in error.clashes
                if getattr(payload, clash.field) is not None
            ],
        ) from error
    except ValueError as error:  # longer once addresses are blocks
        raise refuse_field("body.text", error) from error
    return _report(ReportDetail, get_report(request.auth.team, report_id))


def _check(title: str, text: str) -> None:
    """Check the fields; 422 names one that no report can have."""
    for field, pair in (("title", (title, "")), ("text", ("A title", text))):
        with or_refuse(f"body.{field}"):
            check(*pair)


@router.delete("/{report_id}", response=Done, auth=WRITE, summary="Delete a report")
def delete_report(request: ApiRequest, report_id: Id) -> Done:
    """Permanent, with all versions."""
    services.delete_report(
        report=get_report(request.auth.team, report_id), user=request.auth.user
    )
    return Done(done=True)


@router.get("/{report_id}/export.html", response=FILE, summary="Export a report")
def report_file(request: ApiRequest, report_id: Id) -> HttpResponseBase:
    """Return a self-contained HTML page."""
    return html_of(request, get_report(request.auth.team, report_id))
