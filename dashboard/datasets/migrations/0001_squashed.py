import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import dashboard.datasets.row
from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    replaces = [
        ("datasets", "0001_initial"),
        ("datasets", "0002_jobs"),
        ("datasets", "0003_state_of_jobs"),
        ("datasets", "0004_generation"),
        ("datasets", "0005_several_answers"),
        ("datasets", "0006_first_prompt_and_answer_type"),
        ("datasets", "0007_describe_versions"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Dataset",
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
                ("description", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("trashed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by",
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
                        related_name="datasets",
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
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("trashed_at__isnull", True)),
                        fields=("team", "name"),
                        name="dataset_name_free",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DatasetVersion",
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
                ("content_sha256", models.CharField(max_length=64)),
                ("num_rows", models.PositiveIntegerField()),
                ("num_left_out", models.PositiveIntegerField(default=0)),
                ("left_out", models.JSONField(blank=True, default=list)),
                (
                    "first_prompt",
                    models.CharField(db_default="", default="", max_length=200),
                ),
                (
                    "answer_type",
                    models.CharField(db_default="", default="", max_length=10),
                ),
                ("mapping", models.JSONField()),
                ("source", models.JSONField(default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "dataset",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="datasets.dataset",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("dataset", "number"), name="dataset_version_number_free"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("num_rows__gt", 0)),
                        name="dataset_version_has_rows",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DatasetRow",
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
                ("position", models.PositiveIntegerField()),
                ("prompt", models.TextField()),
                ("is_chat", models.BooleanField(default=False)),
                ("answer", models.TextField(null=True)),
                (
                    "answer_is_list",
                    models.BooleanField(db_default=False, default=False),
                ),
                ("columns", models.JSONField(default=dict)),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rows",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("version", "position"), name="dataset_row_position_free"
                    )
                ],
            },
            bases=(dashboard.datasets.row.WithAnswer, models.Model),
        ),
        migrations.CreateModel(
            name="RowOrder",
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
                ("key", models.CharField(max_length=220)),
                ("positions", models.BinaryField(default=b"")),
                ("is_made", models.BooleanField(default=False)),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="row_orders",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("version", "key"), name="row_order_made_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Upload",
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
                ("filename", models.CharField(max_length=200)),
                ("stored_name", models.CharField(max_length=80, unique=True)),
                (
                    "format",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("jsonl", "JSONL"),
                            ("json", "JSON"),
                            ("csv", "CSV"),
                            ("tsv", "TSV"),
                            ("parquet", "Parquet"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "packing",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "not packed"),
                            ("gzip", "gzip"),
                            ("zstd", "zstd"),
                        ],
                        default="",
                        max_length=10,
                    ),
                ),
                ("remark", models.CharField(blank=True, max_length=300)),
                ("num_bytes", models.BigIntegerField()),
                ("is_whole", models.BooleanField(default=True)),
                ("fingerprint", models.CharField(blank=True, max_length=64)),
                (
                    "source",
                    models.JSONField(blank=True, db_column="origin", default=dict),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "dataset",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="uploads",
                        to="datasets.dataset",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="uploads",
                        to="accounts.team",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ImportJob",
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
                    "kind",
                    models.CharField(
                        choices=[
                            ("fetch", "Fetch"),
                            ("import", "Import"),
                            ("generate", "Generate"),
                        ],
                        default="import",
                        max_length=10,
                    ),
                ),
                ("positions", models.BinaryField(default=b"")),
                ("source", models.JSONField(blank=True, default=dict)),
                ("key", models.UUIDField(blank=True, null=True, unique=True)),
                ("filename", models.CharField(max_length=200)),
                ("num_to_read", models.BigIntegerField()),
                ("name", models.CharField(blank=True, max_length=80)),
                ("mapping", models.JSONField(blank=True, default=dict)),
                ("leave_out", models.PositiveIntegerField(default=0)),
                ("made_version", models.BooleanField(default=False)),
                ("refusals", models.JSONField(blank=True, default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "dataset",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="datasets.dataset",
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="%(class)s",
                        to="jobs.job",
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="import_jobs",
                        to="accounts.team",
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "upload",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="jobs",
                        to="datasets.upload",
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="VersionStatistics",
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
                ("num_wanted", models.PositiveIntegerField()),
                ("num_looked", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(null=True)),
                ("problem", models.TextField(blank=True)),
                (
                    "version",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="statistics",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="TokenLengths",
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
                ("num_wanted", models.PositiveIntegerField()),
                ("num_looked", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(null=True)),
                ("problem", models.TextField(blank=True)),
                ("model", models.CharField(max_length=500)),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="token_lengths",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("version", "model"), name="token_lengths_found_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="VersionDifference",
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
                ("num_wanted", models.PositiveIntegerField()),
                ("num_looked", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(null=True)),
                ("problem", models.TextField(blank=True)),
                ("removed", models.BinaryField(default=b"")),
                ("added", models.BinaryField(default=b"")),
                ("changed", models.BinaryField(default=b"")),
                (
                    "new",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "old",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("old", "new"), name="version_difference_found_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="VersionLeak",
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
                ("num_wanted", models.PositiveIntegerField()),
                ("num_looked", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(null=True)),
                ("problem", models.TextField(blank=True)),
                ("exact", models.BinaryField(default=b"")),
                ("words", models.BinaryField(default=b"")),
                ("near", models.BinaryField(default=b"")),
                (
                    "held_out",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "trained_on",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("held_out", "trained_on"),
                        name="version_leak_found_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="VersionSplit",
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
                ("num_wanted", models.PositiveIntegerField()),
                ("num_looked", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(null=True)),
                ("problem", models.TextField(blank=True)),
                ("rule", models.JSONField()),
                ("train_name", models.CharField(max_length=80)),
                ("eval_name", models.CharField(max_length=80)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "eval",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "train",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="splits",
                        to="datasets.datasetversion",
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
    ]
