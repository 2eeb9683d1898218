from django.db import migrations


class Migration(migrations.Migration):
    """Drops what 0007_no_place_in_the_queue left to the release before it."""

    dependencies = [("runs", "0001_squashed")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE runs_run DROP COLUMN IF EXISTS place", migrations.RunSQL.noop
        )
    ]
