"""What waited, ran or had ended in the six older queues is a job after the upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from dashboard.accounts.models import Team
from dashboard.jobs.models import Job

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
BEFORE = [
    ("datasets", "0001_initial"),
    ("exchange", "0001_imports_of_runs"),
    ("rescoring", "0001_rescorings"),
    ("probes", "0002_tries"),
]
STATES = ("queued", "running", "stopping", "finished", "stopped", "failed")


@pytest.fixture
def older() -> Iterator[Any]:
    """The apps as they were; the tables are of this version again afterwards."""
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    MigrationExecutor(connection).migrate(BEFORE)
    yield MigrationExecutor(connection).loader.project_state(BEFORE).apps
    MigrationExecutor(connection).migrate(newest)


def upgrade() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


def test_probes_and_imports_keep_their_states(team: Team, older: Any) -> None:
    version = make_version_before(older, team)
    held = {"lease_until": "2026-01-01T00:00Z", "claim": "0" * 32}
    for state in STATES:
        older.get_model("probes", "Probe").objects.create(
            team_id=team.pk,
            dataset_version_id=version,
            model_label=state,
            config={},
            positions=[1, 2],
            num_samples=2,
            state=state,
            num_done=1,
            error="why" if state == "failed" else "",
            finished_at="2026-01-01T00:00Z" if state in STATES[3:] else None,
            **(held if state in ("running", "stopping") else {}),
        )
    older.get_model("datasets", "ImportJob").objects.create(
        team_id=team.pk,
        filename="rows",
        num_to_read=9,
        num_read=9,
        state="refused",
        refusals={"count": 1},
        ended_at="2026-01-01T00:00Z",
    )
    older.get_model("datasets", "ImportJob").objects.create(
        team_id=team.pk,
        filename="stopped",
        num_to_read=9,
        state="running",
        stop_requested=True,
        heartbeat="2026-01-01T00:00Z",
    )
    imports = older.get_model("exchange", "RunImport").objects
    imports.create(team_id=team.pk)
    imports.create(
        team_id=team.pk, phase="make", state="running", heartbeat="2026-01-01T00:00Z"
    )

    upgrade()

    probes = Job.objects.filter(kind="probe").values_list("probe__model_label", "state")
    assert dict(probes) == {
        "queued": "queued",
        "running": "queued",
        "stopping": "cancelled",
        "finished": "done",
        "stopped": "cancelled",
        "failed": "failed",
    }
    assert Job.objects.get(kind="probe", state="failed").error == "why"
    others = Job.objects.exclude(kind="probe").order_by("kind", "pk")
    assert [(job.kind, job.state, job.done) for job in others] == [
        ("dataset.select", "failed", 9),
        ("dataset.select", "cancelled", 0),
        ("run_import.make", "queued", 0),
    ]


def make_version_before(older: Any, team: Team) -> int:
    dataset = older.get_model("datasets", "Dataset").objects.create(
        team_id=team.pk, name="Sums"
    )
    version = older.get_model("datasets", "DatasetVersion").objects.create(
        dataset=dataset,
        number=1,
        num_rows=2,
        content_sha256="0" * 64,
        mapping={},
        source={},
    )
    return int(version.pk)
