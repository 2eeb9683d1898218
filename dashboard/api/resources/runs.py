"""Runs: found, looked at, described, and asked to stop or go on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, WRITE, Access, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by, page_from
from dashboard.api.problems import Problem, or_conflict, or_refuse, refuse_field
from dashboard.api.resources.run_schemas import RunDetail, RunOut, with_shown
from dashboard.api.schemas import Done, Id, Input
from dashboard.runs import trash
from dashboard.runs.actions import act
from dashboard.runs.changing import ENDED_WELL
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.describing import describe_run
from dashboard.runs.models import Run
from dashboard.runs.queries import get_any_run, get_run
from dashboard.runs.table.columns import sort_runs
from dashboard.runs.table.query import ListQuery
from dashboard.runs.table.tree import QueryError

router = Router(tags=["Runs"], auth=READ)
MAX_RUNS_AT_ONCE = 1_000


@router.get("", response=Page[RunOut], summary="List runs")
def runs(
    request: HttpRequest,
    cursor: Cursor,
    limit: Limit,
    q: Annotated[
        str,
        Query(
            "",
            max_length=2_000,
            description="The filter language of the run list: `state = running and "
            "reward > 0.5`. Without a word of them, archived runs and those in the "
            "trash are left out.",
            examples=["tag = baseline"],
        ),
    ],
    sort: Annotated[
        str,
        Query(
            "-num",
            max_length=200,
            description="A column's key, `-` before it from the top. Other orders than "
            "`-num` move on while runs change.",
        ),
    ],
) -> Page[Any]:
    """Those of the team that the query finds, the newest first."""
    access = access_of(request)
    query = ListQuery.read({"q": q, "sort": sort})
    if sort and not query.sort:
        raise refuse_field(
            "query.sort",
            f"No column is called {sort.removeprefix('-')[:60]!r}. Sort by num, name, "
            "state, or a key that the run list can show, such as -last.reward/mean.",
        )
    found = find_runs(query, access, place="query.q")
    total, shown = found.count(), with_shown(found)
    place: dict[str, Any] = {"cursor": cursor, "limit": limit, "total": total}
    if query.sort in ("", "-num"):
        return page_by(shown, RunOut.of, **place)
    return page_from(sort_runs(shown, query.sort), RunOut.of, **place)


class ActionIn(Input):
    action: Literal[
        "tag", "untag", "star", "unstar", "lock", "unlock", "archive", "unarchive",
        "trash", "restore", "stop",
    ] = Field(examples=["tag"])  # fmt: skip
    run_ids: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(
        default=[], max_length=MAX_RUNS_AT_ONCE, examples=[[7, 8]]
    )
    q: str | None = Field(
        default=None,
        max_length=2_000,
        description="All that this query finds, in place of numbers; empty: all that "
        "the run list shows.",
    )
    tag: str = Field(
        default="", max_length=200, description="Of tag and untag.", examples=["best"]
    )


class Refused(Schema):
    run_id: int
    reason: str = Field(examples=["has the tag already"])


class ActionOut(Schema):
    done: list[int] = Field(description="Runs that it was done to.", examples=[[7]])
    refused: list[Refused]


@router.post("/actions", response=ActionOut, auth=WRITE, summary="Act on runs")
def act_on_runs(request: HttpRequest, payload: ActionIn) -> ActionOut:
    """As the run list does with ticked runs: what can be done is done, all at once."""
    access = access_of(request)
    own = _chosen(access, payload)
    with or_refuse("body.tag"):
        outcome = act(
            payload.action,
            own,
            team=access.team,
            user=access.user,
            argument=payload.tag,
        )
    return ActionOut(
        done=[run.pk for run in outcome.done],
        refused=[Refused(run_id=run.pk, reason=r) for run, r in outcome.refused],
    )


def _chosen(access: Access, payload: ActionIn) -> QuerySet[Run]:
    if (payload.q is None) == (not payload.run_ids):
        said = "Name runs by their numbers, or by a query in `q`; one of the two."
        raise refuse_field("body.run_ids", said)
    if payload.q is not None:
        query = ListQuery.read({"q": payload.q, "sort": ""})
        return find_runs(query, access, place="body.q")
    own = Run.objects.filter(team=access.team, pk__in=payload.run_ids)
    known = set(own.values_list("pk", flat=True))
    if missing := sorted(set(payload.run_ids) - known):
        raise Problem(404, f"{access.team} has no run {missing[0]}.")
    return own


def find_runs(query: ListQuery, access: Access, *, place: str) -> QuerySet[Run]:
    try:
        return query.find(access.team, access.user)
    except QueryError as error:
        at = f" (characters {error.start + 1} to {error.end})"
        raise refuse_field(place, f"{error}{at}") from error


@router.get("/{run_id}", response=RunDetail, summary="Look at a run")
def run(request: HttpRequest, run_id: Id) -> RunDetail:
    """With its settings and notes; also one in the trash."""
    return RunDetail.of(get_any_run(access_of(request).team, run_id))


class DescribeIn(Input):
    name: str | None = Field(default=None, max_length=400, examples=["warm-otter"])
    notes: str | None = Field(default=None, max_length=100_000)
    tags: list[Annotated[str, Field(max_length=200)]] | None = Field(
        default=None, max_length=100, examples=[["baseline", "paper"]]
    )


@router.patch("/{run_id}", response=RunDetail, auth=WRITE, summary="Describe a run")
def describe(request: HttpRequest, run_id: Id, payload: DescribeIn) -> RunDetail:
    """Its name, notes and tags; what is left out stays."""
    access = access_of(request)
    found = get_run(access.team, run_id)
    tags = found.tags if payload.tags is None else payload.tags
    try:
        describe_run(
            run=found,
            user=access.user,
            name=found.name if payload.name is None else payload.name,
            notes=found.notes if payload.notes is None else payload.notes,
            tags=", ".join(tags),
        )
    except ValueError as error:
        raise Problem(422, str(error), errors=[("body", str(error))]) from error
    return RunDetail.of(get_run(access.team, run_id))


@router.delete("/{run_id}", response=Done, auth=WRITE, summary="Delete a run")
def delete_run(request: HttpRequest, run_id: Id) -> Done:
    """One in the trash, with all that was recorded of it, for good."""
    access = access_of(request)
    with or_conflict():
        trash.delete_run(get_any_run(access.team, run_id), access.user)
    return Done(done=True)


@router.post("/{run_id}/stop", response=Done, auth=WRITE, summary="Stop a run")
def stop_run(request: HttpRequest, run_id: Id) -> Done:
    """It ends after the step it is at, with a checkpoint."""
    return _ask(request, run_id, request_stop, "stop")


@router.post("/{run_id}/cancel", response=Done, auth=WRITE, summary="Cancel a run")
def cancel(request: HttpRequest, run_id: Id) -> Done:
    """It ends at once, without a checkpoint, whether it waits or trains."""
    return _ask(request, run_id, cancel_run, "cancel")


@router.post("/{run_id}/pause", response=Done, auth=WRITE, summary="Pause a run")
def pause_run(request: HttpRequest, run_id: Id) -> Done:
    """It saves a checkpoint after the step it is at, and gives its worker free."""
    return _ask(request, run_id, request_pause, "pause")


@router.post("/{run_id}/resume", response=Done, auth=WRITE, summary="Resume a run")
def resume(request: HttpRequest, run_id: Id) -> Done:
    """A paused run is queued again, and goes on from its last checkpoint."""
    return _ask(request, run_id, resume_run, "resume")


def _ask(request: HttpRequest, run_id: int, ask: Any, verb: str) -> Done:
    access = access_of(request)
    found = get_run(access.team, run_id)
    if ask(run=found, user=access.user):
        return Done(done=True)
    found.refresh_from_db(fields=["state"])
    detail = f"Nothing to {verb}: the run is {found.state}."
    if verb == "resume" and found.state in ENDED_WELL:
        detail += " Extend it to continue."
    return Done(done=False, detail=detail)
