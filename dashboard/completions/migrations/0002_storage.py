"""How PostgreSQL stores and vacuums completions: DECISIONS.md, 22."""

from django.db import migrations

# Parts of a block are read, which compression would not allow.
READ_IN_PARTS = (
    "prompts",
    "group_ids",
    "group_sizes",
    "rewards",
    "advantages",
    "lengths",
    "kinds",
    "full_scores",
    "no_scores",
    "scores",
    "signatures",
)
BLOCKS = "ALTER TABLE samples_completionblock " + ", ".join(
    f"ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in READ_IN_PARTS
)

# Numbers of a group stay in its row, compressed; texts go beside it.
NUMBERS = (
    "num_tokens",
    "end_reasons",
    "rewards",
    "advantages",
    "mean_logprobs",
    "rule_scores",
)
GROUPS = (
    "ALTER TABLE samples_groupcompletions "
    + ", ".join(f"ALTER COLUMN {name} SET STORAGE MAIN" for name in NUMBERS)
    + "; ALTER TABLE samples_groupcompletions SET (toast_tuple_target = 256)"
)
# Where the server was built with it.
LZ4 = (
    "DO $$ BEGIN IF EXISTS (SELECT FROM pg_settings "  # nosec B608 # names of our own
    "WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)) "
    "THEN ALTER TABLE samples_groupcompletions "
    + ", ".join(
        f"ALTER COLUMN {name} SET COMPRESSION lz4" for name in ("texts", *NUMBERS)
    )
    + "; END IF; END $$"
)

# Rows are added, and go by whole runs; hardly any is changed. So what is vacuumed can
# be frozen at once, and a run's rows are a small part of the table.
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
VACUUMED = ("samples_group", "samples_groupcompletions", "samples_rulenote")


class Migration(migrations.Migration):
    dependencies = [("samples", "0001_initial")]

    operations = [
        migrations.RunSQL(BLOCKS, migrations.RunSQL.noop),
        migrations.RunSQL(GROUPS, migrations.RunSQL.noop),
        migrations.RunSQL(LZ4, migrations.RunSQL.noop),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {name} SET ({VACUUM})",
                f"ALTER TABLE {name} RESET ({VACUUM_NAMES})",
            )
            for name in VACUUMED
        ),
    ]
