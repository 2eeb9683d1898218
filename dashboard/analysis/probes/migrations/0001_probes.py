import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("accounts", "__first__"),
        ("datasets", "0001_initial"),
        ("rewards", "0001_initial"),
        ("runs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Probe",
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
                ("model_label", models.CharField(max_length=200)),
                ("config", models.JSONField()),
                (
                    "positions",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(), size=None
                    ),
                ),
                ("num_samples", models.PositiveSmallIntegerField()),
                ("is_sample", models.BooleanField(default=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("stopping", "Stopping"),
                            ("finished", "Finished"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("worker", models.CharField(blank=True, max_length=120)),
                ("claim", models.UUIDField(blank=True, null=True)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("phase", models.CharField(blank=True, max_length=20)),
                ("num_done", models.PositiveIntegerField(default=0)),
                ("metrics", models.JSONField(default=dict)),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
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
                    "dataset_version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="probes",
                        to="datasets.datasetversion",
                    ),
                ),
                (
                    "recipe_version",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="probes",
                        to="rewards.recipeversion",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="probes",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["team", "-id"], name="probes_prob_team_id_20d4aa_idx"
                    ),
                    models.Index(
                        condition=models.Q(
                            ("state__in", ["queued", "running", "stopping"])
                        ),
                        fields=["state", "lease_until"],
                        name="probe_open",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state__in", ["running", "stopping"]), _negated=True
                            ),
                            models.Q(
                                ("claim__isnull", False), ("lease_until__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="probe_held_has_lease",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ProbeGroup",
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
                ("completions", models.JSONField()),
                (
                    "probe",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="groups",
                        to="probes.probe",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("probe", "position"), name="probe_group_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Chat",
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
                ("position", models.PositiveIntegerField(blank=True, null=True)),
                ("question", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("stopping", "Stopping"),
                            ("finished", "Finished"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("worker", models.CharField(blank=True, max_length=120)),
                ("claim", models.UUIDField(blank=True, null=True)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("notice", models.TextField(blank=True)),
                ("answers", models.JSONField(default=list)),
                ("error", models.TextField(blank=True)),
                ("seq", models.BigIntegerField(db_default=1, default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "checkpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="chats",
                        to="runs.checkpoint",
                    ),
                ),
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
                    "previous",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="following",
                        to="probes.chat",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="chats",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("state__in", ["queued", "running", "stopping"])
                        ),
                        fields=["state", "id"],
                        name="chat_open",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state__in", ["running", "stopping"]), _negated=True
                            ),
                            models.Q(
                                ("claim__isnull", False), ("lease_until__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="chat_held_has_lease",
                    )
                ],
            },
        ),
    ]
