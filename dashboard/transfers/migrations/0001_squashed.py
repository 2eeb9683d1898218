import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    replaces = [
        ("exchange", "0001_imports_of_runs"),
        ("exchange", "0002_jobs"),
        ("exchange", "0003_state_of_jobs"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("jobs", "0001_initial"),
        ("runs", "0001_squashed"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunImport",
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
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("findings", models.JSONField(blank=True, default=dict)),
                ("choices", models.JSONField(blank=True, default=dict)),
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
                    "run",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="runs.run",
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
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="ImportFile",
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
                ("filename", models.CharField(max_length=300)),
                ("stored_name", models.CharField(max_length=40, unique=True)),
                ("num_bytes", models.BigIntegerField()),
                ("fingerprint", models.CharField(blank=True, max_length=64)),
                (
                    "run_import",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="files",
                        to="exchange.runimport",
                    ),
                ),
            ],
        ),
    ]
