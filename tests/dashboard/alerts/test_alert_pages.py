"""Alerts, their rules and where they go, as people meet them."""

import re

import pytest
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team
from dashboard.alerts import services
from dashboard.alerts.forms import RuleForm
from dashboard.alerts.models import Alert, Channel, Delivery, MutedRun, Rule
from dashboard.alerts.queries import describe, list_rules
from dashboard.runs.models import Run
from tests.dashboard.alerts.factories import make_alert, make_delivery, make_rule
from tests.dashboard.completions.factories import make_run

pytestmark = pytest.mark.django_db

OWN = {"metric": "kl/mean", "kind": "above", "threshold": "0.5", "for_steps": "3"}


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_run(shared_team, state="paused", finished_at=None)


def verbs() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("verb", flat=True))


def test_a_rule_is_added_with_four_fields(alice_client, team):
    response = alice_client.post(
        "/alpha/settings/alert-rules/", OWN | {"is_sent": "on"}
    )

    assert response.status_code == 302
    rule = Rule.objects.get(built_in="")
    assert rule.name == describe(rule)
    assert (rule.metric, rule.threshold, rule.for_steps) == ("kl/mean", 0.5, 3)
    assert (rule.is_sent, rule.pauses_run, rule.is_enabled) == (True, False, True)
    assert verbs() == ["alert_rule.created"]


REFUSED_RULES = [
    ({"metric": ""}, "metric"),
    ({"threshold": ""}, "threshold"),
    ({"threshold": "nan"}, "threshold"),
    ({"threshold": "1e999"}, "threshold"),
    ({"kind": "changes", "threshold": "-5"}, "threshold"),
    ({"kind": "warned"}, "kind"),
    ({"for_steps": "0"}, "for_steps"),
    ({"for_steps": "501"}, "for_steps"),
    ({"kind": "changes", "back": "501"}, "back"),
    ({"name": "x" * 81}, "name"),
    ({"run": "999999"}, "run"),
]


def test_an_invalid_rule_is_refused_at_its_field(alice_client, team, charlie):
    theirs = make_run(Team.objects.get(slug="other"))

    for changed, field in [*REFUSED_RULES, ({"run": str(theirs.pk)}, "run")]:
        response = alice_client.post("/alpha/settings/alert-rules/", OWN | changed)

        assert response.status_code == 400, changed
        assert field in response.context["form"].errors, changed
    assert not Rule.objects.filter(built_in="").exists()


def test_a_team_has_a_limited_number_of_rules(alice_client, team, monkeypatch):
    monkeypatch.setattr(services, "MAX_RULES", 1)
    alice_client.post("/alpha/settings/alert-rules/", OWN)

    response = alice_client.post("/alpha/settings/alert-rules/", OWN)

    assert response.status_code == 400
    form = response.context["form"]
    assert form.has_error(NON_FIELD_ERRORS, code="alerts.too_many_rules")
    assert Rule.objects.filter(built_in="").count() == 1


def test_a_rule_is_for_one_run_or_a_pattern(team, run):
    form = RuleForm(OWN | {"run": run.pk, "name_pattern": "a*"}, team=team)

    assert form.has_error("name_pattern", code="run_and_pattern")


def test_a_changed_condition_withdraws_open_alerts_and_a_new_name_none(
    alice_client, team, run
):
    rule = make_rule(team)
    alert = make_alert(run, rule)
    same = {"metric": "kl/mean", "kind": "above", "threshold": "1", "for_steps": "1"}

    alice_client.post(f"/alpha/settings/alert-rules/{rule.pk}/", same | {"name": "New"})
    alert.refresh_from_db()
    assert alert.state == "firing"
    assert Rule.objects.get(pk=rule.pk).name == "New"

    alice_client.post(f"/alpha/settings/alert-rules/{rule.pk}/", OWN | {"name": "KL"})
    alert.refresh_from_db()
    run.refresh_from_db()
    assert alert.state == "withdrawn"
    assert run.alerts_seq == run.seq == 1
    assert Rule.objects.get(pk=rule.pk).revision == 3  # one for each change


