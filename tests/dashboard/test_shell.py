"""The top bar's counts, notifications and the search behind the command palette."""

import re
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Membership, Role, Team
from dashboard.alerts.models import AlertState
from dashboard.help.pages import all_pages
from dashboard.pages.shell import OF_A_RUN
from dashboard.runs.models import Run, RunState
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.completions.factories import make_run
from tests.dashboard.noted_sql import noting_sql
from tests.dashboard.runs.stories import Story, queue_run

FEATURES = {
    "signal map": "metrics/#chart-signal-map",
    "rule shares": "metrics/#chart-signal-variance",
    "step anatomy": "metrics/#chart-signal-anatomy",
    "pass@k": "metrics/#chart-signal-passes",
    "token view": "groups/",
    "reward log": "reward-log/",
    "reward audit": "health/",
    "forgotten prompts": "prompts/?which=forgotten",
    "near-duplicates": "completions/?surprise=near",
    "rescoring": "/alpha/rescorings/?run=",
    "seed bands": "/alpha/compare?runs=",
    "sweep": "/alpha/sweep?runs=",
    "try a checkpoint": "try/",
    "lineage": "lineage/",
    "workbench": "/alpha/rewards/new",
}


def pill(html: str) -> dict[str, int]:
    names = "running|waiting|workers|news"
    return {name: int(n) for name, n in re.findall(rf'data-({names})="(\d+)"', html)}


def found(client: Client, query: str, **more: str | int) -> list[str]:
    """The addresses of the palette's results."""
    answer = client.get("/alpha/search", {"palette": "", "q": query, **more})
    assert answer.status_code == 200
    return re.findall(r'role="option"[^>]* href="([^"]+)"', answer.text)


def test_the_bar_counts_runs_workers_and_news(alice_client, team, alice):
    register("training@here", num_slots=2)
    Story(queue_run(team), worker="training@here").start()
    queue_run(team)
    other = Team.objects.create(slug="beta", name="Beta")
    queue_run(other)

    page = alice_client.get("/help/").text

    counts = {"running": 1, "waiting": 1, "workers": 1, "news": 0}
    assert pill(page) == counts
    assert pill(alice_client.get("/alpha/status").text) == counts
    assert "is-stuck" not in page
    Worker.objects.update(last_seen=timezone.now() - timedelta(minutes=5))
    page = alice_client.get("/help/").text
    assert pill(page)["workers"] == 0
    assert "is-stuck" in page


def test_drained_workers_leave_waiting_runs_stuck(alice_client, team):
    register("training@here", num_slots=1)
    Worker.objects.update(drained_at=timezone.now())
    queue_run(team)

    page = alice_client.get("/help/").text

    assert pill(page)["workers"] == 1
    assert "is-stuck" in page


def test_an_ended_run_is_reported_until_it_is_seen(
    alice_client, bob_client, team, alice
):
    run = make_run(team)
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(
        owner=alice, state=RunState.FINISHED, finished_at=now
    )

    assert pill(alice_client.get("/help/").text)["news"] == 1
    assert pill(bob_client.get("/help/").text)["news"] == 0  # another member's
    assert f"/alpha/runs/{run.pk}/" in alice_client.get("/alpha/notifications").text
    assert pill(alice_client.get("/help/").text)["news"] == 0
    assert f"/alpha/runs/{run.pk}/" not in alice_client.get("/alpha/notifications").text


def test_a_run_that_paused_itself_comes_first_until_it_is_resumed(
    alice_client, bob_client, team
):
    paused = {"state": RunState.PAUSED, "finished_at": None}
    own = make_run(team, pause_reason="boom failed.\nFix the cause.", **paused)
    for reason in ("", "Paused by alice."):
        make_run(team, pause_reason=reason, **paused)

    for client in (alice_client, bob_client):
        assert pill(client.get("/help/").text)["news"] == 1
        panel = client.get("/alpha/notifications").text
        assert re.findall(r"/alpha/runs/(\d+)/", panel) == [str(own.pk)]
        assert panel.index("boom failed.") < panel.index("/alpha/alerts/")
        assert pill(client.get("/help/").text)["news"] == 1  # seen, but still paused

    Run.objects.filter(pk=own.pk).update(state=RunState.QUEUED)
    assert pill(alice_client.get("/help/").text)["news"] == 0


