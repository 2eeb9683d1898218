"""Entries of the audit log: where an act came from, and that they stay as they are."""

import sys
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import timezone

from dashboard import celery
from dashboard.accounts.models import AuditEntry
from dashboard.accounts.request_context import (
    RequestContext,
    RequestContextMiddleware,
    acting_in,
    current_context,
    shorten_agent,
)
from dashboard.accounts.services import record
from dashboard.jobs.tasks import clean
from dashboard.operations.personal_data import erase_entries_of_team, erase_person
from dashboard.runs.models import Run
from dashboard.runs.trash import KEPT
from tests.dashboard.completions.factories import make_run
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db

STEPS = {"for_steps": "3"}
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


def test_an_action_on_a_page_records_the_browser(alice, team):
    run = make_run(team, state="paused", finished_at=None)
    client = PageClient(REMOTE_ADDR="192.0.2.7", HTTP_USER_AGENT=FIREFOX)
    client.force_login(alice)

    client.post(f"/alpha/runs/{run.pk}/stop")

    entry = AuditEntry.objects.get(verb="run.stop_requested")
    assert (entry.actor, entry.address) == (alice, "192.0.2.7")
    assert (entry.agent, entry.program) == ("Firefox 128 on Linux", "")


def test_nothing_of_a_request_is_left_in_its_thread():
    def view(_: HttpRequest) -> HttpResponse:
        return HttpResponse(current_context().agent)

    request = RequestFactory(headers={"user-agent": "curl/8.5.0 more"}).get("/")

    response = RequestContextMiddleware(view)(request)
    assert isinstance(response, HttpResponse)

    assert (response.text, current_context().agent) == ("curl/8.5.0", "")


def test_locking_several_runs_writes_an_entry_each(alice, team):
    runs = [make_run(team), make_run(team)]
    client = PageClient(REMOTE_ADDR="::ffff:192.0.2.7")
    client.force_login(alice)

    client.post(
        "/alpha/runs/act", {"action": "lock", "runs": [str(run.pk) for run in runs]}
    )

    found = AuditEntry.objects.filter(verb="run.locked")
    assert {entry.object_id for entry in found} == {run.pk for run in runs}
    assert {entry.address for entry in found} == {"192.0.2.7"}


def test_an_act_of_no_browser_has_no_address(alice, team):
    client = PageClient(REMOTE_ADDR="")  # a unix socket's
    client.force_login(alice)

    client.post(
        "/alpha/settings/alert-rules/", {"metric": "a", "kind": "missing"} | STEPS
    )

    assert AuditEntry.objects.get(verb="alert_rule.created").address is None


def test_an_action_of_a_task_records_the_task(team):
    run = make_run(team)
    old = timezone.now() - KEPT - timedelta(days=1)
    Run.objects.filter(pk=run.pk).update(trashed_at=old)

    celery.begin_task(clean)
    clean()
    celery.end_task()

    entry = AuditEntry.objects.get(verb="run.deleted")
    assert (entry.actor, entry.program) == (None, "jobs.clean")
    assert current_context().program != "jobs.clean"


def test_an_action_of_a_command_records_the_command(team, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/srv/cohort/manage.py", "up", "--port=1"])

    assert record(team, None, "team.created", team).program == "manage.py up"


def test_a_browsers_name_is_short():
    for agent, short in [
        (FIREFOX, "Firefox 128 on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like "
            "Gecko) Chrome/126.0.0.0 Safari/537.36 Edg/126.0.0.0",
            "Edge 126 on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) "
            "AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Mobile/15E148 "
            "Safari/604.1",
            "Safari 17 on iOS",
        ),
        ("python-requests/2.32.3", "python-requests/2.32.3"),
        ("", ""),
        ("x" * 500, "x" * 80),
        ("evil\x1b[31m", "evil[31m"),
    ]:
        assert shorten_agent(agent) == short, agent


@pytest.fixture
def entry(team, alice) -> AuditEntry:
    with acting_in(RequestContext(address="192.0.2.7", agent="Firefox 128 on Linux")):
        return record(team, alice, "run.launched", make_run(team), name="calm-otter")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE accounts_auditentry SET verb = 'run.stopped'",
        "UPDATE accounts_auditentry SET actor_id = NULL",
        "UPDATE accounts_auditentry SET detail = '{}'",
        "UPDATE accounts_auditentry SET created_at = now()",
        "DELETE FROM accounts_auditentry",
    ],
)
def test_the_database_itself_refuses_a_change(entry, change):
    before = AuditEntry.objects.values().get()

    with (
        pytest.raises(IntegrityError),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(change)

    assert AuditEntry.objects.values().get() == before


def test_neither_goes_with_its_person_nor_with_its_team(entry):
    assert entry.actor is not None
    for owner in (entry.actor, entry.team):
        with pytest.raises(IntegrityError), transaction.atomic():
            owner.delete()

    assert AuditEntry.objects.filter(pk=entry.pk, actor=entry.actor).exists()


def test_entries_stay_when_a_person_is_erased(entry, alice, bob):
    alice.email = "alice@example.org"
    alice.save()
    team = entry.team
    record(team, bob, "team.invited", team, to="Alice@example.org", username="alice")
    record(team, bob, "team.invited", team, to="bob@example.org", name="alice")
    record(team, bob, "person.renamed", alice, before="Alicia")

    assert erase_person(alice) == 3

    entry.refresh_from_db()
    assert (entry.actor, entry.is_erased) == (None, True)
    assert (entry.address, entry.agent) == (None, "")
    assert (entry.verb, entry.detail) == ("run.launched", {"name": "calm-otter"})
    others = AuditEntry.objects.filter(actor=bob).order_by("pk")
    assert list(others.values_list("detail", flat=True)) == [
        {"to": "(erased)", "username": "(erased)"},
        {"to": "bob@example.org", "name": "alice"},  # a run may be called so
        {},
    ]
    alice.delete()  # nothing stands in its way now


def test_a_team_may_be_erased_and_no_other_with_it(entry, charlie):
    others = charlie.teams.get()
    kept = record(others, charlie, "team.created", others)

    assert erase_entries_of_team(entry.team) == 1

    assert list(AuditEntry.objects.all()) == [kept]
    with pytest.raises(IntegrityError), transaction.atomic():
        kept.delete()  # what was allowed is over


@pytest.mark.parametrize(
    ("allowed", "change"),
    [
        ("person", "UPDATE accounts_auditentry SET verb = 'run.stopped'"),
        ("person", "DELETE FROM accounts_auditentry"),
        ("team 0", "DELETE FROM accounts_auditentry"),
    ],
)
def test_erasing_lets_through_nothing_else(entry, allowed, change):
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('cohort.erasing', %s, true)", [allowed])

        with pytest.raises(IntegrityError):
            cursor.execute(change)
