"""What a starting model does before it is trained: probes and their completions."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from ninja import Router, Schema, Status
from pydantic import Field

from cohort.lines import plain
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import (
    MAX_PROMPTS,
    MAX_SAMPLES,
    RELATED,
    get_probe,
    probe_launched,
    waiting_reason,
)
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.completions import TurnOut
from dashboard.api.launches import LaunchIn, checked_launch, read_launch
from dashboard.api.problems import or_conflict, refuse_field
from dashboard.api.schemas import (
    Cursor,
    Done,
    Id,
    JobOut,
    Limit,
    Page,
    Person,
    Real,
    S,
    StepIn,
    fill,
    job_fields,
    page_by,
)
from dashboard.jobs.queue import request_stop
from dashboard.runs.launch.verdict import verdict_of

router = Router(tags=["Probes"], auth=READ)


class ProbeVerdictOut(Schema):
    answer: str = Field(description="can, hardly or cannot", examples=["can"])
    because: list[str]
    remedies: list[str]


class ProbeOut(JobOut):
    id: int = Field(examples=[4])
    model: str = Field(examples=["SmolLM2-135M-Instruct"])
    dataset_version_id: int = Field(examples=[12])
    recipe_version_id: int | None = Field(description="null: the reward is not saved.")
    positions: list[int] = Field(
        description="Rows of the dataset version.", examples=[[0, 5]]
    )
    num_samples: int = Field(description="Completions per row.", examples=[8])
    is_sample: bool = Field(description="Samples and scores only; no step is timed.")
    run_id: int | None = Field(
        description="Run of the tested checkpoint.", examples=[7]
    )
    checkpoint: str | None = Field(
        description="Checkpoint that is compared with its base model.",
        examples=["step-000050-attempt-1"],
    )
    prompt: str = Field(
        description="Custom prompt of a checkpoint test; empty: a row's prompt.",
        examples=[""],
    )
    is_scored: bool
    metrics: dict[str, Any] = Field(examples=[{"pass@1": 0.25, "signal/share": 0.5}])
    verdict: ProbeVerdictOut | None = Field(
        description="Whether a run can learn; null: unknown."
    )
    created_by: Person | None
    created_at: datetime
    finished_at: datetime | None


def probe_out(row: Probe) -> ProbeOut:
    return _probe(ProbeOut, row)


def _probe(shape: type[S], row: Probe, **fields: Any) -> S:
    verdict = verdict_of(row.config, row.metrics)
    at = row.checkpoint
    return fill(
        shape,
        row,
        model=row.model_label,
        run_id=at.run_id if at else None,
        checkpoint=at.name if at else None,
        metrics=plain(row.metrics),
        verdict=fill(ProbeVerdictOut, verdict) if verdict else None,
        created_by=Person.of(row.created_by),
        **job_fields(row) | fields,
    )


@router.get("", response=Page[ProbeOut], summary="List probes")
def probes(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first."""
    probes_ = request.auth.team.probes.select_related(*RELATED)
    return page_by(probes_, probe_out, cursor=cursor, limit=limit)


class ProbeDetail(ProbeOut):
    config: dict[str, Any] = Field(examples=[{"rollout": {"group_size": 8}}])


@router.get("/{probe_id}", response=ProbeDetail, summary="Get a probe")
def probe(request: ApiRequest, probe_id: Id) -> ProbeDetail:
    probe_ = get_probe(request.auth.team, probe_id)
    return _probe(ProbeDetail, probe_, waiting=waiting_reason(probe_))


class ProbeCompletion(Schema):
    text: str = Field(examples=["<answer>2</answer>"])
    num_tokens: int | None = Field(examples=[9])
    end_reason: str | None = Field(examples=["stop"])
    reward: Real = Field(examples=[1.0])
    rules: dict[str, Real] = Field(examples=[{"answer": 1.0}])
    errors: dict[str, str]
    turns: list[TurnOut] = Field(
        default=[], description="Of an episode; else empty: the text is one turn."
    )


class ProbeGroupOut(Schema):
    position: int = Field(
        description="Row of the dataset version; 0 for a custom prompt.", examples=[5]
    )
    is_base: bool = Field(
        description="Sampled by the base model, not by the checkpoint."
    )
    completions: list[ProbeCompletion]


@router.get(
    "/{probe_id}/groups", response=Page[ProbeGroupOut], summary="List a probe's groups"
)
def probe_groups(
    request: ApiRequest, probe_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """Completions with their scores, in sampling order."""
    groups = get_probe(request.auth.team, probe_id).groups.all()
    read = partial(fill, ProbeGroupOut)
    return page_by(groups, read, cursor=cursor, limit=limit, key="pk")


class ProbeIn(LaunchIn):
    positions: list[StepIn] = Field(
        default=[],
        max_length=MAX_PROMPTS,
        description="Rows to sample. Empty: drawn with the seed.",
    )
    num_prompts: Annotated[int, Field(ge=1, le=MAX_PROMPTS)] | None = Field(
        default=None, description="null: as many as a training step, 16 to 64."
    )
    num_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = Field(
        default=None, description="null: the group size, at most 16."
    )
    is_sample: bool = Field(
        default=False, description="Only sample and score, without timing a step."
    )


@router.post("", response={201: ProbeOut}, auth=WRITE, summary="Start a probe")
def start_probe(request: ApiRequest, payload: ProbeIn) -> Status[ProbeOut]:
    """Accepts the body of a launch and samples from its model without launching it."""
    launch = checked_launch(read_launch(request.auth.team, payload))
    num_rows = launch.dataset_version.num_rows
    if beyond := [position for position in payload.positions if position >= num_rows]:
        raise refuse_field(
            "body.positions",
            f"{launch.dataset_version} has rows 0 to {num_rows - 1:,}; got "
            f"{beyond[0]:,}.",
            code="probes.no_row",
        )
    with or_conflict():
        begun = probe_launched(
            request.auth.team,
            request.auth.user,
            launch,
            positions=sorted(set(payload.positions)),
            num_prompts=payload.num_prompts,
            num_samples=payload.num_samples,
            is_sample=payload.is_sample,
        )
    return Status(201, probe_out(begun))


@router.post("/{probe_id}/stop", response=Done, auth=WRITE, summary="Stop a probe")
def stop_probe(request: ApiRequest, probe_id: Id) -> Done:
    """Completions sampled so far are kept."""
    probe_ = get_probe(request.auth.team, probe_id)
    is_done = request_stop(probe_, request.auth.user, "probe.stop_requested")
    return Done.or_state(is_done, probe_, "Nothing to stop: the probe is")
