"""Alerts and their rules, the team's own and built-in ones."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from django.db import transaction
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.alerts.forms import ActionForm, RuleForm
from dashboard.alerts.models import Alert, AlertState, Rule
from dashboard.alerts.queries import (
    describe,
    get_alert,
    get_rule,
    list_alerts,
    list_metrics,
    list_rules,
)
from dashboard.alerts.services import (
    acknowledge,
    change_rule,
    create_rule,
    delete_rule,
    switch_rule,
)
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import or_conflict, refuse_field
from dashboard.api.schemas import (
    LARGEST_ID,
    Change,
    Cursor,
    Done,
    Id,
    IdIn,
    Input,
    Limit,
    Page,
    Person,
    Real,
    S,
    fill,
    page_by,
    refuse_errors,
)
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from trainer.alerts.conditions import MAX_STEPS

router = Router(tags=["Alerts"], auth=READ)
rules_router = Router(tags=["Alerts"], auth=READ)
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
OF_FORM = {"run": "run_id"}


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


# The rules, the team's own and built-in ones.


class RuleOut(Schema):
    id: int = Field(examples=[5])
    built_in: str = Field(
        description="Key of a built-in rule; empty: a custom rule.", examples=[""]
    )
    name: str = Field(examples=["KL above 0.5"])
    reads: str = Field(examples=["kl/mean above 0.5 for 10 steps"])
    metric: str = Field(examples=["kl/mean"])
    kind: str = Field(examples=["above"])
    threshold: float | None = Field(
        description="null: the default of a built-in rule.", examples=[0.5]
    )
    back: int = Field(
        description="For changes: compared with the value this many steps ago.",
        examples=[1],
    )
    for_steps: int | None = Field(examples=[10])
    run_id: int | None = Field(description="null: every run.")
    name_pattern: str = Field(
        description="Pattern of run names; empty: all runs.", examples=["sft-*"]
    )
    is_enabled: bool
    is_sent: bool = Field(description="Whether its alerts go to the team's channels.")
    pauses_run: bool
    muted_until: datetime | None

    @classmethod
    def of(cls, rule: Rule) -> RuleOut:
        return fill(cls, rule, reads=describe(rule))


class RulesOut(Schema):
    items: list[RuleOut]
    metrics: list[str] = Field(
        description="Metrics of the team's last runs.", examples=[["kl/mean"]]
    )


@rules_router.get("", response=RulesOut, summary="List alert rules")
def alert_rules(request: ApiRequest) -> RulesOut:
    """Built-in rules first; at most 200 custom rules."""
    rules = [RuleOut.of(rule) for rule in list_rules(request.auth.team.pk)]
    return RulesOut(items=rules, metrics=list_metrics(request.auth.team))


class RuleIn(Input):
    metric: str = Field(max_length=400, examples=["kl/mean"])
    kind: Literal["above", "below", "changes", "missing"] = Field(examples=["above"])
    threshold: Finite | None = Field(
        default=None,
        description="In % for changes; omit it for missing.",
        examples=[0.5],
    )
    back: Steps = Field(
        default=1,
        description="For changes: compare with the value this many steps ago.",
    )
    for_steps: Steps = Field(default=1, examples=[10])
    run_id: IdIn | None = None
    name_pattern: str = Field(
        default="", max_length=400, description="Pattern of run names, such as sft-*."
    )
    name: str = Field(
        default="", max_length=400, description="Empty: the condition becomes the name."
    )
    is_sent: bool = True
    pauses_run: bool = False


@rules_router.post(
    "", response={201: RuleOut}, auth=WRITE, summary="Create an alert rule"
)
def create_alert_rule(request: ApiRequest, payload: RuleIn) -> Status[RuleOut]:
    """Create a rule, which applies from the next step."""
    form = _form(request.auth.team, payload.model_dump())
    refuse_errors(form, place="body", names=OF_FORM)
    with or_conflict():
        rule = create_rule(rule=form.instance, user=request.auth.user)
    return Status(201, RuleOut.of(rule))


class RuleChange(Change):
    metric: str | None = Field(default=None, max_length=400)
    kind: Literal["above", "below", "changes", "missing"] | None = None
    threshold: Finite | None = Field(default=None, examples=[0.7])
    back: Steps | None = None
    for_steps: Steps | None = None
    run_id: IdIn | None = None
    name_pattern: str | None = Field(default=None, max_length=400)
    name: str | None = Field(default=None, max_length=400)
    is_sent: bool | None = None
    pauses_run: bool | None = None
    is_enabled: bool | None = Field(
        default=None, description="false withdraws the open alerts."
    )


@rules_router.patch("/{rule_id}", response=RuleOut, auth=WRITE, summary="Change a rule")
def change_alert_rule(request: ApiRequest, rule_id: Id, payload: RuleChange) -> RuleOut:
    """Built-in rules: only threshold, steps, sending and pausing can change; null
    resets to the default. Changing the condition withdraws the open alerts."""
    with transaction.atomic():
        rule = get_rule(request.auth.team, rule_id, is_held=True)
        changes = payload.over(RuleOut.of(rule))
        is_enabled = changes.pop("is_enabled", None)
        if changes:
            form = _form_of(request.auth.team, rule, changes)
            refuse_errors(form, place="body", names=OF_FORM)
            change_rule(rule=form.instance, user=request.auth.user)
        if is_enabled is not None:
            switch_rule(rule=rule, user=request.auth.user, is_enabled=is_enabled)
    return RuleOut.of(get_rule(request.auth.team, rule_id))


def _form_of(team: Team, rule: Rule, changes: dict[str, Any]) -> ActionForm:
    fields = RuleOut.of(rule).model_dump()
    if not rule.built_in:
        names = RuleIn.model_fields
        return _form(team, {n: fields[n] for n in names} | changes, rule)
    form = ActionForm(instance=rule)
    if unknown := [name for name in changes if name not in form.fields]:
        allowed = ", ".join(form.fields)
        raise refuse_field(
            f"body.{unknown[0]}",
            f"This built-in rule has no field {unknown[0]}. You can change {allowed}.",
            code="alerts.fixed_field",
        )
    return ActionForm({n: fields[n] for n in form.fields} | changes, instance=rule)


def _form(team: Team, fields: dict[str, Any], rule: Rule | None = None) -> RuleForm:
    """Fill the page's form, which here offers every run of the team."""
    run_id = fields.pop("run_id")
    run = get_run(team, run_id) if run_id else None
    data = {n: v for n, v in fields.items() if v is not None}
    form = RuleForm(data | {"run": run.pk if run else ""}, instance=rule, team=team)
    form.fields["run"].queryset = Run.objects.filter(team=team)  # type: ignore[attr-defined]  # a ModelChoiceField
    return form


@rules_router.delete("/{rule_id}", response=Done, auth=WRITE, summary="Delete a rule")
def delete_alert_rule(request: ApiRequest, rule_id: Id) -> Done:
    """Delete a rule. Its alerts remain, with the rule's text."""
    rule = get_rule(request.auth.team, rule_id)
    with or_conflict():
        delete_rule(rule=rule, user=request.auth.user)
    return Done(done=True)
