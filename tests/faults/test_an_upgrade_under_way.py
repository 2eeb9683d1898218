"""An upgrade while a run trains, step by step as the runbook has it, and back again.

Processes of this version are the older ones; the newer ones are of a copy of it, whose
trainer tells more and whose migrations have added to each table that is written to.
"""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.test import Client

from dashboard.runs.models import Run, RunState
from dashboard.runs.state import notify_workers
from tests.faults.attempts import run_attempt
from tests.faults.histories import (
    Series,
    end_backoff,
    is_in,
    lose_lease,
    reaches,
    started_trainer,
    stored_series,
)
from tests.faults.next_version import LATER_EVENT, LATER_METRIC, NAME, NextVersion
from tests.faults.tiny import NUM_STEPS
from tests.faults.workers import wait_for

pytestmark = [pytest.mark.faults, pytest.mark.soak]
NUM_FEW_STEPS = 40
PAGES = (
    "", "metrics/", "groups/", "completions/", "prompts/", "config/", "logs/",
    "checkpoints/", "stream.json", f"curves.json?metrics={LATER_METRIC}",
)  # fmt: skip


@pytest.fixture
def next_version(transactional_db, tmp_path) -> Iterator[NextVersion]:
    leaves = MigrationLoader(connection).graph.leaf_nodes()
    version = NextVersion(tmp_path / "next", dict(leaves))
    yield version
    version.undo()  # the next test finds the tables of this version


class OlderPages:
    """The web process of this version, as Alice's browser asks it."""

    def __init__(self, address: str, client: Client, run: Run) -> None:
        name = settings.SESSION_COOKIE_NAME
        self._headers = {"Cookie": f"{name}={client.cookies[name].value}"}
        self._address = address
        self._run = f"/alpha/runs/{run.id}/"

    def get(self, path: str) -> str:
        # That of the tests' own web process.
        request = urllib.request.Request(self._address + path, headers=self._headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            text: str = answer.read().decode()
            return text

    def assert_served(self) -> dict[str, Any]:
        """The last of a run's frames."""
        for path in ("/alpha/runs/", f"/alpha/compare?runs={self._run.split('/')[3]}"):
            self.get(path)
        for page in PAGES:
            self.get(self._run + page)
        frame: dict[str, Any] = json.loads(self.get(f"{self._run}stream.json"))
        return frame

    def readiness(self) -> dict[str, Any]:
        body = json.loads(self.get("/readyz"))
        [part] = [part for part in body["parts"] if part["name"] == "migrations"]
        return dict(part)


@contextmanager
def at_rest(trainer: int) -> Iterator[None]:
    """Else it would have finished by the time that a page is read."""
    os.killpg(trainer, signal.SIGSTOP)
    yield
    os.killpg(trainer, signal.SIGCONT)


def known_to_both(series: Series) -> Series:
    return {
        step: {name: v for name, v in values.items() if name != LATER_METRIC}
        for step, values in series.items()
    }


def test_a_supervisor_skips_unknown_fields_of_a_newer_trainer(
    launch_tiny, next_version, undisturbed
):
    """Where files are replaced under a worker, its next trainer is of the new ones."""
    run = launch_tiny(num_steps=NUM_FEW_STEPS)

    ended = run_attempt(run, command=next_version.trainer_command)

    assert (ended.state, ended.attempt) == (RunState.FINISHED, 1)
    assert known_to_both(stored_series(ended)) == {
        step: undisturbed.series[step] for step in range(1, NUM_FEW_STEPS + 1)
    }
    notes = ended.events.filter(type="warned", body__code="unknown_event")
    assert list(notes.order_by("step").values_list("step", flat=True)) == list(
        range(1, NUM_FEW_STEPS + 1)
    )
    assert LATER_EVENT in notes.latest("seq").body["message"]
    assert not ended.events.filter(body__code="unreadable_line").exists()


def test_old_and_new_processes_train_one_run_together(
    launch_tiny,
    start_worker,
    next_version,
    live_app,
    alice_client,
    app_environment,
    data_folder,
    undisturbed,
):
    older = start_worker("older")
    run = launch_tiny()
    pages = OlderPages(live_app, alice_client, run)
    wait_for(reaches(run, 10), what="step 10")

    # The database first, while the processes keep running.
    with at_rest(started_trainer(data_folder, run)):
        next_version.manage("migrate", "--no-input", env=app_environment)
        assert pages.assert_served()["seq"] >= 10
        assert pages.readiness()["state"] == "degraded"
        assert NAME in pages.readiness()["value"]
    run.refresh_from_db()
    wait_for(reaches(run, run.last_step + 20), what="20 steps in the newer tables")

    # Then the workers: the run is handed over with a checkpoint.
    older.terminate(timeout_seconds=60)
    run.refresh_from_db()
    assert (run.state, run.attempt, run.num_losses) == (RunState.QUEUED, 1, 0)
    handed_over_at = run.last_step
    newer = start_worker("newer", root=next_version.root)
    notify_workers()
    wait_for(reaches(run, handed_over_at + 25), what="25 steps by the newer trainer")
    trainer = started_trainer(data_folder, run, attempt=2)
    with at_rest(trainer):
        types = {event["type"] for event in pages.assert_served()["events"]}
    assert run.attempts.get(number=2).from_step == handed_over_at
    assert LATER_METRIC in run.metric_names
    assert LATER_EVENT in types

    # And back, without a notification.
    os.killpg(trainer, signal.SIGKILL)
    newer.kill_all()
    lose_lease(run)
    start_worker("older again")
    end_backoff(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.attempt == 3
    assert known_to_both(stored_series(run)) == undisturbed.series
    assert sorted(undisturbed.series) == list(range(1, NUM_STEPS + 1))
    later = run.steps.filter(superseded_by=None, attempt=2)
    place = run.metric_names.index(LATER_METRIC)
    assert {values[place] for values in later.values_list("values", flat=True)} == {0.5}
    assert not run.events.filter(body__code="unreadable_line").exists()
    pages.assert_served()
