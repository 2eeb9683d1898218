from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from dashboard.accounts.models import Membership, Role, SignInLink, Team, User
from dashboard.accounts.services import (
    consume_sign_in_link,
    create_first_team,
    create_sign_in_link,
    create_team,
)
from dashboard.project.errors import UserError
from tests.page_client import PageClient
from tests.trainer.waiting import wait_until


def _link(*arguments: str) -> str:
    output = StringIO()
    call_command("sign_in_link", *arguments, stdout=output)
    return output.getvalue().strip()


def test_the_command_prints_a_link_that_signs_the_owner_in(alice, client):
    path = urlsplit(_link()).path

    response = client.post(path)

    assert response.status_code == 302
    assert client.session["_auth_user_id"] == str(alice.pk)


def test_on_an_empty_database_the_command_makes_the_first_team(db):
    link = _link("--base-url", "https://cohort.example/")

    assert link.startswith("https://cohort.example/sign-in/")
    assert Membership.objects.get().role == Role.OWNER
    _link()
    assert Team.objects.count() == 1


def test_the_link_leads_where_people_reach_the_pages(alice, settings):
    assert _link().startswith("http://localhost:8000/sign-in/")

    settings.PUBLIC_URL = "https://cohort.example.org"

    assert _link().startswith("https://cohort.example.org/sign-in/")


def test_an_unknown_user_is_answered_with_those_there_are(alice):
    with pytest.raises(CommandError, match=r"'carol'.*alice"):
        _link("--user", "carol")


def test_looking_at_the_link_does_not_use_it_up(alice, client):
    token = create_sign_in_link(alice)

    for _ in range(3):
        assert client.get(f"/sign-in/{token}/").status_code == 200
        assert client.head(f"/sign-in/{token}/").status_code == 200

    assert "_auth_user_id" not in client.session
    assert client.post(f"/sign-in/{token}/").status_code == 302


def test_a_link_works_once(alice, client):
    token = create_sign_in_link(alice)
    client.post(f"/sign-in/{token}/")
    non_member = PageClient()

    response = non_member.post(f"/sign-in/{token}/")

    assert response.status_code == 410
    assert "has expired" in response.text
    assert "_auth_user_id" not in non_member.session


def test_a_signed_in_user_may_open_the_used_link(alice, client):
    token = create_sign_in_link(alice)
    client.post(f"/sign-in/{token}/")

    assert client.get(f"/sign-in/{token}/").status_code == 302


def test_a_link_expires(alice):
    token = create_sign_in_link(alice)
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert consume_sign_in_link(token) is None


def test_a_deactivated_user_cannot_use_a_link(alice):
    token = create_sign_in_link(alice)
    User.objects.update(is_active=False)

    assert consume_sign_in_link(token) is None


def test_the_token_itself_is_not_stored(alice):
    token = create_sign_in_link(alice)

    assert token not in str(SignInLink.objects.values().get())


@pytest.mark.django_db(transaction=True)
def test_concurrent_clicks_sign_in_once():
    token = create_sign_in_link(User.objects.create(username="dora"))

    def click(_: int) -> User | None:
        try:
            return consume_sign_in_link(token)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        winners = [user for user in pool.map(click, range(8)) if user is not None]

    assert len(winners) == 1


@pytest.mark.django_db(transaction=True)
def test_a_link_works_for_one_of_two_requests():
    token = create_sign_in_link(User.objects.create(username="dora"))

    def click() -> User | None:
        try:
            return consume_sign_in_link(token)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert consume_sign_in_link(token) is not None
            second = pool.submit(click)
            wait_until(a_row_lock_is_waited_for)

        assert second.result() is None


def a_row_lock_is_waited_for() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        (count,) = cursor.fetchone()
    return bool(count)


def test_a_team_cannot_be_called_like_a_page(alice):
    with pytest.raises(UserError) as raised:
        create_team(slug="help", name="Help", owner=alice)
    assert raised.value.code == "teams.reserved_address"


def test_the_first_team_is_made_once(db):
    assert create_first_team() == create_first_team()


def test_without_a_server_the_command_says_how_to_name_it(monkeypatch, settings):
    def refuse():
        raise OperationalError("no such socket")

    monkeypatch.setattr(connection, "ensure_connection", refuse)

    with pytest.raises(CommandError, match=str(settings.COHORT_DATA)):
        call_command("sign_in_link")
