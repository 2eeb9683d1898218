from django.db import migrations

# As of the tables of samples: rows are added, and go by whole runs (decisions/0022).
OPTIONS = """
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_freeze_min_age = 0
"""
NAMES = """
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor,
    autovacuum_analyze_scale_factor, autovacuum_freeze_min_age
"""
TABLES = ("runs_runevent", "runs_step")


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0016_deleted_at"),
    ]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {name} SET ({OPTIONS})", f"ALTER TABLE {name} RESET ({NAMES})"
        )
        for name in TABLES
    ]
