"""Runs: list, get, change, extend, delete, stop, pause and resume."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from django.db import transaction
from django.db.models import QuerySet
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.analysis.comments import comments_on
from dashboard.api.auth import READ, WRITE, Access, ApiRequest
from dashboard.api.problems import (
    Problem,
    WrongField,
    or_conflict,
    refuse_field,
)
from dashboard.api.schemas import (
    Change,
    CommentOut,
    Cursor,
    Done,
    Id,
    Input,
    Limit,
    Page,
    Person,
    Real,
    fill,
    page_by,
    page_from,
)
from dashboard.runs import changes, trash
from dashboard.runs.attributes import describe_run
from dashboard.runs.bulk_actions import act
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.models import Run
from dashboard.runs.queries import get_any_run, get_run, list_changes
from dashboard.runs.table.columns import sort_runs
from dashboard.runs.table.parser import QueryError
from dashboard.runs.table.query import ListQuery

RELATED = ("owner", "dataset_version__dataset", "recipe_version__recipe")


class VersionRef(Schema):
    """A version of a dataset or of a reward recipe."""

    id: int = Field(description="ID of the version.", examples=[12])
    of: int = Field(description="ID of the dataset or reward.", examples=[4])
    name: str = Field(examples=["sums"])
    number: int = Field(examples=[2])


def _ref(version: Any, kind: Literal["dataset", "recipe"]) -> VersionRef | None:
    if version is None:
        return None
    of = getattr(version, kind)
    return VersionRef(id=version.pk, of=of.pk, name=of.name, number=version.number)


class RunOut(Schema):
    id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    state: str = Field(examples=["running"])
    owner: Person | None
    model: str = Field(examples=["SmolLM2-135M-Instruct"])
    dataset_version: VersionRef | None
    recipe_version: VersionRef | None
    sweep_id: int | None = Field(description="The sweep of the run.")
    tags: list[str] = Field(examples=[["baseline"]])
    last_step: int = Field(description="The last finished step.", examples=[120])
    num_steps: int = Field(description="Steps of the whole run.", examples=[400])
    last_reward: Real = Field(examples=[0.71])
    best_reward: Real = Field(examples=[0.74])
    is_imported: bool = Field(description="Trained outside Cohort.")
    is_locked: bool
    is_archived: bool
    is_trashed: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, run: Run) -> Self:
        return fill(
            cls,
            run,
            owner=Person.of(run.owner),
            model=run.model_label,
            dataset_version=_ref(run.dataset_version, "dataset"),
            recipe_version=_ref(run.recipe_version, "recipe"),
            last_reward=run.reward("last"),
            best_reward=run.reward("best"),
            is_locked=run.locked_at is not None,
            is_archived=run.archived_at is not None,
            is_trashed=run.trashed_at is not None,
        )


class RunDetail(RunOut):
    notes: str
    metric_names: list[str] = Field(examples=[["reward/mean", "kl/mean"]])
    fail_reason: str
    pause_reason: str
    stop_reason: str
    cloned_from_id: int | None
    forked_from_id: int | None
    fork_step: int | None
    attempt: int = Field(
        description="Attempt number; rises each time a worker takes the run."
    )
    config: dict[str, Any] = Field(
        description="Settings, in the trainer's format.",
        examples=[{"optim": {"learning_rate": 1e-6}}],
    )


def with_shown(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Load what `RunOut` shows, in one query."""
    return runs.select_related(*RELATED).defer("config", "metric_names", "notes")


router = Router(tags=["Runs"], auth=READ)
# By field of a run: the actions that make it true and false.
SWITCHES = {
    "is_trashed": ("trash", "restore"),
    "is_locked": ("lock", "unlock"),
    "is_archived": ("archive", "unarchive"),
}


@router.get("", response=Page[RunOut], summary="List runs")
def runs(
    request: ApiRequest,
    cursor: Cursor,
    limit: Limit,
    q: Annotated[
        str,
        Query(
            "",
            max_length=2_000,
            description="A query in the filter language of the run list: `state = "
            "running and reward/mean > 0.5`. Excludes archived runs and runs in the "
            "trash unless the query names `archived` or `trashed`.",
            examples=["tag = baseline"],
        ),
    ],
    sort: Annotated[
        str,
        Query(
            "-num",
            max_length=200,
            description="A column's key; a leading `-` sorts in descending order. With "
            "orders other than `-num`, pages may shift while runs change.",
        ),
    ],
) -> Page[Any]:
    """Runs of the team that match the query, newest first."""
    query = ListQuery.read({"q": q, "sort": sort})
    if sort and not query.sort:
        raise refuse_field(
            "query.sort",
            f"Unknown column {sort.removeprefix('-')[:60]!r}. Sort by num, name, "
            "state, or another column of the run list, such as -reward/mean.last.",
            "runs.unknown_column",
        )
    try:
        runs_ = query.find(request.auth.team, request.auth.user)
    except QueryError as error:
        at = f" (characters {error.start + 1} to {error.end})"
        raise refuse_field("query.q", f"{error}{at}", "runs.bad_query") from error
    rows = with_shown(runs_)
    if query.sort in ("", "-num"):
        return page_by(rows, RunOut.of, cursor=cursor, limit=limit)
    return page_from(sort_runs(rows, query.sort), RunOut.of, cursor=cursor, limit=limit)


