import re
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.operations.views import RUNBOOK, runbook_as_html
from dashboard.runs.models import Run, RunState
from dashboard.runs.trash import delete_hidden_rows, delete_run
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.operations.test_metrics import RULES
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def empty_folder(nothing_is_known, settings, tmp_path) -> None:
    settings.COHORT_DATA = tmp_path


@pytest.fixture
def operator() -> Client:
    client = PageClient()
    client.force_login(User.objects.create_user("olga", is_staff=True))
    return client


def rows_of(client: Client) -> dict[str, tuple[str, str]]:
    """By name: state and value."""
    page = client.get("/admin/server/").text
    cells = r"<th scope=\"row\"[^>]*>(.*?)</th>\s*<td>(.*?)</td>\s*<td>(.*?)</td>"
    found = re.findall(cells, page, re.DOTALL)
    bare = [[re.sub(r"<[^>]+>", "", text).strip() for text in row] for row in found]
    return {name: (word, value) for name, word, value in bare}


def test_each_part_has_a_state_and_a_remedy(operator):
    rows = rows_of(operator)

    assert rows["Database"][0] == "ok"
    assert rows["Periodic tasks"][0] == "check"
    assert "celery" in rows["Periodic tasks"][1]
    assert rows["Last backup"][0] == "check"
    assert rows["Connections"][1].count(" of ") == 1


def test_lost_workers_and_lagging_runs_are_shown(operator, team):
    register("gpu-1", num_slots=1)
    register("gpu-2", num_slots=1)
    Worker.objects.filter(name="gpu-2").update(last_seen=Now() - timedelta(minutes=5))
    fast, slow, lost = (make_run(team, f"run-{name}") for name in ("a", "b", "c"))
    held = {"state": RunState.RUNNING, "worker": "gpu-1"}
    for run, seconds, lag in ((fast, 40, 0.2), (slow, 40, 70), (lost, -20, 0.2)):
        lease = Now() + timedelta(seconds=seconds)
        Run.objects.filter(pk=run.pk).update(**held, lease_until=lease, ingest_lag=lag)

    rows = rows_of(operator)

    assert rows["gpu-1"][0] == "ok"
    assert "3 of 1 slots" in rows["gpu-1"][1]
    assert "run-a (running, step 0)" in rows["gpu-1"][1]
    assert rows["gpu-2"][0] == "failed"
    assert rows["run-a of Alpha"][0] == "ok"
    assert rows["run-a of Alpha"][1].startswith("0.20 s")
    assert rows["run-b of Alpha"][0] == "check"
    assert "lease over" in rows["run-c of Alpha"][1]


def test_queued_runs_without_a_worker_are_seen(operator, team):
    make_run(team, "waits", state=RunState.QUEUED)

    without = rows_of(operator)["Queued runs"]
    register("gpu-1", num_slots=1)
    with_worker = rows_of(operator)["Queued runs"]

    assert without[0] == "check"
    assert without[1].startswith("1, ")
    assert with_worker[0] == "ok"


def test_rows_of_a_deleted_run_are_counted_until_deleted(operator, team, monkeypatch):
    run = make_run(team, trashed_at=timezone.now())
    for prompt in range(5):
        make_group(run, step=1, prompt_index=prompt)
    monkeypatch.setattr("dashboard.runs.trash.FEW_ROWS", 3)
    monkeypatch.setattr("dashboard.runs.trash.PARENTS_AT_A_TIME", 2)
    delete_run(run, None)
    delete_hidden_rows(until=0)
    Run.everywhere.update(deleted_at=Now() - timedelta(minutes=3))

    reported = rows_of(operator)["Rows of deleted runs"]
    Run.everywhere.update(deleted_at=Now() - timedelta(hours=3))
    late = rows_of(operator)["Rows of deleted runs"]
    for _ in range(3):
        delete_hidden_rows(until=0)
    gone = rows_of(operator)["Rows of deleted runs"]

    assert reported[0] == "ok"
    for part in ("of 1 run", "2 rows", "3 min 0"):
        assert part in reported[1]
    assert late[0] == "check"
    assert gone[0] == "ok"
    assert gone[1].startswith("none ")


@pytest.mark.django_db(transaction=True)
def test_the_last_backup_is_shown(operator, tmp_path, tmp_path_factory):
    file = tmp_path_factory.mktemp("elsewhere") / "monday.tar"
    call_command("backup", str(file))

    word, value = rows_of(operator)["Last backup"]

    assert word == "ok"
    assert str(file) in value


def test_without_redis_the_page_is_there(operator, settings):
    settings.REDIS_URL = "unix:///nowhere/redis.sock"

    rows = rows_of(operator)

    assert rows["Redis"][0] == "failed"
    assert rows["Queued runs"][0] == "ok"


def test_no_query_more_for_more_runs(operator, team, django_assert_max_num_queries):
    for number in range(20):
        make_run(team, f"run-{number}", state=RunState.QUEUED)

    with django_assert_max_num_queries(24):  # type: ignore[operator]  # a fixture
        operator.get("/admin/server/")


def test_non_operators_get_a_404(alice_client, client):
    for path in ("/admin/server/", "/admin/runbook/"):
        assert alice_client.get(path).status_code == 404
        assert client.get(path).url.startswith("/sign-in/")


def test_the_runbook_has_every_heading_that_is_named(operator):
    headings = set(re.findall(r'<h2 id="([\w-]+)"', runbook_as_html()))
    sources = [*(ROOT / "dashboard" / "operations").rglob("*.py")]
    named = set(
        re.findall(
            r'runbook=(?:\(\s*)?"([\w-]+)"', "".join(p.read_text() for p in sources)
        )
    )
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    named |= {rule["annotations"]["runbook"] for rule in rules}
    named |= set(re.findall(r"\(#([\w-]+)\)", RUNBOOK.read_text()))

    assert len(named) > 10
    assert named <= headings
    assert operator.get("/admin/runbook/").status_code == 200
