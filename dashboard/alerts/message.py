"""What is told of an alert, in a mail and to a webhook."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.urls import reverse

from dashboard.accounts.models import Team
from dashboard.alerts.models import Alert, Delivery


def public_link(name: str, *args: object) -> str:
    return f"{settings.PUBLIC_URL}{reverse(name, args=args)}"


def describe_delivery(delivery: Delivery) -> dict[str, Any]:
    """The JSON of a webhook; `id` is the same at each attempt."""
    team = delivery.channel.team
    about: dict[str, Any] = {"id": str(delivery.pk), "team": team.slug}
    if delivery.alert is None:
        return about | {"event": "test", "alert": None}
    return about | {"event": "alert.fired", "alert": describe_alert(delivery.alert)}


def describe_alert(alert: Alert) -> dict[str, Any]:
    run = alert.run
    slug = run.team.slug
    return {
        "id": alert.pk,
        "name": alert.read_as["name"],
        "condition": alert.read_as["text"],
        "why": alert.read_as["why"],
        "state": alert.state,
        "step": alert.step,
        "metric": alert.metric,
        "value": alert.value,
        "bound": alert.bound,
        "fired_at": alert.fired_at.isoformat(),
        "url": public_link("alert", slug, alert.pk),
        "groups": [
            public_link("group", slug, run.pk, step, prompt)
            for step, prompt in alert.groups
        ],
        "run": {
            "id": run.pk,
            "name": run.name,
            "url": public_link("run", slug, run.pk),
        },
    }


def write_mail(delivery: Delivery) -> tuple[str, str]:
    """Subject and text."""
    team = delivery.channel.team
    if delivery.alert is None:
        return _test_mail(team)
    alert = delivery.alert
    told = describe_alert(alert)
    name = f"{alert.read_as['name']}: {alert.run.name}, step {alert.step}"
    value = "" if alert.value is None else f" (it is {alert.value:.4g})"
    lines = [
        f"{told['condition']}{value}.",
        "",
        told["why"],
        "",
        f"The alert with its evidence: {told['url']}",
        f"The run: {told['run']['url']}",
        *(f"A group of that step: {url}" for url in told["groups"]),
        "",
        f"Rules and where alerts go: {public_link('alert_rules', team.slug)}",
    ]
    return f"[Cohort] {one_line(name)}", "\n".join(lines)


def _test_mail(team: Team) -> tuple[str, str]:
    link = public_link("alerts", team.slug)
    text = f"Alerts of {team.name} will arrive like this one.\n\n{link}\n"
    return f"[Cohort] {one_line(f'Test of alerts: {team.name}')}", text


def one_line(text: str) -> str:
    """A header's text: whoever named a run ends no line of a mail's head."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
