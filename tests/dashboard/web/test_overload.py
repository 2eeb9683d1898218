"""At capacity, every response has Retry-After."""

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client

from dashboard.api.models import Scope
from dashboard.datasets.models import DatasetVersion
from dashboard.jobs import slots
from dashboard.jobs.models import Job
from dashboard.observability import requests
from dashboard.web import overload
from dashboard.web.connections import Pages
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.datasets.test_upload import FILES, MAPPING, upload
from tests.fixtures_metrics import clear_report

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def taken(alice_client, team, monkeypatch) -> Iterator[None]:
    """A pool whose connections are all at work for other requests."""
    options = connection.settings_dict["OPTIONS"]
    few = {"min_size": 1, "max_size": 2, "timeout": 0.2}
    connection.close()
    connection.close_pool()
    clear_report()
    with monkeypatch.context() as patch:
        patch.setitem(options, "pool", few)
        patch.setattr(overload, "_no_connection_at", None)
        pool = connection.pool  # type: ignore[attr-defined]  # of PostgreSQL's wrapper
        pool.open()
        # A busy machine takes longer to connect than a request may wait here.
        held = [pool.getconn(timeout=60) for _ in range(2)]
        yield
        for each in held:
            pool.putconn(each)
        connection.close()
        connection.close_pool()
    clear_report()


def test_a_page_gets_retry_after(alice_client, taken):
    alice_client.raise_request_exception = False
    for path in ("/alpha/runs/", "/alpha/datasets/", "/sign-in/"):
        answer = alice_client.get(path)

        assert answer.status_code == 503, path
        assert int(answer["Retry-After"]) > 0
        assert answer["Content-Type"].startswith("text/html")


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, Scope.READ, Scope.WRITE))


def test_a_program_gets_json(program, taken):
    for method, path in (("get", "/runs"), ("post", "/recipes"), ("get", "/nowhere")):
        answer = getattr(program, method)(path)

        assert answer.status_code == 503, path
        assert int(answer["Retry-After"]) > 0
        assert answer.json()["type"] == "urn:cohort:problem:busy"


def test_readiness_reports_it(alice_client, taken):
    ready = Client().get("/readyz", headers={"host": "localhost"})
    (part,) = _connections(ready.json())
    assert (ready.status_code, part["state"]) == (200, "ok"), part
    assert "2 of 2" in part["value"]
    clear_report()

    alice_client.raise_request_exception = False
    alice_client.get("/alpha/runs/")

    ready = Client().get("/readyz", headers={"host": "localhost"})
    (part,) = _connections(ready.json())
    assert (ready.status_code, part["state"]) == (503, "failed")
    assert part["remedy"]


def _connections(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in report["parts"] if part["name"] == "database connections"]


@pytest.fixture
def kept(monkeypatch) -> list[bool]:
    """Whether a connection was kept, each time that a child was to be begun."""
    seen: list[bool] = []
    take = slots._take

    def look(owner: str) -> Any:
        seen.append(connection.connection is not None)
        return take(owner)

    monkeypatch.setattr(slots, "_take", look)
    return seen


def test_no_connection_is_kept_while_a_child_runs(alice_client, program, kept):
    recipe = {
        "rules": [
            {"kind": "exact_answer", "name": "right", "weight": 1.0, "params": {}}
        ]
    }
    parquet = upload(alice_client, FILES["sums.parquet"], "sums.parquet")
    assert kept, "its columns are looked at"
    assert alice_client.post(parquet, MAPPING).status_code == 302
    version = DatasetVersion.objects.get()
    kept.clear()
    answer = program.post(
        "/recipes/check", {"spec": recipe, "dataset_version_id": version.pk}
    )
    sent = SimpleUploadedFile("more.parquet", FILES["sums.parquet"])
    form = {"file": sent, "name": "More", "prompt": "question", "answer": "solution"}
    begun = program.client.post("/api/v1/imports", form, headers=program.headers)

    assert (answer.status_code, begun.status_code) == (200, 201)
    assert kept
    assert not any(kept)


def test_without_a_slot_pages_and_programs_get_retry_after(alice_client, monkeypatch):
    parquet = upload(alice_client, FILES["sums.parquet"], "sums.parquet")
    monkeypatch.setattr(slots, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(slots, "_take", lambda _: None)

    answer = alice_client.get(parquet)

    assert answer.status_code == 503
    assert int(answer["Retry-After"]) > 0


def test_a_team_has_half_of_the_slots(monkeypatch, tmp_path):
    monkeypatch.setattr(slots, "NUM_SLOTS", 4)
    monkeypatch.setattr(slots, "_folder", lambda: tmp_path)
    first, second = slots._take("a"), slots._take("a")
    assert first
    assert second

    assert slots._take("a") is None
    third, fourth = slots._take("b"), slots._take("b")
    assert third
    assert fourth
    assert slots._take("c") is None, "the machine has no more"
    first.close()
    assert slots._take("c")


def test_an_import_that_finds_no_slot_is_left_to_a_worker(alice_client, monkeypatch):
    monkeypatch.setattr(slots, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(slots, "_take", lambda _: None)
    sent = SimpleUploadedFile("rows.parquet", FILES["sums.parquet"])

    answer = alice_client.post("/alpha/runs/import/", {"files": [sent]})

    assert answer.status_code == 302
    assert Job.objects.get(kind="run_import.read").state == "queued"


async def test_no_connection_is_kept_while_a_response_is_read(
    alice_client, monkeypatch
):
    kept: list[tuple[bool, bool]] = []

    def release() -> None:
        before = connection.connection is not None
        slots.release_connection()
        kept.append((before, connection.connection is not None))

    monkeypatch.setattr(requests, "release_connection", release)
    cookie = alice_client.cookies["cohort_session"].value
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/alpha/runs/",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"cookie", f"cohort_session={cookie}".encode()),
        ],
    }
    asking = ApplicationCommunicator(Pages(), scope)
    await asking.send_input({"type": "http.request", "body": b""})

    assert (await asking.receive_output(timeout=20))["status"] == 200
    assert kept == [(True, False)]
    await asking.receive_output(timeout=20)
    await asking.wait(timeout=20)
