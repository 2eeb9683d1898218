import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import dashboard.alerts.models
from dashboard.project.first_migrations import FirstMigration


class Migration(FirstMigration):
    replaces = [
        ("alerts", "0001_initial"),
        ("alerts", "0002_kinds_of_rules"),
        ("alerts", "0003_warnings_are_rules"),
        ("alerts", "0004_delivery_content_and_result"),
        ("alerts", "0005_names_of_built_in_rules"),
    ]

    initial = True

    dependencies = [
        ("accounts", "0001_squashed"),
        ("runs", "0001_squashed"),
    ]

    operations = [
        migrations.CreateModel(
            name="Rule",
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
                ("built_in", models.CharField(blank=True, max_length=20)),
                ("name", models.CharField(max_length=80)),
                ("metric", models.CharField(blank=True, max_length=120)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("above", "above"),
                            ("below", "below"),
                            ("changes", "changes"),
                            ("missing", "missing"),
                            ("constant", "constant"),
                            ("share_of_first", "share_of_first"),
                            ("times_first", "times_first"),
                            ("times_usual", "times_usual"),
                            ("share_of_usual", "share_of_usual"),
                            ("overfits", "overfits"),
                            ("warned", "warned"),
                        ],
                        max_length=20,
                    ),
                ),
                ("threshold", models.FloatField(blank=True, null=True)),
                ("back", models.PositiveIntegerField(default=1)),
                ("for_steps", models.PositiveIntegerField(blank=True, null=True)),
                ("name_pattern", models.CharField(blank=True, max_length=80)),
                ("is_enabled", models.BooleanField(default=True)),
                ("is_sent", models.BooleanField(default=True)),
                ("pauses_run", models.BooleanField(default=False)),
                ("muted_until", models.DateTimeField(blank=True, null=True)),
                ("revision", models.PositiveIntegerField(default=1)),
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
                    "run",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_rules",
                        to="runs.run",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_rules",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("built_in", ""), _negated=True),
                        fields=("team", "built_in"),
                        name="built_in_rule_once_a_team",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("for_steps__isnull", True),
                            models.Q(("for_steps__gte", 1), ("for_steps__lte", 500)),
                            _connector="OR",
                        ),
                        name="rule_for_steps_in_bounds",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("back__gte", 1), ("back__lte", 500)),
                        name="rule_back_in_bounds",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Alert",
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
                ("code", models.CharField(blank=True, max_length=120)),
                ("metric", models.CharField(blank=True, max_length=120)),
                ("step", models.PositiveIntegerField()),
                ("value", models.FloatField(null=True)),
                ("bound", models.FloatField(null=True)),
                ("read_as", models.JSONField(default=dict)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("firing", "Firing"),
                            ("acknowledged", "Acknowledged"),
                            ("resolved", "Resolved"),
                            ("superseded", "Superseded"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        default="firing",
                        max_length=12,
                    ),
                ),
                ("is_muted", models.BooleanField(default=False)),
                ("has_paused", models.BooleanField(default=False)),
                ("readings", models.JSONField(default=dict)),
                ("groups", models.JSONField(default=list)),
                ("fired_at", models.DateTimeField(auto_now_add=True)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("ended_step", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "acknowledged_by",
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
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alerts",
                        to="runs.run",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="alerts",
                        to="alerts.rule",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["run", "-id"], name="alerts_aler_run_id_a5f1de_idx"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["firing", "acknowledged"])),
                        fields=("run", "rule", "code"),
                        name="alert_open_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["firing", "acknowledged"]),
                            ("ended_at__isnull", False),
                            _connector="OR",
                        ),
                        name="alert_closed_has_end",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MutedRun",
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
                ("until", models.DateTimeField()),
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="muted",
                        to="runs.run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Channel",
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
                        choices=[("email", "E-mail"), ("webhook", "Webhook")],
                        max_length=8,
                    ),
                ),
                ("address", models.CharField(max_length=500)),
                ("nonce", models.UUIDField(default=uuid.uuid4)),
                (
                    "events",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("alert.fired", "An alert fires"),
                                ("run.finished", "A run finishes"),
                                ("run.failed", "A run fails"),
                                ("run.stopped", "A run stops"),
                                ("run.paused", "A run pauses"),
                            ],
                            max_length=20,
                        ),
                        default=dashboard.alerts.models.alerts_alone,
                        size=None,
                    ),
                ),
                ("is_enabled", models.BooleanField(default=True)),
                ("num_failed", models.PositiveSmallIntegerField(default=0)),
                ("gave_up", models.CharField(blank=True, max_length=300)),
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
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_channels",
                        to="accounts.team",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, primary_key=True, serialize=False
                    ),
                ),
                ("event", models.CharField(max_length=20)),
                ("content", models.JSONField(db_column="told", default=dict)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("sent", "Sent"),
                            ("failed", "Failed"),
                        ],
                        default="pending",
                        max_length=8,
                    ),
                ),
                ("num_attempts", models.PositiveSmallIntegerField(default=0)),
                ("not_before", models.DateTimeField()),
                (
                    "result",
                    models.CharField(blank=True, db_column="said", max_length=300),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                (
                    "alert",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="alerts.alert",
                    ),
                ),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="alerts.channel",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "pending")),
                        fields=["not_before"],
                        name="delivery_due",
                    ),
                    models.Index(
                        fields=["channel", "-created_at"],
                        name="alerts_deli_channel_adc991_idx",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("alert__isnull", False),
                                ("event", "alert.fired"),
                                ("run", None),
                            ),
                            models.Q(
                                ("alert", None),
                                ("event__startswith", "run."),
                                ("run__isnull", False),
                            ),
                            models.Q(
                                ("alert", None),
                                ("event__in", ["test", "channel.off"]),
                                ("run", None),
                            ),
                            _connector="OR",
                        ),
                        name="delivery_is_about_its_event",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("alert__isnull", False)),
                        fields=("channel", "alert"),
                        name="alert_sent_once_a_channel",
                    ),
                ],
            },
        ),
    ]
