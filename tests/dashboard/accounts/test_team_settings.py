"""A team's settings page, and the teams that are made."""

from dashboard.accounts.models import AuditEntry, Membership, Role, Team, User


def member_of(user: User) -> Membership:
    return Membership.objects.get(user=user, team__slug="alpha")


def test_members_and_their_roles_are_listed(bob_client, alice):
    page = bob_client.get("/alpha/settings").text

    assert "2 members" in page
    assert "alice" in page
    assert "/settings/invitations" not in page
    assert "/settings/members/" not in page


def test_an_admin_sees_only_allowed_actions(team, alice, bob, bob_client):
    Membership.objects.filter(user=bob).update(role=Role.ADMIN)

    page = bob_client.get("/alpha/settings").text

    assert f"/members/{member_of(alice).pk}/" not in page
    assert bob_client.get("/alpha/settings/invitations").status_code == 200
    assert "settings/transfer" not in bob_client.get("/alpha/settings/danger").text


def test_a_role_is_set(alice_client, bob):
    address = f"/alpha/settings/members/{member_of(bob).pk}/role"

    page = alice_client.post(address, {"role": "member"}, follow=True)

    assert page.status_code == 200
    assert member_of(bob).role == "member"
    assert page.context["undo"] == {"member": member_of(bob), "role": "viewer"}
    undone = alice_client.post(address, {"role": "viewer"})
    assert member_of(bob).role == "viewer"
    assert alice_client.get(undone["Location"]).context["undo"]["role"] == "member"
    none = alice_client.get(f"/alpha/settings?changed={member_of(bob).pk}&was=king")
    assert none.context["undo"] is None
    assert alice_client.post(address, {"role": "king"}).status_code == 422


def test_a_rejected_change_gives_a_reason(alice_client, alice):
    page = alice_client.post("/alpha/settings/leave", {"confirmed": "Alpha"})

    assert page.status_code == 422
    assert "last owner" in page.text
    assert member_of(alice)


def test_after_leaving_the_team_is_not_found(bob_client, bob):
    requested = bob_client.post("/alpha/settings/leave", {"confirmed": "alpha"})
    left = bob_client.post("/alpha/settings/leave", {"confirmed": "Alpha"})

    assert requested.status_code == 422
    assert left.status_code == 302
    assert bob_client.get("/alpha/settings").status_code == 404
    assert bob_client.get("/").status_code == 403


def test_the_team_is_transferred(alice_client, alice, bob, charlie):
    non_member = charlie.memberships.get().pk
    address = "/alpha/settings/transfer"

    assert alice_client.post(address, {"to": non_member}).status_code == 404
    assert alice_client.post(address, {"to": "²"}).status_code == 404
    given = {"to": member_of(bob).pk}
    assert alice_client.post(address, given).status_code == 422
    assert member_of(bob).role == "viewer"
    given["confirmed"] = "Alpha"
    assert alice_client.post(address, given).status_code == 302
    assert (member_of(bob).role, member_of(alice).role) == ("owner", "admin")


def test_a_deactivated_member_is_marked_and_can_be_reactivated(alice_client, bob):
    address = f"/alpha/settings/members/{member_of(bob).pk}"

    page = alice_client.post(f"{address}/deactivate", follow=True).text

    assert ">deactivated<" in page
    assert f"{address}/reactivate" in page
    alice_client.post(f"{address}/reactivate")
    bob.refresh_from_db()
    assert bob.is_active


def test_an_owner_makes_another_team(alice_client, alice):
    page = alice_client.post("/teams/new", {"name": "Gamma", "slug": "gamma"})

    assert page.headers["Location"] == "/gamma/settings/invitations"
    assert alice.memberships.get(team__slug="gamma").role == "owner"
    assert AuditEntry.objects.get().verb == "team.created"
    menu = alice_client.get("/gamma/settings").text
    assert 'href="/alpha/runs/"' in menu


def test_a_team_gets_no_address_that_is_taken(alice_client):
    for slug in ["alpha", "account", "two words", ""]:
        refused = alice_client.post("/teams/new", {"name": "Gamma", "slug": slug})

        assert refused.status_code == 422, slug
        assert not Team.objects.filter(name="Gamma").exists(), slug


def test_a_viewer_makes_no_team(bob_client):
    assert bob_client.get("/teams/new").status_code == 403
    assert "New team" not in bob_client.get("/alpha/settings").text