def test_notifications_list_firing_alerts(alice_client, team):
    story = Story(queue_run(team))
    story.start()
    alert = make_alert(story.run, make_rule(team))
    address = f"/alpha/alerts/{alert.pk}/"

    assert address in alice_client.get("/alpha/notifications").text
    assert pill(alice_client.get("/help/").text)["news"] == 1  # seen, but still firing
    type(alert).objects.update(state=AlertState.ACKNOWLEDGED)
    assert address not in alice_client.get("/alpha/notifications").text
    assert pill(alice_client.get("/help/").text)["news"] == 0


def test_a_page_reads_memberships_once_and_their_counts_once(alice_client, team):
    with noting_sql() as queries:
        alice_client.get("/help/")

    reads = [sql for sql in queries if "accounts_membership" in sql]
    assert len(reads) == 2
    assert len(queries) <= 4  # session, person, memberships, counts


def test_names_are_found_in_the_team_only(alice_client, charlie_client, team):
    run = make_run(team, "calm-otter-7")
    assert run.dataset_version
    dataset = run.dataset_version.dataset

    assert found(alice_client, "otter calm")[0] == f"/alpha/runs/{run.pk}/"
    assert found(alice_client, f"#{run.pk}")[0] == f"/alpha/runs/{run.pk}/"
    assert f"/alpha/datasets/{dataset.pk}/" in found(alice_client, dataset.name)
    others = charlie_client.get("/other/search", {"palette": "", "q": "otter"})
    assert others.text.count('role="option"') == 0
    assert charlie_client.get("/alpha/search").status_code == 404


def test_features_are_found_by_their_names(alice_client, team):
    make_run(team)
    newest = make_run(team)

    pages = set()
    for name, part in FEATURES.items():
        addresses = found(alice_client, name)
        (address,) = {a for a in addresses if a.startswith("/alpha") and part in a}
        assert str(newest.pk) in address or "rewards/new" in address
        pages.add(address.partition("#")[0])
    for page in pages:
        assert alice_client.get(page).status_code == 200, page


def test_the_open_run_goes_before_the_newest(alice_client, team):
    run, newer = make_run(team), make_run(team)

    assert f"/alpha/runs/{run.pk}/logs/" in found(alice_client, "logs", run=run.pk)
    assert f"/alpha/runs/{newer.pk}/logs/" in found(alice_client, "logs")
    assert f"/alpha/runs/{newer.pk}/logs/" in found(alice_client, "logs", run="x")


def test_every_entry_leads_to_a_page(alice_client, team):
    make_run(team)
    addresses = {
        address for word in ("a", "e", "") for address in found(alice_client, word)
    }

    assert len(addresses) > len(OF_A_RUN)
    for page in {address.partition("#")[0] for address in addresses}:
        assert alice_client.get(page).status_code in (200, 302), page


def test_settings_metrics_and_help_are_found(alice_client, team):
    run = make_run(team)

    assert "/alpha/runs/new#field-optim-learning_rate" in found(
        alice_client, "learning rate"
    )
    metric = f"/alpha/runs/{run.pk}/metrics/?q=entropy"
    assert metric in found(alice_client, "entropy")
    for page in all_pages().values():
        assert f"/help/{page.name}/" in found(alice_client, page.title), page.name


def test_a_viewer_is_offered_no_action_that_is_refused(bob_client, bob, team):
    assert "/alpha/runs/new" not in found(bob_client, "new run")
    assert "/alpha/settings/invitations" not in found(bob_client, "invite someone")
    Membership.objects.filter(user=bob).update(role=Role.ADMIN)
    assert "/alpha/runs/new" in found(bob_client, "new run")
    assert "/alpha/settings/invitations" in found(bob_client, "invite someone")
