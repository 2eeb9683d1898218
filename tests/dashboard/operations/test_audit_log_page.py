"""The audit log as admins and owners read it, and take it along."""

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from dashboard.accounts.models import Membership, Role
from dashboard.accounts.request_context import RequestContext, acting_in
from dashboard.accounts.services import record
from dashboard.alerts.models import Channel
from dashboard.operations import audit_log
from dashboard.operations.personal_data import erase_person
from dashboard.runs.models import Run
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.completions.factories import make_run

LOG = "/alpha/audit-log/"


def verbs_shown(text: str) -> list[str]:
    return re.findall(
        r'role="cell" data-label="Action"><span class="mono">([^<]+)', text
    )


def test_an_entry_has_actor_action_object_and_source(team, alice, alice_client, run):
    with acting_in(RequestContext(address="192.0.2.7", agent="Firefox 128 on Linux")):
        record(team, alice, "run.launched", run, name=run.name, group=None)
    with acting_in(RequestContext(program="training.reap")):
        record(team, None, "run.lost", run, outcome="its worker went silent")

    text = alice_client.get(LOG).text

    assert verbs_shown(text) == ["run.lost", "run.launched"]
    assert f'<a href="/alpha/runs/{run.pk}/"><bdi>' in text
    for reported in ("192.0.2.7", "Firefox 128 on Linux", "training.reap", "Alice"):
        assert reported in text
    assert "went silent" in text
    assert '<span class="number">2</span> of <span class="number">2</span>' in text


def test_it_is_for_admins_and_owners(team, bob, bob_client):
    for role, status in (("viewer", 403), ("member", 403), ("admin", 200)):
        Membership.objects.filter(user=bob).update(role=Role(role))

        for path in (LOG, f"{LOG}csv", f"{LOG}jsonl"):
            assert bob_client.get(path).status_code == status, (role, path)
        assert (LOG in bob_client.get("/alpha/settings").text) == (status == 200), role


def test_another_teams_entries_are_nowhere(charlie, alice_client, alice):
    other = charlie.teams.get()
    record(other, charlie, "team.created", other, slug="other")

    page = alice_client.get(LOG).text
    assert "team.created" not in page
    assert "charlie" not in page
    assert "team.created" not in alice_client.get(f"{LOG}jsonl").getvalue().decode()


def test_filters_are_parameters_of_the_address(team, alice, bob, alice_client, run):
    other = make_run(team)
    record(team, alice, "run.launched", run)
    record(team, bob, "run.locked", other)
    record(team, None, "run.lost", other)
    record(team, alice, "alert_rule.created", make_rule(team))

    def found(query: str) -> list[str]:
        return verbs_shown(alice_client.get(f"{LOG}?{query}").text)

    assert found(f"by={bob.pk}") == ["run.locked"]
    assert found("by=cohort") == ["run.lost"]
    assert found("verb=run.launched") == ["run.launched"]
    assert found("kind=rule") == ["alert_rule.created"]
    assert found(f"kind=run&number={other.pk}") == ["run.lost", "run.locked"]
    today = datetime.now(tz=UTC).date()
    assert len(found(f"since={today}&until={today}")) == 4
    assert found(f"since={today + timedelta(days=1)}") == []
    assert found(f"until={today - timedelta(days=1)}") == []


def test_an_invalid_filter_is_reported_and_finds_nothing(
    team, alice, alice_client, run
):
    record(team, alice, "run.launched", run)

    for query in (
        *("by=nobody", "verb=run.nothing", "number=seven", "since=yesterday"),
        "since=2026-02-03&until=2026-02-02",
    ):
        for path in (LOG, f"{LOG}csv"):
            response = alice_client.get(f"{path}?{query}")

            assert response.status_code == 400, query
            assert 'class="field-error"' in response.text, query
            assert verbs_shown(response.text) == [], query


def test_a_long_log_has_pages_that_keep_the_filters(team, alice, alice_client, run):
    for _ in range(51):
        record(team, alice, "run.locked", run)

    first = alice_client.get(f"{LOG}?verb=run.locked").text
    second = alice_client.get(f"{LOG}?verb=run.locked&page=2").text

    assert len(verbs_shown(first)) == 50
    assert "1–50 of 51 entries" in first
    assert re.search(r'href="[^"]*page=2', first)
    assert "verb=run.locked&amp;" in first
    assert len(verbs_shown(second)) == 1


def test_objects_are_named_and_linked_only_for_readers(
    team, alice, charlie, alice_client, run
):
    foreign = make_run(charlie.teams.get(), name="secret-run")
    record(team, alice, "run.locked", foreign)  # which no service would write
    url = "https://hooks.example.org/T0K3N"
    channel = Channel.objects.create(team=team, kind="webhook", address=url)
    record(team, alice, "alert_channel.added", channel)
    record(team, alice, "run.deleted", run, name="calm-otter-9")
    Run.objects.filter(pk=run.pk).update(trashed_at=timezone.now())
    pk = run.pk
    run.delete()

    text = alice_client.get(LOG).text

    assert "calm-otter-9" in text
    assert f"/alpha/runs/{pk}/" not in text
    assert "secret-run" not in text
    assert f"/runs/{foreign.pk}/" not in text
    assert "https://hooks.example.org/…" in text
    assert "T0K3N" not in text


def test_an_erased_person_is_called_so(team, alice, bob, alice_client, run):
    record(team, bob, "run.launched", run)
    erase_person(bob)

    text = alice_client.get(f"{LOG}?by=erased").text

    assert "an erased person" in text
    assert verbs_shown(text) == ["run.launched"]


def test_a_file_contains_all_filtered_entries(
    team, alice, alice_client, run, monkeypatch
):
    monkeypatch.setattr(audit_log, "AT_A_TIME", 2)
    for number in range(5):
        record(team, alice, "run.locked", run, number=number)
    record(team, None, "run.lost", run)

    response = alice_client.get(f"{LOG}jsonl?verb=run.locked")

    disposition = response.headers["Content-Disposition"]
    assert disposition.startswith("attachment;")
    assert '"audit-log-alpha.jsonl"' in disposition
    rows = [json.loads(line) for line in response.getvalue().decode().splitlines()]
    assert [row["detail"]["number"] for row in rows] == [4, 3, 2, 1, 0]
    assert set(rows[0]) == set(audit_log.COLUMNS)
    assert (rows[0]["person"], rows[0]["address"]) == ("alice", None)


def test_no_spreadsheet_takes_a_cell_for_a_formula(team, alice, alice_client, run):
    with acting_in(RequestContext(agent="=cmd|' /C calc'!A0")):
        record(team, alice, "run.described", run, name="=1+1")

    text = alice_client.get(f"{LOG}csv").getvalue().decode()

    assert text.startswith("\ufeffid,time,person,")
    [row] = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    assert row["agent"] == "'=cmd|' /C calc'!A0"
    assert row["detail"] == '{"name": "=1+1"}'


def test_a_page_costs_a_query_for_each_type_of_things(
    team, alice, alice_client, run, django_assert_num_queries
):
    rule = make_rule(team)
    for _ in range(10):
        record(team, alice, "run.locked", make_run(team))
        record(team, alice, "alert.acknowledged", make_alert(run, None))
        record(team, alice, "alert_rule.muted", rule)
    alice_client.get(LOG)

    with django_assert_num_queries(12):
        alice_client.get(LOG)
