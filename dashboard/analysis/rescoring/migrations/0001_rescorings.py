import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("accounts", "__first__"),
        ("rewards", "0001_initial"),
        ("runs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Rescoring",
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
                ("spec", models.JSONField(blank=True, null=True)),
                ("first_step", models.PositiveIntegerField()),
                ("last_step", models.PositiveIntegerField()),
                ("every", models.PositiveIntegerField()),
                (
                    "steps",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.PositiveIntegerField(), size=None
                    ),
                ),
                ("num_steps_found", models.PositiveIntegerField()),
                ("num_completions", models.PositiveIntegerField()),
                ("num_found", models.PositiveIntegerField()),
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
                ("served_at", models.DateTimeField(blank=True, null=True)),
                ("num_losses", models.PositiveSmallIntegerField(default=0)),
                ("num_done", models.PositiveIntegerField(default=0)),
                ("result", models.JSONField(default=dict)),
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
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rescorings",
                        to="runs.run",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rescorings",
                        to="accounts.team",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["team", "-id"], name="rescoring_r_team_id_676b97_idx"
                    ),
                    models.Index(
                        condition=models.Q(
                            ("state__in", ["queued", "running", "stopping"])
                        ),
                        fields=["state", "lease_until"],
                        name="rescoring_open",
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
                        name="rescoring_held_has_lease",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RescoredStep",
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
                ("num_completions", models.PositiveIntegerField()),
                ("groups", models.BinaryField()),
                ("completions", models.BinaryField()),
                (
                    "rule_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=40),
                        default=list,
                        size=None,
                    ),
                ),
                ("scores", models.BinaryField()),
                ("old_scores", models.BinaryField()),
                ("num_failures", models.PositiveIntegerField(default=0)),
                ("failures", models.JSONField(default=list)),
                ("problem", models.TextField(blank=True)),
                (
                    "rescoring",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scored",
                        to="rescoring.rescoring",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("rescoring", "step"), name="rescored_step_once"
                    )
                ],
            },
        ),
    ]
