"""Tests on the CPU of a worker that a run holds."""

from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from dashboard.analysis.probes import services
from dashboard.analysis.probes.jobs import probe as run_probe
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import describe_wait, fits_beside
from dashboard.jobs.models import Job
from dashboard.jobs.queue import claim_beside
from dashboard.runs.models import Run
from dashboard.supervision.beside import JobsBesideRuns
from dashboard.supervision.lease import claim_run, drain
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.browser.waiting import wait_until_true
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.analysis.probes.test_probe_jobs import scripted
from tests.dashboard.jobs.working import change_kind

WORKER = "training@here"


@pytest.fixture
def queued(team, monkeypatch) -> Probe:
    """A test that has waited for a while."""
    register(WORKER, num_slots=1)
    change_kind(
        monkeypatch,
        "probe",
        run=partial(run_probe, command=scripted("finish")),
        fits_beside=lambda _: True,
    )
    probe = make_probe(team, make_version(team))
    Job.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    return probe


def tick() -> JobsBesideRuns:
    beside = JobsBesideRuns(WORKER, queue="training", num_slots=1)
    beside.tick()
    return beside


@pytest.mark.django_db(transaction=True)
def test_a_test_is_done_while_a_run_holds_the_worker(queued, run):
    claim_run(run.id, WORKER)

    beside = tick()
    wait_until_true(lambda: not Job.objects.get().is_open)

    beside.stop()
    queued.refresh_from_db()
    assert queued.state == "done"
    assert queued.metrics["is_beside_run"]
    assert Run.objects.get(pk=run.pk).state == "starting"


def test_it_is_left_to_a_free_worker(queued, run):
    tick()

    assert Job.objects.get().state == "queued"


def test_a_drained_worker_does_none(queued, run, team, alice):
    claim_run(run.id, WORKER)
    drain(Worker.objects.get(name=WORKER), team=team, user=alice)

    tick()

    assert Job.objects.get().state == "queued"


def test_one_that_does_not_fit_waits_for_the_end_of_the_run(queued, monkeypatch):
    change_kind(monkeypatch, "probe", fits_beside=lambda _: False)

    assert claim_beside("training", WORKER) is None


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"model": {"device": "cuda"}}, False),
        ({"rollout": {"engine": "vllm"}}, False),
    ],
)
def test_a_test_fits_where_no_gpu_is_asked_for(queued, monkeypatch, changes, fits):
    estimate = type("Estimate", (), {"total": 1_000})
    monkeypatch.setattr(services, "estimate_memory", lambda _: estimate)
    config = {
        part: {**value, **changes.get(part, {})} if isinstance(value, dict) else value
        for part, value in queued.config.items()
    }

    assert fits_beside(config) is fits


def test_one_without_room_says_when_the_worker_is_free(queued, run, monkeypatch):
    estimate = type("Estimate", (), {"total": 2**60})
    monkeypatch.setattr(services, "estimate_memory", lambda _: estimate)
    claim_run(run.id, WORKER)
    run.refresh_from_db()
    run.summary = {"last": {"time/step": 60.0}}
    run.save(update_fields=["summary"])

    assert f"in about {run.num_steps} min" in describe_wait(queued.config)
