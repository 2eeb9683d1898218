"""Alerts, listed and acknowledged."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.alerts.models import Alert, AlertState
from dashboard.alerts.queries import get_alert, get_rule, list_alerts
from dashboard.alerts.services import acknowledge
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.schemas import (
    LARGEST_ID,
    Cursor,
    Done,
    Id,
    Limit,
    Page,
    Person,
    Real,
    S,
    fill,
    page_by,
)
from dashboard.runs.queries import get_run

router = Router(tags=["Alerts"], auth=READ)


class AlertOut(Schema):
    id: int = Field(examples=[9])
    run_id: int = Field(examples=[7])
    rule_id: int | None = Field(description="null: the rule was deleted.", examples=[5])
    name: str = Field(examples=["KL above 0.5"])
    text: str = Field(examples=["kl/mean was 0.61, above 0.5."])
    metric: str = Field(examples=["kl/mean"])
    step: int = Field(examples=[130])
    value: Real = Field(examples=[0.61])
    bound: Real = Field(examples=[0.5])
    state: AlertState = Field(examples=["firing"])
    is_muted: bool
    fired_at: datetime
    acknowledged_at: datetime | None
    ended_at: datetime | None


def _alert(shape: type[S], alert: Alert, **fields: Any) -> S:
    read = {name: str(alert.read_as.get(name, "")) for name in ("name", "text")}
    return fill(shape, alert, **read, **fields)


@router.get("", response=Page[AlertOut], summary="List alerts")
def alerts(
    request: ApiRequest,
    cursor: Cursor,
    limit: Limit,
    state: Annotated[AlertState | None, Query(None)],
    run_id: Annotated[int | None, Query(None, ge=1, le=LARGEST_ID)],
    rule_id: Annotated[int | None, Query(None, ge=1, le=LARGEST_ID)],
    is_open: Annotated[
        bool,
        Query(False, description="Only open alerts of active runs."),
    ],
) -> Page[Any]:
    """Newest first."""
    team = request.auth.team
    alerts_ = list_alerts(team)
    if state is not None:
        alerts_ = alerts_.filter(state=state)
    if run_id is not None:
        alerts_ = alerts_.filter(run=get_run(team, run_id))
    if rule_id is not None:
        alerts_ = alerts_.filter(rule=get_rule(team, rule_id))
    if is_open:
        alerts_ = alerts_.actionable()
    return page_by(alerts_, partial(_alert, AlertOut), cursor=cursor, limit=limit)


class AlertDetail(AlertOut):
    why: str = Field(description="Why it matters.")
    acknowledged_by: Person | None
    has_paused: bool = Field(description="Whether the rule paused the run.")
    readings: dict[str, list[list[Any]]] = Field(
        description="By metric: [step, value] pairs around the alert.",
        examples=[{"kl/mean": [[129, 0.42], [130, 0.61]]}],
    )
    groups: list[list[int]] = Field(
        description="Example groups: [step, prompt_index].", examples=[[[130, 4]]]
    )


@router.get("/{alert_id}", response=AlertDetail, summary="Get an alert")
def alert(request: ApiRequest, alert_id: Id) -> AlertDetail:
    """Return an alert with the metric values around it and example groups."""
    alert_ = get_alert(request.auth.team, alert_id)
    return _alert(
        AlertDetail,
        alert_,
        why=str(alert_.read_as.get("why", "")),
        acknowledged_by=Person.of(alert_.acknowledged_by),
    )


@router.post(
    "/{alert_id}/acknowledge", response=Done, auth=WRITE, summary="Acknowledge an alert"
)
def acknowledge_alert(request: ApiRequest, alert_id: Id) -> Done:
    """Marks the alert as being handled."""
    alert_ = get_alert(request.auth.team, alert_id)
    is_done = acknowledge(alert=alert_, user=request.auth.user)
    return Done.or_state(is_done, alert_, "Nothing to acknowledge: the alert is")
