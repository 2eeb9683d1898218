"""What people set up in a team: names, tokens, alerts, channels, reports, people."""

from __future__ import annotations

from typing import Any

from dashboard.accounts.models import Invitation, Team
from dashboard.alerts.models import Channel
from dashboard.api.models import ApiToken
from dashboard.reports.models import Report
from tests.inputs.cases import Answer, Case, Door, World, told_by_page


def send_token(world: World, changes: dict[str, Any]) -> Answer:
    least = {"name": "Ours", "scopes": ["read"], "lifetime": "30", **changes}
    return told_by_page(world.client.post("/alpha/tokens/", least))


def send_rule(world: World, changes: dict[str, str]) -> Answer:
    least = {
        "kind": "above", "metric": "kl/mean", "threshold": "1", "for_steps": "1",
        "name": "High KL", **changes,
    }  # fmt: skip
    return told_by_page(world.client.post("/alpha/alerts/rules/", least))


def send_channel(world: World, changes: dict[str, str]) -> Answer:
    least = {"kind": "email", "address": "a@example.org", "events": "alert.fired"}
    return told_by_page(world.client.post("/alpha/alerts/delivery/", least | changes))


def send_report(world: World, changes: dict[str, str]) -> Answer:
    least = {"title": "Ours", "text": "Words.", **changes}
    return told_by_page(world.client.post("/alpha/reports/new", least))


def preview(world: World, text: str) -> Answer:
    data = {"title": "Ours", "text": text}
    return told_by_page(world.client.post("/alpha/reports/preview", data))


def invite(world: World, changes: dict[str, str]) -> Answer:
    return told_by_page(
        world.client.post("/alpha/settings/invite", changes, follow=True)
    )


def name_team(world: World, name: str) -> Answer:
    return told_by_page(world.client.post("/teams/new", {"name": name}, follow=True))


