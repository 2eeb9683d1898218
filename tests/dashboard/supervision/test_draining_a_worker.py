from types import SimpleNamespace
from typing import Any

from celery import Celery
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import AuditEntry, Membership, Role, Team, User
from dashboard.runs.models import Run, RunState
from dashboard.runs.queue.hosts import Host
from dashboard.supervision import tasks
from dashboard.supervision.lease import claim_next, claim_run, drain, undrain
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import WorkerHeartbeat
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.supervision.machines import make_worker

NAME = "training@gpu-1"
DRAIN = "/drain"


def anything(_run: Run) -> bool:
    return True


def post(client: Client, what: str, worker: Worker, slug: str = "alpha") -> int:
    url = reverse(f"worker_{what}", args=[slug, worker.id])
    status: int = client.post(url).status_code
    return status


def page(client: Client) -> str:
    return client.get(reverse("compute", args=["alpha"])).content.decode()


def test_a_drained_worker_takes_no_run_until_it_is_undrained(team, alice, launch):
    run, other = launch(name="first"), launch(name="second")
    drain(make_worker(NAME), team=team, user=alice)

    assert claim_next(Host(name=NAME), sees=anything) is None
    assert claim_run(run.id, NAME) is None  # not in a race either
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert claim_next(Host(name="training@gpu-2"), sees=anything) is not None

    worker = make_worker(NAME)  # started again
    assert worker.drained_at is not None
    undrain(worker, team=team, user=alice)
    claim = claim_next(Host(name=NAME), sees=anything)
    assert claim is not None
    assert claim.run_id == other.id


def test_a_drained_worker_finishes_its_run(alice_client, run):
    worker = make_worker(NAME)
    claim_run(run.id, NAME)

    post(alice_client, "drain", worker)

    run.refresh_from_db()
    assert run.state == RunState.STARTING
    html = page(alice_client)
    assert 'data-worker-status="busy" data-drained' in html
    assert "1 not taking runs" in html
    assert "by Alice" in html


def test_each_change_is_audited_once(alice, alice_client):
    worker = make_worker(NAME)

    for what in ("drain", "drain", "undrain", "undrain"):
        assert post(alice_client, what, worker) == 302

    entries = AuditEntry.objects.filter(object_type="worker").order_by("id")
    verbs = [(entry.verb, entry.actor) for entry in entries]
    assert verbs == [("worker.drained", alice), ("worker.undrained", alice)]


def test_only_operators_may_ask_where_teams_share_workers(
    alice, alice_client, charlie, charlie_client
):
    """And admins of the server's only team."""
    worker = make_worker(NAME)
    program = Program(make_token(alice, "admin"))
    change = {"is_drained": True}
    address = f"/workers/{worker.pk}"

    assert DRAIN not in page(alice_client)
    assert post(alice_client, "drain", worker) == 403
    assert program.patch(address, change).status_code == 403
    assert post(charlie_client, "drain", worker) == 404
    assert Worker.objects.get().drained_at is None

    User.objects.filter(pk=alice.pk).update(is_staff=True)
    assert DRAIN in page(alice_client)
    assert program.patch(address, change).json()["done"] is True

    User.objects.filter(pk=alice.pk).update(is_staff=False)
    Team.objects.get(slug="other").delete()
    assert post(alice_client, "undrain", worker) == 302
    Membership.objects.filter(user=alice).update(role=Role.MEMBER)
    assert post(alice_client, "drain", worker) == 403
    assert DRAIN not in page(alice_client)


def test_earlier_runs_are_listed(alice_client, launch):
    make_worker(NAME)
    run = launch(name="long gone")
    claim_run(run.id, NAME)
    run.attempts.update(ended_at=run.created_at, outcome="finished at step 9")

    assert "finished at step 9" in page(alice_client)


class Control:
    def __init__(self) -> None:
        self.requested: list[Any] = []

    def cancel_consumer(self, queue: str, destination: list[str]) -> None:
        self.requested.append(("cancel", queue, *destination))

    def add_consumer(self, queue: str, destination: list[str]) -> None:
        self.requested.append(("add", queue, *destination))


def test_its_heartbeat_leaves_the_messages_to_others(team, alice):
    worker = make_worker(NAME)
    app = SimpleNamespace(control=Control())
    heartbeat = WorkerHeartbeat(
        NAME,
        num_slots=1,
        on_drain=lambda is_drained: tasks._apply_drain(app, NAME, is_drained),
    )

    drain(worker, team=team, user=alice)
    heartbeat._apply_drain()
    heartbeat._apply_drain()
    undrain(worker, team=team, user=alice)
    heartbeat._apply_drain()

    assert app.control.requested == [
        ("cancel", "training", NAME),
        ("add", "training", NAME),
    ]


def test_without_redis_the_heartbeat_continues_and_drains_later(team, alice):
    with Celery(broker="redis+socket:///nowhere/r.sock", set_as_current=False) as app:
        app.conf.broker_transport_options = {"max_retries": 0}
        requested: list[bool] = []
        heartbeat = WorkerHeartbeat(NAME, num_slots=1)
        drain(make_worker(NAME), team=team, user=alice)

        heartbeat._on_drain = lambda is_drained: tasks._apply_drain(
            app, NAME, is_drained
        )
        heartbeat._apply_drain()
        heartbeat._on_drain = requested.append
        heartbeat._apply_drain()
        heartbeat._apply_drain()

    assert requested == [True]
