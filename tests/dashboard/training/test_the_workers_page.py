from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.accounts.models import User
from dashboard.runs.models import Run
from dashboard.training.lease import claim_run
from dashboard.training.models import Worker
from dashboard.training.workers import WorkerBeat, register
from tests.dashboard.training.factories import Launcher

pytestmark = pytest.mark.django_db


def page(client: Client, slug: str = "alpha") -> str:
    response = client.get(reverse("workers", args=[slug]))
    assert response.status_code == 200
    return response.content.decode()


def test_without_workers_the_page_says_how_to_start_one(alice_client: Client) -> None:
    assert "make run" in page(alice_client)


def test_a_worker_says_what_it_is_and_what_it_runs(
    alice_client: Client, run: Run
) -> None:
    register("training@gpu-1", num_slots=1)
    claim_run(run.id, "training@gpu-1")

    html = page(alice_client)

    assert "training@gpu-1" in html
    assert "training</span>" in html
    assert reverse("run", args=["alpha", run.id]) in html
    assert "cores" in html


def test_another_teams_run_is_counted_but_not_named(
    charlie: User, charlie_client: Client, launch: Launcher
) -> None:
    register("training@gpu-1", num_slots=1)
    claim_run(launch(name="secret plan").id, "training@gpu-1")

    html = page(charlie_client, "other")

    assert "1 of another team" in html
    assert "secret plan" not in html


def test_a_silent_worker_is_shown_as_gone(alice_client: Client) -> None:
    register("training@gpu-1", num_slots=1)
    Worker.objects.update(last_seen=Now() - timedelta(minutes=2))

    assert "not heard of" in page(alice_client)


def test_queries_do_not_grow_with_workers_and_runs(
    alice_client: Client, launch: Launcher
) -> None:
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


@pytest.mark.django_db(transaction=True)
def test_a_worker_registers_and_signs_off() -> None:
    beat = WorkerBeat("training@gpu-1", num_slots=2)
    beat.start()
    beat.stop()

    worker = Worker.objects.get()
    assert (worker.name, worker.num_slots) == ("training@gpu-1", 2)
    assert worker.stopped_at is not None


def test_strangers_do_not_see_a_teams_page(charlie_client: Client) -> None:
    response = charlie_client.get(reverse("workers", args=["alpha"]))

    assert response.status_code == 404
