"""The audit of a run: whether its reward is gamed."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.analysis.audit.changes import Change, Window
from dashboard.analysis.audit.findings import Audit, Finding, Status, audit
from dashboard.analysis.audit.verdict import Answer, Verdict, Why
from dashboard.api.auth import READ, access_of
from dashboard.api.schemas import Id, Real, fill
from dashboard.runs.queries import get_run

router = Router(tags=["Audit"], auth=READ)


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
    before: AuditWindowOut
    after: AuditWindowOut
    difference: Real = Field(examples=[0.3])
    low: Real = Field(description="Lower end of the 95 % interval.")
    high: Real
    effect: Real = Field(
        description="Effect size: difference / spread of a point.", examples=[1.4]
    )


def _change(change: Change) -> AuditChangeOut:
    return fill(
        AuditChangeOut,
        change,
        before=_window(change.before),
        after=_window(change.after),
    )


class AuditFindingOut(Schema):
    signal: str = Field(examples=["length"])
    title: str = Field(examples=["Length of completions"])
    about: str
    unit: str = Field(examples=["tokens"])
    status: Status = Field(
        description="changed: by 10 % or more, and the interval excludes 0; steady: "
        "not so; few: too few points; missing: not measured, see `missing`.",
        examples=["changed"],
    )
    step: int | None = Field(description="Step by which most of it has changed.")
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
        step=finding.step,
        change=_change(change) if change else None,
    )


class AuditVerdictOut(Schema):
    answer: Answer = Field(
        description="Whether the reward is gamed: no sign, likely, or unknown.",
        examples=["likely"],
    )
    why: Why = Field(
        description="falls, stands: correctness falls or stands still while the reward "
        "rises; surface: the reward follows a feature of the text; rises, high: "
        "correctness rises or was high; flat: the reward has not risen; few: under "
        "24 steps; no_rule: no rule measures correctness; unclear: it has not clearly "
        "changed.",
        examples=["falls"],
    )
    reward: AuditChangeOut | None
    measure: str | None = Field(
        description="The rule, held-out set or feature that decides.",
        examples=["equation"],
    )
    change: AuditChangeOut | None = Field(description="Change of that measure.")


def _verdict(verdict: Verdict) -> AuditVerdictOut:
    measure = verdict.witness or verdict.feature
    change = verdict.feature.change if verdict.feature else verdict.change
    return AuditVerdictOut(
        answer=verdict.answer,
        why=verdict.why,
        reward=_change(verdict.reward) if verdict.reward else None,
        measure=measure.name if measure else None,
        change=_change(change) if change else None,
    )


class AuditOut(Schema):
    last_step: int = Field(
        description="Last step of the run when it was audited.", examples=[120]
    )
    verdict: AuditVerdictOut
    findings: list[AuditFindingOut]
    num_steps: int = Field(description="Number of steps whose completions were read.")
    num_chosen: int = Field(description="Number of steps selected for reading.")
    num_completions: int = Field(description="Number of completions that were read.")


@router.get("/{run_id}/audit", response=AuditOut, summary="Audit a run")
def run_audit(request: HttpRequest, run_id: Id) -> AuditOut:
    """Whether the reward is gamed, and what else changed. It does not prove it."""
    found: Audit = audit(get_run(access_of(request).team, run_id))
    return fill(
        AuditOut,
        found,
        verdict=_verdict(found.verdict),
        findings=[_finding(each) for each in found.findings],
    )
