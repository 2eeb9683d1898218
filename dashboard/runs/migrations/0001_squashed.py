import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.fields.json
from django.conf import settings
from django.db import migrations, models

import dashboard.runs.models.preferences
from dashboard.project.first_migrations import FirstMigration

# As of the tables of samples: rows are added, and go by whole runs (DECISIONS.md, 22).
VACUUM = """
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_freeze_min_age = 0
"""
VACUUMED = ("runs_runevent", "runs_step")


class Migration(FirstMigration):
    replaces = [
        ("runs", "0001_initial"),
        ("runs", "0002_storage"),
        ("runs", "0003_ingest_lag"),
        ("runs", "0004_applied_step"),
        ("runs", "0005_pinned_metrics"),
        ("runs", "0006_active_at"),
        ("runs", "0007_no_place_in_the_queue"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("datasets", "0001_squashed"),
        ("rewards", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Sweep",
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
                ("name", models.CharField(max_length=80)),
                ("launched_at", models.DateTimeField(auto_now_add=True)),
                (
                    "launched_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="accounts.team"
                    ),
                ),
            ],
            options={
                "db_table": "runs_rungroup",
            },
        ),
        migrations.CreateModel(
            name="Run",
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
                ("name", models.CharField(max_length=80)),
                ("notes", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("starting", "Starting"),
                            ("running", "Running"),
                            ("pausing", "Pausing"),
                            ("paused", "Paused"),
                            ("stopping", "Stopping"),
                            ("finished", "Finished"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                            ("lost", "Lost"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("config", models.JSONField()),
                ("model_label", models.CharField(max_length=200)),
                (
                    "source",
                    models.JSONField(
                        blank=True, db_column="origin", db_default={}, default=dict
                    ),
                ),
                ("fork_step", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "fork_checkpoint",
                    models.CharField(blank=True, db_default="", max_length=120),
                ),
                (
                    "fork_sha256",
                    models.CharField(blank=True, db_default="", max_length=64),
                ),
                ("fork_totals", models.JSONField(blank=True, null=True)),
                ("num_steps", models.PositiveIntegerField()),
                ("attempt", models.PositiveIntegerField(db_column="epoch", default=0)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("worker", models.CharField(blank=True, max_length=120)),
                ("active_at", models.DateTimeField(blank=True, null=True)),
                (
                    "num_losses",
                    models.PositiveSmallIntegerField(db_column="attempt", default=0),
                ),
                ("not_before", models.DateTimeField(blank=True, null=True)),
                ("fail_reason", models.TextField(blank=True)),
                ("pause_reason", models.TextField(blank=True, db_default="")),
                ("stop_reason", models.TextField(blank=True, db_default="")),
                (
                    "priority",
                    models.SmallIntegerField(
                        choices=[(-1, "low"), (0, "normal"), (1, "high")],
                        db_default=0,
                        default=0,
                    ),
                ),
                ("on_hold", models.BooleanField(db_default=False, default=False)),
                ("seq", models.BigIntegerField(default=0)),
                ("ingest_lag", models.FloatField(blank=True, null=True)),
                ("alerts_seq", models.BigIntegerField(db_default=0, default=0)),
                ("last_step", models.PositiveIntegerField(default=0)),
                (
                    "metric_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=120),
                        default=list,
                        size=None,
                    ),
                ),
                ("summary", models.JSONField(default=dict)),
                (
                    "best_by",
                    models.CharField(blank=True, db_default="", max_length=120),
                ),
                (
                    "tags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        db_default=[],
                        default=list,
                        size=None,
                    ),
                ),
                ("locked_at", models.DateTimeField(blank=True, null=True)),
                ("archived_at", models.DateTimeField(blank=True, null=True)),
                ("trashed_at", models.DateTimeField(blank=True, null=True)),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                ("completions_deleted_at", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "archived_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "cloned_from",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="clones",
                        to="runs.run",
                    ),
                ),
                (
                    "dataset_version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "forked_from",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="forks",
                        to="runs.run",
                    ),
                ),
                (
                    "locked_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "recipe_version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="rewards.recipeversion",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="accounts.team",
                    ),
                ),
                (
                    "trashed_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "sweep",
                    models.ForeignKey(
                        blank=True,
                        db_column="group_id",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="runs.sweep",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["team", "-id"], name="runs_run_team_id_ada01c_idx"
                    ),
                    models.Index(
                        condition=models.Q(
                            ("state__in", ["finished", "stopped", "failed"]),
                            _negated=True,
                        ),
                        fields=["state", "lease_until"],
                        name="run_alive",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("finished_at__isnull", True),
                            ("finished_at__gte", models.F("created_at")),
                            _connector="OR",
                        ),
                        name="run_finished_after_created",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                (
                                    "state__in",
                                    ["starting", "running", "pausing", "stopping"],
                                ),
                                _negated=True,
                            ),
                            ("lease_until__isnull", False),
                            _connector="OR",
                        ),
                        name="run_held_has_lease",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                models.Q(("source", {}), _negated=True),
                                ("state", "finished"),
                            ),
                            models.Q(
                                models.Q(("source", {}), _negated=True),
                                ("attempt", 1),
                                ("state", "running"),
                            ),
                            models.Q(
                                ("source__has_key", "kind"),
                                (
                                    "state__in",
                                    [
                                        "running",
                                        "lost",
                                        "finished",
                                        "stopped",
                                        "failed",
                                    ],
                                ),
                            ),
                            models.Q(
                                ("dataset_version__isnull", False),
                                ("recipe_version__isnull", False),
                                ("source", {}),
                            ),
                            _connector="OR",
                        ),
                        name="run_is_launched_or_imported",
                    ),
                    models.UniqueConstraint(
                        models.F("team"),
                        django.db.models.fields.json.KeyTextTransform("key", "source"),
                        condition=models.Q(("source__has_key", "key")),
                        name="run_outside_opened_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("fork_sha256__gt", ""),
                                ("fork_step__gte", 1),
                                ("fork_checkpoint__gt", ""),
                            ),
                            models.Q(
                                ("fork_checkpoint", ""),
                                ("fork_sha256", ""),
                                ("fork_step", None),
                                ("forked_from", None),
                            ),
                            _connector="OR",
                        ),
                        name="run_fork_names_its_checkpoint",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("fork_step", None),
                            ("fork_step__lt", models.F("num_steps")),
                            _connector="OR",
                        ),
                        name="run_fork_has_steps_to_go",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("archived_at", None), ("trashed_at", None)),
                            ("state__in", ["finished", "stopped", "failed"]),
                            _connector="OR",
                        ),
                        name="run_put_away_has_ended",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("trashed_at", None), ("locked_at", None), _connector="OR"
                        ),
                        name="run_locked_is_not_trashed",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Checkpoint",
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
                ("name", models.CharField(max_length=120)),
                ("sha256", models.CharField(max_length=64)),
                ("num_bytes", models.BigIntegerField()),
                ("saved_at", models.DateTimeField()),
                ("superseded_by", models.PositiveIntegerField(blank=True, null=True)),
                ("pinned_at", models.DateTimeField(blank=True, null=True)),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="checkpoints",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "name"), name="checkpoint_name_free"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("pinned_at__isnull", True),
                            ("deleted_at__isnull", True),
                            _connector="OR",
                        ),
                        name="checkpoint_pinned_is_not_deleted",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PublishedModel",
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
                ("name", models.CharField(max_length=80)),
                ("run_name", models.CharField(max_length=80)),
                ("step", models.PositiveIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                ("num_bytes", models.BigIntegerField()),
                ("published_at", models.DateTimeField(auto_now_add=True)),
                (
                    "published_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="published_models",
                        to="accounts.team",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="published_models",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("team", "name"), name="published_model_name_free"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RunAttempt",
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
                ("number", models.PositiveIntegerField()),
                ("worker", models.CharField(max_length=120)),
                ("from_step", models.PositiveIntegerField(default=0)),
                ("claimed_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("outcome", models.CharField(blank=True, max_length=200)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "db_table": "runs_epoch",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "number"), name="epoch_number_free"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RunEvent",
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
                ("seq", models.BigIntegerField()),
                ("attempt", models.PositiveIntegerField(db_column="epoch")),
                ("line", models.PositiveIntegerField()),
                ("type", models.CharField(max_length=20)),
                ("step", models.PositiveIntegerField()),
                ("time", models.DateTimeField()),
                ("body", models.JSONField(default=dict)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "seq"), name="event_seq_free"
                    ),
                    models.UniqueConstraint(
                        fields=("run", "attempt", "line"),
                        name="event_line_ingested_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Step",
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
                ("seq", models.BigIntegerField()),
                ("time", models.DateTimeField()),
                (
                    "values",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                ("superseded_by", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["run", "seq"], name="runs_step_run_id_31de9d_idx"
                    ),
                    models.Index(
                        condition=models.Q(("superseded_by__isnull", False)),
                        fields=["run", "superseded_by", "step"],
                        name="step_superseded",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("superseded_by__isnull", True)),
                        fields=("run", "step"),
                        name="step_once_in_current_history",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
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
                ("bucket", models.PositiveIntegerField()),
                ("last_step", models.PositiveIntegerField()),
                (
                    "lows",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                (
                    "low_steps",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(null=True), size=None
                    ),
                ),
                (
                    "highs",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                (
                    "high_steps",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(null=True), size=None
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rollups",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "bucket"), name="rollup_bucket_free"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EvaluationSet",
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
                ("name", models.CharField(max_length=40)),
                ("max_rows", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "dataset_version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="evaluation_sets",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="evaluation_sets",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "name"), name="evaluation_set_name_free"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_rows__isnull", True),
                            ("max_rows__gt", 0),
                            _connector="OR",
                        ),
                        name="evaluation_set_has_rows",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Evaluation",
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
                ("name", models.CharField(max_length=80)),
                ("attempt", models.PositiveIntegerField(db_column="epoch")),
                ("seq", models.BigIntegerField()),
                ("time", models.DateTimeField()),
                ("metrics", models.JSONField()),
                ("superseded_by", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="evaluations",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("superseded_by__isnull", True)),
                        fields=("run", "step", "name"),
                        name="evaluation_once_in_current_history",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="MetricSummary",
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
                ("name", models.CharField(max_length=120)),
                ("last", models.FloatField()),
                ("last_step", models.PositiveIntegerField()),
                ("low", models.FloatField()),
                ("low_step", models.PositiveIntegerField()),
                ("high", models.FloatField()),
                ("high_step", models.PositiveIntegerField()),
                ("total", models.FloatField()),
                ("num", models.PositiveIntegerField()),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="metric_summaries",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["name"], name="metric_summary_name")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "name"), name="metric_summarized_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("num__gt", 0)),
                        name="metric_summary_has_values",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RunStar",
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
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="stars",
                        to="runs.run",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="run_stars",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("user", "run"), name="run_starred_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
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
                (
                    "code",
                    models.SlugField(
                        default=dashboard.runs.models.preferences.make_code,
                        max_length=16,
                        unique=True,
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                ("query", models.CharField(blank=True, max_length=4000)),
                ("is_shared", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="run_views",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="run_views",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("team", "owner", "name"), name="run_view_name_free"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DefaultView",
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
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.team",
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
                (
                    "view",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="runs.savedview",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("team", "user"), name="one_default_run_view"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SettingChange",
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
                ("number", models.PositiveIntegerField()),
                ("before", models.JSONField()),
                ("after", models.JSONField()),
                ("asked_at", models.DateTimeField(auto_now_add=True)),
                (
                    "applied_step",
                    models.PositiveIntegerField(db_column="heard_step", null=True),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="changes",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "number"), name="setting_change_number_free"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TeamPreset",
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
                ("name", models.CharField(max_length=60)),
                ("config", models.JSONField()),
                ("model", models.TextField(blank=True)),
                ("saved_at", models.DateTimeField(auto_now=True)),
                (
                    "recipe_version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="rewards.recipeversion",
                    ),
                ),
                (
                    "saved_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="accounts.team"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("team", "name"), name="preset_name_free"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ChartSettings",
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
                ("query", models.CharField(max_length=1000)),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="chart_settings",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="PinnedMetrics",
            fields=[
                (
                    "team",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="accounts.team",
                    ),
                ),
                (
                    "names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=130),
                        default=list,
                        size=None,
                    ),
                ),
            ],
        ),
        # A run's rows change with each of its steps: room for that on their own pages.
        migrations.RunSQL(
            "ALTER TABLE runs_metricsummary SET (fillfactor = 60)",
            migrations.RunSQL.noop,
        ),
        *(
            migrations.RunSQL(
                f"ALTER TABLE {name} SET ({VACUUM})", migrations.RunSQL.noop
            )
            for name in VACUUMED
        ),
    ]