def test_a_built_in_rule_takes_another_threshold_and_gives_it_back(alice_client, team):
    rule = next(r for r in list_rules(team.pk) if r.built_in == "kl")
    address = f"/alpha/settings/alert-rules/{rule.pk}/"

    alice_client.post(address, {"threshold": "0.2", "for_steps": "", "metric": "x"})
    rule.refresh_from_db()
    assert (rule.condition.threshold, rule.condition.for_steps) == (0.2, 10)

    alice_client.post(address, {"threshold": "", "for_steps": ""})
    rule.refresh_from_db()
    assert (rule.condition.threshold, rule.condition.for_steps) == (1, 10)


def test_every_built_in_rule_has_a_form(alice_client, team):
    for rule in list_rules(team.pk):
        page = alice_client.get(f"/alpha/settings/alert-rules/{rule.pk}/")

        assert page.status_code == 200
        assert describe(rule) in page.content.decode().replace("&lt;", "<").replace(
            "&gt;", ">"
        )


def test_rules_are_switched_muted_and_deleted(alice_client, team, run):
    rule = make_rule(team)
    alert = make_alert(run, rule)
    address = f"/alpha/settings/alert-rules/{rule.pk}"

    alice_client.post(f"{address}/mute", {"mute": "8h"})
    rule.refresh_from_db()
    assert rule.is_muted
    alice_client.post(f"{address}/mute", {"mute": ""})
    alice_client.post(f"{address}/switch")
    rule.refresh_from_db()
    assert (rule.is_muted, rule.is_enabled) == (False, False)
    alice_client.post(f"{address}/switch", {"on": "1"})
    alice_client.post(f"{address}/delete")

    assert not Rule.objects.filter(pk=rule.pk).exists()
    alert.refresh_from_db()
    assert (alert.rule_id, alert.state) == (None, "withdrawn")
    assert verbs() == [
        "alert_rule.muted",
        "alert_rule.unmuted",
        "alert_rule.switched_off",
        "alert_rule.switched_on",
        "alert_rule.deleted",
    ]


def test_a_built_in_rule_is_not_deleted(alice_client, team):
    rule = list_rules(team.pk)[0]

    alice_client.post(f"/alpha/settings/alert-rules/{rule.pk}/delete")

    assert Rule.objects.filter(pk=rule.pk).exists()


def test_the_list_shows_what_is_open_and_counts_the_rest(alice_client, team, run):
    ended = {"state": "resolved", "ended_at": timezone.now(), "ended_step": 9}
    make_alert(run, read_as={"name": "Open one"})
    make_alert(run, read_as={"name": "Old one"}, **ended)
    make_alert(make_run(team, "done"), read_as={"name": "Of a run that ended"})

    page = text(alice_client, "/alpha/alerts/")
    assert "1 of 3 alerts" in page
    assert "Open one" in page
    assert "Old one" not in page
    assert "3 of 3 alerts" in text(alice_client, "/alpha/alerts/?state=all")
    assert "1 of 3 alerts" in text(alice_client, "/alpha/alerts/?state=resolved")
    assert "1 of 3 alerts" in text(alice_client, "/alpha/alerts/?state=all&run=done")
    assert "2 of 3 alerts" in text(
        alice_client, f"/alpha/alerts/?state=all&run=%23{run.pk}"
    )
    states = r'<span class="alert-state[^"]*" data-alert-state="(\w+)">([\w ]+)'
    of_done = alice_client.get("/alpha/alerts/?state=all&run=done").text
    [(state, shown)] = re.findall(states, of_done)
    assert state == "firing"
    assert shown != state  # its run has ended


def text(client: Client, address: str) -> str:
    plain = re.sub(r"<[^>]+>", "", client.get(address).content.decode())
    return " ".join(plain.split())