TOKENS = [
    Case("no name", {"name": ""}, says=("This field is required.",)),
    Case("a name with a NUL", {"name": "a\0"}, says=("Null characters are not allowed.",)),
    Case("a name without an end", {"name": "x" * 500}, says=("Ensure this value has at most 80 characters (it has 500).",)),
    Case("no scope", {"scopes": []}, says=("Choose what the token may do.",)),
    Case("a scope of no meaning", {"scopes": ["everything"]}, says=("Select a valid choice.", "everything is not one of the available choices.",)),
    Case("a lifetime of no meaning", {"lifetime": "forever"}, says=("Select a valid choice.", "forever is not one of the available choices.")),
    Case("a lifetime below zero", {"lifetime": "-5"}, says=("Select a valid choice.", "-5 is not one of the available choices.")),
]  # fmt: skip
RULES = [
    Case("no metric", {"metric": ""}, says=("This field is required.",)),
    Case("a metric with a NUL", {"metric": "kl\0"}, says=("Null characters are not allowed.",)),
    Case("a metric without an end", {"metric": "x" * 5_000}, says=("Ensure this value has at most 120 characters (it has 5000).",)),
    Case("a threshold in words", {"threshold": "high"}, says=("Enter a number.",)),
    Case("a threshold of infinity", {"threshold": "1e400"}, says=("Enter a number.",)),
    Case("a threshold that is no number", {"threshold": "nan"}, says=("Enter a number.",)),
    Case("steps below zero", {"for_steps": "-1"}, says=("Ensure this value is greater than or equal to 0.",)),
    Case("steps beyond the database", {"for_steps": "9" * 30}, says=("It must be 1 to 500 steps;", "got 999999999999999999999999999999.")),
    Case("a name without an end", {"name": "x" * 500}, says=("Ensure this value has at most 80 characters (it has 500).",)),
    Case("a run that is not there", {"run": "999999"}, says=("Select a valid choice.", "That choice is not one of the available choices.",)),
]  # fmt: skip
CHANNELS = [
    Case("an address that is none", {"address": "nobody"}, says=("'nobody' is no e-mail address.", "Write name@example.org.")),
    Case("an address of two lines", {"address": "a@b.org\nBcc: c@d.org"}, says=("'a@b.org\\nBcc: c@d.org' is no e-mail address.", "Write name@example.org.")),
    Case("no address", {"address": ""}, says=("This field is required.",)),
    Case("a webhook inside", {"kind": "webhook", "address": "http://127.0.0.1/x"}, says=("A webhook is sent over https on port 443;", "http on port 80 of 127.0.0.1 is only for hosts that this server", "An administrator adds 127.0.0.1:80 to COHORT_WEBHOOK_HOSTS.")),
    Case("a webhook at a file", {"kind": "webhook", "address": "file:///etc/passwd"}, says=("The address 'file:///etc/passwd' must begin with https:// and the",)),
    Case("a webhook without an end", {"kind": "webhook", "address": "https://a.org/" + "x" * 5_000}, says=("Ensure this value has at most 500 characters (it has 5014).",)),
    Case("an event of no meaning", {"events": "sun.rose"}, says=("Select a valid choice.", "sun.rose is not one of the available choices.")),
]  # fmt: skip
REPORTS = [
    Case("no title", {"title": ""}, says=("A report needs a title, by which others find it.",)),
    Case("a title without an end", {"title": "x" * 5_000}, says=("A title holds 160 characters at most;", "this has 5000.")),
    Case("a text without an end", {"text": "x" * 2_000_000}, says=("A report holds 40,000 characters at most;", "this has 2,000,000.", "Make two of it.",)),
]  # fmt: skip
BLOCKS = [
    Case("a block of no meaning", "::paint runs=1\n", says=("::paint There is no block ::paint, but ::chart, ::group, ::compare,",)),
    Case("a chart of no run", "::chart metric=loss\n", says=("::chart metric=loss ::chart needs runs.", "For example: ::chart runs=3,5 metric=reward/mean")),
    Case("a chart of a run in words", "::chart runs=first metric=loss\n", says=("::chart runs=first metric=loss runs takes 1 to 10 numbers of runs,", "got 'first'.", "For example: ::chart runs=3,5 metric=reward/mean")),
    Case("a chart of a run that is not there", "::chart runs=999999 metric=loss\n", says=("Run 999999 is gone: the team has none.", "Pinned blocks keep what they showed;", "this one was live.")),
    Case("a parameter of no meaning", "::table runs=1 colour=red\n", says=("::table runs=1 colour=red ::table has no option 'colour', but runs,",)),
    Case("a quote left open", '::table runs="1\n', says=("::table runs=%221 runs takes 1 to 10 numbers of runs, such as 3,5;", "got '\"1'.", "For example: ::table runs=3,5 metrics=reward/mean,kl/mean")),
    Case("a block of 5,000 runs", "::table runs=" + ",".join(map(str, range(1, 5_000))) + "\n", says=("::table", "got '1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,'.", "For example: ::table runs=3,5 metrics=reward/mean,kl/mean")),
    Case("a group of no step", "::group run=1 prompt=0\n", says=("::group run=1 prompt=0 ::group needs step.", "For example: ::group run=3 step=40 prompt=7")),
]  # fmt: skip
INVITATIONS = [
    Case("a role of no meaning", {"role": "emperor"}, says=("Nobody was invited, see below.", "Select a valid choice.", "emperor is not one of the available choices.",)),
    Case("a role above one's own", {"role": "root"}, says=("Nobody was invited, see below.", "Select a valid choice.", "root is not one of the available choices.",)),
    Case("an address that is none", {"role": "viewer", "email": "nobody"}, says=("Nobody was invited, see below.", "Enter a valid email address.")),
]  # fmt: skip
TEAMS = [
    Case("no name", "", says=("This field is required.",)),
    Case("a name of spaces", "\u2003\u200b", says=("This field is required.",)),
    Case("a name with a NUL", "a\0", says=("Null characters are not allowed.", "This field is required.")),
    Case("a name without an end", "x" * 5_000, says=("Ensure this value has at most 80 characters (it has 5000).", "This field is required.",)),
    Case("a name of signs alone", "!!!", says=("This field is required.",)),
]  # fmt: skip
DOORS = [
    Door("API tokens", send_token, TOKENS, leaves=ApiToken.objects.count),
    Door("rules of alerts", send_rule, RULES, status=400),
    Door("channels", send_channel, CHANNELS, status=400, leaves=Channel.objects.count),
    Door("reports", send_report, REPORTS, status=400, leaves=Report.objects.count),
    Door("blocks of a report", preview, BLOCKS, status=200),
    Door("invitations", invite, INVITATIONS, leaves=Invitation.objects.count),
    Door("teams", name_team, TEAMS, leaves=Team.objects.count),
]
