"""A filled database of each version is brought up to date, and tells what it told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import InternalError, connection, transaction
from django.db.migrations import RunPython, RunSQL
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.utils import DatabaseError
from django.test import Client

from dashboard.accounts.models import AuditEntry, User
from dashboard.alerts.models import Delivery
from dashboard.datasets.models import ImportJob, VersionStatistics
from dashboard.runs.models import MetricSummary, Run
from dashboard.samples.models import RuleNote
from tests.upgrades.filling import LOGS, NAMES, TEXTS, VALUES, Filled, Filler
from tests.upgrades.test_migrations import OURS
from tests.upgrades.versions import LONG_AGO, MOVES_DATA, VERSIONS

pytestmark = pytest.mark.slow


def fill(version: str) -> Filled:
    executor = MigrationExecutor(connection)
    executor.migrate(VERSIONS[version])
    state = executor.loader.project_state(VERSIONS[version])
    with transaction.atomic():
        return Filler(state.apps).fill()


def points() -> Iterator[Any]:
    for version in sorted(VERSIONS):
        marks = [pytest.mark.soak] if version in LONG_AGO else []
        yield pytest.param(version, marks=marks)


@pytest.fixture(params=points())
def filled(request: pytest.FixtureRequest, fresh_database: None) -> Filled:
    """Stored by an older version, and then migrated to this one."""
    stored = fill(request.param)
    call_command("migrate", verbosity=0)
    return stored


def test_everything_is_there_and_shown(filled: Filled) -> None:
    run = Run.objects.get(pk=filled.run)
    client = Client()
    client.force_login(User.objects.get(username="alice"))

    _check_pages(client, run)
    _check_group(client, run)
    _check_steps(run)
    _check_what_was_moved(filled)


def _check_pages(client: Client, run: Run) -> None:
    pages = ["", "/groups", "/completions", "/config", "/logs", "/checkpoints"]
    for page in pages:
        answer = client.get(f"/alpha/runs/{run.pk}{page}", follow=True)
        assert answer.status_code == 200, page
    for page in ["runs", "datasets", "rewards", f"compare?runs={run.pk}"]:
        answer = client.get(f"/alpha/{page}", follow=True)
        assert answer.status_code == 200, page


def _check_group(client: Client, run: Run) -> None:
    """As the page has it, however completions are stored."""
    answer = client.get(f"/alpha/runs/{run.pk}/groups/2/1", follow=True)
    shown = answer.content.decode()
    assert "The answer is 4 ✓ 𝒳" in shown
    assert "&lt;b&gt;more&lt;/b&gt;" in shown
    assert "x" * 5_000 in shown
    assert len(TEXTS) == 4


def _check_steps(run: Run) -> None:
    stored = run.steps.order_by("step").values_list("step", "values")
    assert dict(stored) == VALUES
    assert run.metric_names == NAMES
    for place, name in enumerate(NAMES):
        told = [v[place] for v in VALUES.values() if v[place] is not None]
        summary = MetricSummary.objects.get(run=run, name=name)
        assert (summary.num, summary.last) == (len(told), told[-1])
        assert (summary.low, summary.high) == (min(told), max(told))


def _check_what_was_moved(filled: Filled) -> None:
    notes = RuleNote.objects.filter(run_id=filled.run)
    printed = {note.rule: note.text for note in notes}
    assert printed == (LOGS if filled.prints else {})
    jobs = ImportJob.objects.values_list("pk", flat=True)
    assert list(jobs) == ([filled.first_job] if filled.first_job else [])
    events = Delivery.objects.filter(pk=filled.delivery)
    assert set(events.values_list("event", flat=True)) <= {"test"}
    assert events.exists() == (filled.delivery is not None)
    entry = AuditEntry.objects.get(verb="team.created")
    assert (entry.detail, entry.is_erased) == ({"slug": "alpha"}, False)
    with pytest.raises((InternalError, DatabaseError)), transaction.atomic():
        AuditEntry.objects.update(verb="team.forged")


def test_what_was_counted_otherwise_is_found_anew(fresh_database: None) -> None:
    fill("one click, two imports")

    call_command("migrate", verbosity=0)

    assert not VersionStatistics.objects.exists()


def test_every_migration_that_moves_data_has_a_version_before_it(
    fresh_database: None,
) -> None:
    loader = MigrationLoader(connection)
    moving = {
        key
        for key, migration in loader.graph.nodes.items()
        if key[0] in OURS
        and any(isinstance(one, RunPython | RunSQL) for one in migration.operations)
    }

    assert set(MOVES_DATA) == moving, "Add a version just before it, and what it moves."
    for key, version in MOVES_DATA.items():
        before = loader.project_state(VERSIONS[version])
        later = {
            at for leaf in VERSIONS[version] for at in loader.graph.forwards_plan(leaf)
        }
        assert before.models
        assert key not in later, f"{version} is behind {key}"
