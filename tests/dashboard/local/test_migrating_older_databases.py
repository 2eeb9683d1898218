"""Squashed migrations take over a database that has all those they replace."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from dashboard.accounts.models import Team
from dashboard.local.management.commands.migrate import known_migrations

pytestmark = pytest.mark.django_db


@pytest.fixture
def recorder() -> MigrationRecorder:
    """The applied migrations of a database that the last older version made."""
    recorder = MigrationRecorder(connection)
    for key, replaced in known_migrations().items():
        if replaced:
            recorder.record_unapplied(*key)
    return recorder


def migrate_now() -> str:
    output = StringIO()
    call_command("migrate", interactive=False, skip_checks=True, stdout=output)
    return output.getvalue()


def test_a_complete_older_database_is_taken_over(
    recorder: MigrationRecorder, team: Team
) -> None:
    reported = migrate_now()

    assert "No migrations to apply" in reported
    assert known_migrations().keys() <= recorder.applied_migrations().keys()
    assert Team.objects.get() == team


def test_an_incomplete_older_database_is_refused(recorder: MigrationRecorder) -> None:
    recorder.record_unapplied("runs", "0007_no_place_in_the_queue")
    applied = recorder.applied_migrations().keys()

    with pytest.raises(CommandError, match=r"lacks runs\.0007_.*d431cc46"):
        migrate_now()

    assert recorder.applied_migrations().keys() == applied
