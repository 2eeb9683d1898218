"""Runs of external trainers: opened, fed with events, continued in another attempt."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated

from django.http import HttpRequest
from django.urls import reverse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import INGEST, ApiRequest
from dashboard.api.problems import Problem, WrongField, refuse_field
from dashboard.api.schemas import LARGEST_STEP, Id, Input
from dashboard.project.errors import or_404
from dashboard.runs.models import Run
from dashboard.supervision.external_events import (
    MAX_BATCH_BYTES,
    MAX_LINE_BYTES,
    MAX_LINES,
    AttemptReplaced,
    MissingLines,
    QuotaExceeded,
    RunEnded,
)
from dashboard.supervision.external_ingest import RunPosition, read_position, take_lines
from dashboard.supervision.external_runs import Opening, open_attempt, open_run

RETRY_SECONDS = 120  # over quota; shorter than CONTACT, after which a run is lost
GZIP = 31  # zlib's wbits for gzip: header and checksum included
PIECE_BYTES = 64 * 2**10
UNZIPPED_BYTES = 2**20  # at a time
router = Router(tags=["External trainers"], auth=INGEST)
Attempt = Annotated[
    int,
    Query(
        ge=1,
        le=LARGEST_STEP,
        description="Attempt number, from 1.",
    ),
]
First = Annotated[
    int,
    Query(ge=1, le=LARGEST_STEP, description="`line` of the first event in the body."),
]


class OpeningIn(Input, Opening):
    num_steps: int = Field(default=1, ge=1, le=LARGEST_STEP, examples=[500])


class OpenedOut(Schema):
    id: int = Field(examples=[7])
    attempt: int = Field(examples=[1])
    address: str = Field(examples=["https://cohort.example.org/lab/runs/7/"])


class AttemptIn(Input):
    from_step: int = Field(
        ge=0,
        le=LARGEST_STEP,
        description="Step to continue from. Stored events of later steps are "
        "superseded.",
        examples=[40],
    )
    host: str = Field(default="", max_length=120, examples=["node-4"])


class AttemptOut(Schema):
    attempt: int = Field(examples=[2])


@router.post("", response={200: OpenedOut, 201: OpenedOut}, summary="Open a run")
def open_external_run(request: ApiRequest, payload: OpeningIn) -> Status[OpenedOut]:
    """Return 201 for a new run; 200 with the existing run if the key is known.

    429 with Retry-After if the team's quota of runs is reached.
    """
    try:
        run, is_new = open_run(payload, team=request.auth.team, user=request.auth.user)
    except QuotaExceeded as error:
        raise _full(error) from None
    except ValueError as error:
        field = str(error).partition(" ")[0].rstrip(":")
        is_field = field in OpeningIn.model_fields
        raise refuse_field(f"body.{field}" if is_field else "body", error) from None
    address = reverse("run", args=[request.auth.team.slug, run.pk])
    opened = OpenedOut(
        id=run.pk, attempt=run.attempt, address=request.build_absolute_uri(address)
    )
    return Status(201 if is_new else 200, opened)


@router.get(
    "/{external_id}/events", response=RunPosition, summary="Get the last stored event"
)
def external_run_position(request: ApiRequest, external_id: Id) -> RunPosition:
    """Continue with the event after `line`."""
    return read_position(_find(request, external_id))


@router.post("/{external_id}/events", response=RunPosition, summary="Send events")
def send_external_events(
    request: ApiRequest, external_id: Id, attempt: Attempt, first: First
) -> RunPosition:
    """Events as JSON Lines, optionally gzipped, numbered without gaps.

    Every event has `line` (counted from 1 in each attempt), `attempt`,
    `time` (Unix seconds), `step` and `type`:

    - `group_scored`: `prompt_index`, `prompt`, `answer`, `reward_mean`, `reward_std`,
      `signal` (such as `mixed`) and `completions`, each with `text`, `reward`, `rules`
      (scores by name), `num_tokens`, `end_reason` (`unknown`), `advantage` and
      `mean_logprob`, which may be null.
    - `step_finished`: `metrics`, numbers by name. Send it after the step's groups.
    - `run_finished` ends the run.

    Stored events are skipped, so repeat a request that got no response. An empty body
    is a heartbeat; after 5 minutes without a request the run counts as
    lost until the next one. A line that Cohort cannot read is stored as a warning and
    counted in `num_left_out`; `left_out` has the reason. 429 with
    Retry-After means that the team's storage quota is reached: keep the events and
    retry.
    """
    run = _find(request, external_id)
    texts = _read_lines(request)
    try:
        return take_lines(run, attempt=attempt, first=first, texts=texts)
    except (AttemptReplaced, MissingLines, RunEnded) as error:
        raise Problem(409, str(error), code=error.code) from None
    except QuotaExceeded as error:
        raise _full(error) from None
    except ValueError as error:
        raise refuse_field("body", error) from None


@router.post(
    "/{external_id}/attempts", response=AttemptOut, summary="Start another attempt"
)
def start_external_attempt(
    request: ApiRequest, external_id: Id, payload: AttemptIn
) -> AttemptOut:
    """Start a new attempt. Cohort refuses later events of the previous one."""
    run = _find(request, external_id)
    try:
        attempt = open_attempt(
            run, from_step=payload.from_step, host=payload.host, user=request.auth.user
        )
    except RunEnded as error:
        raise Problem(409, str(error), code=error.code) from None
    except QuotaExceeded as error:
        raise _full(error) from None
    except ValueError as error:
        raise refuse_field("body.from_step", error) from None
    return AttemptOut(attempt=attempt)


def _find(request: ApiRequest, run_id: int) -> Run:
    """Includes runs in the trash, so that the refusal can say why."""
    run = Run.objects.filter(
        team=request.auth.team, pk=run_id, source__has_key="kind"
    ).first()
    return or_404(run, f"External run {run_id} not found in {request.auth.team}.")


def _full(error: QuotaExceeded) -> Problem:
    """Refuse; the client keeps its events and tries again."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return Problem(429, str(error), code=error.code, headers=headers)


