import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

# Parts of them are read, which compression would not allow.
PLAIN = (
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
ALTER = "ALTER TABLE samples_completionblock " + ", ".join(
    f"ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in PLAIN
)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0010_fork_totals"),
        ("samples", "0011_group_tokens"),
    ]

    operations = [
        migrations.CreateModel(
            name="CompletionBlock",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("first_step", models.PositiveIntegerField()),
                ("last_step", models.PositiveIntegerField()),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                ("num_completions", models.PositiveIntegerField()),
                ("num_chars", models.BigIntegerField()),
                (
                    "rule_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        default=list,
                        size=None,
                    ),
                ),
                ("steps", models.BinaryField()),
                ("tallies", models.BinaryField()),
                ("prompts", models.BinaryField()),
                ("group_ids", models.BinaryField()),
                ("group_sizes", models.BinaryField()),
                ("rewards", models.BinaryField()),
                ("advantages", models.BinaryField()),
                ("lengths", models.BinaryField()),
                ("kinds", models.BinaryField()),
                ("full_scores", models.BinaryField()),
                ("no_scores", models.BinaryField()),
                ("scores", models.BinaryField()),
                ("num_bits", models.PositiveIntegerField()),
                ("signatures", models.BinaryField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="completion_blocks",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "first_step"), name="block_begins_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("first_step__lte", models.F("last_step"))),
                        name="block_ends_after_it_begins",
                    ),
                ],
            },
        ),
        migrations.RunSQL(ALTER, migrations.RunSQL.noop),
    ]
