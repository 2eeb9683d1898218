"""The audit of a run: signals of reward hacking."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.analysis.audit.change_points import Change, Window
from dashboard.analysis.audit.findings import Audit, Finding, Status, audit
from dashboard.analysis.audit.texts import Phrase
from dashboard.api.auth import READ, access_of
from dashboard.api.schemas import LARGEST_STEP, Id, Real, fill
from dashboard.runs.queries import get_run

router = Router(tags=["Audit"], auth=READ)
At = Annotated[
    int | None,
    Query(
        None,
        ge=1,
        le=LARGEST_STEP,
        description="Compare the points before and after this step. Default: each "
        "signal's clearest change.",
    ),
]
Width = Annotated[
    int | None,
    Query(None, ge=3, le=100_000, description="Number of points on each side."),
]


class AuditWindowOut(Schema):
    first_step: int = Field(examples=[1])
    last_step: int = Field(examples=[40])
    num_points: int = Field(examples=[40])
    mean: Real = Field(examples=[0.2])


def _window(window: Window) -> AuditWindowOut:
    return AuditWindowOut(
        first_step=window.first,
        last_step=window.last,
        num_points=window.num,
        mean=window.mean,
    )


class AuditChangeOut(Schema):
    step: int = Field(description="First step after the change.", examples=[41])
    before: AuditWindowOut
    after: AuditWindowOut
    difference: Real = Field(examples=[0.3])
    low: Real = Field(description="Lower end of the 95 % interval.")
    high: Real
    effect: Real = Field(
        description="Effect size: difference / spread of a point.", examples=[1.4]
    )
    chance: Real = Field(
        description="p-value: how often a series without a change would show one as "
        "clear. null if you chose the step.",
        examples=[0.001],
    )


def _change(change: Change, chance: float | None) -> AuditChangeOut:
    return fill(
        AuditChangeOut,
        change,
        before=_window(change.before),
        after=_window(change.after),
        chance=chance,
    )


class AuditFindingOut(Schema):
    signal: str = Field(examples=["length"])
    title: str = Field(examples=["Length of completions"])
    about: str
    unit: str = Field(examples=["tokens"])
    status: Status = Field(
        description="suspect: a change in the direction of reward hacking; "
        "otherwise: a clear change in the other direction; steady: no "
        "clear change; few: too few points; aside: too few points on "
        "one side of the chosen step; missing: not measured, see "
        "`missing`.",
        examples=["suspect"],
    )
    missing: str
    num_points: int
    change: AuditChangeOut | None


def _finding(finding: Finding) -> AuditFindingOut:
    signal, change = finding.signal, finding.change
    return fill(
        AuditFindingOut,
        signal,
        signal=signal.key,
        status=finding.status,
        num_points=finding.num_points,
        change=_change(change, finding.chance) if change else None,
    )


class AuditPhraseOut(Schema):
    words: str = Field(examples=["the answer is therefore"])
    share_before: Real = Field(
        description="Share of completions that contain it.", examples=[0.01]
    )
    share_after: Real = Field(examples=[0.4])


def _phrase(phrase: Phrase) -> AuditPhraseOut:
    return AuditPhraseOut(
        words=phrase.words,
        share_before=phrase.before / phrase.of_before,
        share_after=phrase.after / phrase.of_after,
    )


class AuditOut(Schema):
    last_step: int = Field(
        description="Last step of the run when it was audited.", examples=[120]
    )
    num_suspect: int = Field(examples=[1])
    findings: list[AuditFindingOut]
    phrases: list[AuditPhraseOut] = Field(
        description="Phrases that became more common."
    )
    num_steps: int = Field(description="Number of steps whose completions were read.")
    num_chosen: int = Field(description="Number of steps selected for reading.")
    num_completions: int = Field(description="Number of completions that were read.")


@router.get("/{run_id}/audit", response=AuditOut, summary="Audit a run")
def run_audit(request: HttpRequest, run_id: Id, at: At, width: Width) -> AuditOut:
    """Signals of reward hacking. No signal proves it."""
    found: Audit = audit(get_run(access_of(request).team, run_id), at=at, width=width)
    return fill(
        AuditOut,
        found,
        findings=[_finding(each) for each in found.findings],
        phrases=[_phrase(each) for each in found.phrases],
    )