def test_the_run_has_a_line_and_a_tab(alice_client, run):
    make_alert(run)
    Run.objects.filter(pk=run.pk).update(alerts_seq=3)

    overview = text(alice_client, f"/alpha/runs/{run.pk}/")
    live = alice_client.get(f"/alpha/runs/{run.pk}/alerts.json").json()

    assert "1 alert" in overview
    page = alice_client.get(f"/alpha/runs/{run.pk}/").text
    assert re.findall(r'title="([^"]*, step \d+)" data-alerts-newest', page) == [
        "KL, step 7"
    ]
    health = alice_client.get(f"/alpha/runs/{run.pk}/health/").text
    assert re.findall(r"<span data-num-open>(\d+)<", health) == ["1"]
    assert len(re.findall(r'class="health-alert ', health)) == 1
    assert live["seq"] == 3
    assert live["alerts"][0]["code"] == ""
    assert (live["alerts"][0]["step"], live["alerts"][0]["metric"]) == (7, "kl/mean")


def test_health_lists_open_alerts_first_and_past_ones_by_the_address(alice_client, run):
    ended = {"state": "resolved", "ended_at": timezone.now(), "ended_step": 9}
    opened = make_alert(run)
    past = make_alert(run, read_as={"name": "Old", "text": "Old"}, **ended)
    at = f"/alpha/runs/{run.pk}/health/"

    def shown(**headers: str) -> list[int]:
        html = alice_client.get(f"{at}?state=resolved", headers=headers).text
        assert ("<html" in html) is (not headers)
        return [int(pk) for pk in re.findall(r'data-alert="(\d+)"', html)]

    assert shown() == shown(**{"HX-Target": "open-alerts"}) == [opened.pk]
    resolved = alice_client.get(f"{at}?state=resolved").context["page"].object_list
    assert [alert.pk for alert in resolved] == [past.pk]

    response = alice_client.post(
        f"/alpha/alerts/{opened.pk}/acknowledge", {"from_run": "1"}
    )
    assert response["Location"] == at
    assert shown() == [opened.pk]
    Alert.objects.filter(pk=opened.pk).update(**ended)
    assert shown() == []


def test_an_alert_has_the_code_of_its_warning(alice_client, run):
    rules = {rule.built_in: rule for rule in list_rules(run.team_id)}
    make_alert(run, rules["trainer"], code="judge")
    make_alert(run, rules["overfits"], code="eval/heldout/mean")
    make_alert(run, rules["clipped"])

    live = alice_client.get(f"/alpha/runs/{run.pk}/alerts.json").json()

    codes = [alert["code"] for alert in live["alerts"]]
    assert codes == ["clipped", "overfits", "judge"]


def test_an_alert_shows_its_evidence(alice_client, run):
    alert = make_alert(run)

    page = alice_client.get(f"/alpha/alerts/{alert.pk}/").content.decode()

    assert f"/alpha/runs/{run.pk}/groups/7/0/" in page
    assert re.findall(r'<td class="number[^>]*>([^<]*)</td>', page) == [
        "0.5",
        "2",
        "none",
    ]


def test_an_alert_is_acknowledged(alice_client, run):
    alert = make_alert(run)

    for _ in range(2):
        alice_client.post(f"/alpha/alerts/{alert.pk}/acknowledge")

    page = text(alice_client, f"/alpha/alerts/{alert.pk}/")
    assert "by Alice" in page
    assert verbs() == ["alert.acknowledged"]


def test_a_run_is_muted_and_unmuted(alice_client, run):
    address = f"/alpha/runs/{run.pk}/alerts/mute"

    alice_client.post(address, {"mute": "1d"})
    assert MutedRun.objects.get().until > timezone.now()
    assert "muted until" in text(alice_client, f"/alpha/runs/{run.pk}/health/")
    alice_client.post(address, {"mute": "soon"})
    assert MutedRun.objects.exists()
    alice_client.post(address, {"mute": ""})

    assert not MutedRun.objects.exists()


