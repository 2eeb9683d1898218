import django.db.models.deletion
from django.db import migrations, models

from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("datasets", "0001_squashed"),
    ]

    operations = [
        migrations.CreateModel(
            name="VersionSize",
            fields=[
                (
                    "version",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="size",
                        serialize=False,
                        to="datasets.datasetversion",
                    ),
                ),
                ("num_bytes", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Use",
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
                ("parts", models.JSONField(default=dict)),
                ("measured_at", models.DateTimeField()),
                (
                    "team",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="use",
                        to="accounts.team",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Quota",
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
                ("max_bytes", models.BigIntegerField(blank=True, null=True)),
                ("max_runs", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "team",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="quota",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("max_bytes", None), ("max_bytes__gte", 0), _connector="OR"
                        ),
                        name="quota_bytes_not_negative",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Retention",
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
                ("trash_days", models.PositiveSmallIntegerField(default=30)),
                (
                    "completion_days",
                    models.PositiveSmallIntegerField(blank=True, null=True),
                ),
                (
                    "team",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="retention",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("trash_days__gte", 1), ("trash_days__lte", 30)
                        ),
                        name="retention_trash_days_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("completion_days", None),
                            models.Q(
                                ("completion_days__gte", 1),
                                ("completion_days__lte", 3650),
                            ),
                            _connector="OR",
                        ),
                        name="retention_completion_days_in_range",
                    ),
                ],
            },
        ),
    ]
