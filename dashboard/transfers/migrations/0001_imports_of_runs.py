import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("accounts", "__first__"),
        ("runs", "0001_initial"),
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
                (
                    "phase",
                    models.CharField(
                        choices=[("read", "Read"), ("make", "Make")],
                        default="read",
                        max_length=10,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("stop_requested", models.BooleanField(default=False)),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("heartbeat", models.DateTimeField(blank=True, null=True)),
                ("queued_at", models.DateTimeField(blank=True, null=True)),
                ("num_read", models.BigIntegerField(default=0)),
                ("num_to_read", models.BigIntegerField(default=0)),
                ("num_stored", models.PositiveIntegerField(default=0)),
                ("num_steps", models.PositiveIntegerField(default=0)),
                ("findings", models.JSONField(blank=True, default=dict)),
                ("choices", models.JSONField(blank=True, default=dict)),
                ("problem", models.TextField(blank=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
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
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "running"), _negated=True),
                            ("heartbeat__isnull", False),
                            _connector="OR",
                        ),
                        name="run_import_running_has_heartbeat",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "queued"), _negated=True),
                            ("queued_at__isnull", False),
                            _connector="OR",
                        ),
                        name="run_import_queued_has_time",
                    ),
                ],
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
