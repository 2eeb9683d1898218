"""What a run's processes printed, what its rules said, and what its machine did."""

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
from dashboard.api.problems import Problem, or_refuse
from dashboard.api.schemas import LARGEST_STEP, Id
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.training.logs.reading import read_part, read_whole_line
from dashboard.training.logs.search import MAX_QUERY_CHARS, make_pattern
from dashboard.training.logs.source import Source, find_source
from dashboard.training.logs.sources import pieces_of, search_source

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


@router.get("/{run_id}/log/line", response=LogLineOut, summary="Read a whole line")
def run_log_line(
    request: HttpRequest,
    run_id: Id,
    which: Query[Which],
    at: Annotated[int, Query(..., ge=0, le=10**15, examples=[0])],
) -> LogLineOut:
    """That begins at this byte, up to 1 MiB of it; parts of a log cut longer ones."""
    source = _source(get_run(access_of(request).team, run_id), which)
    try:
        return LogLineOut(**asdict(read_whole_line(source.path, at)))
    except FileNotFoundError as error:
        raise Http404(source.missing) from error


class LogMatchOut(Schema):
    source: str = Field(examples=["trainer"])
    number: int = Field(description="Of the line, from 1.", examples=[12])
    line: LogLineOut
    before: list[str]
    after: list[str]


class LogSearchOut(Schema):
    items: list[LogMatchOut]
    total: int = Field(description="Lines that match, as far as was searched.")
    first: int = Field(description="Of the matches, the number of the first listed.")
    stopped: str = Field(description="Why not all of it was searched.")


@router.get("/{run_id}/log/search", response=LogSearchOut, summary="Search a run's log")
def run_log_search(
    request: HttpRequest,
    run_id: Id,
    which: Query[Which],
    q: Annotated[
        str, Query(..., min_length=1, max_length=MAX_QUERY_CHARS, examples=["error"])
    ],
    is_pattern: Annotated[bool, Query(False, description="q is an RE2 pattern.")],
    match_case: Annotated[bool, Query(False)],
    first: Annotated[int, Query(0, ge=0, le=LARGEST_STEP)],
) -> LogSearchOut:
    """Up to 100 lines that hold a text, from match number `first` on."""
    source = _source(get_run(access_of(request).team, run_id), which)
    with or_refuse("query.q"):
        pattern = make_pattern(q, is_pattern=is_pattern, ignore_case=not match_case)
    try:
        found = search_source(source, pattern, first=first)
    except FileNotFoundError as error:
        raise Http404(source.missing) from error
    matches = found.pop("matches")
    items = [LogMatchOut(**{"source": source.name, **each}) for each in matches]
    return LogSearchOut(**found, items=items)


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
