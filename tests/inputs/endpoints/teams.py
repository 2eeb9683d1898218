"""What people set up in a team: names, tokens, alerts, channels, reports, people."""

from typing import Any

from dashboard.accounts.models import Invitation, Team
from dashboard.alerts.models import Channel
from dashboard.analysis.reports.models import Report
from dashboard.api.models import ApiToken
from tests.inputs.cases import Case, Endpoint, Response, World, message_of_page


def send_token(world: World, changes: dict[str, Any]) -> Response:
    least = {"name": "Ours", "scopes": ["read"], "lifetime": "30", **changes}
    return message_of_page(world.client.post("/alpha/tokens/", least))


def send_rule(world: World, changes: dict[str, str]) -> Response:
    least = {
        "kind": "above", "metric": "kl/mean", "threshold": "1", "for_steps": "1",
        "name": "High KL", **changes,
    }  # fmt: skip
    return message_of_page(world.client.post("/alpha/settings/alert-rules/", least))


def send_channel(world: World, changes: dict[str, str]) -> Response:
    least = {"kind": "email", "address": "a@example.org", "events": "alert.fired"}
    return message_of_page(
        world.client.post("/alpha/settings/notifications/", least | changes)
    )


def send_report(world: World, changes: dict[str, str]) -> Response:
    least = {"title": "Ours", "text": "Words.", **changes}
    return message_of_page(world.client.post("/alpha/reports/new", least))


def preview(world: World, text: str) -> Response:
    data = {"title": "Ours", "text": text}
    return message_of_page(world.client.post("/alpha/reports/preview", data))


def invite(world: World, changes: dict[str, str]) -> Response:
    return message_of_page(
        world.client.post("/alpha/settings/invite", changes, follow=True)
    )


def name_team(world: World, name: str) -> Response:
    return message_of_page(world.client.post("/teams/new", {"name": name}, follow=True))


TOKENS = [
    Case("no name", {"name": ""}),
    Case("a name with a NUL", {"name": "a\0"}),
    Case("a name without an end", {"name": "x" * 500}),
    Case("no scope", {"scopes": []}),
    Case("a scope of no meaning", {"scopes": ["everything"]}),
    Case("a lifetime of no meaning", {"lifetime": "forever"}),
    Case("a lifetime below zero", {"lifetime": "-5"}),
]  # fmt: skip
RULES = [
    Case("no metric", {"metric": ""}),
    Case("a metric with a NUL", {"metric": "kl\0"}),
    Case("a metric without an end", {"metric": "x" * 5_000}),
    Case("a threshold in words", {"threshold": "high"}),
    Case("a threshold of infinity", {"threshold": "1e400"}),
    Case("a threshold that is no number", {"threshold": "nan"}),
    Case("steps below zero", {"for_steps": "-1"}),
    Case("steps beyond the database", {"for_steps": "9" * 30}),
    Case("a name without an end", {"name": "x" * 500}),
    Case("a run that is not there", {"run": "999999"}),
]  # fmt: skip
CHANNELS = [
    Case("an address that is none", {"address": "nobody"}),
    Case("an address of two lines", {"address": "a@b.org\nBcc: c@d.org"}),
    Case("no address", {"address": ""}),
    Case("a webhook inside", {"kind": "webhook", "address": "http://127.0.0.1/x"}),
    Case("a webhook at a file", {"kind": "webhook", "address": "file:///etc/passwd"}),
    Case("a webhook without an end", {"kind": "webhook", "address": "https://a.org/" + "x" * 5_000}),
    Case("an event of no meaning", {"events": "sun.rose"}),
]  # fmt: skip
REPORTS = [
    Case("no title", {"title": ""}),
    Case("a title without an end", {"title": "x" * 5_000}),
    Case("a text without an end", {"text": "x" * 2_000_000}),
]  # fmt: skip
BLOCKS = [
    Case("a block of no meaning", "::paint runs=1\n"),
    Case("a chart of no run", "::chart metric=loss\n"),
    Case("a chart of a run in words", "::chart runs=first metric=loss\n"),
    Case("a chart of a run that is not there", "::chart runs=999999 metric=loss\n"),
    Case("a parameter of no meaning", "::table runs=1 colour=red\n"),
    Case("a quote left open", '::table runs="1\n'),
    Case("a block of 5,000 runs", "::table runs=" + ",".join(map(str, range(1, 5_000))) + "\n"),
    Case("a group of no step", "::group run=1 prompt=0\n"),
]  # fmt: skip
INVITATIONS = [
    Case("a role of no meaning", {"role": "emperor"}),
    Case("a role above one's own", {"role": "root"}),
    Case("an address that is none", {"role": "viewer", "email": "nobody"}),
]  # fmt: skip
TEAMS = [
    Case("no name", ""),
    Case("a name of spaces", "\u2003\u200b"),
    Case("a name with a NUL", "a\0"),
    Case("a name without an end", "x" * 5_000),
    Case("a name of signs alone", "!!!"),
]  # fmt: skip
ENDPOINTS = [
    Endpoint("API tokens", send_token, TOKENS, leaves=ApiToken.objects.count),
    Endpoint("rules of alerts", send_rule, RULES, status=400),
    Endpoint(
        "channels", send_channel, CHANNELS, status=400, leaves=Channel.objects.count
    ),
    Endpoint("reports", send_report, REPORTS, status=400, leaves=Report.objects.count),
    Endpoint("blocks of a report", preview, BLOCKS, status=200),
    Endpoint("invitations", invite, INVITATIONS, leaves=Invitation.objects.count),
    Endpoint("teams", name_team, TEAMS, leaves=Team.objects.count),
]
