import time
from dataclasses import asdict
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from dashboard.rewards import trial
from dashboard.rewards.trial import describe
from dashboard.supervision import workers
from dashboard.supervision.lease import claim_run
from dashboard.supervision.models import Worker
from dashboard.supervision.system_metrics import Reader
from dashboard.supervision.worker_hosts import list_hosts
from dashboard.supervision.workers import WorkerHeartbeat, register, store_facts
from tests.page_client import PageClient
from trainer.rewards.sandbox.slot import SandboxStatus

pytestmark = pytest.mark.django_db


def page(client: PageClient, slug: str = "alpha") -> str:
    return client.read(reverse("compute", args=[slug]))


def test_without_workers_the_page_shows_how_to_start_one(alice_client):
    assert "make run" in page(alice_client)


def test_a_worker_shows_its_hardware_and_runs(alice_client, run):
    register("training@gpu-1", num_slots=1)
    claim_run(run.id, "training@gpu-1")

    html = page(alice_client)

    assert "training@gpu-1" in html
    assert 'data-worker-status="busy"' in html
    assert reverse("run", args=["alpha", run.id]) in html
    assert "cores" in html


def test_a_worker_shows_which_runs_it_accepts(alice_client):
    register("training@any", num_slots=1)
    register("training@cpu", num_slots=1)
    register("training@old", num_slots=1)
    for name, takes in (("cpu", {"takes": "cpu"}), ("old", {})):
        worker = Worker.objects.get(name=f"training@{name}")
        worker.hardware = {k: v for k, v in worker.hardware.items() if k != "takes"}
        worker.hardware |= takes
        worker.save()

    html = page(alice_client)

    assert html.count('data-takes="any"') == 2  # an older worker takes any
    assert html.count('data-takes="cpu"') == 1


def test_another_teams_run_is_counted_but_not_named(charlie, charlie_client, launch):
    register("training@gpu-1", num_slots=1)
    claim_run(launch(name="secret plan").id, "training@gpu-1")

    html = page(charlie_client, "other")

    assert "1 run of other teams" in html
    assert "secret plan" not in html


def test_lost_contact_does_not_depend_on_the_web_servers_clock(
    alice_client, monkeypatch
):
    register("training@gpu-1", num_slots=1)
    register("training@gpu-2", num_slots=1)
    gone = Worker.objects.filter(name="training@gpu-2")
    gone.update(last_seen=Now() - timedelta(minutes=2))
    now = timezone.now()

    for hours in (1, -1):
        off = now + timedelta(hours=hours)
        monkeypatch.setattr(timezone, "now", lambda off=off: off)

        assert page(alice_client).count('data-worker-status="gone"') == 1, hours


def test_queries_do_not_grow_with_workers_and_runs(alice_client, launch):
    def count() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            page(alice_client)
        return len(queries)

    register("training@gpu-0", num_slots=1)
    before = count()
    for n in range(1, 6):
        register(f"training@gpu-{n}", num_slots=1)
        claim_run(launch(name=f"run {n}").id, f"training@gpu-{n}")

    assert count() == before


def test_a_worker_that_was_forgotten_registers_again(monkeypatch, tmp_path):
    sandbox = describe(SandboxStatus(level="B", reasons={}))
    monkeypatch.setattr(workers, "sandbox_here", lambda **_: sandbox)
    heartbeat = WorkerHeartbeat("training@gpu-1", num_slots=2)
    reader = Reader(tmp_path)
    heartbeat._send(reader)
    heartbeat._report_facts()
    Worker.objects.all().delete()

    heartbeat._send(reader)
    heartbeat._report_facts()

    worker = Worker.objects.get()
    assert (worker.name, worker.num_slots) == ("training@gpu-1", 2)
    assert worker.hardware["sandbox"] == asdict(sandbox)


def test_a_worker_reports_newly_installed_packages(monkeypatch, tmp_path):
    here = ["peft"]
    sandbox = describe(SandboxStatus(level="B", reasons={}))
    monkeypatch.setattr(workers, "sandbox_here", lambda **_: sandbox)
    monkeypatch.setattr(workers, "installed_packages", lambda: list(here))
    heartbeat = WorkerHeartbeat("training@gpu-1", num_slots=2)
    heartbeat._send(Reader(tmp_path))
    heartbeat._report_facts()
    assert list_hosts()[0].packages == {"peft"}

    here.append("vllm")
    heartbeat._report_facts()

    assert list_hosts()[0].packages == {"peft", "vllm"}


@pytest.mark.django_db(transaction=True)
def test_a_worker_registers_and_signs_off():
    heartbeat = WorkerHeartbeat("training@gpu-1", num_slots=2)
    heartbeat.start()
    heartbeat.stop()

    worker = Worker.objects.get()
    assert (worker.name, worker.num_slots) == ("training@gpu-1", 2)
    assert worker.stopped_at is not None


NONE = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})


def test_a_worker_shows_its_sandbox_or_why_it_has_none(alice_client):
    register("training@gpu-1", num_slots=1)
    assert "unknown" in page(alice_client)

    sandbox = describe(SandboxStatus(level="B", reasons={}))
    store_facts("training@gpu-1", sandbox=asdict(sandbox))
    assert "Sandbox level B" in page(alice_client)

    store_facts("training@gpu-1", sandbox=asdict(describe(NONE)))
    html = page(alice_client)
    for fragment in ("<strong>Off.</strong>", "A: no bwrap", "B: no Landlock"):
        assert fragment in html
    assert "Install bubblewrap" in html


def test_the_servers_sandbox_is_shown(alice_client, monkeypatch):
    grouped = SandboxStatus(level="A", reasons={}, has_group=True)
    monkeypatch.setattr(trial, "find_sandbox", lambda **_: grouped)
    assert "cgroup" in page(alice_client)

    monkeypatch.setattr(trial, "find_sandbox", lambda **_: NONE)
    assert "Install bubblewrap" in page(alice_client)


@pytest.mark.django_db(transaction=True)
def test_a_worker_reports_its_sandbox():
    heartbeat = WorkerHeartbeat("training@gpu-1", num_slots=2)
    heartbeat.start()
    deadline = time.monotonic() + 60
    while not Worker.objects.filter(hardware__has_key="sandbox").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    heartbeat.stop()

    assert Worker.objects.get().hardware["sandbox"]["level"] in ("A", "B")
