"""What a report's blocks show, and the versions that it had."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Path, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import or_refuse, refuse_field
from dashboard.api.resources.reports import ReportDetail, meanwhile, report_out
from dashboard.api.schemas import LARGEST_STEP, Id, Input, Person, StepIn
from dashboard.reports.blocks.addresses import translate_addresses
from dashboard.reports.document import Shown, finite, show_report, show_text
from dashboard.reports.hosts import own_hosts
from dashboard.reports.models import ReportVersion
from dashboard.reports.queries import get_report, get_version
from dashboard.reports.services import (
    MAX_CHARS,
    SavedMeanwhile,
    change_pin,
    check,
    restore_version,
)

router = Router(tags=["Reports"], auth=READ)
Number = Annotated[int, Path(ge=1, le=LARGEST_STEP)]


class BlockOut(Schema):
    place: int = Field(examples=[0])
    line: str = Field(examples=["::chart runs=7 metric=reward/mean"])
    pinned_at: datetime | None = Field(description="null: it is live.")
    data: dict[str, Any] = Field(description="What it shows, by its kind.")
    problem: str = Field(description="Why it shows nothing.")


def _block(shown: Shown) -> BlockOut:
    return BlockOut(
        place=shown.place,
        line=shown.block.line,
        pinned_at=shown.pin.pinned_at if shown.pin else None,
        data=finite(shown.data),
        problem=shown.problem or shown.block.problem,
    )


class BlocksOut(Schema):
    number: int = Field(description="The version whose blocks they are.")
    items: list[BlockOut]


@router.get(
    "/{report_id}/blocks", response=BlocksOut, summary="Read what a report shows"
)
def report_blocks(request: HttpRequest, report_id: Id) -> BlocksOut:
    """Each block's data: as they are now, or as they were when it was pinned."""
    found = get_report(access_of(request).team, report_id)
    parts = show_report(found)
    items = [_block(part) for part in parts if isinstance(part, Shown)]
    return BlocksOut(number=found.number, items=items)


class ReportPreviewIn(Input):
    text: str = Field(
        max_length=4 * MAX_CHARS, examples=["::chart runs=7 metric=reward/mean"]
    )


class ReportPreviewOut(Schema):
    items: list[BlockOut]


@router.post(
    "/blocks/preview",
    response=ReportPreviewOut,
    auth=WRITE,
    summary="Preview a report's text",
)
def preview_report(request: HttpRequest, payload: ReportPreviewIn) -> ReportPreviewOut:
    """What its blocks would show; nothing of it is stored."""
    team = access_of(request).team
    text = translate_addresses(payload.text, team, own_hosts(request))
    with or_refuse("body.text"):
        _, text = check("Preview", text)
    parts = show_text(team, None, text)
    return ReportPreviewOut(items=[_block(p) for p in parts if isinstance(p, Shown)])


class BlockPinIn(Input):
    number: StepIn = Field(description="Of the newest version.", examples=[3])
    to: Literal["pinned", "live"] = Field(examples=["pinned"])


@router.post(
    "/{report_id}/blocks/{place}/pin",
    response=ReportDetail,
    auth=WRITE,
    summary="Pin a block",
)
def pin_block(
    request: HttpRequest,
    report_id: Id,
    place: Annotated[int, Path(ge=0, le=999)],
    payload: BlockPinIn,
) -> ReportDetail:
    """To what it shows now, which then stays; or make it live again."""
    access = access_of(request)
    found = get_report(access.team, report_id)
    try:
        change_pin(
            report=found,
            user=access.user,
            number=payload.number,
            place=place,
            to=payload.to,
        )
    except SavedMeanwhile as error:
        raise meanwhile(get_report(access.team, report_id)) from error
    except ValueError as error:
        raise refuse_field("path.place", str(error)) from error
    return report_out(get_report(access.team, report_id))


class ReportVersionOut(Schema):
    number: int = Field(examples=[2])
    title: str
    saved_by: Person | None
    saved_at: datetime


def _version(row: ReportVersion) -> ReportVersionOut:
    return ReportVersionOut(**_fields(row))


def _fields(row: ReportVersion) -> dict[str, Any]:
    return {
        "number": row.number,
        "title": row.title,
        "saved_by": Person.of(row.saved_by),
        "saved_at": row.saved_at,
    }


@router.get(
    "/{report_id}/versions",
    response=Page[ReportVersionOut],
    summary="List a report's versions",
)
def report_versions(
    request: HttpRequest, report_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """The newest first; the last hundred are kept."""
    found = get_report(access_of(request).team, report_id).versions.defer("text")
    total = found.count()
    found = found.select_related("saved_by")
    return page_by(
        found, _version, cursor=cursor, limit=limit, key="-number", total=total
    )


class ReportVersionDetail(ReportVersionOut):
    text: str


@router.get(
    "/{report_id}/versions/{number}",
    response=ReportVersionDetail,
    summary="Read a report's version",
)
def report_version(
    request: HttpRequest, report_id: Id, number: Number
) -> ReportVersionDetail:
    found = get_report(access_of(request).team, report_id)
    version = get_version(found, number)
    return ReportVersionDetail(**_fields(version), text=version.text)


@router.post(
    "/{report_id}/versions/{number}/restore",
    response=ReportDetail,
    auth=WRITE,
    summary="Restore a report's version",
)
def restore_report(request: HttpRequest, report_id: Id, number: Number) -> ReportDetail:
    """It becomes the newest one; those between stay."""
    access = access_of(request)
    found = get_report(access.team, report_id)
    try:
        restore_version(
            report=found,
            user=access.user,
            number=found.number,
            version=get_version(found, number),
        )
    except SavedMeanwhile as error:
        raise meanwhile(get_report(access.team, report_id)) from error
    return report_out(get_report(access.team, report_id))
