"""Lookups of alerts and rules, through the team only, and what pages show of them."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet
from django.http import Http404
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.alerts.models import (
    WARNINGS,
    Alert,
    AlertQuerySet,
    AlertState,
    Channel,
    Delivery,
    DeliveryState,
    MutedRun,
    Rule,
)
from dashboard.runs.models import REWARD, Run
from trainer.alert_conditions import finite

MAX_SHOWN = 50  # on a run's page; the alerts page has them all
RECENT_RUNS = 20
Row = TypeVar("Row", bound=Model)


def get_rule(team: Team, rule_id: int, *, is_held: bool = False) -> Rule:
    """`is_held`: locked until the transaction ends, though alerts may refer to it."""
    rules = Rule.objects.select_related("team", "run")
    if is_held:
        rules = rules.select_for_update(of=("self",), no_key=True)
    return _found(rules.filter(team=team, pk=rule_id).first())


def get_alert(team: Team, alert_id: int) -> Alert:
    alerts = Alert.objects.select_related("run__team", "rule", "acknowledged_by")
    return _found(alerts.filter(run__team=team, pk=alert_id).first())


def get_channel(team: Team, channel_id: int, *, is_held: bool = False) -> Channel:
    """`is_held`: locked until the transaction ends."""
    channels = Channel.objects.select_related("team")
    if is_held:
        channels = channels.select_for_update(of=("self",), no_key=True)
    return _found(channels.filter(team=team, pk=channel_id).first())


def _found(row: Row | None) -> Row:
    if row is None:
        raise Http404("No such thing in this team.")
    return row


def list_alerts(team: Team) -> AlertQuerySet:
    alerts: AlertQuerySet = Alert.objects.filter(run__team=team)
    return alerts.select_related("run", "rule", "acknowledged_by").order_by("-id")


def describe_for_page(run: Run) -> list[dict[str, Any]]:
    """The run's alerts of its present history, the newest first; one query.

    A chart that marks them needs `step`, `metric` and `name`.
    """
    alerts = Alert.objects.filter(run=run).exclude(state=AlertState.SUPERSEDED)
    alerts = alerts.select_related("rule")
    team = run.team.slug
    return [
        {
            "id": alert.pk,
            "name": alert.read_as["name"],
            "text": alert.read_as["text"],
            "metric": alert.metric,
            "step": alert.step,
            "value": finite(alert.value),
            "state": alert.state,
            "is_muted": alert.is_muted,
            "url": reverse("alert", args=[team, alert.pk]),
            "code": _warning_code(alert),
        }
        for alert in alerts.order_by("-id")[:MAX_SHOWN]
    ]


def _warning_code(alert: Alert) -> str:
    """Of the trainer's warnings that say the same; an own rule has none."""
    key = alert.rule.built_in if alert.rule else ""
    return alert.code if key == WARNINGS.code else key


def muted_until(run: Run) -> Any:
    """When the run is heard again; None when it is heard."""
    muted = MutedRun.objects.filter(run=run, until__gt=timezone.now())
    return muted.values_list("until", flat=True).first()


def list_metrics(team: Team) -> list[str]:
    """Names that the team's last runs have had, and those of their evaluations."""
    runs = Run.objects.filter(team=team).order_by("-id")[:RECENT_RUNS]
    names = {REWARD}
    for metric_names, summary in runs.values_list("metric_names", "summary"):
        names.update(metric_names, summary.get("last", {}))
    return sorted(names)


def get_delivery(team: Team, delivery_id: UUID) -> Delivery:
    sent = Delivery.objects.select_related("channel__team")
    return _found(sent.filter(channel__team=team, pk=delivery_id).first())


def list_deliveries(team: Team, state: str = "") -> QuerySet[Delivery]:
    """The newest first; of one state, where it is one."""
    logged = Delivery.objects.filter(channel__team=team)
    if state in DeliveryState.values:
        logged = logged.filter(state=state)
    related = logged.select_related("channel", "alert__run", "run")
    return related.order_by("-created_at", "pk")
