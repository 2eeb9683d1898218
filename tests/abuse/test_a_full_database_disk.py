"""Rows are refused before they fill the disk of an embedded database."""

import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from django.conf import settings

from dashboard.analysis.probes.jobs import probe as run_probe
from dashboard.analysis.probes.models import ProbeGroup
from dashboard.analysis.rescoring.models import RescoredStep
from dashboard.datasets import limits
from dashboard.datasets.models import DatasetRow
from dashboard.datasets.row import Row
from dashboard.project.errors import UserError
from dashboard.runs.models import Run, RunEvent
from tests.abuse.test_hostile_trainers import STEP, written
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.analysis.probes.test_probe_jobs import scripted
from tests.dashboard.analysis.rescoring.factories import make_scored_run, start
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.test_external_runs import open_one, send_events
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import change_kind, do, take

MIB = 2**20


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def free(monkeypatch) -> list[int]:
    """Bytes that are free; a test changes the number."""
    free = [limits.RESERVED_BYTES - 1]

    def read(folder: Path) -> Usage:
        return Usage(2**40, 0, free[0])

    monkeypatch.setattr(settings, "DATABASE_IS_EMBEDDED", True)
    monkeypatch.setattr(shutil, "disk_usage", read)
    return free


def test_events_of_an_external_trainer_are_refused_until_there_is_space(free, alice):
    program = Program(make_token(alice, "ingest"))
    run = open_one(program).json()["id"]
    before = Run.objects.get().source
    line = written(STEP | {"metrics": {"loss": 1.0}}, 1, 1) + b"\n"
    # three times the lines beside the reserve
    free[0] = limits.RESERVED_BYTES + 3 * (len(line) - 1) - 1

    refused = send_events(program, run, line)

    assert (refused.status_code, refused.json()["code"]) == (429, "disk_full")
    assert int(refused["Retry-After"]) > 0
    assert not RunEvent.objects.exists()
    assert Run.objects.get().source == before

    free[0] += MIB
    assert send_events(program, run, line).json()["line"] == 1


def test_a_dataset_is_not_stored(free, team):
    def create() -> None:
        store_dataset(team, [Row(prompt="a")], name="a")

    for left in (-1, 3 * limits.COPY_BYTES - 1):
        free[0] = limits.RESERVED_BYTES + left
        with pytest.raises(UserError) as refused:
            create()
        assert refused.value.code == "disk_full"
    assert not DatasetRow.objects.exists()

    free[0] += 1
    create()
    assert DatasetRow.objects.count() == 1


def test_a_post_with_a_key_is_refused_and_one_without_is_not(free, alice):
    program = Program(make_token(alice, "write"))
    body = {"name": "a", "spec": {}}

    refused = program.post("/recipes", body, Idempotency_Key="a")

    assert (refused.status_code, refused.json()["code"]) == (429, "disk_full")
    assert int(refused["Retry-After"]) > 0
    assert program.post("/recipes", body).status_code != 429


def test_jobs_store_no_results(free, team, monkeypatch):
    free[0] = 2**40
    start(make_scored_run(team))
    make_probe(team, make_version(team))
    free[0] = limits.RESERVED_BYTES - 1
    probe = partial(run_probe, command=scripted("finish"))
    change_kind(monkeypatch, "probe", run=probe)

    for kind in ("rescoring", "probe"):
        job = do(take(kind))
        assert job.state == "failed"
        assert "must stay free" in job.error
    assert not RescoredStep.objects.exists()
    assert not ProbeGroup.objects.exists()


def test_pages_say_that_the_disk_is_full(free, alice_client):
    page = alice_client.get("/alpha/runs/")

    assert page.status_code == 200
    assert "data-disk-full" in page.text

    free[0] += MIB
    assert "data-disk-full" not in alice_client.get("/alpha/runs/").text
