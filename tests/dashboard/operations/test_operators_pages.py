"""Operators can open everything and set quotas; others get a 404."""

from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from dashboard.accounts.models import AuditEntry, User
from dashboard.operations.models import Quota
from dashboard.supervision.workers import register
from tests.abuse.test_every_page_is_strict import INLINE, assert_strict
from tests.dashboard.completions.factories import make_run
from tests.page_client import PageClient


def routes() -> list[URLPattern]:
    (found,) = [
        one
        for one in get_resolver().url_patterns
        if isinstance(one, URLResolver) and one.namespace == "admin"
    ]
    return list(_walk(found))


def _walk(resolver: URLResolver) -> Iterator[URLPattern]:
    for one in resolver.url_patterns:
        if isinstance(one, URLResolver):
            yield from _walk(one)
        else:
            yield one


@pytest.fixture
def addresses(team, alice) -> list[str]:
    """Each address of the operators' pages, of objects that are there."""
    run = make_run(team)
    quota = Quota.objects.create(team=team, max_runs=2)
    register("worker-1", num_slots=1)
    known = {
        "accounts_user": alice.pk,
        "accounts_team": team.pk,
        "accounts_membership": team.memberships.get().pk,
        "upkeep_quota": quota.pk,
        "runs_run": run.pk,
    }
    found = []
    for route in routes():
        names = route.pattern.regex.groupindex
        model = str(route.name).rpartition("_")[0]
        if "object_id" in names and route.name and model in known:
            kwargs = {"object_id": known[model]}
            found.append(reverse(f"admin:{route.name}", kwargs=kwargs))
        elif not names and route.name:
            found.append(reverse(f"admin:{route.name}"))
    return found


@pytest.fixture
def operator_client(db) -> Client:
    User.objects.create_user("olga", is_staff=True)
    client = PageClient()
    client.force_login(User.objects.get(username="olga"))
    return client


def test_non_operators_get_a_404(addresses, alice_client):
    assert len(addresses) > 20
    for address in [*addresses, "/admin/login/", "/admin/no/such/"]:
        non_member = PageClient().get(address)
        assert non_member.status_code == 302, address
        assert non_member.headers["Location"].startswith("/sign-in/?next=")
        assert alice_client.get(address).status_code == 404, address
        assert alice_client.post(address).status_code in (403, 404), address
    assert "/admin/" not in alice_client.get("/alpha/runs/").text


def test_an_operator_can_open_all_pages_under_the_csp(addresses, operator_client):
    num_pages = 0
    for address in addresses:
        page = operator_client.get(address)
        assert_strict(address, page)
        if page.status_code == 200 and "text/html" in page.headers["Content-Type"]:
            assert INLINE.search(page.text) is None, address
            num_pages += 1

    assert num_pages >= 15


def test_an_operator_can_change_only_quotas_with_audit_entries(
    addresses, operator_client, team, alice
):
    quota, before = Quota.objects.get(), Quota.objects.get()
    form = {"team": team.pk, "max_bytes": "5000", "max_runs": "3"}

    operator_client.post(f"/admin/upkeep/quota/{quota.pk}/change/", form)
    refused = [
        operator_client.post(f"/admin/accounts/user/{alice.pk}/change/", {}),
        operator_client.post(f"/admin/accounts/user/{alice.pk}/delete/", {"post": "y"}),
        operator_client.post("/admin/accounts/team/add/", {}),
        operator_client.post("/admin/accounts/auditentry/add/", {}),
    ]

    quota.refresh_from_db()
    assert (quota.max_bytes, quota.max_runs) == (5_000, 3)
    entry = AuditEntry.objects.get(verb="team.quota_changed")
    assert entry.actor is not None
    assert entry.actor.username == "olga"
    held = {"max_bytes": before.max_bytes, "max_runs": before.max_runs}
    assert entry.detail == {"max_bytes": 5_000, "max_runs": 3, "before": held}
    assert [answer.status_code for answer in refused] == [403] * 4


def test_an_operator_gives_a_team_its_first_quota(operator_client, team):
    Quota.objects.all().delete()
    form = {"team": team.pk, "max_bytes": "5000", "max_runs": "3"}

    added = operator_client.post("/admin/upkeep/quota/add/", form)

    assert added.status_code == 302
    assert Quota.objects.values_list("team", "max_bytes", "max_runs").get() == (
        team.pk,
        5_000,
        3,
    )
    entry = AuditEntry.objects.get(verb="team.quota_changed")
    assert entry.detail["before"] == {"max_bytes": None, "max_runs": None}


def test_no_page_shows_a_password(operator_client, alice):
    alice.set_password("a long enough secret")
    alice.save()

    page = operator_client.get(f"/admin/accounts/user/{alice.pk}/change/")

    assert "alice" in page.text
    assert alice.password not in page.text


def test_only_offered_lookups_are_allowed(operator_client, alice):
    """A hash, or another secret, would else be read letter by letter."""
    for address, status in (
        ("accounts/user/?password__startswith=md5", 400),
        ("accounts/user/?password__regex=^m", 400),
        ("accounts/membership/?user__password__startswith=md5", 400),
        ("runs/run/?owner__password__startswith=md5", 400),
        ("accounts/user/?is_active__exact=1", 200),
        ("accounts/membership/?role__exact=admin", 200),
        ("runs/run/?state__exact=running&q=demo", 200),
    ):
        assert operator_client.get(f"/admin/{address}").status_code == status, address


def test_a_command_makes_operators_and_takes_it_back(alice):
    call_command("operator", "alice")
    alice.refresh_from_db()
    assert alice.is_staff

    call_command("operator", "alice", "--no")
    alice.refresh_from_db()
    assert not alice.is_staff
    with pytest.raises(CommandError, match="'zoe' not found"):
        call_command("operator", "zoe")