def _read_lines(request: HttpRequest) -> list[bytes]:
    body = request.read(MAX_BATCH_BYTES + 1)
    if len(body) > MAX_BATCH_BYTES:
        raise _too_large()
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    pieces: Iterable[bytes] = (body,)
    if encoding == "gzip":
        pieces = _unzip(body)
    elif encoding != "identity":
        raise refuse_field(
            "header.Content-Encoding",
            f"Content-Encoding must be gzip or identity; got {encoding[:40]!r}.",
            "events.bad_encoding",
        )
    return _split_lines(pieces)


def _split_lines(pieces: Iterable[bytes]) -> list[bytes]:
    """U+2028 and its like end no line."""
    lines: list[bytes] = []
    begun: list[bytes] = []  # parts of the line that has not ended
    num_begun = 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for part in ended:
            lines.append(b"".join((*begun, part)))
            begun, num_begun = [], 0
        begun.append(rest)
        num_begun += len(rest)
        if num_begun > MAX_LINE_BYTES:
            break
    if num_begun:
        lines.append(b"".join(begun))
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES:
            raise Problem(
                413,
                f"A line may have at most {MAX_LINE_BYTES:,} bytes; line "
                f"{number} of the body has {len(line):,} or more.",
                code="events.line_too_large",
            )
    return lines


def _too_large() -> Problem:
    return Problem(
        413,
        f"A batch may have at most {MAX_BATCH_BYTES:,} bytes, decompressed. Send "
        "fewer lines at once.",
        code="events.batch_too_large",
    )


def _unzip(body: bytes) -> Iterator[bytes]:
    """Unzip all members, in pieces: a small body may expand to GiBs."""
    num_bytes, num_members = 0, 0
    view, unzip = memoryview(body), zlib.decompressobj(wbits=GZIP)
    try:
        while view:
            if unzip.eof:
                unzip = zlib.decompressobj(wbits=GZIP)
                num_members += 1
            if num_members > MAX_LINES:
                raise _no_gzip(f"has more than {MAX_LINES:,} members")
            piece = view[:PIECE_BYTES]
            data = unzip.decompress(piece, UNZIPPED_BYTES)
            num_bytes += len(data)
            if num_bytes > MAX_BATCH_BYTES:
                raise _too_large()
            yield data
            # At its end the tail is that of the call before.
            rest = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
            view = view[len(piece) - len(rest) :]
    except zlib.error:
        behind = len(body) - len(view)
        raise _no_gzip(f"is damaged or not gzip from byte {behind:,}") from None
    if body and not unzip.eof:
        raise _no_gzip("is truncated")


def _no_gzip(why: str) -> Problem:
    return Problem(
        400,
        f"Invalid gzip: the body {why}. Cohort stored nothing. Compress the lines "
        "again, or send them uncompressed.",
        code="events.bad_gzip",
        errors=[WrongField("body", f"The gzip data {why}.")],
    )
