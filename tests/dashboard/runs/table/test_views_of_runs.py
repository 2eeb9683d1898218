"""Views of the run list under a name and a short link."""

import pytest
from django.test import Client

from dashboard.accounts.models import Membership, Role, User
from dashboard.runs.models import SavedView
from tests.page_client import PageClient

ADDRESS = "q=tag%3Abaseline&cols=state&sort=-reward%2Fmean.last"


@pytest.fixture
def carol_client(team) -> Client:
    """Another member."""
    carol = User.objects.create_user("carol")
    Membership.objects.create(team=team, user=carol, role=Role.MEMBER)
    client = PageClient()
    client.force_login(carol)
    return client


def save(client: Client, name: str, **fields: str) -> SavedView:
    data = {"name": name, "address": ADDRESS, **fields}
    client.post("/alpha/runs/views/", data)
    return SavedView.objects.get(name=name)


def change(client: Client, view: SavedView, action: str, **fields: str) -> int:
    answer = client.post(
        f"/alpha/runs/views/{view.code}/change", {"action": action, **fields}
    )
    return answer.status_code


def test_a_short_link_opens_the_saved_address(alice_client):
    view = save(alice_client, "Baselines", address=f"{ADDRESS}&page=3&open=x&view=abc")

    answer = alice_client.get(f"/alpha/runs/views/{view.code}/")

    assert view.query == ADDRESS
    assert len(view.code) == 8
    assert answer["Location"] == f"/alpha/runs/?{ADDRESS}&view={view.code}"


def test_a_view_is_personal_or_shared(alice_client, carol_client, charlie_client):
    own = save(alice_client, "Mine")
    shared = save(alice_client, "Ours", shared="on")

    def found(client: Client, team: str, view: SavedView) -> int:
        return client.get(f"/{team}/runs/views/{view.code}/").status_code

    assert found(carol_client, "alpha", own) == 404
    assert found(carol_client, "alpha", shared) == 302
    assert found(charlie_client, "alpha", shared) == 404
    assert found(charlie_client, "other", shared) == 404
    page = carol_client.get("/alpha/runs/?view=").text
    assert "Ours" in page
    assert "Mine" not in page


def test_a_view_is_renamed_updated_and_deleted(alice_client, carol_client):
    view = save(alice_client, "Ours", shared="on")

    # A member tends what is the team's.
    change(carol_client, view, "rename", name="Seeds", is_shared="on")
    change(carol_client, view, "update", query="q=seed&view=x")
    view.refresh_from_db()
    assert (view.name, view.query, view.is_shared) == ("Seeds", "q=seed", True)
    change(alice_client, view, "rename", name="Seeds")
    view.refresh_from_db()
    assert not view.is_shared
    assert change(carol_client, view, "delete") == 404
    assert change(alice_client, view, "delete") == 302
    assert not SavedView.objects.exists()


def test_the_default_view_opens_first(alice_client, carol_client):
    view = save(alice_client, "Ours", shared="on")
    change(alice_client, view, "default")
    change(carol_client, view, "default")

    assert alice_client.get("/alpha/runs/")["Location"] == (
        f"/alpha/runs/views/{view.code}/"
    )
    assert alice_client.get("/alpha/runs/?view=").status_code == 200
    change(alice_client, view, "no-default")
    assert alice_client.get("/alpha/runs/").status_code == 200
    assert carol_client.get("/alpha/runs/").status_code == 302
    # What is no longer shared is no longer anyone else's first.
    change(alice_client, view, "rename", name="Ours")
    assert carol_client.get("/alpha/runs/").status_code == 200


def test_viewers_have_personal_views_only(alice_client, bob_client):
    shared = save(alice_client, "Ours", shared="on")
    own = save(bob_client, "Bob's")

    data = {"name": "For all", "address": ADDRESS, "shared": "on"}

    assert bob_client.post("/alpha/runs/views/", data).status_code == 403
    assert change(bob_client, own, "rename", name="Bob's", is_shared="on") == 403
    assert change(bob_client, shared, "delete") == 403
    assert change(bob_client, shared, "default") == 302
    assert change(bob_client, own, "delete") == 302


def test_an_invalid_view_is_refused(alice_client):
    save(alice_client, "Ours")
    for fields, named in (
        ({"name": "Ours"}, "Ours"),
        ({"name": " "}, "name"),
        ({"name": "x" * 61}, "60 characters; got 61"),
        ({"name": "x", "address": "q=" + "x" * 4_000}, "4,000"),
    ):
        answer = alice_client.post("/alpha/runs/views/", fields, follow=True)

        (*_, message) = answer.context["messages"]
        assert (message.level_tag, named in message.message) == ("error", True), fields
    assert SavedView.objects.count() == 1


def test_the_page_shows_the_view_and_whether_it_changed(alice_client, team, alice):
    view = save(alice_client, "Baselines")

    same = alice_client.get(f"/alpha/runs/?{ADDRESS}&view={view.code}&page=1").text
    other = alice_client.get(f"/alpha/runs/?q=x&view={view.code}").text

    assert "<title>Baselines · Runs" in same
    assert "(changed)" not in same
    assert "(changed)" in other
