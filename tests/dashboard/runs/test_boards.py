"""Boards: which charts the page Metrics shows, in order, under a name; for any run."""

import pytest
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.runs.models import DefaultView, Run, SavedView
from tests.dashboard.completions.factories import make_run

CHARTS = "lr,kl-mean,no-such"


@pytest.fixture
def run(team) -> Run:
    return make_run(team)


def save(client: Client, run: Run, name: str = "Debug", **fields: str) -> SavedView:
    data = {"name": name, "run": str(run.pk), "address": f"show={CHARTS}", **fields}
    assert client.post("/alpha/runs/views/", data).status_code == 302
    return SavedView.objects.get(name=name, page="metrics")


def change(client: Client, board: SavedView, action: str, **fields: str) -> str:
    url = f"/alpha/runs/views/{board.code}/change"
    answer = client.post(url, {"action": action, **fields})
    assert answer.status_code == 302, answer.content
    return str(answer["Location"])


def follow(client: Client, url: str) -> tuple[str, dict[str, str]]:
    """Follow redirects to a page's path and parameters."""
    answer = client.get(url, follow=True)
    assert answer.status_code == 200
    request = answer.wsgi_request
    return request.path, request.GET.dict()


def test_a_board_keeps_charts_in_order_and_no_steps_of_a_run(alice_client, run):
    address = f"show={CHARTS}&x=time&log=&rows=name&from=3&to=9&q=lr&flat=1&board=abc"

    board = save(alice_client, run, address=address)

    kept = QueryDict(board.query).dict()
    assert kept == {"show": CHARTS, "x": "time", "log": "", "rows": "name"}
    page = alice_client.get(f"/alpha/runs/{run.pk}/metrics/?board={board.code}&show=lr")
    assert page.context["view"] == board
    assert page.context["not_saved"].split()[0] == "board"


def test_a_board_opens_on_any_run(alice_client, team, run):
    board = save(alice_client, run)
    other = make_run(team)
    trashed = make_run(team)
    Run.objects.filter(pk=trashed.pk).update(trashed_at=timezone.now())
    shown = {"show": CHARTS, "board": board.code}

    for opened in (run, other):
        url = f"/alpha/runs/{opened.pk}/metrics/"
        assert follow(alice_client, f"{url}?board={board.code}") == (url, shown)
    # Its short link opens the newest run that is not in the trash.
    short = f"/alpha/runs/views/{board.code}/"
    assert follow(alice_client, short) == (url, shown)
    # What the address says of steps stays; an empty choice is none.
    assert follow(alice_client, f"{url}?board={board.code}&show=&from=3&to=9") == (
        url,
        {**shown, "from": "3", "to": "9"},
    )
    Run.objects.all().update(trashed_at=timezone.now())
    assert follow(alice_client, short)[0] == "/alpha/runs/"


def test_a_board_is_personal_or_the_teams(
    alice_client, bob_client, charlie_client, run
):
    own = save(alice_client, run, "Mine")
    ours = save(alice_client, run, "Ours", shared="on")
    foreign = make_run(Team.objects.get(slug="other"))

    def found(client: Client, run: Run, board: SavedView) -> int:
        url = f"/{run.team.slug}/runs/{run.pk}/metrics/?board={board.code}"
        return client.get(url).status_code

    assert found(bob_client, run, own) == 404
    assert found(bob_client, run, ours) == 302
    assert found(charlie_client, run, ours) == 404
    assert found(charlie_client, foreign, ours) == 404
    url = f"/alpha/runs/{run.pk}/metrics/"
    assert bob_client.get(url).context["views"] == [ours]
    page = charlie_client.get(f"/other/runs/{foreign.pk}/metrics/?show=lr")
    assert page.context["views"] == []
    # Of someone else's board the charts are shown, but not the name.
    page = bob_client.get(f"{url}?show=lr&board={own.code}")
    assert page.context["view"] is None
    data = {"name": "For all", "run": run.pk, "address": "show=lr", "shared": "on"}
    assert bob_client.post("/alpha/runs/views/", data).status_code == 403


def test_boards_and_views_of_the_run_list_are_separate(alice_client, run):
    view = {"name": "Debug", "address": "q=a"}
    alice_client.post("/alpha/runs/views/", view)
    listed = SavedView.objects.get()
    board = save(alice_client, run, "Debug")  # the same name

    assert alice_client.get("/alpha/runs/?view=").context["views"] == [listed]
    url = f"/alpha/runs/{run.pk}/metrics/?board="
    assert alice_client.get(url).context["views"] == [board]
    assert alice_client.get(url + listed.code).status_code == 404


def test_a_board_is_renamed_updated_and_deleted(alice_client, run):
    board = save(alice_client, run)
    url = f"/alpha/runs/{run.pk}/metrics/?"

    change(alice_client, board, "rename", name="Signal", run=str(run.pk))
    to = change(alice_client, board, "update", query="show=lr&q=x", run=str(run.pk))
    board.refresh_from_db()
    assert (board.name, board.query) == ("Signal", "show=lr")
    assert to == f"{url}show=lr&board={board.code}"
    to = change(alice_client, board, "delete", run=str(run.pk))
    assert to == f"{url}show=lr"
    assert not SavedView.objects.exists()


def test_a_default_board_opens_metrics_and_a_default_view_the_list(
    alice_client, bob_client, run
):
    alice_client.post("/alpha/runs/views/", {"name": "List", "address": "q=a"})
    view = SavedView.objects.get()
    board = save(alice_client, run, shared="on")
    for saved in (view, board):
        change(alice_client, saved, "default")
    change(bob_client, board, "default")
    url = f"/alpha/runs/{run.pk}/metrics/"

    assert follow(alice_client, url)[1] == {"show": CHARTS, "board": board.code}
    assert follow(alice_client, "/alpha/runs/")[1] == {"q": "a", "view": view.code}
    assert follow(bob_client, "/alpha/runs/")[1] == {}
    assert follow(bob_client, url)[1]["board"] == board.code
    # An address that says something opens no board.
    for query in ("?board=", "?q=lr", "?show=lr"):
        assert alice_client.get(url + query).status_code == 200
    # No one else opens a board that is no longer shared.
    change(alice_client, board, "rename", name="Debug")
    assert follow(bob_client, url)[1] == {}
    change(alice_client, board, "delete")
    assert follow(alice_client, url)[1] == {}
    assert follow(alice_client, "/alpha/runs/")[1]["view"] == view.code
    change(alice_client, view, "no-default")
    assert not DefaultView.objects.exclude(view=None, board=None).exists()


def test_a_board_without_charts_or_a_name_of_its_own_is_refused(alice_client, run):
    board = save(alice_client, run)
    for fields in (
        {"name": "Empty", "address": "x=time"},
        {"name": "Empty", "address": "show=,"},
        {"name": "Debug", "address": "show=lr"},
        {"name": "Long", "address": f"show={'x' * 4_000}"},
    ):
        data = {"run": run.pk, **fields}
        answer = alice_client.post("/alpha/runs/views/", data, follow=True)

        (*_, message) = answer.context["messages"]
        assert (answer.status_code, message.level_tag) == (200, "error"), fields
    change(alice_client, board, "update", query="x=time")
    assert SavedView.objects.get().query == board.query
