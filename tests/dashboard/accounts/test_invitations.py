"""The one way into a team: a link that works once, for a while."""

import re
from datetime import timedelta

import pytest
from django.core import mail
from django.db import connections
from django.utils import timezone

from dashboard.accounts import members
from dashboard.accounts.members import accept, invite
from dashboard.accounts.models import AuditEntry, Invitation, Membership, Team, User
from dashboard.project.errors import UserError
from tests.page_client import PageClient

SIGN_UP = {
    "username": "dora",
    "display_name": "Dora",
    "email": "",
    "password1": "correct horse battery",
    "password2": "correct horse battery",
}


def make(alice: User, role: str = "member", **more: str) -> str:
    """The token."""
    return invite(by=alice.memberships.get(), role=role, **more)[1]


def test_an_admin_gets_the_link_once(alice_client):
    page = alice_client.post("/alpha/settings/invite", {"role": "viewer", "email": ""})

    link = re.search(r"http://testserver(/invitation/[\w-]+/)", page.text)
    assert link
    assert PageClient().get(link[1]).status_code == 200
    assert link[1] not in alice_client.get("/alpha/settings/invitations").text
    stored = str(Invitation.objects.values().get())
    assert link[1].split("/")[2] not in stored
    assert "no-store" in page["Cache-Control"]


def test_a_new_person_signs_up_and_joins(alice):
    client, token = PageClient(), make(alice, "member")

    answer = client.post(f"/invitation/{token}/", SIGN_UP, follow=True)

    assert answer.redirect_chain == [("/alpha/runs/", 302)]
    dora = Membership.objects.get(user__username="dora")
    assert (dora.team.slug, dora.role) == ("alpha", "member")
    assert Invitation.objects.get().used_by == dora.user
    verbs = AuditEntry.objects.order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["invitation.created", "invitation.accepted"]


def test_a_weak_password_uses_up_no_invitation(alice):
    token = make(alice)
    weak = {**SIGN_UP, "password1": "12345", "password2": "12345"}

    refused = PageClient().post(f"/invitation/{token}/", weak)

    assert refused.status_code == 422
    assert "too short" in refused.text
    assert not User.objects.filter(username="dora").exists()
    assert PageClient().post(f"/invitation/{token}/", SIGN_UP).status_code == 302


def test_a_signed_in_person_joins(alice, charlie, charlie_client):
    token = make(alice, "admin")

    page = charlie_client.get(f"/invitation/{token}/").text
    charlie_client.post(f"/invitation/{token}/")

    assert "Join as Charlie" in page
    assert charlie.memberships.get(team__slug="alpha").role == "admin"


def test_a_member_does_not_use_up_the_invitation(alice, bob, bob_client):
    token = make(alice, "admin")

    refused = bob_client.post(f"/invitation/{token}/")

    assert refused.status_code == 422
    assert "as viewer" in refused.text
    assert bob.memberships.get().role == "viewer"
    assert PageClient().post(f"/invitation/{token}/", SIGN_UP).status_code == 302


def test_a_link_works_once(alice, charlie_client):
    token = make(alice)
    PageClient().post(f"/invitation/{token}/", SIGN_UP)

    again = {**SIGN_UP, "username": "eve"}
    assert PageClient().post(f"/invitation/{token}/", again).status_code == 410
    assert charlie_client.post(f"/invitation/{token}/").status_code == 410
    assert not User.objects.filter(username="eve").exists()


def test_a_revoked_link_works_no_more(alice, alice_client):
    token = make(alice)
    pk = Invitation.objects.get().pk

    alice_client.post(f"/alpha/settings/invitations/{pk}/revoke")

    assert PageClient().get(f"/invitation/{token}/").status_code == 410
    assert "Open invitation" not in alice_client.get("/alpha/settings/invitations").text
    assert AuditEntry.objects.latest("pk").verb == "invitation.revoked"


def test_a_link_ends_after_seven_days(alice):
    token = make(alice)
    left = Invitation.objects.get().expires_at - timezone.now()
    assert timedelta(days=6, hours=23) < left <= timedelta(days=7)

    Invitation.objects.update(expires_at=timezone.now())

    assert PageClient().post(f"/invitation/{token}/", SIGN_UP).status_code == 410


def test_owners_cannot_be_invited(alice_client):
    refused = alice_client.post("/alpha/settings/invite", {"role": "owner"})

    assert refused.status_code == 422
    assert not Invitation.objects.exists()


def test_open_invitations_are_limited(alice, monkeypatch):
    monkeypatch.setattr(members, "MAX_OPEN", 2)
    for _ in range(2):
        make(alice)

    with pytest.raises(UserError) as raised:
        make(alice)
    assert raised.value.code == "invitations.too_many_open"


def test_invitations_a_day_are_limited_including_revoked(
    alice, alice_client, monkeypatch
):
    monkeypatch.setattr(members, "MAX_A_DAY", 2)
    form = {"role": "viewer", "email": "somebody@example.org"}
    for _ in range(2):
        alice_client.post("/alpha/settings/invite", form)
        alice_client.post(
            f"/alpha/settings/invitations/{Invitation.objects.latest('pk').pk}/revoke"
        )

    refused = alice_client.post("/alpha/settings/invite", form)

    assert refused.status_code == 422
    assert "2 invitations" in refused.text
    day = timezone.now() - timedelta(days=1)
    Invitation.objects.update(created_at=day)
    assert alice_client.post("/alpha/settings/invite", form).status_code == 200


def test_without_a_mail_server_the_page_offers_a_link(alice_client):
    page = alice_client.get("/alpha/settings/invitations").text

    assert "COHORT_EMAIL_URL" in page


def test_with_a_mail_server_the_link_is_sent(alice_client, settings):
    settings.MAIL_IS_SET_UP = True

    form = {"role": "member", "email": "dora@example.org"}
    page = alice_client.post("/alpha/settings/invite", form).text

    assert "dora@example.org" in page
    (sent,) = mail.outbox
    assert sent.to == ["dora@example.org"]
    link = re.search(r"http://testserver(/invitation/[\w-]+/)", str(sent.body))
    assert link
    assert PageClient().get(link[1]).status_code == 200


def test_a_mail_error_is_shown_with_the_link(alice_client, settings, monkeypatch):
    settings.MAIL_IS_SET_UP = True

    def refuse(*_args: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("dashboard.accounts.members.send_mail", refuse)
    form = {"role": "member", "email": "dora@example.org"}
    page = alice_client.post("/alpha/settings/invite", form).text

    assert "refused the connection" in page
    assert "/invitation/" in page


@pytest.mark.django_db(transaction=True)
def test_only_one_of_two_requests_joins(alice, charlie, django_db_blocker):
    token = make(alice)
    eve = User.objects.create_user("eve")
    from concurrent.futures import ThreadPoolExecutor

    def join(user: User) -> bool:
        with django_db_blocker.unblock():
            try:
                return accept(token, user) is not None
            finally:
                connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        joined = list(pool.map(join, [charlie, eve]))

    assert sorted(joined) == [False, True]
    assert Team.objects.get(slug="alpha").memberships.count() == 2