def test_a_webhooks_secret_is_shown_once_and_its_path_never(alice_client, team):
    given = {"kind": "webhook", "address": "https://hooks.example.org/T0K3N"}
    given |= {"events": ["alert.fired"]}

    shown = alice_client.post("/alpha/settings/notifications/", given).content.decode()
    later = alice_client.get("/alpha/settings/notifications/").content.decode()

    assert re.search(r"whsec_[0-9a-f]{64}", shown)
    assert "whsec_" not in later
    assert "https://hooks.example.org/…" in later
    assert "T0K3N" not in shown + later
    channel = Channel.objects.get()
    renewed = alice_client.post(f"/alpha/settings/notifications/{channel.pk}/secret")
    assert "whsec_" in renewed.content.decode()
    assert renewed["Cache-Control"].count("no-store")


def test_a_missing_mail_server_is_shown(alice_client, team, settings):
    assert "COHORT_EMAIL_URL" in text(alice_client, "/alpha/settings/notifications/")

    settings.MAIL_IS_SET_UP = True

    assert "COHORT_EMAIL_URL" not in text(
        alice_client, "/alpha/settings/notifications/"
    )


REFUSED_ADDRESSES = {
    "email": [
        *("nobody", "a@b\nBcc: c@d.org", "a@b.org,c@d.org"),
        *(f"a@{'ä' * 60}.org", '"\x01"@example.org'),
    ],
    "webhook": [
        *("https://10.0.0.7/x", "https://127.0.0.1/x", "https://[::1]/x"),
        *("https://169.254.169.254/latest/", "https://[::ffff:10.0.0.7]/x"),
        *("http://hooks.example.org/x", "https://hooks.example.org:8443/x"),
        *("https://me:key@hooks.example.org/x", "ftp://hooks.example.org/x", "x"),
    ],
}


@pytest.mark.parametrize("kind", REFUSED_ADDRESSES)
def test_mail_goes_to_addresses_and_webhooks_to_public_ones_over_https_only(
    alice_client, team, kind
):
    for address in REFUSED_ADDRESSES[kind]:
        given = {"kind": kind, "address": address, "events": ["alert.fired"]}

        answer = alice_client.post("/alpha/settings/notifications/", given)

        assert answer.status_code == 400, address
        assert "address" in answer.context["form"].errors, address
    assert not Channel.objects.exists()


def test_a_test_message_is_in_the_log(alice_client, team):
    channel = Channel.objects.create(team=team, kind="email", address="a@b.org")
    address = f"/alpha/settings/notifications/{channel.pk}"

    alice_client.post(f"{address}/test")

    assert Delivery.objects.get().alert is None
    log = text(alice_client, "/alpha/settings/notifications/")
    assert "Test a@b.org waiting" in log
    assert "0 of 1" in log
    alice_client.post(f"{address}/switch")
    assert not Channel.objects.get().is_enabled
    alice_client.post(f"{address}/delete")
    assert not Delivery.objects.exists()


def test_a_viewer_reads_and_sees_no_button(bob_client, run):
    rule = make_rule(run.team)
    alert = make_alert(run, rule)
    make_delivery(
        Channel.objects.create(team=run.team, kind="email", address="a@b.org")
    )

    for address in (
        "/alpha/alerts/?state=all",
        "/alpha/settings/alert-rules/",
        "/alpha/settings/notifications/",
        f"/alpha/alerts/{alert.pk}/",
        f"/alpha/runs/{run.pk}/health/",
    ):
        page = bob_client.get(address).content.decode()
        main = page[page.index("<main") :]
        # A run's star is the reader's own.
        main = re.sub(r"<form[^>]*/act\".*?</form>", "", main, flags=re.DOTALL)
        assert 'method="post"' not in main, address


def test_the_lists_query_count_does_not_grow_with_alerts(alice_client, run):
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            alice_client.get("/alpha/alerts/?state=all")
        return len(queries)

    make_alert(run)
    one = count()
    for _ in range(20):
        make_alert(run)

    assert count() == one
    assert Alert.objects.count() == 21


def test_the_address_of_a_channel_is_in_no_text_of_it():
    channel = Channel(pk=3, kind="webhook", address="https://hooks.example.org/T0K3N")

    assert str(channel) == "webhook 3"
    with pytest.raises(ValidationError):
        Channel(kind="pigeon", address="x").full_clean()
