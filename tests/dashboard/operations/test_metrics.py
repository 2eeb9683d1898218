import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now
from django.test import Client

from dashboard.operations.views import RUNBOOK
from dashboard.runs.models import Run, RunState
from dashboard.supervision.lease import reap
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.dashboard.completions.factories import make_run
from tests.dashboard.operations.scraping import reported, samples, scrape

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_is_known")]
ROOT = Path(__file__).parents[3]
RULES = ROOT / "docker" / "prometheus-alerts.yaml"
PAGE = ROOT / "dashboard" / "help" / "monitoring.md"


def test_names_and_units_are_prometheus_own():
    families = scrape()

    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert family.documentation, family.name
        assert re.fullmatch(r"(cohort|process|python)_[a-z_]+", family.name)
        if family.type == "counter":
            assert {s.name for s in family.samples} <= {
                f"{family.name}_total",
                f"{family.name}_created",
            }
    assert {"cohort_runs", "process_resident_memory_bytes", "process_open_fds"} <= set(
        names
    )


def test_requests_are_counted_by_the_routes_name_not_by_the_address(alice_client, team):
    key = 'cohort_http_requests_total{method="GET",route="run",status="2xx"}'
    run = make_run(team)
    before = reported().get(key, 0)

    alice_client.get(f"/{team.slug}/runs/{run.pk}/")
    alice_client.get("/no-such-page-ever/x/y/z")
    now = reported()

    assert now[key] == before + 1
    assert now['cohort_http_request_duration_seconds_count{route="run"}'] >= 1
    assert not any("no-such-page" in name for name in now)
    assert now['cohort_http_requests_total{method="GET",route="none",status="4xx"}'] > 0


def test_unknown_methods_share_one_label():
    Client().generic("BREW-7f3a", "/healthz", headers={"host": "localhost"})

    assert not any("BREW" in name for name in reported())


def test_runs_are_counted_by_state_with_the_longest_wait(team):
    queued, held, trashed = (make_run(team, state=RunState.QUEUED) for _ in range(3))
    Run.objects.filter(pk=queued.pk).update(created_at=Now() - timedelta(hours=1))
    Run.objects.filter(pk=held.pk).update(
        state=RunState.RUNNING, lease_until=Now() + timedelta(seconds=40)
    )
    Run.objects.filter(pk=trashed.pk).update(state=RunState.FINISHED)

    now = reported()

    assert now['cohort_runs{state="queued"}'] == 1
    assert now['cohort_runs{state="running"}'] == 1
    assert now['cohort_runs{state="lost"}'] == 0
    assert now["cohort_queue_oldest_age_seconds"] == pytest.approx(3_600, abs=60)
    assert now["cohort_lease_oldest_age_seconds"] == pytest.approx(20, abs=10)


def test_runs_on_hold_do_not_count_as_waiting(team):
    held, queued = (make_run(team, state=RunState.QUEUED) for _ in range(2))
    Run.objects.filter(pk=held.pk).update(
        on_hold=True, created_at=Now() - timedelta(hours=9)
    )
    Run.objects.filter(pk=queued.pk).update(created_at=Now() - timedelta(hours=1))

    assert reported()["cohort_queue_oldest_age_seconds"] == pytest.approx(3_600, abs=60)
    queued.delete()
    now = reported()

    assert now["cohort_queue_oldest_age_seconds"] == 0
    assert now['cohort_runs{state="queued"}'] == 1


def test_workers_report_their_gpus():
    register("one", num_slots=2)
    gone = {"gpus": [{"percent": 50.0, "memory_bytes": 4}]}
    use = {"memory": 7.0, "disk_free": None, "gpus": [*gone["gpus"], {"percent": None}]}
    Worker.objects.update(use=use)
    register("gone", num_slots=1)
    Worker.objects.filter(name="gone").update(
        use=gone, last_seen=Now() - timedelta(seconds=200)
    )

    now = reported()

    assert now['cohort_worker_slots{worker="one"}'] == 2
    assert now['cohort_gpu_utilization_ratio{gpu="0",worker="one"}'] == 0.5
    assert now['cohort_gpu_memory_used_bytes{gpu="0",worker="one"}'] == 4
    assert 'cohort_gpu_utilization_ratio{gpu="1",worker="one"}' not in now
    assert now['cohort_worker_heard_age_seconds{worker="gone"}'] >= 100
    assert 'cohort_gpu_utilization_ratio{gpu="0",worker="gone"}' not in now


def test_stored_events_are_counted_with_their_lag(team):
    held, slow, ended = (make_run(team) for _ in range(3))
    for run, lag in ((held, 0.5), (slow, 2.5), (ended, 70.0)):
        Run.objects.filter(pk=run.pk).update(
            state=RunState.RUNNING, lease_until=Now(), ingest_lag=lag, seq=5
        )
    Run.objects.filter(pk=ended.pk).update(state=RunState.FINISHED)

    now = reported()

    assert now["cohort_ingest_lag_seconds"] == 2.5
    assert now["cohort_ingested_events_total"] == 15


@pytest.mark.django_db(transaction=True)  # another connection looks
def test_periodic_tasks_and_waiting_messages_are_reported():
    reap()

    now = reported()

    assert now['cohort_heard_age_seconds{who="reap"}'] < 60
    assert now['cohort_messages_waiting{queue="default"}'] >= 0


def test_without_redis_the_rest_is_reported(settings):
    settings.REDIS_URL = "unix:///nowhere/redis.sock"

    now = samples(scrape())

    assert now['cohort_part_up{part="redis"}'] == 0
    assert now['cohort_part_up{part="database"}'] == 1
    assert 'cohort_runs{state="queued"}' in now
    assert not any(name.startswith("cohort_messages_waiting{") for name in now)


def test_strangers_learn_how_to_authenticate(settings):
    response = Client().get("/metrics")
    assert response.status_code == 403
    assert "COHORT_METRICS_TOKEN" in response.text

    settings.METRICS_TOKEN = "a-token-of-a-test-0123456789"
    own = {"host": "localhost"}
    assert Client().get("/metrics", headers=own).status_code == 403
    right = {**own, "authorization": "Bearer a-token-of-a-test-0123456789"}
    assert Client().get("/metrics", headers=right).status_code == 200


def test_alert_rules_name_metrics_that_there_are():
    reported_names = {family.name for family in scrape()}
    ending = re.compile(r"_(total|bucket|count|sum)$")

    named = set(re.findall(r"\b(?:cohort|process)_[a-z_]+\b", RULES.read_text()))

    assert named
    assert {ending.sub("", name) for name in named} <= reported_names


def test_the_help_page_lists_each_metric_and_no_other():
    named = re.findall(r"^\| `(cohort_[a-z_]+)`", PAGE.read_text(), re.MULTILINE)
    there = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in scrape()
        if family.name.startswith("cohort_") and not family.name.endswith("_created")
    }

    assert sorted(named) == sorted(there)
    assert set(re.findall(r"`(cohort_[a-z_]+)", RUNBOOK.read_text())) <= there
