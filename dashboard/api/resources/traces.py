"""What a run did beside its metrics: its machine, its tokens, its settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.analysis.reports.document import finite
from dashboard.api.attachments import FILE, attach
from dashboard.api.auth import READ, access_of
from dashboard.api.schemas import Id, Real, Step
from dashboard.runs.charts.figures import settings_of
from dashboard.runs.config.snapshot import WRITERS
from dashboard.runs.queries import get_run
from dashboard.samples.groups import get_group
from dashboard.samples.tokens import read_tokens, which_are_kept
from dashboard.training.system_samples import Window, as_columns, read_points

router = Router(tags=["Runs"], auth=READ)
Moment = Annotated[float | None, Query(None, ge=0, le=10**12)]


class SystemOut(Schema):
    epoch: list[int] = Field(examples=[[1, 1]])
    time: list[float] = Field(description="Seconds since 1970.")
    step: list[int] = Field(examples=[[3, 4]])
    values: dict[str, list[Real]] = Field(
        description="cpu and gpu_use/0 in per cent; memory, disk_free and gpu_memory/0 "
        "in bytes; disk_read, network_sent and so on in bytes a second.",
        examples=[{"cpu": [41.0, 40.2]}],
    )


@router.get("/{run_id}/system", response=SystemOut, summary="Read a machine's use")
def run_system(
    request: HttpRequest,
    run_id: Id,
    x: Annotated[Literal["time", "step"], Query("time")],
    first: Moment,
    last: Moment,
    after: Moment,
) -> SystemOut:
    """About 500 points between two times or steps; `after` a time: what is new."""
    run = get_run(access_of(request).team, run_id)
    window = Window(axis=x, first=first, last=last)
    return SystemOut(**as_columns(read_points(run.pk, window, after=after)))


class GroupTokensOut(Schema):
    completions: list[dict[str, Any]] = Field(
        description="Of each, by token: text, log-prob, ratio, KL, advantage, what its "
        "gradient weighs, as far as the run keeps them."
    )


@router.get(
    "/{run_id}/groups/{step}/{prompt_index}/tokens",
    response=GroupTokensOut,
    summary="Read a group's tokens",
)
def group_tokens(
    request: HttpRequest, run_id: Id, step: Step, prompt_index: Step
) -> GroupTokensOut:
    """What the update did to each; 404 says for which groups they are kept."""
    run = get_run(access_of(request).team, run_id)
    found = read_tokens(get_group(run, step, prompt_index))
    if found is None:
        raise Http404(which_are_kept(run))
    return GroupTokensOut(completions=finite(found))


@router.get(
    "/{run_id}/config.{suffix}",
    response=FILE,
    summary="Take a run's settings as a file",
)
def run_config_file(
    request: HttpRequest, run_id: Id, suffix: Literal["toml", "json"]
) -> HttpResponseBase:
    """For `python -m trainer run`; TOML says which rows its files hold."""
    run = get_run(access_of(request).team, run_id)
    config = settings_of(run)
    if config is None:
        raise Http404(f"{run} was imported: it has no settings.")
    text = WRITERS[suffix](run, config)
    return attach(
        iter([text.encode()]),
        filename=f"{run.name}-{run.pk}.{suffix}",
        content_type="text/plain; charset=utf-8",
    )
