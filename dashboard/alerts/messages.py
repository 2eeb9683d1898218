"""The content of e-mails and webhooks, and the signed post of a webhook."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from contextlib import closing
from socket import AI_NUMERICHOST
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.crypto import salted_hmac

from dashboard.accounts.models import Team
from dashboard.alerts.models import CHANNEL_OFF, Alert, Channel, Delivery
from dashboard.runs.models import Run, RunState
from trainer.alerts.conditions import finite
from trainer.internet import (
    Connection,
    HostAllowlist,
    Refused,
    Target,
    read_hosts,
    read_link,
    resolve,
    why_unreachable,
)

# Looked up in the URLs, they would have a worker load all pages, for seconds and within
# the transaction that ends a run.
PATHS = {
    "run": "/{}/runs/{}/",
    "group": "/{}/runs/{}/groups/{}/{}/",
    "alert": "/{}/alerts/{}/",
    "alerts": "/{}/alerts/",
    "alert_rules": "/{}/settings/alert-rules/",
    "alert_delivery": "/{}/settings/notifications/",
}
VARIABLE = "COHORT_WEBHOOK_HOSTS"
TIMEOUT_SECONDS = 10.0


def public_link(name: str, *args: object) -> str:
    return f"{settings.PUBLIC_URL}{PATHS[name].format(*args)}"


def describe_delivery(delivery: Delivery) -> dict[str, Any]:
    """Return the JSON of a webhook; `id` is the same at each attempt."""
    return {
        "id": str(delivery.pk),
        "team": delivery.channel.team.slug,
        "event": delivery.event,
        "alert": describe_alert(delivery.alert) if delivery.alert else None,
        "run": delivery.content if delivery.run_id else None,
        "channel": delivery.content if delivery.event == CHANNEL_OFF else None,
    }


def describe_run(run: Run) -> dict[str, Any]:
    """Describe the run as it is now: its step is the last one that is stored."""
    reasons = {
        RunState.FAILED: run.fail_reason,
        RunState.STOPPED: run.stop_reason,
        RunState.PAUSED: run.pause_reason,
    }
    return {
        "id": run.pk,
        "name": run.name,
        "url": public_link("run", run.team.slug, run.pk),
        "state": run.state,
        "step": run.last_step,
        "num_steps": run.num_steps,
        "reward_mean": run.reward("last"),
        "reason": reasons.get(RunState(run.state), ""),
        "at": timezone.now().isoformat(timespec="seconds"),
    }


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
        "value": finite(alert.value),
        "bound": finite(alert.bound),
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
    if delivery.alert is not None:
        return _alert_mail(delivery.alert, team)
    if delivery.run_id is not None:
        return _run_mail(delivery.content, team)
    if delivery.event == CHANNEL_OFF:
        return _channel_mail(delivery.content, team)
    link = public_link("alerts", team.slug)
    text = f"This is a test notification for {team.name}.\n\n{link}\n"
    return f"[Cohort] {one_line(f'Test notification: {team.name}')}", text


def _alert_mail(alert: Alert, team: Team) -> tuple[str, str]:
    data = describe_alert(alert)
    name = f"{alert.read_as['name']}: {alert.run.name}, step {alert.step}"
    value = "" if alert.value is None else f" (value: {alert.value:.4g})"
    lines = [
        f"{data['condition']}{value}.",
        "",
        data["why"],
        "",
        f"Alert: {data['url']}",
        f"Run: {data['run']['url']}",
        *(f"Example group: {url}" for url in data["groups"]),
        "",
        f"Rules and channels: {public_link('alert_rules', team.slug)}",
    ]
    return f"[Cohort] {one_line(name)}", "\n".join(lines)


def _run_mail(data: dict[str, Any], team: Team) -> tuple[str, str]:
    reward = data["reward_mean"]
    lines = [
        f"{data['name']} is {data['state']} at step {data['step']:,} of "
        f"{data['num_steps']:,}.",
        *([] if reward is None else [f"Mean reward of the last step: {reward:.4g}."]),
        *(["", data["reason"]] if data["reason"] else []),
        "",
        f"Run: {data['url']}",
        _where(team),
    ]
    title = f"{data['name']} is {data['state']}, step {data['step']:,}"
    return f"[Cohort] {one_line(title)}", "\n".join(lines)


def _channel_mail(data: dict[str, Any], team: Team) -> tuple[str, str]:
    lines = [f"Cohort no longer sends to {data['to']}: {data['why']}", _where(team)]
    title = f"Channel switched off: {data['to']}"
    return f"[Cohort] {one_line(title)}", "\n\n".join(lines)


def _where(team: Team) -> str:
    return f"Channels: {public_link('alert_delivery', team.slug)}"


def one_line(text: str) -> str:
    """Text for one mail header: a run's name cannot start another header."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# Webhooks: signed JSON, posted to a checked address.


class NotSent(Exception):
    """The text gives the reason, without the address's path or the response."""


def webhook_hosts() -> HostAllowlist:
    """Raises Refused where the variable cannot be read."""
    return HostAllowlist(
        action="A webhook is sent",
        variable=VARIABLE,
        allowed=read_hosts(settings.WEBHOOK_HOSTS, VARIABLE),
    )


def read_address(url: str) -> Target:
    """ValueError if nothing may be sent to this address.

    A host name is resolved and checked when a message is sent, because it may change.
    """
    target = read_link(url)
    try:
        resolve(target, webhook_hosts(), flags=AI_NUMERICHOST)
    except Refused as error:
        raise ValueError(str(error)) from None
    except OSError:
        return target  # a name
    return target


def signing_secret(channel: Channel) -> str:
    """Follows from the server's secret key and the channel's nonce: stored nowhere."""
    salt = "dashboard.alerts.messages"
    return (
        "whsec_" + salted_hmac(salt, str(channel.nonce), algorithm="sha256").hexdigest()
    )


def sign(secret: str, timestamp: int, body: bytes) -> str:
    """v1=HMAC-SHA256(secret, "<timestamp>.<body>") in hex.

    The timestamp is signed too, so a receiver can refuse what is sent again later.
    """
    signed = f"{timestamp}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def post(channel: Channel, delivery_id: str, message: dict[str, Any]) -> str:
    """Send it, and return the result, such as "answered 204". Raises NotSent."""
    body = json.dumps(message, allow_nan=False).encode()
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Cohort",
        "Cohort-Delivery": delivery_id,
        "Cohort-Timestamp": str(timestamp),
        "Cohort-Signature": sign(signing_secret(channel), timestamp, body),
    }
    try:
        status = _exchange(read_address(channel.address), body, headers)
    except (Refused, ValueError) as error:
        raise NotSent(str(error)) from None
    except TimeoutError:
        raise NotSent(
            f"The receiver timed out after {TIMEOUT_SECONDS:.0f} s."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        text = f"The receiver could not be reached: {why_unreachable(error)}."
        raise NotSent(text) from None
    if 300 <= status < 400:
        raise NotSent(
            f"The receiver returned {status}. Cohort does not follow redirects."
        )
    if not 200 <= status < 300:
        raise NotSent(f"The receiver returned {status}.")
    return f"returned {status}"


def _exchange(target: Target, body: bytes, headers: dict[str, str]) -> int:
    with closing(Connection(target, webhook_hosts())) as connection:
        connection.deadline = time.monotonic() + TIMEOUT_SECONDS
        connection.request("POST", target.path, body=body, headers=headers)
        # Only the status is read: a body could reveal data of an internal server.
        return connection.getresponse().status
