"""Several runs of one launch, some of whose settings have several values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import or_conflict, refuse_field
from dashboard.api.resources.launches import (
    LaunchIn,
    Value,
    checked_launch,
    read_launch,
    refuse_warnings,
)
from dashboard.api.schemas import Input, Person, fill
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch.form import LaunchForm
from dashboard.runs.launch.services import launch_group
from dashboard.runs.launch.sweep import MAX_VALUES, NUM_ROWS, Row, Sweep
from dashboard.runs.models import Run, RunGroup

router = Router(tags=["Sweeps"], auth=READ)


class SweepOut(Schema):
    id: int = Field(description="`group_id` of its runs.", examples=[3])
    name: str = Field(examples=["rates"])
    launched_by: Person | None
    launched_at: datetime
    run_ids: list[int] = Field(
        description="That are not in the trash.", examples=[[7, 8]]
    )


def _sweep(group: RunGroup) -> SweepOut:
    return fill(
        SweepOut,
        group,
        launched_by=Person.of(group.launched_by),
        run_ids=[run.pk for run in group.runs.all()],
    )


def _groups(team: Team) -> QuerySet[RunGroup]:
    found = team.rungroup_set.select_related("launched_by")
    runs = Run.objects.kept().only("group_id").order_by("pk")
    return found.prefetch_related(Prefetch("runs", runs))


@router.get("", response=Page[SweepOut], summary="List sweeps")
def sweeps(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """The newest first; `/compare/sweep` tells what their outcome goes with."""
    found = _groups(access_of(request).team)
    return page_by(found, _sweep, cursor=cursor, limit=limit)


class ValuesIn(Input):
    setting: str = Field(max_length=200, examples=["optim.learning_rate"])
    values: list[Value] = Field(
        min_length=1,
        max_length=MAX_VALUES,
        description="Two or more; of a whole number also a range: `0..4`.",
        examples=[[1e-6, 3e-6]],
    )


class SweepIn(LaunchIn):
    sweep: list[ValuesIn] = Field(min_length=1, max_length=NUM_ROWS)
    mode: Literal["grid", "pairs"] = Field(
        default="grid",
        description="grid: every combination; pairs: the first values together, then "
        "the second ones.",
    )


@router.post("", response={201: SweepOut}, auth=WRITE, summary="Launch a sweep")
def launch_sweep(request: HttpRequest, payload: SweepIn) -> Status[SweepOut]:
    """All of its runs are queued, or none."""
    access = access_of(request)
    form = read_launch(access.team, payload)
    refuse_warnings(checked_launch(form), payload)
    planned = _plan(form, payload)
    with or_conflict():
        group = launch_group(
            team=access.team,
            user=access.user,
            name=form.name,
            launches=[one.launch for one in planned.runs],
            cloned_from=form.start.run,
            fork_of=form.start.fork,
        )
    return Status(201, _sweep(_groups(access.team).get(pk=group.pk)))


def _plan(form: LaunchForm, payload: SweepIn) -> Sweep:
    rows = [_row(each, place) for place, each in enumerate(payload.sweep)]
    found = Sweep(rows=rows, mode=payload.mode)
    found.plan(form)
    if found.problem:
        raise refuse_field("body.sweep", found.problem)
    return found


def _row(asked: ValuesIn, place: int) -> Row:
    """As the form holds it: a text with commas between."""
    setting = all_fields().get(asked.setting)
    at = f"body.sweep.{place}"
    if setting is None:
        said = f"There is no setting {asked.setting[:80]!r}."
        raise refuse_field(f"{at}.setting", said)
    texts = []
    for value in asked.values:
        is_switch = isinstance(value, bool)
        text = ("on" if value else "off") if is_switch else setting.write(value)
        if not text.strip() or "," in text:
            said = f"A value is not empty and holds no comma; got {text[:40]!r}."
            raise refuse_field(f"{at}.values", said)
        texts.append(text)
    return Row(path=asked.setting, text=", ".join(texts))
