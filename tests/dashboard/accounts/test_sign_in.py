import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_run


@pytest.fixture
def with_password(alice) -> User:
    alice.set_password("a long enough secret")
    alice.save()
    return alice


def _sign_in(client: Client, **more: str) -> tuple[int, str]:
    form = {"username": "alice", "password": "a long enough secret", **more}
    response = client.post("/sign-in/", form)
    return response.status_code, response.headers.get("Location", response.text)


def test_a_password_signs_in(with_password, client):
    assert _sign_in(client) == (302, "/")


def test_it_redirects_to_the_requested_page(with_password, team, client):
    wanted = f"/{team.slug}/runs/?state=failed"
    first = client.get(wanted)

    assert first.headers["Location"].startswith("/sign-in/?next=")
    assert _sign_in(client, next=wanted) == (302, wanted)


@pytest.mark.parametrize(
    "next_url", ["https://evil.example/", "//evil.example", "javascript:1"]
)
def test_it_never_leads_to_another_site(with_password, client, next_url):
    assert _sign_in(client, next=next_url) == (302, "/")


def test_a_bare_word_is_a_relative_address(with_password, client):
    assert _sign_in(client, next="nowhere") == (302, "nowhere")


def test_a_wrong_password_keeps_the_username(with_password, client):
    status, page = _sign_in(client, password="wrong")

    assert status == 422
    assert 'value="alice"' in page
    assert 'role="alert"' in page


@pytest.mark.parametrize(
    ("is_embedded", "command"),
    [
        (True, "<pre>COHORT_PORT=9000 make link</pre>"),
        (False, "<pre>python manage.py sign_in_link</pre>"),
    ],
)
def test_the_page_shows_how_to_get_a_link(
    client, db, settings, tmp_path, is_embedded, command
):
    settings.DATABASE_IS_EMBEDDED, settings.COHORT_DATA = is_embedded, tmp_path
    settings.MAKE_LINK = "COHORT_PORT=9000 make link"

    assert command in client.get("/sign-in/").text


def test_sign_out_takes_a_post(alice_client):
    assert alice_client.get("/sign-out/").status_code == 405
    assert alice_client.post("/sign-out/").headers["Location"] == "/sign-in/"
    assert alice_client.get("/").headers["Location"] == "/sign-in/?next=/"


def test_home_is_the_run_list_of_ones_team(alice_client, team):
    assert alice_client.get("/").headers["Location"] == f"/{team.slug}/runs/"


def test_home_is_ones_newest_run_in_training(alice_client, alice, team):
    now = timezone.now()
    live = {"state": "running", "finished_at": None, "lease_until": now}
    make_run(team, owner=alice)
    older, newest = (make_run(team, owner=alice, **live) for _ in range(2))
    make_run(team, **live)  # of someone else

    assert alice_client.get("/").headers["Location"] == f"/alpha/runs/{newest.pk}/"

    Run.objects.filter(pk=newest.pk).update(state="finished", lease_until=None)
    assert alice_client.get("/").headers["Location"] == f"/alpha/runs/{older.pk}/"


def test_a_user_without_a_team_gets_instructions(client, db):
    client.force_login(User.objects.create(username="dora"))

    response = client.get("/")

    assert response.status_code == 403
    assert "not in a team" in response.text


@pytest.mark.parametrize(
    ("headers", "is_for_this_machine", "leads_to"),
    [
        ({"host": "127.0.0.1:9000"}, True, "http://localhost:9000/sign-in/?next=/a/"),
        ({"host": "[::1]"}, True, "http://localhost/sign-in/?next=/a/"),
        ({"host": "127.0.0.1:9000"}, False, ""),  # others may come by a proxy
        ({"host": "127.0.0.1", "x-forwarded-for": "10.0.0.7"}, True, ""),
        ({"host": "127.0.0.1", "sec-fetch-mode": "cors"}, True, ""),
        ({"host": "localhost:9000"}, True, ""),
    ],
)
def test_on_one_machine_a_browser_signs_in_at_localhost(
    client, settings, headers, is_for_this_machine, leads_to
):
    settings.IS_FOR_THIS_MACHINE = is_for_this_machine

    answer = client.get("/sign-in/?next=/a/", headers=headers)

    assert answer.headers.get("Location", "") == leads_to
