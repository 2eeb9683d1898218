"""Lookups of rules, alerts, channels and deliveries, through the team only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.alerts.models import (
    BUILT_IN,
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
from dashboard.project.errors import or_404
from dashboard.runs.models import REWARD, Run
from dashboard.runs.queries import settings_of
from trainer.alerts.conditions import finite
from trainer.alerts.rules import meaningless_rules

MAX_SHOWN = 50  # on a run's page; the alerts page has them all
RECENT_RUNS = 20
MISSING = "Not found in this team."


def get_rule(team: Team, rule_id: int, *, is_held: bool = False) -> Rule:
    """`is_held`: locked until the transaction ends, though alerts may refer to it."""
    rules = Rule.objects.select_related("team", "run")
    if is_held:
        rules = rules.select_for_update(of=("self",), no_key=True)
    return or_404(rules.filter(team=team, pk=rule_id).first(), MISSING)


def get_alert(team: Team, alert_id: int) -> Alert:
    alerts = Alert.objects.select_related("run__team", "rule", "acknowledged_by")
    return or_404(alerts.filter(run__team=team, pk=alert_id).first(), MISSING)


def get_channel(team: Team, channel_id: int, *, is_held: bool = False) -> Channel:
    """`is_held`: locked until the transaction ends."""
    channels = Channel.objects.select_related("team")
    if is_held:
        channels = channels.select_for_update(of=("self",), no_key=True)
    return or_404(channels.filter(team=team, pk=channel_id).first(), MISSING)


def list_alerts(team: Team) -> AlertQuerySet:
    alerts: AlertQuerySet = Alert.objects.filter(run__team=team)
    return alerts.select_related("run", "rule", "acknowledged_by").order_by("-id")


def describe_for_page(run: Run) -> list[dict[str, Any]]:
    """List the run's alerts of its present history, the newest first; one query.

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
    """Return the code of the trainer's warnings that duplicate the alert; empty for
    custom rules.
    """
    key = alert.rule.built_in if alert.rule else ""
    return alert.code if key == WARNINGS.code else key


def muted_until(run: Run) -> Any:
    """When the run's mute ends; None if it is not muted."""
    return (
        MutedRun.objects.filter(run=run, until__gt=timezone.now())
        .values_list("until", flat=True)
        .first()
    )


def list_metrics(team: Team) -> list[str]:
    """Names that the team's last runs have had, and those of their evaluations."""
    runs = Run.objects.filter(team=team).order_by("-id")[:RECENT_RUNS]
    names = {REWARD}
    for metric_names, summary in runs.values_list("metric_names", "summary"):
        names.update(metric_names, summary.get("last", {}))
    return sorted(names)


def get_delivery(team: Team, delivery_id: UUID) -> Delivery:
    rows = Delivery.objects.select_related("channel__team").filter(channel__team=team)
    return or_404(rows.filter(pk=delivery_id).first(), MISSING)


def list_deliveries(team: Team, state: str = "") -> QuerySet[Delivery]:
    """List the newest first, of one state or all."""
    logged = Delivery.objects.filter(channel__team=team)
    if state in DeliveryState.values:
        logged = logged.filter(state=state)
    return logged.select_related("channel", "alert__run", "run").order_by(
        "-created_at", "pk"
    )


# Rules: built-in and custom ones.


def list_rules(team_id: int) -> list[Rule]:
    """Built-in ones first, in their order; two queries once they have rows."""
    rules = list(_rules(team_id))
    codes = {rule.built_in for rule in rules}
    missing = [definition for code, definition in BUILT_IN.items() if code not in codes]
    if missing:
        Rule.objects.bulk_create(
            [
                Rule(
                    team_id=team_id,
                    built_in=definition.code,
                    name=definition.name,
                    metric=definition.metric,
                    kind=definition.condition.kind,
                )
                for definition in missing
            ],
            ignore_conflicts=True,  # another process may create them too
        )
        rules = list(_rules(team_id))
    positions = {code: index for index, code in enumerate(BUILT_IN)}
    return sorted(rules, key=lambda rule: (positions.get(rule.built_in, 99), rule.pk))


def _rules(team_id: int) -> QuerySet[Rule]:
    return Rule.objects.filter(team_id=team_id).select_related("run")


def rules_of(run: Run) -> list[Rule]:
    """Return the rules that are on and that this run is under."""
    return [
        rule
        for rule in list_rules(run.team_id)
        if rule.is_enabled and rule.applies_to(run)
    ]


def signature(rules: Iterable[Rule]) -> tuple[object, ...]:
    """Changes when a condition changes."""
    return tuple((rule.pk, rule.revision, rule.condition) for rule in rules)


def left_out(run: Run) -> list[tuple[int, frozenset[str]]]:
    """Return the first steps of the run's phases, with the built-in rules that do not
    apply to each. The settings of imported runs are unknown, and so is their number
    format.
    """
    config = settings_of(run)
    if config is None:
        return [(0, frozenset({"mismatch_float32"}))]
    return [
        (phase.first_step, meaningless_rules(phase.config))
        for phase in config.phase_configs
    ]


def describe(rule: Rule) -> str:
    """Write the condition as a sentence without its full stop."""
    return rule.condition.describe(rule.metric)
