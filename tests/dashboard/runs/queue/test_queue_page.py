import re

import pytest
from pytest_django.asserts import assertRedirects

from dashboard.accounts.models import Team
from dashboard.runs.models import Priority, Run
from dashboard.supervision.workers import register
from tests.dashboard.runs.stories import Story, queue_run
from tests.page_client import PageClient


@pytest.fixture
def runs(team) -> list[Run]:
    register("training@here", num_slots=1)
    return [queue_run(team, name=f"run-{name}") for name in "abc"]


def page(client: PageClient) -> str:
    return client.read("/alpha/compute/")


def test_the_teams_runs_are_listed_in_their_order(alice_client, runs):
    alice_client.post(f"/alpha/runs/{runs[2].id}/priority", {"priority": "high"})

    html = page(alice_client)

    places = [html.index(f'data-queued="{runs[at].id}"') for at in (2, 0, 1)]
    assert places == sorted(places)


def test_a_busy_worker_counts_without_queued_runs(alice_client, team):
    register("training@here", num_slots=2)
    Story(queue_run(team), worker="training@here")

    html = page(alice_client)

    assert re.findall(r"data-(busy-slots|slots)>(\d+)", html) == [
        ("busy-slots", "1"),
        ("slots", "2"),
    ]
    assert 'class="queue-run' not in html


def test_other_teams_runs_are_counted_not_named(alice_client, runs):
    other = Team.objects.create(slug="beta", name="Beta")
    for _ in range(2):
        queue_run(other, name="secret plan")

    html = page(alice_client)

    assert len(re.findall(r'<li class="queue-foreign[^>]*>1 run ', html)) == 2, (
        "they take turns"
    )
    assert "secret plan" not in html


def test_a_run_is_held_released_and_given_a_priority(alice_client, runs):
    address = f"/alpha/runs/{runs[0].id}"
    back = {"from": "compute"}

    assertRedirects(alice_client.post(f"{address}/hold", back), "/alpha/compute/")
    assert "<strong>On hold</strong>" in page(alice_client)
    assertRedirects(alice_client.post(f"{address}/release"), f"{address}/")
    alice_client.post(f"{address}/priority", {"priority": "high", **back})

    runs[0].refresh_from_db()
    assert (runs[0].on_hold, runs[0].priority) == (False, Priority.HIGH)


def test_an_unknown_priority_is_refused(alice_client, runs):
    address = f"/alpha/runs/{runs[0].id}/priority"

    answer = alice_client.post(
        address, {"priority": "9", "from": "compute"}, follow=True
    )

    (message,) = answer.context["messages"]
    assert (message.level_tag, "'9'" in message.message) == ("error", True)


def test_a_late_change_shows_a_message(alice_client, runs):
    Story(runs[0])

    answer = alice_client.post(f"/alpha/runs/{runs[0].id}/hold", follow=True)

    (message,) = answer.context["messages"]
    assert (message.level_tag, "starting" in message.message) == ("info", True)


def test_a_viewer_is_offered_no_change(bob_client, runs):
    html = page(bob_client)

    assert "run-a" in html
    assert f'id="hold-{runs[0].id}"' not in html


def test_an_empty_queue_says_so(alice_client, alice):
    html = page(alice_client)

    assert "data-queue-empty" in html
    assert "notice-warning" in html  # of the worker that is missing


def test_the_run_list_shows_the_queue_position(alice_client, runs):
    rows = alice_client.get(
        "/alpha/runs/live.json", {"ids": ",".join(str(run.id) for run in runs)}
    ).json()["rows"]

    places = [rows[str(run.id)]["place"] for run in runs]
    assert [place.split()[0] for place in places] == ["1st", "2nd", "3rd"]
    assert places[0].endswith("now")


def test_a_queued_runs_page_has_queue_actions(alice_client, runs):
    html = alice_client.get(f"/alpha/runs/{runs[0].id}/").text

    assert f'action="/alpha/runs/{runs[0].id}/hold"' in html
    assert 'href="/alpha/compute/"' in html