@router.get("/{run_id}", response=RunDetail, summary="Get a run")
def run(request: ApiRequest, run_id: Id) -> RunDetail:
    """Includes settings and notes. Also returns runs in the trash."""
    return RunDetail.of(get_any_run(request.auth.team, run_id))


@router.get(
    "/{run_id}/comments",
    response=Page[CommentOut],
    summary="List a run's comments",
)
def run_comments(
    request: ApiRequest, run_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """Comments on the run itself, oldest first; a group has its own."""
    comments = comments_on(get_run(request.auth.team, run_id))
    return page_by(comments, CommentOut.of, cursor=cursor, limit=limit, key="pk")


class RunChange(Change):
    name: str | None = Field(default=None, max_length=400, examples=["warm-otter"])
    notes: str | None = Field(default=None, max_length=100_000)
    tags: list[Annotated[str, Field(max_length=200)]] | None = Field(
        default=None, max_length=100, examples=[["baseline", "paper"]]
    )
    is_archived: bool | None = None
    is_locked: bool | None = Field(
        default=None, description="True protects the run from changes and deletion."
    )
    is_trashed: bool | None = Field(
        default=None, description="True moves an ended run to the trash."
    )


@router.patch("/{run_id}", response=RunDetail, auth=WRITE, summary="Change a run")
def change_run(request: ApiRequest, run_id: Id, payload: RunChange) -> RunDetail:
    """Applies all fields or none. A 409 states the reason."""
    with transaction.atomic():
        run_ = get_any_run(request.auth.team, run_id)
        Run.objects.select_for_update().get(pk=run_.pk)
        sent = payload.over(RunDetail.of(get_any_run(request.auth.team, run_id)))
        # Locks and the like are removed first and set last.
        for name, (_, undo) in SWITCHES.items():
            if sent.get(name) is False:
                _switch(request.auth, run_id, name, undo)
        described = {
            name: sent[name]
            for name in ("name", "notes", "tags")
            if sent.get(name) is not None
        }
        if described:
            run_ = get_run(request.auth.team, run_id)
            try:
                describe_run(run=run_, user=request.auth.user, typed=described)
            except ValueError as error:
                raise refuse_field("body", error) from error
        for name, (do, _) in reversed(SWITCHES.items()):
            if sent.get(name):
                _switch(request.auth, run_id, name, do)
    return RunDetail.of(get_any_run(request.auth.team, run_id))


def _switch(access: Access, run_id: int, name: str, action: str) -> None:
    run = get_any_run(access.team, run_id)
    if getattr(RunOut.of(run), name) == (action == SWITCHES[name][0]):
        return
    own = Run.objects.filter(pk=run.pk)
    outcome = act(action, own, team=access.team, user=access.user)
    for _, reason in outcome.refused:
        message = f"{run} {reason}."
        code = f"runs.cannot_{action}"
        raise Problem(
            409, message, code=code, errors=[WrongField(f"body.{name}", message, code)]
        )


@router.delete("/{run_id}", response=Done, auth=WRITE, summary="Delete a run")
def delete_run(request: ApiRequest, run_id: Id) -> Done:
    """Permanently deletes a run in the trash, with all its data."""
    with or_conflict():
        trash.delete_run(get_any_run(request.auth.team, run_id), request.auth.user)
    return Done(done=True)


@router.post("/{run_id}/stop", response=Done, auth=WRITE, summary="Stop a run")
def stop_run(request: ApiRequest, run_id: Id) -> Done:
    """Ends the run after its current step, with a checkpoint."""
    return _control(request, run_id, request_stop, "stop")


@router.post("/{run_id}/cancel", response=Done, auth=WRITE, summary="Cancel a run")
def cancel(request: ApiRequest, run_id: Id) -> Done:
    """Ends a queued or training run immediately, without a checkpoint."""
    return _control(request, run_id, cancel_run, "cancel")


@router.post("/{run_id}/pause", response=Done, auth=WRITE, summary="Pause a run")
def pause_run(request: ApiRequest, run_id: Id) -> Done:
    """Saves a checkpoint after the current step and frees the worker."""
    return _control(request, run_id, request_pause, "pause")


@router.post("/{run_id}/resume", response=Done, auth=WRITE, summary="Resume a run")
def resume(request: ApiRequest, run_id: Id) -> Done:
    """Queues a paused run again. It continues from its last checkpoint."""
    return _control(request, run_id, resume_run, "resume")


def _control(request: ApiRequest, run_id: int, action: Any, verb: str) -> Done:
    run = get_run(request.auth.team, run_id)
    is_done = action(run=run, user=request.auth.user)
    outcome = Done.or_state(is_done, run, f"Cannot {verb} the run: it is")
    if not is_done and verb == "resume" and run.state in changes.ENDED_WELL:
        outcome.detail += " Extend it to continue."
    return outcome


# Changes since launch: number of steps, intervals, retention.


class RunChangeOut(Schema):
    number: int = Field(examples=[1])
    before: dict[str, int] = Field(examples=[{"optim.num_steps": 200}])
    after: dict[str, int] = Field(examples=[{"optim.num_steps": 400}])
    by: Person | None
    asked_at: datetime
    applied_step: int | None = Field(
        description="Applied after this step; null: not applied yet."
    )


class RunChangesOut(Schema):
    num_steps: int = Field(examples=[400])
    first_step: int = Field(
        description="The first step that an extension could change."
    )
    settings: dict[str, int] = Field(
        description="Settings that may change, besides the number of steps.",
        examples=[{"checkpoint.every_steps": 50}],
    )
    items: list[RunChangeOut]


@router.get("/{run_id}/changes", response=RunChangesOut, summary="List a run's changes")
def run_changes(request: ApiRequest, run_id: Id) -> RunChangesOut:
    """Changes since launch, and the settings that may still change."""
    return _changes(request.auth.team, run_id)


def _changes(team: Team, run_id: int) -> RunChangesOut:
    run = get_run(team, run_id)
    paths = (
        [] if run.is_imported else [field.path for field in changes.interval_fields()]
    )
    return RunChangesOut(
        num_steps=run.num_steps,
        first_step=changes.next_step(run),
        settings={path: changes.setting_of(run.config, path) for path in paths},
        items=[
            fill(RunChangeOut, row, by=Person.of(row.actor))
            for row in list_changes(run)
        ],
    )


class RunExtendIn(Input):
    num_steps: Annotated[int, Field(ge=1, le=changes.MAX_STEPS)] = Field(
        description="The new last step.", examples=[400]
    )


@router.post(
    "/{run_id}/extend", response=RunChangesOut, auth=WRITE, summary="Extend a run"
)
def extend(request: ApiRequest, run_id: Id, payload: RunExtendIn) -> RunChangesOut:
    """Queues a finished or stopped run again, from its last checkpoint."""
    run = get_run(request.auth.team, run_id)
    with or_conflict("body.num_steps"):
        changes.extend_run(run=run, user=request.auth.user, num_steps=payload.num_steps)
    return _changes(request.auth.team, run_id)


class RunSettingsIn(Input):
    settings: dict[str, Annotated[int, Field(ge=0, le=10**8)]] = Field(
        min_length=1, examples=[{"checkpoint.every_steps": 20}]
    )
    was: dict[str, int] = Field(
        default={},
        description="Their values when you read them. 409 with both values if one "
        "has changed since.",
        examples=[{}],
    )


@router.post(
    "/{run_id}/changes",
    response=RunChangesOut,
    auth=WRITE,
    summary="Change a run's settings",
)
def change_settings(
    request: ApiRequest, run_id: Id, payload: RunSettingsIn
) -> RunChangesOut:
    """Intervals and retention. A running trainer applies them after its step."""
    run = get_run(request.auth.team, run_id)
    paths = {field.path for field in changes.interval_fields()}
    if unknown := [path for path in payload.settings if path not in paths]:
        raise refuse_field(
            f"body.settings.{unknown[0][:80]}",
            "This setting cannot change after launch. These can: "
            f"{', '.join(sorted(paths))}.",
            "runs.fixed_setting",
        )
    with or_conflict("body.settings"):
        changes.change_run(
            run=run, user=request.auth.user, settings=payload.settings, base=payload.was
        )
    return _changes(request.auth.team, run_id)
