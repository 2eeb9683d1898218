"""Squashed migrations take over a database that has all those they replace."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from dashboard.accounts.models import Team
from dashboard.project.first_migrations import known_migrations

pytestmark = pytest.mark.django_db


@pytest.fixture
def recorder() -> MigrationRecorder:
    """The applied migrations of a database that the last older version made."""
    call_command("migrate", "runs", "0002", skip_checks=True, verbosity=0)
    recorder = MigrationRecorder(connection)
    for key, replaced in known_migrations().items():
        if replaced:
            recorder.record_unapplied(*key)
    recorder.record_unapplied("runs", "0002_no_column_place")
    return recorder


def migrate_now() -> str:
    output = StringIO()
    call_command("migrate", interactive=False, skip_checks=True, stdout=output)
    return output.getvalue()


def test_a_complete_older_database_is_taken_over(recorder, team):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runs_run ADD COLUMN place bigint")

    reported = migrate_now()

    assert reported.count("Applying ") == 2
    assert "runs.0002_no_column_place" in reported
    assert "runs.0003_boards" in reported
    assert known_migrations().keys() <= recorder.applied_migrations().keys()
    assert "No migrations to apply" in migrate_now()
    assert Team.objects.get() == team
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "runs_run")
    assert "place" not in {column.name for column in columns}


def test_an_incomplete_older_database_is_refused(recorder):
    recorder.record_unapplied("runs", "0007_no_place_in_the_queue")
    applied = recorder.applied_migrations().keys()

    with pytest.raises(CommandError, match=r"lacks runs\.0007_.*d431cc46"):
        migrate_now()

    assert recorder.applied_migrations().keys() == applied
