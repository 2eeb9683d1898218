"""What a run's processes printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.attachments import FILE, attach
from dashboard.api.auth import READ, access_of
from dashboard.api.filters import query_of
from dashboard.api.problems import Problem
from dashboard.api.schemas import LARGEST_STEP, Id
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.training.log_reading import read_part
from dashboard.training.log_search import Source, find_source, pieces_of

router = Router(tags=["Logs"], auth=READ)
Byte = Annotated[int | None, Query(None, ge=0, le=10**15)]


class Which(Schema):
    source: Literal["", "both", "trainer", "supervisor"] = Field(
        "", description="Empty: both, where the trainer's lines have times."
    )
    epoch: Annotated[
        int | None,
        Query(None, ge=0, le=LARGEST_STEP, description="The attempt; null: the last."),
    ]


def _source(run: Run, which: Which) -> Source:
    source = find_source(run, query_of(which.model_dump()))
    if source is None:
        raise Http404(f"No worker has taken {run} yet, so there are no logs.")
    if which.epoch is not None and source.epoch.number != which.epoch:
        raise Http404(f"{run} has no attempt {which.epoch}.")
    return source


class LogLineOut(Schema):
    at: int = Field(description="Its first byte.", examples=[0])
    text: str = Field(examples=["step 1: reward 0.20"])
    num_chars: int = Field(description="More than `text` has where it is cut.")
    time: float | None = Field(
        default=None,
        description="Seconds since 1970; null: not known.",
        examples=[1_772_366_400.5],
    )


class LogOut(Schema):
    source: str = Field(examples=["trainer"])
    epoch: int = Field(examples=[1])
    number: int = Field(description="Of the first line, from 1.", examples=[1])
    first: int = Field(description="Byte where it begins; `before` goes back from it.")
    next: int = Field(description="Byte to read on from: send it as `after`.")
    is_end: bool = Field(description="Nothing comes after these lines yet.")
    is_closed: bool = Field(description="Nothing will: this attempt has ended.")
    size: int = Field(description="Of the log, in bytes.")
    missing: str = Field(description="Why it is not here.")
    lines: list[LogLineOut]


@router.get("/{run_id}/log", response=LogOut, summary="Read a run's log")
def run_log(
    request: HttpRequest,
    run_id: Id,
    which: Query[Which],
    after: Byte,
    before: Byte,
    line: Annotated[int | None, Query(None, ge=1, le=10**12)],
) -> LogOut:
    """Up to 500 lines: its end, or from a byte on, up to one, or around a line."""
    source = _source(get_run(access_of(request).team, run_id), which)
    part = read_part(source.path, after=after, before=before, line=line)
    told: dict[str, Any] = asdict(part)
    told.pop("mark")
    for each, time in zip(told["lines"], source.times_of(part.lines), strict=True):
        each["time"] = time
    return LogOut(
        **told,
        source=source.name,
        epoch=source.epoch.number,
        is_closed=source.epoch.ended_at is not None,
        missing=source.missing,
    )


@router.get("/{run_id}/log/file", response=FILE, summary="Take a run's log as a file")
def run_log_file(
    request: HttpRequest, run_id: Id, which: Query[Which]
) -> HttpResponseBase:
    """One attempt's; of both the trainer's."""
    run = get_run(access_of(request).team, run_id)
    source = _source(run, which)
    if not source.path.is_file():
        raise Problem(404, source.missing)
    return attach(
        pieces_of(source),
        filename=f"run-{run.pk}-attempt-{source.epoch.number}-{source.name}.log",
        content_type="text/plain; charset=utf-8",
    )
