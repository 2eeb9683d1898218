"""How PostgreSQL stores and vacuums the tables that grow with each step."""

from django.db import migrations

# As of the tables of samples: rows are added, and go by whole runs (DECISIONS.md, 22).
VACUUM = """
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_freeze_min_age = 0
"""
VACUUM_NAMES = """
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor,
    autovacuum_analyze_scale_factor, autovacuum_freeze_min_age
"""
VACUUMED = ("runs_runevent", "runs_step")


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [
        # A run's rows change with each of its steps: room for that on their own pages.
        migrations.RunSQL(
            "ALTER TABLE runs_metricsummary SET (fillfactor = 60)",
            "ALTER TABLE runs_metricsummary RESET (fillfactor)",
        ),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {name} SET ({VACUUM})",
                f"ALTER TABLE {name} RESET ({VACUUM_NAMES})",
            )
            for name in VACUUMED
        ),
    ]
