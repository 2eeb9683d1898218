"""What an address says to a method that it does not take."""

from dashboard.accounts.models import Membership, Role, Team
from dashboard.web.middleware import page_above

STOP = "/alpha/runs/7/stop"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_an_explanation_and_a_link(alice_client, team):
    answer = alice_client.get(STOP, headers=BROWSER)

    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    assert f">{STOP}</code>" in answer.text
    assert 'href="/alpha/runs/7/">' in answer.text


def test_a_page_that_takes_no_form_leads_to_itself(alice_client, team):
    answer = alice_client.post("/alpha/runs/", headers=BROWSER)

    assert answer.status_code == 405
    assert answer.context["page"] == "/alpha/runs/"


def test_a_program_gets_a_line_in_place_of_a_page(alice_client, team):
    for path, headers, kind in [
        (STOP, {"accept": "application/json"}, "application/json"),
        ("/alpha/runs/live.json", {"accept": "*/*"}, "application/json"),
        (STOP, {"accept": "*/*"}, "text/plain"),
        (STOP, {**BROWSER, "hx-request": "true"}, "text/plain"),
    ]:
        answer = alice_client.put(path, headers=headers)

        assert answer.status_code == 405, path
        assert answer.headers["Content-Type"] == kind, path
        assert f"{path} accepts {answer.headers['Allow']}, not PUT" in answer.text, path


def test_the_page_keeps_to_the_team_of_its_address(alice_client, alice, team):
    last = Team.objects.create(name="Zeta", slug="zeta")
    Membership.objects.create(user=alice, team=last, role=Role.ADMIN)

    answer = alice_client.get("/zeta/runs/7/stop", headers=BROWSER)

    assert 'href="/zeta/datasets/"' in answer.text


def test_the_page_above_is_the_nearest_that_there_is(db):
    assert page_above("/a/runs/new/summary") == "/a/runs/new"
    assert page_above("/a/runs/3/stop") == "/a/runs/3/"
    assert page_above("/sign-out/") == "/"
