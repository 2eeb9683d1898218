import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import dashboard.datasets.row
from dashboard.project.first_migrations import FirstMigration

# DECISIONS.md, 22. Parts of a block are read, which compression would not allow.
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
VACUUMED = ("samples_group", "samples_groupcompletions", "samples_rulenote")


class Migration(FirstMigration):
    replaces = [
        ("samples", "0001_initial"),
        ("samples", "0002_storage"),
        ("samples", "0003_several_answers"),
        ("samples", "0004_correct_by_answer"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("runs", "0001_squashed"),
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
        migrations.CreateModel(
            name="Group",
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
                ("step", models.PositiveIntegerField()),
                ("prompt_index", models.PositiveIntegerField()),
                ("attempt", models.PositiveIntegerField(db_column="epoch")),
                ("seq", models.BigIntegerField()),
                ("prompt", models.TextField()),
                ("answer", models.TextField(null=True)),
                (
                    "answer_is_list",
                    models.BooleanField(db_default=False, default=False),
                ),
                ("reward_mean", models.FloatField(null=True)),
                ("reward_std", models.FloatField(null=True)),
                ("signal", models.CharField(max_length=10)),
                (
                    "rule_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        default=list,
                        size=None,
                    ),
                ),
                ("is_trained", models.BooleanField(db_default=True, default=True)),
                ("num_notes", models.PositiveIntegerField(db_default=0, default=0)),
                ("superseded_by", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="groups",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["run", "prompt_index", "step"],
                        name="samples_gro_run_id_40b78e_idx",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("superseded_by__isnull", True)),
                        fields=("run", "step", "prompt_index"),
                        name="group_once_in_current_history",
                    )
                ],
            },
            bases=(dashboard.datasets.row.WithAnswer, models.Model),
        ),
        migrations.CreateModel(
            name="Thumb",
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
                ("position", models.PositiveSmallIntegerField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("is_up", models.BooleanField()),
                (
                    "group",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="%(class)ss",
                        to="samples.group",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group", "position", "user"),
                        name="one_thumb_a_person",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Tag",
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
                ("position", models.PositiveSmallIntegerField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("name", models.CharField(max_length=40)),
                (
                    "group",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="%(class)ss",
                        to="samples.group",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("group", "position", "name"),
                        name="tag_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Comment",
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
                ("position", models.PositiveSmallIntegerField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("text", models.TextField()),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="%(class)ss",
                        to="samples.group",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["group", "position"], name="comment_of_group")
                ],
            },
        ),
        migrations.CreateModel(
            name="Mention",
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
                ("seen_at", models.DateTimeField(null=True)),
                (
                    "comment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mentions",
                        to="samples.comment",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mentions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["user", "-id"], name="mention_newest_first"),
                    models.Index(
                        condition=models.Q(("seen_at__isnull", True)),
                        fields=["user"],
                        name="mention_not_seen",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("comment", "user"), name="mentioned_once_a_comment"
                    )
                ],
            },
        ),
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
                (
                    "texts",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), size=None
                    ),
                ),
                ("num_bytes", models.PositiveIntegerField()),
                (
                    "num_tokens",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(null=True), size=None
                    ),
                ),
                (
                    "end_reasons",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=10), size=None
                    ),
                ),
                (
                    "rewards",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                (
                    "advantages",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                (
                    "mean_logprobs",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                (
                    "rule_scores",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="GroupTokens",
            fields=[
                (
                    "group",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="tokens",
                        serialize=False,
                        to="samples.group",
                    ),
                ),
                ("packed", models.BinaryField()),
            ],
        ),
        migrations.CreateModel(
            name="RuleNote",
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
                ("step", models.PositiveIntegerField()),
                ("position", models.PositiveSmallIntegerField()),
                ("rule", models.CharField(max_length=40)),
                ("is_error", models.BooleanField()),
                ("text", models.TextField()),
                (
                    "group",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notes",
                        to="samples.group",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rule_notes",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["run", "-step", "id"], name="note_newest_first"
                    ),
                    models.Index(fields=["group", "position"], name="note_of_group"),
                ],
            },
        ),
        migrations.CreateModel(
            name="StepRollup",
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
                ("step", models.PositiveIntegerField()),
                ("attempt", models.PositiveIntegerField(db_column="epoch")),
                ("groups", models.BinaryField()),
                ("reward_quantiles", models.BinaryField()),
                ("reward_histogram", models.BinaryField()),
                ("advantage_quantiles", models.BinaryField()),
                ("advantage_histogram", models.BinaryField()),
                (
                    "rule_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        default=list,
                        size=None,
                    ),
                ),
                ("rules", models.BinaryField()),
                ("anatomy", models.BinaryField()),
                ("passes", models.BinaryField(db_default=b"", default=b"")),
                ("majorities", models.BinaryField(db_default=b"", default=b"")),
                ("superseded_by", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="step_rollups",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "step", "attempt"), name="rollup_once_a_life"
                    )
                ],
            },
        ),
        migrations.RunSQL(BLOCKS, migrations.RunSQL.noop),
        migrations.RunSQL(GROUPS, migrations.RunSQL.noop),
        migrations.RunSQL(LZ4, migrations.RunSQL.noop),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {name} SET ({VACUUM})", migrations.RunSQL.noop
            )
            for name in VACUUMED
        ),
    ]
