from django.db import migrations

# Rows are added, and go by whole runs; hardly any is changed (decisions/0022). So what
# is vacuumed can be frozen at once, and a run's rows are a small part of the table.
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
TABLES = ("samples_group", "samples_groupcompletions", "samples_rulenote")


class Migration(migrations.Migration):
    dependencies = [
        ("samples", "0018_delete_completion"),
    ]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE {name} SET ({OPTIONS})", f"ALTER TABLE {name} RESET ({NAMES})"
        )
        for name in TABLES
    ]
