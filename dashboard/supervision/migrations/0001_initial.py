import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "__first__"),
        ("runs", "0001_initial"),
    ]

    operations = [
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
    ]
