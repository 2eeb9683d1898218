import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

NUMBERS = (
    "num_tokens",
    "end_reasons",
    "rewards",
    "advantages",
    "mean_logprobs",
    "rule_scores",
)
# Numbers stay in the row, compressed; texts go beside it. Measured in decisions/0022.
STORAGE = (
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


def _array(base_field):
    return django.contrib.postgres.fields.ArrayField(base_field=base_field, size=None)


class Migration(migrations.Migration):
    dependencies = [
        ("samples", "0014_values_an_import_lacks"),
    ]

    operations = [
        migrations.CreateModel(
            name="GroupCompletions",
            fields=[
                (
                    "group",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="packed_completions",
                        serialize=False,
                        to="samples.group",
                    ),
                ),
                ("texts", _array(models.TextField())),
                ("num_bytes", models.PositiveIntegerField()),
                ("num_tokens", _array(models.PositiveIntegerField(null=True))),
                ("end_reasons", _array(models.CharField(max_length=10))),
                ("rewards", _array(models.FloatField(null=True))),
                ("advantages", _array(models.FloatField(null=True))),
                ("mean_logprobs", _array(models.FloatField(null=True))),
                ("rule_scores", _array(models.FloatField(null=True))),
            ],
        ),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunSQL(LZ4, migrations.RunSQL.noop),
    ]
