import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    replaces = [
        ("training", "0001_initial"),
        ("training", "0002_run_ranks"),
        ("training", "0003_clusters"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("runs", "0001_squashed"),
    ]

    operations = [
        migrations.CreateModel(
            name="Worker",
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
                ("name", models.CharField(max_length=120, unique=True)),
                ("host", models.CharField(max_length=120)),
                ("pid", models.PositiveIntegerField()),
                ("num_slots", models.PositiveSmallIntegerField(default=1)),
                ("hardware", models.JSONField(default=dict)),
                ("use", models.JSONField(blank=True, default=dict)),
                ("notice", models.TextField(blank=True)),
                ("drained_at", models.DateTimeField(blank=True, null=True)),
                ("started_at", models.DateTimeField()),
                ("last_seen", models.DateTimeField()),
                ("stopped_at", models.DateTimeField(blank=True, null=True)),
                (
                    "drained_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["-last_seen"], name="training_wo_last_se_006383_idx"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ReaperWatch",
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
                ("since", models.DateTimeField()),
                ("looked_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="SystemSample",
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
                ("attempt", models.PositiveIntegerField(db_column="epoch")),
                ("time", models.DateTimeField()),
                ("step", models.PositiveIntegerField()),
                (
                    "values",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), size=None
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="system_samples",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["run", "time"], name="training_sy_run_id_7f60b3_idx"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RunRanks",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="ranks",
                        serialize=False,
                        to="runs.run",
                    ),
                ),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("step", models.PositiveIntegerField(default=0)),
                ("measured_at", models.DateTimeField()),
                ("ranks", models.JSONField(default=list)),
                ("work", models.JSONField(default=list)),
            ],
        ),
        migrations.CreateModel(
            name="Cluster",
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
                ("address", models.CharField(max_length=200, unique=True)),
                ("facts", models.JSONField(default=dict)),
                ("read_at", models.DateTimeField(blank=True, null=True)),
                ("worker", models.CharField(blank=True, max_length=120)),
                ("claimed_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="TeamCluster",
            fields=[
                (
                    "team",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="cluster",
                        serialize=False,
                        to="accounts.team",
                    ),
                ),
                ("address", models.CharField(max_length=200)),
            ],
        ),
    ]
